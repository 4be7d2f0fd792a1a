#!/usr/bin/env bash
# Installs zbench into an environment, editable. Says in one line which step failed and what the remedy is.
#
#     tools/ready.sh PYTHON VENV [EXTRA]
#
# make calls this script. The build tools are installed into VENV as well, so that a change of csrc/ is compiled
# without a network, and only changed files are compiled. build/install.log has the output of pip.
set -uo pipefail
python=$1 venv=$2 extra=${3:-}
cd "$(dirname "$0")/.." || exit 1
log=build/install.log

refuse() {
  echo "zbench: $*" >&2
  exit 1
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }

locked=$(find . build "$venv" -maxdepth 1 -type d ! -writable -print -quit 2>/dev/null)
[ -z "$locked" ] ||
  refuse "$(realpath "$locked") belongs to $(stat -c %U "$locked"), and $(id -un) may not write to it;" \
    "run: sudo chown -R $(id -un) '$PWD'"

"$python" -c '' 2>/dev/null ||
  refuse "$python does not run; install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"
is_new_enough "$python" ||
  refuse "expected Python 3.11 or newer, $python is Python $(version_of "$python"); name another: make PYTHON=python3.12"
[ ! -x "$venv/bin/python" ] || is_new_enough "$venv/bin/python" ||
  refuse "expected Python 3.11 or newer, $venv is of Python $(version_of "$venv/bin/python"); run: rm -rf $venv"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  refuse "$python makes no environments; install the package python$(version_of "$python")-venv of your system"
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -f "$headers/Python.h" ] ||
  refuse "$headers/Python.h is missing; install the package python$(version_of "$python")-dev of your system"

compiler=
for candidate in ${CXX:-c++ g++ clang++}; do
  if printf '#include <span>\n' | "$candidate" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; then
    compiler=$candidate
    break
  fi
done
[ -n "$compiler" ] ||
  refuse "no compiler of C++20 among ${CXX:-c++, g++ and clang++};" \
    "install g++ 11 or newer, or name a compiler: make CXX=/path/to/g++"

install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --retries 1 "$@" >>"$log" 2>&1 && return
  if grep -Eq 'NameResolution|NewConnection|Max retries|[Cc]onnection broken|unreachable|Timeout|ProxyError' "$log"; then
    refuse "no package index can be reached; connect to a network, or name a mirror: PIP_INDEX_URL=URL" \
      "(details: $PWD/$log)"
  fi
  refuse "pip could not install $*: $(grep -i error "$log" | tail -n 1 | cut -c1-200) (details: $PWD/$log)"
}

list() { mapfile -t packages < <("$venv/bin/python" -c "$1"); }

echo "zbench: installing into $venv; this takes minutes the first time" >&2
mkdir -p build
: >"$log"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" >>"$log" 2>&1 ||
  refuse "$python could not make $venv: $(tail -n 1 "$log")"
list 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'
install "${packages[@]}"
list 'from scikit_build_core.build import get_requires_for_build_editable as needs; print("\n".join(needs({})))'
[ -z "${packages[*]}" ] || install "${packages[@]}" # cmake and ninja, if the system has none
install --no-build-isolation --no-deps --editable .
install "zbench${extra:+[$extra]}" # is installed now, so these are its dependencies
touch "$venv/.installed" "$venv/.installed${extra:+-$extra}"
