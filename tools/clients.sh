#!/usr/bin/env bash
# Makes .clients: the published clients that tests/clients tries this service with, in exactly the versions of
# tests/clients/requirements.lock and tests/clients/package-lock.json. With --lock it renews these two files instead,
# from requirements.in and package.json, without the address of a registry.
# A part that cannot be had is named, the other is made all the same, and the exit code says so.
set -uo pipefail
cd "$(dirname "$0")/.."
from=tests/clients
into=.clients
uv_version=0.13.9 # pip needs 45 s of CPU for what uv does in 3

uv=$(command -v uv || echo "$PWD/$into/tools/bin/uv")
if [ ! -x "$uv" ]; then
  python3 -m venv "$into/tools" \
    && "$into/tools/bin/python" -m pip install -qq --disable-pip-version-check --no-input --no-compile "uv==$uv_version"
fi

make_python() {
  "$uv" venv --quiet --allow-existing --python "${PYTHON:-python3}" "$into/python" \
    && VIRTUAL_ENV=$PWD/$into/python "$uv" pip install --quiet --no-deps --require-hashes -r "$from/requirements.lock"
}

make_node() {
  cp "$from/package.json" "$from/package-lock.json" "$into/" \
    && npm ci --prefix "$into" --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error
}

lock() {
  "$uv" pip compile "$from/requirements.in" --universal --python-version 3.11 --generate-hashes --no-annotate \
    --no-emit-index-url --no-emit-find-links --no-header --quiet --upgrade --output-file "$from/requirements.lock" \
    && npm install --prefix "$from" --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund --loglevel=error
}

mkdir -p "$into"
if [ "${1:-}" = --lock ]; then
  lock
  exit
fi
status=0
make_python &
python=$!
make_node || { echo "no clients of JavaScript: npm cannot get them; their rows in $from are not tried" >&2; status=1; }
wait $python || { echo "no clients of Python: they cannot be installed; their rows in $from are not tried" >&2; status=1; }
exit $status
