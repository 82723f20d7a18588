#!/usr/bin/env bash
# Set up .venv with everything the recipes and tests need. Run again, it does nothing.
#
#   bash scripts/bootstrap.sh
#
# Environment:
#   PYTHON        interpreter to use (default: python3.11, else python3; 3.10 or newer)
#   TORCH_INDEX   where pip finds torch. Without a GPU set it to the index of CPU builds that
#                 PyTorch's "get started" page names, or pip may fetch several GB of CUDA.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'bootstrap: %s\n' "$*" >&2; exit 1; }
say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

python=${PYTHON:-$(command -v python3.11 || command -v python3 || true)}
[ -n "$python" ] || die "no python3 found; install it (Debian, Ubuntu: apt-get install python3 python3-venv python3-dev)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
    || die "$python is $("$python" -V); Python 3.10 or newer is needed. Name another with PYTHON=..."

venv=.venv
stamp=$venv/.bootstrap
want=$(cat requirements.lock setup.py scripts/bootstrap.sh | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

command -v g++ >/dev/null || die "no C++ compiler, and fairseq is compiled here; install one (apt-get install g++)"
"$python" - <<'EOF' || die "Python's headers are missing, and fairseq is compiled here; install them (apt-get install python3-dev)"
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
EOF

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then  # none, or one left half made
    say "creating $venv with $("$python" -V)"
    "$python" -m venv --clear "$venv" || die "$python cannot make a virtual environment; install venv (apt-get install python3-venv)"
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

# The lock holds the versions that were tested, with Python 3.11. Other Pythons get what fits.
lock=requirements.lock
constraint=(-c "$lock")
if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    say "not Python 3.11: versions of $lock do not apply, pip takes what fits"
    constraint=()
fi
# `name==version` as locked, or the bare name where the lock does not apply
locked() { { [ ${#constraint[@]} -gt 0 ] && grep -i "^$1==" "$lock"; } || echo "$1"; }

say "installing torch (1 of 3)"
if [ -z "${TORCH_INDEX:-}" ] && ! command -v nvidia-smi >/dev/null; then
    say "no GPU seen: if a CUDA build is being downloaded, stop, and set TORCH_INDEX (see scripts/bootstrap.sh)"
fi
pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "${constraint[@]}" "$(locked torch)" "$(locked numpy)"

say "installing fairseq: its first build takes about three minutes, pip keeps the wheel (2 of 3)"
# An sdist. With build isolation it would download a second torch to build against.
pip install "${constraint[@]}" "$(locked setuptools)" "$(locked wheel)" "$(locked Cython)" "$(locked ninja)"
MAX_JOBS=$(nproc) pip install --no-build-isolation "${constraint[@]}" "$(locked fairseq-fixed)"

say "installing this project and the tools of its tests (3 of 3)"
pip install --no-build-isolation "${constraint[@]}" -e '.[dev]'
printf '%s' "$want" > "$stamp"
say "ready: $venv/bin/fairseq-fixed --help"
