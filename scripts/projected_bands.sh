#!/usr/bin/env bash
# A run's vanilla model with its encoder's attention projected on bands, not trained again: BLEU and
# chrF by half-width w (the thesis's projection, arXiv 2409.00068), as tab-separated lines.
#
#   bash scripts/projected_bands.sh runs/multi30k_de_en_small [SEED] > bands.tsv
#   MIXES="8xband:3 8xband:3:2" PROJECTIONS=exact bash scripts/projected_bands.sh runs/RECIPE
#
# exact: the softmax runs over all keys and the band is cut out of it; renormalized: it runs inside
# the band. Translations go to RUN/projected; what is there, and newer than the model, stays.
set -euo pipefail
run=$(cd "${1:?give a run: runs/RECIPE}" && pwd)
seed=${2:-1}
clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -x "$clone/.venv/bin/python" ]; then export PATH="$clone/.venv/bin:$PATH"; fi
export PYTHONPATH="$clone${PYTHONPATH:+:$PYTHONPATH}"
cd "$run"
settings=$(python - <<'END'
from pathlib import Path

from fairseq_fixed.experiments.recipe import read

experiment = read(Path())
recipe = experiment.recipe
search = recipe.translate
print(recipe.source, recipe.target, recipe.model.heads, recipe.model.max_positions)
print(search.beam, search.length_penalty, search.max_len_a, search.max_len_b, search.max_tokens)
print(experiment.tokenizer)
END
)
read -r source target heads positions beam penalty ratio more tokens tokenize <<<"${settings//$'\n'/ }"
mixes=${MIXES:-${heads}l ${heads}xband:1 ${heads}xband:2 ${heads}xband:3 ${heads}xband:5 ${heads}xband:10}
checkpoint=systems/vanilla/seed$seed/averaged.pt
[ -f "$checkpoint" ] || { echo "$run has no $checkpoint" >&2; exit 1; }
flags=(--task translation --source-lang "$source" --target-lang "$target" --gen-subset test
    --beam "$beam" --lenpen "$penalty" --max-len-a "$ratio" --max-len-b "$more"
    --max-tokens "$tokens" --max-source-positions "$positions" --max-target-positions "$positions"
    --required-batch-size-multiple 1 --num-workers 0 --skip-invalid-size-inputs-valid-test)

printf 'heads\tprojection\tBLEU\tchrF\n'
for mix in $mixes; do
    for projection in ${PROJECTIONS:-renormalized exact}; do
        if [ "$mix" = "${heads}l" ]; then projection=none; fi
        out=projected/seed$seed.${mix//:/-}.$projection
        if [ ! "$out/hypotheses.txt" -nt "$checkpoint" ]; then
            mkdir -p "$out"
            option=()
            [ "$projection" = none ] || option=(--option "band_projection=$projection")
            python -m fairseq_fixed.cli convert "$checkpoint" --out "$out/model.pt" \
                --encoder-heads "$mix" ${option[@]+"${option[@]}"} >&2
            fairseq-generate data/bin --user-dir "$clone/fairseq_fixed" --path "$out/model.pt" \
                --results-path "$out" "${flags[@]}" >"$out/generate.log" 2>&1
            python -m fairseq_fixed.cli hypotheses "$out/generate-test.txt" --max-positions "$positions" \
                --subwords data/subwords/model.model --source "data/subwords/test.$source" \
                --target "data/subwords/test.$target" --out "$out/hypotheses.part" \
                --info "$out/hypotheses.json" >&2
            mv "$out/hypotheses.part" "$out/hypotheses.txt"
            rm "$out/model.pt"
        fi
        scores=$(sacrebleu "data/raw/test.$target" -i "$out/hypotheses.txt" -m bleu chrf \
            -tok "$tokenize" -b -w 1 |
            tr -d '[]",' | xargs)
        printf '%s\t%s\t%s\t%s\n' "$mix" "$projection" ${scores}
        if [ "$projection" = none ]; then break; fi
    done
done
