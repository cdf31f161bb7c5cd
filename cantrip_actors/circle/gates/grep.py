"""Untrusted regular expressions, in a process of their own.

Python's `re` can take exponential time on a line of thirty characters, and meanwhile it holds the interpreter's lock:
no thread, no timeout and no other entity can run. So an entity's pattern runs in a child process, which is killed when
its time is over. The process is started once per search and costs about 15 ms.

The child runs this file by its path, in isolated mode: import only the standard library here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice


class TooSlow(Exception):
    """The time for a search ran out before the search was complete."""


def find_matching_lines(
    pattern: str, texts: Sequence[str], *, ignore_case: bool, limit: int, seconds: float
) -> list[tuple[int, int, str]]:
    """Return the first `limit` matching lines, as (index of the text, line number from 1, line).

    Raises ValueError for an invalid regular expression, TooSlow after `seconds`.
    """
    work = json.dumps([pattern, ignore_case, limit, texts]).encode()
    command = [sys.executable, "-I", "-S", __file__]
    try:
        done = subprocess.run(command, input=work, capture_output=True, timeout=seconds, check=False)  # noqa: S603  # fixed
    except subprocess.TimeoutExpired as error:
        raise TooSlow from error
    if done.returncode:
        raise ValueError(f"the pattern made the search fail (exit code {done.returncode})")
    answer = json.loads(done.stdout)
    if isinstance(answer, str):
        raise ValueError(answer)  # noqa: TRY004  # it is the pattern's value that is wrong
    return [(index, number, line) for index, number, line in answer]


def _find_lines(pattern: re.Pattern[str], texts: Iterable[str]) -> Iterator[tuple[int, int, str]]:
    for index, text in enumerate(texts):
        for number, line in enumerate(text.split("\n"), 1):
            if pattern.search(line):
                yield index, number, line


def _main() -> None:
    pattern, ignore_case, limit, texts = json.load(sys.stdin)
    try:
        compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        json.dump(str(error), sys.stdout)
        return
    json.dump(list(islice(_find_lines(compiled, texts), limit)), sys.stdout)


if __name__ == "__main__":
    _main()
