#!/usr/bin/env bash
# Runs a part of the tests on each Python that the classifiers of pyproject.toml name, each in an environment of its own
# below .pythons, with exactly what requirements.lock names. A Python is looked for on PATH, in pyenv and with uv, which
# fetches the missing ones. One that cannot be had is named, and is no failure. Usage: tools/pythons.sh [VERSION...]
# SMOKE=... chooses other tests.
set -uo pipefail
cd "$(dirname "$0")/.."
export UV_PYTHON_INSTALL_DIR=$PWD/.pythons/installed
export PATH=$PATH:$PWD/.venv/bin # `make setup` has put uv there
smoke=${SMOKE:-tests/machine/test_loop.py tests/supervisors/test_restart.py tests/supervisors/test_tree.py
  tests/runtime/test_cast.py tests/runtime/test_typed_answers.py tests/loom/test_timers.py}

find_python() { # print the path of Python $1, or nothing
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$candidate" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  timeout 120 uv python install --quiet "$1" 2>/dev/null && uv python find --managed-python "$1" 2>/dev/null
}

try() { # try VERSION: set up its environment if the lock has changed, and run the tests there
  local python venv=.pythons/$1
  python=$(find_python "$1")
  if [ -z "$python" ]; then
    echo "notice: not run: Python $1 is not installed, and uv cannot fetch it"
    return
  fi
  if ! cmp -s requirements.lock "$venv/requirements.lock"; then
    PYTHON=$python tools/venv.sh "$venv" >"$venv.log" 2>&1 || {
      echo "notice: not run: what requirements.lock names cannot be installed for Python $1: $(grep -v '^ *$' "$venv.log" | tail -n 1)"
      return
    }
    cp requirements.lock "$venv/requirements.lock"
  fi
  echo "--- $("$venv/bin/python" -V)"
  tools/in_memory.sh "$venv/bin/python" -m pytest -q -n0 -p no:cacheprovider --tb=short $smoke || failed="$failed $1"
}

versions=${*:-$(sed -n 's/^ *"Programming Language :: Python :: \(3\.[0-9]*\)",$/\1/p' pyproject.toml)}
mkdir -p .pythons
failed=
for version in $versions; do try "$version"; done
[ -z "$failed" ] || { echo "FAILED on Python$failed"; exit 1; }
