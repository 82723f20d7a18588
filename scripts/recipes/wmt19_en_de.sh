#!/usr/bin/env bash
# wmt19_en_de: WMT19 news, some 4.5 million sentences; test newstest2019
#
# Its commands one after the other, without this project's runner around them. Made by:
#   fairseq-fixed run wmt19_en_de --dry-run
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

# CPU threads of a command: all, or THREADS.
THREADS=${THREADS:-$(nproc)}
export OMP_NUM_THREADS="$THREADS"
export MKL_NUM_THREADS="$THREADS"
export OPENBLAS_NUM_THREADS="$THREADS"
export PYTHONUNBUFFERED=1
# keep freed memory: see fairseq_fixed/experiments/commands.py
export MALLOC_MMAP_MAX_=0
export MALLOC_TRIM_THRESHOLD_=10000000000
export MALLOC_TOP_PAD_=67108864

# The GPUs of a training: all, or DEVICES. They share the 8 batches of an update.
DEVICES=${DEVICES:-$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')}
if [ $((8 % DEVICES)) != 0 ]; then
  echo "$DEVICES GPUs cannot share 8 batches: set DEVICES" >&2; exit 1
fi

FOLDER=${1:-runs/wmt19_en_de-by-hand}
mkdir -p "$FOLDER"
cd "$FOLDER"
mkdir -p logs

cat > recipe.yaml <<'END_OF_FILE'
name: wmt19_en_de
description: WMT19 news, some 4.5 million sentences; test newstest2019
cost: GPUs; not measured yet
pair: en-de
data:
  kind: archive
  urls:
  - http://www.statmt.org/europarl/v9/training/europarl-v9.de-en.tsv.gz#sha256=c2aef75d81bf06b22e4a9237319c1d53ba9668a13cb155c6b1361182cd3abc84
  - http://data.statmt.org/news-commentary/v14/training/news-commentary-v14.de-en.tsv.gz#sha256=8aaa98a77d38bd39dcbdbcb775f3b6c633700e4c10fd915cf3dc6b9bfd0f2dca
  - http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz#sha256=c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5
  - https://data.statmt.org/wmt19/translation-task/dev.tgz#md5=f2ec7af5947c19e0cacb3882eb208002
  - https://data.statmt.org/wmt19/translation-task/test.tgz#md5=84de7162d158e28403103b01aeefc39a
  train:
  - europarl-v9.de-en.tsv#de,en
  - news-commentary-v14.de-en.tsv#de,en
  - commoncrawl.de-en.LANG
  valid:
  - newstest2018-SOURCETARGET-SIDE.LANG.sgm
  test:
  - newstest2019-SOURCETARGET-SIDE.LANG.sgm
  markup: true
  max_words: 175
  max_ratio: 2.0
subwords:
  size: 32000
  character_coverage: 0.9995
train:
  max_update: 100000
  batch_tokens: 32768
  processes: all
  precision: fp16
  shards: 8
  lr: 0.0007
  save_every: 2000
END_OF_FILE

# options
python -m fairseq_fixed.cli check-options --recipe recipe.yaml \
  --out options.json \
  2>&1 | tee logs/options.log

# download
rm -rf data/download
mkdir -p data/download
python "$DATA/download.py" \
  'http://www.statmt.org/europarl/v9/training/europarl-v9.de-en.tsv.gz#sha256=c2aef75d81bf06b22e4a9237319c1d53ba9668a13cb155c6b1361182cd3abc84' \
  'http://data.statmt.org/news-commentary/v14/training/news-commentary-v14.de-en.tsv.gz#sha256=8aaa98a77d38bd39dcbdbcb775f3b6c633700e4c10fd915cf3dc6b9bfd0f2dca' \
  'http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz#sha256=c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5' \
  'https://data.statmt.org/wmt19/translation-task/dev.tgz#md5=f2ec7af5947c19e0cacb3882eb208002' \
  'https://data.statmt.org/wmt19/translation-task/test.tgz#md5=84de7162d158e28403103b01aeefc39a' \
  --out data/download \
  2>&1 | tee logs/download.log

# unpack
rm -rf data/text
mkdir -p data/text
python -m fairseq_fixed.cli unpack data/download --out data/text \
  --pair en-de --train 'europarl-v9.de-en.tsv#de,en' --train 'news-commentary-v14.de-en.tsv#de,en' \
  --train commoncrawl.de-en.LANG --valid newstest2018-SOURCETARGET-SIDE.LANG.sgm \
  --test newstest2019-SOURCETARGET-SIDE.LANG.sgm --markup \
  2>&1 | tee logs/unpack.log

# corpus
rm -rf data/raw
mkdir -p data/raw
python -m fairseq_fixed.cli prepare --out data/raw --pair en-de \
  --max-words 175 --max-ratio 2 --train data/text/train.en \
  --train data/text/train.de --valid data/text/valid.en --valid data/text/valid.de \
  --test data/text/test.en --test data/text/test.de --held-out 1000 \
  2>&1 | tee logs/corpus.log

# subwords
rm -rf data/subwords
mkdir -p data/subwords
python -m fairseq_fixed.cli subwords data/raw --pair en-de \
  --size 32000 --type bpe --character-coverage 0.9995 --out data/subwords \
  2>&1 | tee logs/subwords.log

# dictionary
rm -rf data/dict
mkdir -p data/dict
fairseq-preprocess --source-lang en --target-lang de \
  --joined-dictionary --trainpref data/subwords/train \
  --dict-only --destdir data/dict --workers 1 \
  2>&1 | tee logs/dictionary.log

# shards
rm -rf data/shards
mkdir -p data/shards
python -m fairseq_fixed.cli shards data/subwords --pair en-de \
  --parts 8 --out data/shards \
  2>&1 | tee logs/shards.log

# preprocess
rm -rf data/bin
mkdir -p data/bin
fairseq-preprocess --source-lang en --target-lang de \
  --joined-dictionary --srcdict data/dict/dict.en.txt \
  --trainpref data/shards/train1 --validpref data/subwords/valid \
  --testpref data/subwords/test --destdir data/bin --workers 1 \
  2>&1 | tee logs/preprocess.log

# preprocess.2
rm -rf data/bin2
mkdir -p data/bin2
fairseq-preprocess --source-lang en --target-lang de \
  --joined-dictionary --srcdict data/dict/dict.en.txt \
  --trainpref data/shards/train2 --destdir data/bin2 --workers 1 \
  2>&1 | tee logs/preprocess.2.log

# preprocess.3
rm -rf data/bin3
mkdir -p data/bin3
fairseq-preprocess --source-lang en --target-lang de \
  --joined-dictionary --srcdict data/dict/dict.en.txt \
  --trainpref data/shards/train3 --destdir data/bin3 --workers 1 \
  2>&1 | tee logs/preprocess.3.log

# preprocess.4
rm -rf data/bin4
mkdir -p data/bin4
fairseq-preprocess --source-lang en --target-lang de \
  --joined-dictionary --srcdict data/dict/dict.en.txt \
  --trainpref data/shards/train4 --destdir data/bin4 --workers 1 \
  2>&1 | tee logs/preprocess.4.log

# preprocess.5
rm -rf data/bin5
mkdir -p data/bin5
fairseq-preprocess --source-lang en --target-lang de \
  --joined-dictionary --srcdict data/dict/dict.en.txt \
  --trainpref data/shards/train5 --destdir data/bin5 --workers 1 \
  2>&1 | tee logs/preprocess.5.log

# preprocess.6
rm -rf data/bin6
mkdir -p data/bin6
fairseq-preprocess --source-lang en --target-lang de \
  --joined-dictionary --srcdict data/dict/dict.en.txt \
  --trainpref data/shards/train6 --destdir data/bin6 --workers 1 \
  2>&1 | tee logs/preprocess.6.log

# preprocess.7
rm -rf data/bin7
mkdir -p data/bin7
fairseq-preprocess --source-lang en --target-lang de \
  --joined-dictionary --srcdict data/dict/dict.en.txt \
  --trainpref data/shards/train7 --destdir data/bin7 --workers 1 \
  2>&1 | tee logs/preprocess.7.log

# preprocess.8
rm -rf data/bin8
mkdir -p data/bin8
fairseq-preprocess --source-lang en --target-lang de \
  --joined-dictionary --srcdict data/dict/dict.en.txt \
  --trainpref data/shards/train8 --destdir data/bin8 --workers 1 \
  2>&1 | tee logs/preprocess.8.log

# train.vanilla.seed1
mkdir -p systems/vanilla/seed1/checkpoints
left=0  # 3: nothing, it has ended
[ -z "$(ls -A systems/vanilla/seed1/checkpoints)" ] || \
  python -m fairseq_fixed.cli mend systems/vanilla/seed1/checkpoints \
  --max-update 100000 || left=$?
if [ "$left" = 0 ]; then
fairseq-train \
  data/bin:data/bin2:data/bin3:data/bin4:data/bin5:data/bin6:data/bin7:data/bin8 \
  --user-dir "$PLUGIN" --task translation --source-lang en \
  --target-lang de --save-dir systems/vanilla/seed1/checkpoints \
  --seed 1 --encoder-layers 6 --decoder-layers 6 \
  --encoder-embed-dim 512 --decoder-embed-dim 512 \
  --encoder-ffn-embed-dim 2048 --decoder-ffn-embed-dim 2048 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --max-tokens 4096 --update-freq "$((8 / DEVICES))" \
  --optimizer adam --lr 0.0007 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 4000 --distributed-world-size "$DEVICES" \
  --ddp-backend legacy_ddp --fp16 --max-update 100000 \
  --validate-interval-updates 2000 --save-interval-updates 2000 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 50 \
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
  --source-lang en --target-lang de --path systems/vanilla/seed1/averaged.pt \
  --gen-subset test --results-path systems/vanilla/seed1 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.vanilla.seed1.log

# hypotheses.vanilla.seed1
mkdir -p systems/vanilla/seed1
python -m fairseq_fixed.cli hypotheses systems/vanilla/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.en \
  --target data/subwords/test.de --max-positions 1024 --out systems/vanilla/seed1/hypotheses.txt \
  --info systems/vanilla/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.vanilla.seed1.log

# score.vanilla.seed1
mkdir -p systems/vanilla/seed1
python -m fairseq_fixed.cli score systems/vanilla/seed1/hypotheses.txt \
  --reference data/raw/test.de --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.en --train data/subwords/train.en \
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
  --max-update 100000 || left=$?
if [ "$left" = 0 ]; then
fairseq-train \
  data/bin:data/bin2:data/bin3:data/bin4:data/bin5:data/bin6:data/bin7:data/bin8 \
  --user-dir "$PLUGIN" --task translation --source-lang en \
  --target-lang de --save-dir systems/7f-1l/seed1/checkpoints \
  --seed 1 --encoder-layers 6 --decoder-layers 6 \
  --encoder-embed-dim 512 --decoder-embed-dim 512 \
  --encoder-ffn-embed-dim 2048 --decoder-ffn-embed-dim 2048 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 \
  --share-all-embeddings --dropout 0.1 --attention-dropout 0 \
  --activation-dropout 0 --max-source-positions 1024 \
  --max-target-positions 1024 --max-tokens 4096 --update-freq "$((8 / DEVICES))" \
  --optimizer adam --lr 0.0007 --lr-scheduler inverse_sqrt \
  --clip-norm 0 --weight-decay 0 --criterion label_smoothed_cross_entropy \
  --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
  --warmup-updates 4000 --distributed-world-size "$DEVICES" \
  --ddp-backend legacy_ddp --fp16 --max-update 100000 \
  --validate-interval-updates 2000 --save-interval-updates 2000 \
  --keep-interval-updates 5 --no-epoch-checkpoints \
  --validate-interval 1000000 --save-interval 1000000 \
  --log-format json --log-interval 50 \
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
  --source-lang en --target-lang de --path systems/7f-1l/seed1/averaged.pt \
  --gen-subset test --results-path systems/7f-1l/seed1 --beam 5 \
  --lenpen 1 --max-len-a 1.5 --max-len-b 20 --max-tokens 8000 \
  --max-source-positions 1024 --max-target-positions 1024 \
  --required-batch-size-multiple 1 --num-workers 0 \
  --skip-invalid-size-inputs-valid-test \
  2>&1 | tee logs/translate.7f-1l.seed1.log

# hypotheses.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli hypotheses systems/7f-1l/seed1/generate-test.txt \
  --subwords data/subwords/model.model --source data/subwords/test.en \
  --target data/subwords/test.de --max-positions 1024 --out systems/7f-1l/seed1/hypotheses.txt \
  --info systems/7f-1l/seed1/hypotheses.json \
  2>&1 | tee logs/hypotheses.7f-1l.seed1.log

# score.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli score systems/7f-1l/seed1/hypotheses.txt \
  --reference data/raw/test.de --metrics bleu,chrf --tokenize 13a \
  --source data/subwords/test.en --train data/subwords/train.en \
  --out systems/7f-1l/seed1/score.json --statistics systems/7f-1l/seed1/statistics.json \
  --lengths systems/7f-1l/seed1/lengths.json \
  2>&1 | tee logs/score.7f-1l.seed1.log

# result.7f-1l.seed1
mkdir -p systems/7f-1l/seed1
python -m fairseq_fixed.cli result --recipe recipe.yaml \
  --system 7f-1l --seed 1 \
  2>&1 | tee logs/result.7f-1l.seed1.log

# compare
mkdir -p report
python -m fairseq_fixed.cli compare --reference data/raw/test.de \
  --metrics bleu,chrf --tokenize 13a --bootstrap 1000 --trials 10000 \
  --seeds 1 --baseline systems/vanilla --system systems/7f-1l \
  --out report/significance.json \
  2>&1 | tee logs/compare.log

# report
mkdir -p report
python -m fairseq_fixed.cli write-report --recipe recipe.yaml \
  2>&1 | tee logs/report.log

# The same scores by sacrebleu's own command
sacrebleu data/raw/test.de -tok 13a -m bleu chrf \
  -i systems/vanilla/seed1/hypotheses.txt systems/7f-1l/seed1/hypotheses.txt
