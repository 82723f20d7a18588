#!/usr/bin/env bash
# custom: one's own text. Its commands depend on the text, so they are made first, then run:
#
#   bash scripts/recipes/custom.sh pair=de-en data.train=[train.de,train.en]
#
# FOLDER says where, runs/custom-by-hand is the default. The commands stay in FOLDER/driver.sh.
set -euo pipefail
CLONE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH="$CLONE${PYTHONPATH:+:$PYTHONPATH}"
if [ -x "$CLONE/.venv/bin/python" ]; then export PATH="$CLONE/.venv/bin:$PATH"; fi
FOLDER=${FOLDER:-runs/custom-by-hand}
mkdir -p "$FOLDER"
python -m fairseq_fixed.cli run custom "$@" --dry-run > "$FOLDER/driver.sh"
exec bash "$FOLDER/driver.sh" "$FOLDER"
