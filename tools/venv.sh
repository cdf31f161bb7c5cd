#!/usr/bin/env bash
# Makes or completes the virtual environment that the Makefile's targets run in: exactly what requirements.lock names, each
# file checked against its hash, and the project's two distributions, editable. Usage: tools/venv.sh DIRECTORY (PYTHON=... chooses the interpreter).
set -euo pipefail
venv=$1

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if [ ! -x "$venv/bin/python" ] || ! new_enough "$venv/bin/python"; then
  found=
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if command -v "$candidate" >/dev/null && new_enough "$candidate"; then found=$candidate; break; fi
  done
  if [ -z "$found" ]; then
    version=$("${PYTHON:-python3}" -V 2>/dev/null || echo "not there")
    echo "cantrip-actors needs Python 3.11 or newer; ${PYTHON:-python3} is $version." >&2
    echo "Install one, or name one: make setup PYTHON=/path/to/python3.12" >&2
    exit 1
  fi
  if ! "$found" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "$found has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
  fi
  echo "setting up $venv with $("$found" -V)"
  "$found" -m venv --clear "$venv"
fi

# as uv does, byte code is made when a module is first imported: most of the packages' modules never are
by_pip() { "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input --no-compile "$@"; }

if command -v uv >/dev/null; then
  uv=uv
elif "$venv/bin/python" -m uv --version >/dev/null 2>&1 \
  || by_pip --no-deps --require-hashes --only-binary uv -r <(awk '/^[^ ]/ { is_uv = /^uv==/ } is_uv' requirements.lock); then
  uv="$venv/bin/python -m uv" # pip takes seven times as long for the others
else
  uv=
  echo "notice: pip cannot get uv: pip installs, which takes longer" >&2
fi

install() {
  if [ -n "$uv" ]; then
    VIRTUAL_ENV=$PWD/$venv $uv pip install --quiet "$@" && return
    echo "notice: uv cannot install, perhaps because it does not read pip's settings: pip tries" >&2
  fi
  by_pip "$@"
}

# the lock names everything: a resolver would also look at newer releases of what is asked for with an extra, and refuse
install --no-deps --require-hashes -r requirements.lock
install --no-deps --no-build-isolation --editable packaging/supervisors --editable .
