#!/usr/bin/env bash
# bible_es_en_heads: Every family of heads against a vanilla encoder
#
# Its commands one after the other, without this project's runner around them. Made by:
#   fairseq-fixed run bible_es_en_heads --dry-run
# Run it:
#   bash THIS_FILE [FOLDER]
# Started again, trainings go on from their last checkpoint.
set -euo pipefail

# The python that has fairseq: the clone's around this file, or the one on the PATH.
CLONE=$(cd "$(dirname "${BASH_SOURCE[0]:-.}")/../.." && pwd)
if [ -d "$CLONE/fairseq_fixed" ]; then
  export PYTHONPATH="$CLONE${PYTHONPATH:+:$PYTHONPATH}"
fi
if [ -x "$CLONE/.venv/bin/python" ]; then export PATH="$CLONE/.venv/bin:$PATH"; fi
PLUGIN=$(python -c 'from fairseq_fixed.experiments import resources as r; print(r.plugin_folder())')
DATA=$(python -c 'from fairseq_fixed.experiments import resources as r; print(r.data_folder())')

# CPU threads of a command: 1, as the recipe says, or THREADS.
THREADS=${THREADS:-1}
export OMP_NUM_THREADS="$THREADS"
export MKL_NUM_THREADS="$THREADS"
export OPENBLAS_NUM_THREADS="$THREADS"
export PYTHONUNBUFFERED=1
# keep freed memory: see fairseq_fixed/experiments/commands.py
export MALLOC_MMAP_MAX_=0
export MALLOC_TRIM_THRESHOLD_=10000000000
export MALLOC_TOP_PAD_=67108864

# one GPU: fairseq would take all that it sees, and a larger batch with them
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}

FOLDER=${1:-runs/bible_es_en_heads-by-hand}
mkdir -p "$FOLDER"
cd "$FOLDER"
mkdir -p logs

cat > recipe.yaml <<'END_OF_FILE'
name: bible_es_en_heads
description: Every family of heads against a vanilla encoder
cost: an hour on 2 cores
pair: es-en
data:
  kind: sword
subwords:
  size: 2000
model:
  layers: 2
  dim: 128
  ffn: 256
  flags:
    encoder_normalize_before: true
    decoder_normalize_before: true
train:
  max_update: 1600
  max_tokens: 2048
  lr: 0.005
  warmup_updates: 400
  save_every: 100
  log_every: 20
systems:
- vanilla
- 7f+1l
- 8f
- 7fw+1l
- name: 1l
  heads: 1l
  encoder_attention_heads: 1
- name: 8l + TISA, no encoder positions
  heads: 8l
  tisa_kernels: 5
  no_encoder_positional_embeddings: true
- name: 7f+1l + TISA
  heads: 7f+1l
  tisa_kernels: 5
- 8xband:3
- 8xband:3:2
- 2xcurrent+3xsyntactic:3+3xrare:2:3
- 4xgaussian:-1:1+4xgaussian:1:1
threads: 1
END_OF_FILE

# options
python -m fairseq_fixed.cli check-options --recipe recipe.yaml \
  --out options.json \
  2>&1 | tee logs/options.log

# corpus
rm -rf data/raw
mkdir -p data/raw
python "$DATA/sword.py" --out data/raw --pair es-en \
  --max-words 30 \
  2>&1 | tee logs/corpus.log

# subwords
rm -rf data/subwords
mkdir -p data/subwords
python -m fairseq_fixed.cli subwords data/raw --pair es-en \
  --size 2000 --type bpe --character-coverage 1 --out data/subwords \
  2>&1 | tee logs/subwords.log

# preprocess
rm -rf data/bin
mkdir -p data/bin
fairseq-preprocess --source-lang es --target-lang en \
  --joined-dictionary --trainpref data/subwords/train \
  --validpref data/subwords/valid --testpref data/subwords/test \
  --destdir data/bin --workers 1 \
  2>&1 | tee logs/preprocess.log

# train.vanilla.seed1
mkdir -p systems/vanilla/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/vanilla/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/vanilla/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/vanilla/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch transformer \
  --tensorboard-logdir systems/vanilla/seed1/tensorboard \
  2>&1 | tee -a logs/train.vanilla.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.vanilla.seed1
mkdir -p systems/vanilla/seed1
python -m fairseq_fixed.cli average systems/vanilla/seed1/checkpoints \
  --last 5 --out systems/vanilla/seed1/averaged.pt \
  2>&1 | tee logs/average.vanilla.seed1.log

# translate.vanilla.seed1
mkdir -p systems/vanilla/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/vanilla/seed1/averaged.pt \
  --gen-subset test --results-path systems/vanilla/seed1 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.vanilla.seed1.log

# hypotheses.vanilla.seed1
mkdir -p systems/vanilla/seed1
python -m fairseq_fixed.cli hypotheses systems/vanilla/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out systems/vanilla/seed1/hypotheses.txt \
  --info systems/vanilla/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.vanilla.seed1.log

# score.vanilla.seed1
mkdir -p systems/vanilla/seed1
python -m fairseq_fixed.cli score systems/vanilla/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/vanilla/seed1/score.json --statistics systems/vanilla/seed1/statistics.json \
  --lengths systems/vanilla/seed1/lengths.json \
  2>&1 | tee logs/score.vanilla.seed1.log

# result.vanilla.seed1
mkdir -p systems/vanilla/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system vanilla --seed 1 \
  2>&1 | tee logs/result.vanilla.seed1.log

# train.7f-1l.seed1
mkdir -p systems/7f-1l/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/7f-1l/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/7f-1l/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/7f-1l/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 7f+1l --tensorboard-logdir systems/7f-1l/seed1/tensorboard \
  2>&1 | tee -a logs/train.7f-1l.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli average systems/7f-1l/seed1/checkpoints \
  --last 5 --out systems/7f-1l/seed1/averaged.pt \
  2>&1 | tee logs/average.7f-1l.seed1.log

# translate.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/7f-1l/seed1/averaged.pt \
  --gen-subset test --results-path systems/7f-1l/seed1 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.7f-1l.seed1.log

# hypotheses.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli hypotheses systems/7f-1l/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out systems/7f-1l/seed1/hypotheses.txt \
  --info systems/7f-1l/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.7f-1l.seed1.log

# score.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli score systems/7f-1l/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/7f-1l/seed1/score.json --statistics systems/7f-1l/seed1/statistics.json \
  --lengths systems/7f-1l/seed1/lengths.json \
  2>&1 | tee logs/score.7f-1l.seed1.log

# result.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 7f-1l --seed 1 \
  2>&1 | tee logs/result.7f-1l.seed1.log

# train.8f.seed1
mkdir -p systems/8f/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/8f/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/8f/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/8f/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 8f --tensorboard-logdir systems/8f/seed1/tensorboard \
  2>&1 | tee -a logs/train.8f.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.8f.seed1
mkdir -p systems/8f/seed1
python -m fairseq_fixed.cli average systems/8f/seed1/checkpoints \
  --last 5 --out systems/8f/seed1/averaged.pt \
  2>&1 | tee logs/average.8f.seed1.log

# translate.8f.seed1
mkdir -p systems/8f/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/8f/seed1/averaged.pt \
  --gen-subset test --results-path systems/8f/seed1 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.8f.seed1.log

# hypotheses.8f.seed1
mkdir -p systems/8f/seed1
python -m fairseq_fixed.cli hypotheses systems/8f/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out systems/8f/seed1/hypotheses.txt \
  --info systems/8f/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.8f.seed1.log

# score.8f.seed1
mkdir -p systems/8f/seed1
python -m fairseq_fixed.cli score systems/8f/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/8f/seed1/score.json --statistics systems/8f/seed1/statistics.json \
  --lengths systems/8f/seed1/lengths.json \
  2>&1 | tee logs/score.8f.seed1.log

# result.8f.seed1
mkdir -p systems/8f/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 8f --seed 1 \
  2>&1 | tee logs/result.8f.seed1.log

# train.7fw-1l.seed1
mkdir -p systems/7fw-1l/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/7fw-1l/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/7fw-1l/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/7fw-1l/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 7fw+1l --tensorboard-logdir systems/7fw-1l/seed1/tensorboard \
  2>&1 | tee -a logs/train.7fw-1l.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.7fw-1l.seed1
mkdir -p systems/7fw-1l/seed1
python -m fairseq_fixed.cli average systems/7fw-1l/seed1/checkpoints \
  --last 5 --out systems/7fw-1l/seed1/averaged.pt \
  2>&1 | tee logs/average.7fw-1l.seed1.log

# translate.7fw-1l.seed1
mkdir -p systems/7fw-1l/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/7fw-1l/seed1/averaged.pt \
  --gen-subset test --results-path systems/7fw-1l/seed1 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.7fw-1l.seed1.log

# hypotheses.7fw-1l.seed1
mkdir -p systems/7fw-1l/seed1
python -m fairseq_fixed.cli hypotheses systems/7fw-1l/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out systems/7fw-1l/seed1/hypotheses.txt \
  --info systems/7fw-1l/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.7fw-1l.seed1.log

# score.7fw-1l.seed1
mkdir -p systems/7fw-1l/seed1
python -m fairseq_fixed.cli score systems/7fw-1l/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/7fw-1l/seed1/score.json --statistics systems/7fw-1l/seed1/statistics.json \
  --lengths systems/7fw-1l/seed1/lengths.json \
  2>&1 | tee logs/score.7fw-1l.seed1.log

# result.7fw-1l.seed1
mkdir -p systems/7fw-1l/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 7fw-1l --seed 1 \
  2>&1 | tee logs/result.7fw-1l.seed1.log

# train.1l.seed1
mkdir -p systems/1l/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/1l/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/1l/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/1l/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 1l --encoder-attention-heads 1 \
  --tensorboard-logdir systems/1l/seed1/tensorboard \
  2>&1 | tee -a logs/train.1l.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.1l.seed1
mkdir -p systems/1l/seed1
python -m fairseq_fixed.cli average systems/1l/seed1/checkpoints \
  --last 5 --out systems/1l/seed1/averaged.pt \
  2>&1 | tee logs/average.1l.seed1.log

# translate.1l.seed1
mkdir -p systems/1l/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/1l/seed1/averaged.pt \
  --gen-subset test --results-path systems/1l/seed1 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.1l.seed1.log

# hypotheses.1l.seed1
mkdir -p systems/1l/seed1
python -m fairseq_fixed.cli hypotheses systems/1l/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out systems/1l/seed1/hypotheses.txt \
  --info systems/1l/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.1l.seed1.log

# score.1l.seed1
mkdir -p systems/1l/seed1
python -m fairseq_fixed.cli score systems/1l/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/1l/seed1/score.json --statistics systems/1l/seed1/statistics.json \
  --lengths systems/1l/seed1/lengths.json \
  2>&1 | tee logs/score.1l.seed1.log

# result.1l.seed1
mkdir -p systems/1l/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 1l --seed 1 \
  2>&1 | tee logs/result.1l.seed1.log

# train.8l-TISA-no-encoder-positions.seed1
mkdir -p systems/8l-TISA-no-encoder-positions/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/8l-TISA-no-encoder-positions/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/8l-TISA-no-encoder-positions/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/8l-TISA-no-encoder-positions/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 8l --tisa-kernels 5 \
  --no-encoder-positional-embeddings --tensorboard-logdir systems/8l-TISA-no-encoder-positions/seed1/tensorboard \
  2>&1 | tee -a logs/train.8l-TISA-no-encoder-positions.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.8l-TISA-no-encoder-positions.seed1
mkdir -p systems/8l-TISA-no-encoder-positions/seed1
python -m fairseq_fixed.cli average systems/8l-TISA-no-encoder-positions/seed1/checkpoints \
  --last 5 --out systems/8l-TISA-no-encoder-positions/seed1/averaged.pt \
  2>&1 | tee logs/average.8l-TISA-no-encoder-positions.seed1.log

# translate.8l-TISA-no-encoder-positions.seed1
mkdir -p systems/8l-TISA-no-encoder-positions/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/8l-TISA-no-encoder-positions/seed1/averaged.pt \
  --gen-subset test --results-path systems/8l-TISA-no-encoder-positions/seed1 \
  --beam 5 --lenpen 1 --max-len-a 1.5 --max-len-b 20 \
  --max-tokens 8000 --max-source-positions 1024 \
  --max-target-positions 1024 --required-batch-size-multiple 1 \
  --num-workers 0 --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.8l-TISA-no-encoder-positions.seed1.log

# hypotheses.8l-TISA-no-encoder-positions.seed1
mkdir -p systems/8l-TISA-no-encoder-positions/seed1
python -m fairseq_fixed.cli hypotheses systems/8l-TISA-no-encoder-positions/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out systems/8l-TISA-no-encoder-positions/seed1/hypotheses.txt \
  --info systems/8l-TISA-no-encoder-positions/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.8l-TISA-no-encoder-positions.seed1.log

# score.8l-TISA-no-encoder-positions.seed1
mkdir -p systems/8l-TISA-no-encoder-positions/seed1
python -m fairseq_fixed.cli score systems/8l-TISA-no-encoder-positions/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/8l-TISA-no-encoder-positions/seed1/score.json \
  --statistics systems/8l-TISA-no-encoder-positions/seed1/statistics.json \
  --lengths systems/8l-TISA-no-encoder-positions/seed1/lengths.json \
  2>&1 | tee logs/score.8l-TISA-no-encoder-positions.seed1.log

# result.8l-TISA-no-encoder-positions.seed1
mkdir -p systems/8l-TISA-no-encoder-positions/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 8l-TISA-no-encoder-positions --seed 1 \
  2>&1 | tee logs/result.8l-TISA-no-encoder-positions.seed1.log

# train.7f-1l-TISA.seed1
mkdir -p systems/7f-1l-TISA/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/7f-1l-TISA/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/7f-1l-TISA/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/7f-1l-TISA/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 7f+1l --tisa-kernels 5 --tensorboard-logdir systems/7f-1l-TISA/seed1/tensorboard \
  2>&1 | tee -a logs/train.7f-1l-TISA.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.7f-1l-TISA.seed1
mkdir -p systems/7f-1l-TISA/seed1
python -m fairseq_fixed.cli average systems/7f-1l-TISA/seed1/checkpoints \
  --last 5 --out systems/7f-1l-TISA/seed1/averaged.pt \
  2>&1 | tee logs/average.7f-1l-TISA.seed1.log

# translate.7f-1l-TISA.seed1
mkdir -p systems/7f-1l-TISA/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/7f-1l-TISA/seed1/averaged.pt \
  --gen-subset test --results-path systems/7f-1l-TISA/seed1 \
  --beam 5 --lenpen 1 --max-len-a 1.5 --max-len-b 20 \
  --max-tokens 8000 --max-source-positions 1024 \
  --max-target-positions 1024 --required-batch-size-multiple 1 \
  --num-workers 0 --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.7f-1l-TISA.seed1.log

# hypotheses.7f-1l-TISA.seed1
mkdir -p systems/7f-1l-TISA/seed1
python -m fairseq_fixed.cli hypotheses systems/7f-1l-TISA/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out systems/7f-1l-TISA/seed1/hypotheses.txt \
  --info systems/7f-1l-TISA/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.7f-1l-TISA.seed1.log

# score.7f-1l-TISA.seed1
mkdir -p systems/7f-1l-TISA/seed1
python -m fairseq_fixed.cli score systems/7f-1l-TISA/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/7f-1l-TISA/seed1/score.json --statistics systems/7f-1l-TISA/seed1/statistics.json \
  --lengths systems/7f-1l-TISA/seed1/lengths.json \
  2>&1 | tee logs/score.7f-1l-TISA.seed1.log

# result.7f-1l-TISA.seed1
mkdir -p systems/7f-1l-TISA/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 7f-1l-TISA --seed 1 \
  2>&1 | tee logs/result.7f-1l-TISA.seed1.log

# train.8xband-3.seed1
mkdir -p systems/8xband-3/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/8xband-3/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/8xband-3/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/8xband-3/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 8xband:3 --tensorboard-logdir systems/8xband-3/seed1/tensorboard \
  2>&1 | tee -a logs/train.8xband-3.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.8xband-3.seed1
mkdir -p systems/8xband-3/seed1
python -m fairseq_fixed.cli average systems/8xband-3/seed1/checkpoints \
  --last 5 --out systems/8xband-3/seed1/averaged.pt \
  2>&1 | tee logs/average.8xband-3.seed1.log

# translate.8xband-3.seed1
mkdir -p systems/8xband-3/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/8xband-3/seed1/averaged.pt \
  --gen-subset test --results-path systems/8xband-3/seed1 \
  --beam 5 --lenpen 1 --max-len-a 1.5 --max-len-b 20 \
  --max-tokens 8000 --max-source-positions 1024 \
  --max-target-positions 1024 --required-batch-size-multiple 1 \
  --num-workers 0 --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.8xband-3.seed1.log

# hypotheses.8xband-3.seed1
mkdir -p systems/8xband-3/seed1
python -m fairseq_fixed.cli hypotheses systems/8xband-3/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out systems/8xband-3/seed1/hypotheses.txt \
  --info systems/8xband-3/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.8xband-3.seed1.log

# score.8xband-3.seed1
mkdir -p systems/8xband-3/seed1
python -m fairseq_fixed.cli score systems/8xband-3/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/8xband-3/seed1/score.json --statistics systems/8xband-3/seed1/statistics.json \
  --lengths systems/8xband-3/seed1/lengths.json \
  2>&1 | tee logs/score.8xband-3.seed1.log

# result.8xband-3.seed1
mkdir -p systems/8xband-3/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 8xband-3 --seed 1 \
  2>&1 | tee logs/result.8xband-3.seed1.log

# train.8xband-3-2.seed1
mkdir -p systems/8xband-3-2/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/8xband-3-2/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/8xband-3-2/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/8xband-3-2/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 8xband:3:2 --tensorboard-logdir systems/8xband-3-2/seed1/tensorboard \
  2>&1 | tee -a logs/train.8xband-3-2.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.8xband-3-2.seed1
mkdir -p systems/8xband-3-2/seed1
python -m fairseq_fixed.cli average systems/8xband-3-2/seed1/checkpoints \
  --last 5 --out systems/8xband-3-2/seed1/averaged.pt \
  2>&1 | tee logs/average.8xband-3-2.seed1.log

# translate.8xband-3-2.seed1
mkdir -p systems/8xband-3-2/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/8xband-3-2/seed1/averaged.pt \
  --gen-subset test --results-path systems/8xband-3-2/seed1 \
  --beam 5 --lenpen 1 --max-len-a 1.5 --max-len-b 20 \
  --max-tokens 8000 --max-source-positions 1024 \
  --max-target-positions 1024 --required-batch-size-multiple 1 \
  --num-workers 0 --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.8xband-3-2.seed1.log

# hypotheses.8xband-3-2.seed1
mkdir -p systems/8xband-3-2/seed1
python -m fairseq_fixed.cli hypotheses systems/8xband-3-2/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out systems/8xband-3-2/seed1/hypotheses.txt \
  --info systems/8xband-3-2/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.8xband-3-2.seed1.log

# score.8xband-3-2.seed1
mkdir -p systems/8xband-3-2/seed1
python -m fairseq_fixed.cli score systems/8xband-3-2/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/8xband-3-2/seed1/score.json --statistics systems/8xband-3-2/seed1/statistics.json \
  --lengths systems/8xband-3-2/seed1/lengths.json \
  2>&1 | tee logs/score.8xband-3-2.seed1.log

# result.8xband-3-2.seed1
mkdir -p systems/8xband-3-2/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 8xband-3-2 --seed 1 \
  2>&1 | tee logs/result.8xband-3-2.seed1.log

# train.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1
mkdir -p systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 2xcurrent+3xsyntactic:3+3xrare:2:3 \
  --tensorboard-logdir systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/tensorboard \
  2>&1 | tee -a logs/train.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1
mkdir -p systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1
python -m fairseq_fixed.cli average systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/checkpoints \
  --last 5 --out systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/averaged.pt \
  2>&1 | tee logs/average.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1.log

# translate.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1
mkdir -p systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/averaged.pt \
  --gen-subset test --results-path systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1 \
  --beam 5 --lenpen 1 --max-len-a 1.5 --max-len-b 20 \
  --max-tokens 8000 --max-source-positions 1024 \
  --max-target-positions 1024 --required-batch-size-multiple 1 \
  --num-workers 0 --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1.log

# hypotheses.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1
mkdir -p systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1
python -m fairseq_fixed.cli hypotheses \
  systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out \
  systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/hypotheses.txt \
  --info \
  systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1.log

# score.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1
mkdir -p systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1
python -m fairseq_fixed.cli score \
  systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/score.json \
  --statistics \
  systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/statistics.json \
  --lengths \
  systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/lengths.json \
  2>&1 | tee logs/score.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1.log

# result.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1
mkdir -p systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 2xcurrent-3xsyntactic-3-3xrare-2-3 --seed 1 \
  2>&1 | tee logs/result.2xcurrent-3xsyntactic-3-3xrare-2-3.seed1.log

# train.4xgaussian-minus1-1-4xgaussian-1-1.seed1
mkdir -p systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/checkpoints \
  --max-update 1600 || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --save-dir systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/checkpoints \
  --seed 1 --encoder-layers 2 --decoder-layers 2 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 2048 --update-freq 1 \
  --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 1600 \
  --validate-interval-updates 100 --save-interval-updates 100 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 4xgaussian:-1:1+4xgaussian:1:1 \
  --tensorboard-logdir systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/tensorboard \
  2>&1 | tee -a logs/train.4xgaussian-minus1-1-4xgaussian-1-1.seed1.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.4xgaussian-minus1-1-4xgaussian-1-1.seed1
mkdir -p systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1
python -m fairseq_fixed.cli average systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/checkpoints \
  --last 5 --out systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/averaged.pt \
  2>&1 | tee logs/average.4xgaussian-minus1-1-4xgaussian-1-1.seed1.log

# translate.4xgaussian-minus1-1-4xgaussian-1-1.seed1
mkdir -p systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang es --target-lang en --path systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/averaged.pt \
  --gen-subset test --results-path systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1 \
  --beam 5 --lenpen 1 --max-len-a 1.5 --max-len-b 20 \
  --max-tokens 8000 --max-source-positions 1024 \
  --max-target-positions 1024 --required-batch-size-multiple 1 \
  --num-workers 0 --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.4xgaussian-minus1-1-4xgaussian-1-1.seed1.log

# hypotheses.4xgaussian-minus1-1-4xgaussian-1-1.seed1
mkdir -p systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1
python -m fairseq_fixed.cli hypotheses \
  systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.es \
  --target data/subwords/test.en --max-positions 1024 --out \
  systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/hypotheses.txt \
  --info \
  systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.4xgaussian-minus1-1-4xgaussian-1-1.seed1.log

# score.4xgaussian-minus1-1-4xgaussian-1-1.seed1
mkdir -p systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1
python -m fairseq_fixed.cli score \
  systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.es --train data/subwords/train.es \
  --out systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/score.json \
  --statistics \
  systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/statistics.json \
  --lengths \
  systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/lengths.json \
  2>&1 | tee logs/score.4xgaussian-minus1-1-4xgaussian-1-1.seed1.log

# result.4xgaussian-minus1-1-4xgaussian-1-1.seed1
mkdir -p systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 4xgaussian-minus1-1-4xgaussian-1-1 --seed 1 \
  2>&1 | tee logs/result.4xgaussian-minus1-1-4xgaussian-1-1.seed1.log

# compare
mkdir -p report
python -m fairseq_fixed.cli compare --reference data/raw/test.en \
  --metrics bleu,chrf --tokenize 13a --bootstrap 1000 --trials 10000 \
  --seeds 1 --baseline systems/vanilla --system systems/7f-1l \
  --system systems/8f --system systems/7fw-1l --system systems/1l \
  --system systems/8l-TISA-no-encoder-positions --system systems/7f-1l-TISA \
  --system systems/8xband-3 --system systems/8xband-3-2 \
  --system systems/2xcurrent-3xsyntactic-3-3xrare-2-3 --system systems/4xgaussian-minus1-1-4xgaussian-1-1 \
  --out report/significance.json \
  2>&1 | tee logs/compare.log

# report
mkdir -p report
python -m fairseq_fixed.cli write-report --recipe recipe.yaml \
  2>&1 | tee logs/report.log

# The same scores by sacrebleu's own command
sacrebleu data/raw/test.en -tok 13a -m bleu chrf \
  -i systems/vanilla/seed1/hypotheses.txt systems/7f-1l/seed1/hypotheses.txt systems/8f/seed1/hypotheses.txt systems/7fw-1l/seed1/hypotheses.txt systems/1l/seed1/hypotheses.txt systems/8l-TISA-no-encoder-positions/seed1/hypotheses.txt systems/7f-1l-TISA/seed1/hypotheses.txt systems/8xband-3/seed1/hypotheses.txt systems/8xband-3-2/seed1/hypotheses.txt systems/2xcurrent-3xsyntactic-3-3xrare-2-3/seed1/hypotheses.txt systems/4xgaussian-minus1-1-4xgaussian-1-1/seed1/hypotheses.txt
