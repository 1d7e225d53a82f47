#!/usr/bin/env bash
# Everything that must hold before a change lands: lint, format, types, import rules, a little fuzzing, all tests. Under 15 minutes on 2 cores.
#   ./test.sh              everything, with a sample of the faults
#   ./test.sh --full       everything, with all faults, and the recipes for Lightning and Accelerate: takes hours
#   ./test.sh tests/spec   only these tests, without the static checks
set -euo pipefail
cd "$(dirname "$0")"
source .ci/environment.sh
source .ci/lab.sh
source .ci/browser.sh
ensure_environment dev,leveldb,fuzz
chosen=()
if [ "${1-}" = --full ]; then
    chosen+=(--full)
    ensure_environment dev,leveldb,fuzz,lightning,accelerate
    shift
fi
ensure_lab || chosen+=(--ignore=tests/faults)
ensure_browser || chosen+=(--ignore=tests/pages)

cores=$(env -u OMP_NUM_THREADS nproc) # nproc believes OMP_NUM_THREADS
export OMP_NUM_THREADS=1              # pytest runs one process per core
bin=.venv/bin
if [ $# -eq 0 ]; then
    "$bin/ruff" check .
    "$bin/ruff" format --check .
    "$bin/mypy"
    "$bin/lint-imports"
    "$bin/python" tools/fuzz.py --seconds 5 --seed 1 --jobs "$cores"
fi
exec "$bin/python" -m pytest -q -n "$cores" --dist worksteal "${chosen[@]}" "$@"
