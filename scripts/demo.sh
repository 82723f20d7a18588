#!/usr/bin/env bash
# From a fresh clone to a scored comparison of a vanilla transformer with one whose encoder has
# seven fixed heads and one learned head: Spanish to English, on 2 CPU cores. Run again, it resumes.
#
#   bash scripts/demo.sh                      # runs/bible_es_en
#   bash scripts/demo.sh seeds=[1,2,3]        # any key of the recipe
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/bootstrap.sh
exec .venv/bin/fairseq-fixed run bible_es_en "$@"
