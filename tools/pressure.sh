#!/usr/bin/env bash
# Runs the tests that start processes in random order, at nice 10, beside a busy loop on every core.
#
#     tools/pressure.sh [PYTEST_ARGUMENT...]    # ten minutes on 2 cores
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${VENV:-.venv}/bin

make VENV="${VENV:-.venv}" "${VENV:-.venv}/.installed-test"
"$bin/python" -m pip install --quiet --disable-pip-version-check "pytest-randomly>=3.15"
loops=()
trap 'kill "${loops[@]}"' EXIT
trap 'exit 130' INT TERM
for _ in $(seq "$(nproc)"); do
  while :; do :; done &
  loops+=("$!")
done
[ $# -gt 0 ] || set -- tests/launch tests/worker tests/tune tests/cli tests/github tests/e2e
nice -n 10 "$bin/pytest" -p randomly -n "${WORKERS:-8}" --dist loadfile -o timeout=3600 "$@"
