#!/usr/bin/env bash
# Renews requirements.lock: exact versions and hashes of everything that runs, tests and builds the project, for every
# platform and every Python from 3.11 on, without the address of a registry. Usage: tools/lock.sh VENV [--upgrade]
set -euo pipefail
venv=$1; shift
uv=$(command -v uv || true)
if [ -z "$uv" ]; then
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
  uv=$venv/bin/uv
fi
"$uv" pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet "$@" --output-file requirements.lock \
  --no-emit-package xllamacpp --no-emit-package cantrip-supervisors
# left out: the extra "local", which is `make local`'s (large, and needed by one demo), and the other distribution of this repository
sed -i '/^$/,$d' requirements.lock # what uv says at the end about the excluded package
if grep -nE '://|^--' requirements.lock; then
  echo "requirements.lock names a registry; see the lines above" >&2
  exit 1
fi
