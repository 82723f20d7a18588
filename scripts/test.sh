#!/usr/bin/env bash
# Set up what is missing, then lint, types and tests. Arguments go to pytest:
#
#   bash scripts/test.sh                 # everything
#   bash scripts/test.sh -m 'not slow'   # without real fairseq commands: seconds
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/bootstrap.sh
bin=$PWD/.venv/bin
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/python" -m pytest "$@"
