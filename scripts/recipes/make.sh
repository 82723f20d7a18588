#!/usr/bin/env bash
# Write the driver of every recipe: what `fairseq-fixed run RECIPE --dry-run` prints. After a change
# to a recipe, or to what its commands are; a test holds the files to the recipes.
#
#   bash scripts/recipes/make.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [ -x .venv/bin/python ]; then PATH=$PWD/.venv/bin:$PATH; fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
for file in configs/recipe/*.yaml; do
    name=$(basename "$file" .yaml)
    [ "$name" != custom ] || continue  # its commands depend on the text: custom.sh
    python -m fairseq_fixed.cli run "$name" --dry-run > "scripts/recipes/$name.sh"
    echo "scripts/recipes/$name.sh"
done
