#!/bin/sh
# in_memory.sh COMMAND...: run COMMAND with its temporary files in memory, where there are 8 GB of room for them, and
# remove them afterwards. Thousands of tests make a database each: on a disk, they would wait for it most of the time.
memory=/dev/shm
[ "$(df -Pk "$memory" 2>/dev/null | awk 'NR == 2 { print $4 }')" -ge 8000000 ] 2>/dev/null && [ -w "$memory" ] || exec "$@"
TMPDIR=$(mktemp -d "$memory/ctXXXX") || exit
export TMPDIR
chmod 1777 "$TMPDIR" # as /tmp: servers that some tests start run as another user
trap 'rm -rf "$TMPDIR"' EXIT
"$@"
