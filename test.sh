#!/usr/bin/env bash
# Everything that must hold before a change lands: lint, format, types, import rules, all tests. Under 15 minutes on 2 cores.
#   ./test.sh              everything
#   ./test.sh tests/spec   only these tests, without the static checks
set -euo pipefail
cd "$(dirname "$0")"
source .ci/environment.sh
ensure_environment dev,leveldb

export OMP_NUM_THREADS=1 # pytest runs one process per core
bin=.venv/bin
if [ $# -eq 0 ]; then
    "$bin/ruff" check .
    "$bin/ruff" format --check .
    "$bin/mypy"
    "$bin/lint-imports"
fi
exec "$bin/python" -m pytest -q -n "$(nproc)" --dist worksteal "$@"
