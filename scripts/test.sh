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
if (($#)); then
    exec "$bin/python" -m pytest "$@"
fi

# both cores: fairseq's commands start one process after the other, and unit tests need no more than
# one core
export OMP_NUM_THREADS=1
log=$(mktemp)
"$bin/python" -m pytest tests/unit >"$log" 2>&1 &
unit=$!
trap 'kill "$unit" 2>/dev/null || true; rm -f "$log"' EXIT
status=0
"$bin/python" -m pytest tests/integration tests/system || status=$?
wait "$unit" || status=$?
cat "$log"
exit "$status"
