#!/usr/bin/env bash
# multi30k_de_en_5k: 5,000 captions of Multi30k, trained until they converge
#
# Its commands one after the other, without this project's runner around them. Made by:
#   fairseq-fixed run multi30k_de_en_5k --dry-run
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

FOLDER=${1:-runs/multi30k_de_en_5k-by-hand}
mkdir -p "$FOLDER"
cd "$FOLDER"
mkdir -p logs

cat > recipe.yaml <<'END_OF_FILE'
name: multi30k_de_en_5k
description: 5,000 captions of Multi30k, trained until they converge
cost: a quarter of an hour on a core for each system and seed
pair: de-en
data:
  kind: archive
  urls:
  - https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.LANG.gz
  - https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/val.LANG.gz
  - https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/test_2016_flickr.LANG.gz
  train:
  - train.LANG
  valid:
  - val.LANG
  test:
  - test_2016_flickr.LANG
  limit: 5k
subwords:
  size: 3000
model:
  layers: 3
  dim: 128
  ffn: 256
  dropout: 0.2
  flags:
    encoder_normalize_before: true
    decoder_normalize_before: true
train:
  max_update: 5000
  patience: 5
  lr: 0.002
  warmup_updates: 400
  save_every: 200
  log_every: 20
seeds:
- 1
- 2
- 3
threads: 1
END_OF_FILE

# options
python -m fairseq_fixed.cli check-options --recipe recipe.yaml \
  --out options.json \
  2>&1 | tee logs/options.log

# download
rm -rf data/download
mkdir -p data/download
python "$DATA/download.py" \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.de.gz \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.en.gz \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/val.de.gz \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/val.en.gz \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/test_2016_flickr.de.gz \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/test_2016_flickr.en.gz \
  --out data/download \
  2>&1 | tee logs/download.log

# unpack
rm -rf data/text
mkdir -p data/text
python -m fairseq_fixed.cli unpack data/download --out data/text \
  --pair de-en --train train.LANG --valid val.LANG --test test_2016_flickr.LANG \
  2>&1 | tee logs/unpack.log

# corpus
rm -rf data/raw
mkdir -p data/raw
python -m fairseq_fixed.cli prepare --out data/raw --pair de-en \
  --limit 5k --train data/text/train.de --train data/text/train.en \
  --valid data/text/valid.de --valid data/text/valid.en --test data/text/test.de \
  --test data/text/test.en --held-out 1000 \
  2>&1 | tee logs/corpus.log

# subwords
rm -rf data/subwords
mkdir -p data/subwords
python -m fairseq_fixed.cli subwords data/raw --pair de-en \
  --size 3000 --type bpe --character-coverage 1 --out data/subwords \
  2>&1 | tee logs/subwords.log

# preprocess
rm -rf data/bin
mkdir -p data/bin
fairseq-preprocess --source-lang de --target-lang en \
  --joined-dictionary --trainpref data/subwords/train \
  --validpref data/subwords/valid --testpref data/subwords/test \
  --destdir data/bin --workers 1 \
  2>&1 | tee logs/preprocess.log

# train.vanilla.seed1
mkdir -p systems/vanilla/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/vanilla/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/vanilla/seed1/checkpoints \
  --max-update 5000 --patience 5 --log logs/train.vanilla.seed1.log || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --save-dir systems/vanilla/seed1/checkpoints \
  --seed 1 --encoder-layers 3 --decoder-layers 3 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.2 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 4096 --update-freq 1 \
  --optimizer adam --lr 0.002 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 5000 \
  --validate-interval-updates 200 --save-interval-updates 200 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 --patience 5 \
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
  --source-lang de --target-lang en --path systems/vanilla/seed1/averaged.pt \
  --gen-subset test --results-path systems/vanilla/seed1 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.vanilla.seed1.log

# hypotheses.vanilla.seed1
mkdir -p systems/vanilla/seed1
python -m fairseq_fixed.cli hypotheses systems/vanilla/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.de \
  --target data/subwords/test.en --max-positions 1024 --out systems/vanilla/seed1/hypotheses.txt \
  --info systems/vanilla/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.vanilla.seed1.log

# score.vanilla.seed1
mkdir -p systems/vanilla/seed1
python -m fairseq_fixed.cli score systems/vanilla/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.de --train data/subwords/train.de \
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
  --max-update 5000 --patience 5 --log logs/train.7f-1l.seed1.log || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --save-dir systems/7f-1l/seed1/checkpoints \
  --seed 1 --encoder-layers 3 --decoder-layers 3 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.2 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 4096 --update-freq 1 \
  --optimizer adam --lr 0.002 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 5000 \
  --validate-interval-updates 200 --save-interval-updates 200 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 --patience 5 \
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
  --source-lang de --target-lang en --path systems/7f-1l/seed1/averaged.pt \
  --gen-subset test --results-path systems/7f-1l/seed1 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.7f-1l.seed1.log

# hypotheses.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli hypotheses systems/7f-1l/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.de \
  --target data/subwords/test.en --max-positions 1024 --out systems/7f-1l/seed1/hypotheses.txt \
  --info systems/7f-1l/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.7f-1l.seed1.log

# score.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli score systems/7f-1l/seed1/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.de --train data/subwords/train.de \
  --out systems/7f-1l/seed1/score.json --statistics systems/7f-1l/seed1/statistics.json \
  --lengths systems/7f-1l/seed1/lengths.json \
  2>&1 | tee logs/score.7f-1l.seed1.log

# result.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 7f-1l --seed 1 \
  2>&1 | tee logs/result.7f-1l.seed1.log

# train.vanilla.seed2
mkdir -p systems/vanilla/seed2/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/vanilla/seed2/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/vanilla/seed2/checkpoints \
  --max-update 5000 --patience 5 --log logs/train.vanilla.seed2.log || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --save-dir systems/vanilla/seed2/checkpoints \
  --seed 2 --encoder-layers 3 --decoder-layers 3 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.2 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 4096 --update-freq 1 \
  --optimizer adam --lr 0.002 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 5000 \
  --validate-interval-updates 200 --save-interval-updates 200 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 --patience 5 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch transformer \
  --tensorboard-logdir systems/vanilla/seed2/tensorboard \
  2>&1 | tee -a logs/train.vanilla.seed2.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.vanilla.seed2
mkdir -p systems/vanilla/seed2
python -m fairseq_fixed.cli average systems/vanilla/seed2/checkpoints \
  --last 5 --out systems/vanilla/seed2/averaged.pt \
  2>&1 | tee logs/average.vanilla.seed2.log

# translate.vanilla.seed2
mkdir -p systems/vanilla/seed2
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --path systems/vanilla/seed2/averaged.pt \
  --gen-subset test --results-path systems/vanilla/seed2 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.vanilla.seed2.log

# hypotheses.vanilla.seed2
mkdir -p systems/vanilla/seed2
python -m fairseq_fixed.cli hypotheses systems/vanilla/seed2/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.de \
  --target data/subwords/test.en --max-positions 1024 --out systems/vanilla/seed2/hypotheses.txt \
  --info systems/vanilla/seed2/hypotheses.json \
  2>&1 | tee logs/hypotheses.vanilla.seed2.log

# score.vanilla.seed2
mkdir -p systems/vanilla/seed2
python -m fairseq_fixed.cli score systems/vanilla/seed2/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.de --train data/subwords/train.de \
  --out systems/vanilla/seed2/score.json --statistics systems/vanilla/seed2/statistics.json \
  --lengths systems/vanilla/seed2/lengths.json \
  2>&1 | tee logs/score.vanilla.seed2.log

# result.vanilla.seed2
mkdir -p systems/vanilla/seed2
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system vanilla --seed 2 \
  2>&1 | tee logs/result.vanilla.seed2.log

# train.7f-1l.seed2
mkdir -p systems/7f-1l/seed2/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/7f-1l/seed2/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/7f-1l/seed2/checkpoints \
  --max-update 5000 --patience 5 --log logs/train.7f-1l.seed2.log || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --save-dir systems/7f-1l/seed2/checkpoints \
  --seed 2 --encoder-layers 3 --decoder-layers 3 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.2 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 4096 --update-freq 1 \
  --optimizer adam --lr 0.002 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 5000 \
  --validate-interval-updates 200 --save-interval-updates 200 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 --patience 5 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 7f+1l --tensorboard-logdir systems/7f-1l/seed2/tensorboard \
  2>&1 | tee -a logs/train.7f-1l.seed2.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.7f-1l.seed2
mkdir -p systems/7f-1l/seed2
python -m fairseq_fixed.cli average systems/7f-1l/seed2/checkpoints \
  --last 5 --out systems/7f-1l/seed2/averaged.pt \
  2>&1 | tee logs/average.7f-1l.seed2.log

# translate.7f-1l.seed2
mkdir -p systems/7f-1l/seed2
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --path systems/7f-1l/seed2/averaged.pt \
  --gen-subset test --results-path systems/7f-1l/seed2 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.7f-1l.seed2.log

# hypotheses.7f-1l.seed2
mkdir -p systems/7f-1l/seed2
python -m fairseq_fixed.cli hypotheses systems/7f-1l/seed2/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.de \
  --target data/subwords/test.en --max-positions 1024 --out systems/7f-1l/seed2/hypotheses.txt \
  --info systems/7f-1l/seed2/hypotheses.json \
  2>&1 | tee logs/hypotheses.7f-1l.seed2.log

# score.7f-1l.seed2
mkdir -p systems/7f-1l/seed2
python -m fairseq_fixed.cli score systems/7f-1l/seed2/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.de --train data/subwords/train.de \
  --out systems/7f-1l/seed2/score.json --statistics systems/7f-1l/seed2/statistics.json \
  --lengths systems/7f-1l/seed2/lengths.json \
  2>&1 | tee logs/score.7f-1l.seed2.log

# result.7f-1l.seed2
mkdir -p systems/7f-1l/seed2
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 7f-1l --seed 2 \
  2>&1 | tee logs/result.7f-1l.seed2.log

# train.vanilla.seed3
mkdir -p systems/vanilla/seed3/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/vanilla/seed3/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/vanilla/seed3/checkpoints \
  --max-update 5000 --patience 5 --log logs/train.vanilla.seed3.log || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --save-dir systems/vanilla/seed3/checkpoints \
  --seed 3 --encoder-layers 3 --decoder-layers 3 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.2 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 4096 --update-freq 1 \
  --optimizer adam --lr 0.002 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 5000 \
  --validate-interval-updates 200 --save-interval-updates 200 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 --patience 5 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch transformer \
  --tensorboard-logdir systems/vanilla/seed3/tensorboard \
  2>&1 | tee -a logs/train.vanilla.seed3.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.vanilla.seed3
mkdir -p systems/vanilla/seed3
python -m fairseq_fixed.cli average systems/vanilla/seed3/checkpoints \
  --last 5 --out systems/vanilla/seed3/averaged.pt \
  2>&1 | tee logs/average.vanilla.seed3.log

# translate.vanilla.seed3
mkdir -p systems/vanilla/seed3
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --path systems/vanilla/seed3/averaged.pt \
  --gen-subset test --results-path systems/vanilla/seed3 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.vanilla.seed3.log

# hypotheses.vanilla.seed3
mkdir -p systems/vanilla/seed3
python -m fairseq_fixed.cli hypotheses systems/vanilla/seed3/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.de \
  --target data/subwords/test.en --max-positions 1024 --out systems/vanilla/seed3/hypotheses.txt \
  --info systems/vanilla/seed3/hypotheses.json \
  2>&1 | tee logs/hypotheses.vanilla.seed3.log

# score.vanilla.seed3
mkdir -p systems/vanilla/seed3
python -m fairseq_fixed.cli score systems/vanilla/seed3/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.de --train data/subwords/train.de \
  --out systems/vanilla/seed3/score.json --statistics systems/vanilla/seed3/statistics.json \
  --lengths systems/vanilla/seed3/lengths.json \
  2>&1 | tee logs/score.vanilla.seed3.log

# result.vanilla.seed3
mkdir -p systems/vanilla/seed3
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system vanilla --seed 3 \
  2>&1 | tee logs/result.vanilla.seed3.log

# train.7f-1l.seed3
mkdir -p systems/7f-1l/seed3/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/7f-1l/seed3/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/7f-1l/seed3/checkpoints \
  --max-update 5000 --patience 5 --log logs/train.7f-1l.seed3.log || left=$?
if [ "$left" = 0 ]; then
fairseq-train data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --save-dir systems/7f-1l/seed3/checkpoints \
  --seed 3 --encoder-layers 3 --decoder-layers 3 \
  --encoder-embed-dim 128 --decoder-embed-dim 128 \
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.2 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --encoder-normalize-before \
  --decoder-normalize-before --max-tokens 4096 --update-freq 1 \
  --optimizer adam --lr 0.002 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 400 --max-update 5000 \
  --validate-interval-updates 200 --save-interval-updates 200 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 20 --patience 5 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  --update-epoch-batch-itr True --arch fixed_transformer \
  --encoder-heads 7f+1l --tensorboard-logdir systems/7f-1l/seed3/tensorboard \
  2>&1 | tee -a logs/train.7f-1l.seed3.log
elif [ "$left" != 3 ]; then exit "$left"; fi

# average.7f-1l.seed3
mkdir -p systems/7f-1l/seed3
python -m fairseq_fixed.cli average systems/7f-1l/seed3/checkpoints \
  --last 5 --out systems/7f-1l/seed3/averaged.pt \
  2>&1 | tee logs/average.7f-1l.seed3.log

# translate.7f-1l.seed3
mkdir -p systems/7f-1l/seed3
fairseq-generate data/bin --user-dir "$PLUGIN" --task translation \
  --source-lang de --target-lang en --path systems/7f-1l/seed3/averaged.pt \
  --gen-subset test --results-path systems/7f-1l/seed3 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.7f-1l.seed3.log

# hypotheses.7f-1l.seed3
mkdir -p systems/7f-1l/seed3
python -m fairseq_fixed.cli hypotheses systems/7f-1l/seed3/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.de \
  --target data/subwords/test.en --max-positions 1024 --out systems/7f-1l/seed3/hypotheses.txt \
  --info systems/7f-1l/seed3/hypotheses.json \
  2>&1 | tee logs/hypotheses.7f-1l.seed3.log

# score.7f-1l.seed3
mkdir -p systems/7f-1l/seed3
python -m fairseq_fixed.cli score systems/7f-1l/seed3/hypotheses.txt \
  --reference data/raw/test.en --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.de --train data/subwords/train.de \
  --out systems/7f-1l/seed3/score.json --statistics systems/7f-1l/seed3/statistics.json \
  --lengths systems/7f-1l/seed3/lengths.json \
  2>&1 | tee logs/score.7f-1l.seed3.log

# result.7f-1l.seed3
mkdir -p systems/7f-1l/seed3
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 7f-1l --seed 3 \
  2>&1 | tee logs/result.7f-1l.seed3.log

# compare
mkdir -p report
python -m fairseq_fixed.cli compare --reference data/raw/test.en \
  --metrics bleu,chrf --tokenize 13a --bootstrap 1000 --trials 10000 \
  --seeds 1,2,3 --baseline systems/vanilla --system systems/7f-1l \
  --out report/significance.json \
  2>&1 | tee logs/compare.log

# report
mkdir -p report
python -m fairseq_fixed.cli write-report --recipe recipe.yaml \
  2>&1 | tee logs/report.log

# The same scores by sacrebleu's own command
sacrebleu data/raw/test.en -tok 13a -m bleu chrf \
  -i systems/vanilla/seed1/hypotheses.txt systems/7f-1l/seed1/hypotheses.txt systems/vanilla/seed2/hypotheses.txt systems/7f-1l/seed2/hypotheses.txt systems/vanilla/seed3/hypotheses.txt systems/7f-1l/seed3/hypotheses.txt
