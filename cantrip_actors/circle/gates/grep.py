"""Untrusted regular expressions, in a process of their own.

Python's `re` can take exponential time on a line of thirty characters, and meanwhile it holds the interpreter's lock:
no thread, no timeout and no other entity can run. So an entity's pattern runs in a child process, which is killed when
its time is over. The process is started once per search and costs about 15 ms. It reads the texts from a file, because
the JSON of all of them would stop every other thread while it is made.

The child runs this file by its path, in isolated mode: import only the standard library here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO


class TooSlow(Exception):
    """The time for a search ran out before the search was complete."""


def find_matching_lines(
    pattern: str, texts: Iterable[str], *, ignore_case: bool, limit: int, ends: float
) -> list[tuple[int, int, str]]:
    """Return the first `limit` matching lines, as (index of the text, line number from 1, line).

    Raises ValueError for an invalid regular expression, TooSlow if it is not done by `time.monotonic()` = `ends`.
    """
    command = [sys.executable, "-I", "-S", __file__]
    with tempfile.TemporaryFile() as work:
        work.write(json.dumps([pattern, ignore_case, limit]).encode() + b"\n")
        for text in texts:
            data = text.encode()
            work.write(b"%d\n" % len(data))
            work.write(data)
        work.seek(0)
        left = max(0.1, ends - time.monotonic())
        try:
            done = subprocess.run(command, stdin=work, capture_output=True, timeout=left, check=False)  # noqa: S603  # fixed
        except subprocess.TimeoutExpired as error:
            raise TooSlow from error
    if done.returncode:
        raise ValueError(f"the pattern made the search fail (exit code {done.returncode})")
    answer = json.loads(done.stdout)
    if isinstance(answer, str):
        raise ValueError(answer)  # noqa: TRY004  # it is the pattern's value that is wrong
    return [(index, number, line) for index, number, line in answer]


def _read_texts(work: BinaryIO) -> Iterator[str]:
    while head := work.readline():
        yield work.read(int(head)).decode()


def _find_lines(pattern: re.Pattern[str], texts: Iterable[str]) -> Iterator[tuple[int, int, str]]:
    for index, text in enumerate(texts):
        for number, line in enumerate(text.split("\n"), 1):
            if pattern.search(line):
                yield index, number, line


def _main() -> None:
    work = sys.stdin.buffer
    pattern, ignore_case, limit = json.loads(work.readline())
    try:
        compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        json.dump(str(error), sys.stdout)
        return
    json.dump(list(islice(_find_lines(compiled, _read_texts(work)), limit)), sys.stdout)


if __name__ == "__main__":
    _main()
