"""Make everything printable that reaches a terminal: no text of an entity, file or record moves the cursor.

`main` replaces standard output and standard error by a `Terminal` if they are terminals, so no command can forget it.
Coloured or redrawn output goes through `console`, which sends its own codes to the terminal and makes the texts between
them printable. If output is not a terminal, it is bytes for a program, and is unchanged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_SIGNS: Final = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tab and newline
    "\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"  # characters that are invisible, reverse the direction of a text, or end a line
    "\ud800-\udfff]"  # surrogates
)
_STRANGE: Final = re.compile(_SIGNS)
_DELETE: Final = 0x7F
_PICTURES: Final = 0x2400
"""The start of Unicode's pictures of the control characters: U+241B shows ESC."""


def printable(text: str) -> str:
    """Return a text in which each character that a terminal acts upon is visible: ESC as `␛`, U+202E as `<U+202E>`.

    Lines and tabs stay. The joiners of emoji and of scripts that need them stay, too.
    """
    if text.isascii() and text.isprintable():
        return text
    return _STRANGE.sub(_replace, text.replace("\r\n", "\n"))


def _replace(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < ord(" "):
        return chr(_PICTURES + code)
    return "\N{SYMBOL FOR DELETE}" if code == _DELETE else f"<U+{code:04X}>"


class Terminal:
    """A terminal stream that makes all output printable; `bare` is the stream itself."""

    def __init__(self, bare: TextIO) -> None:
        self.bare = bare

    def write(self, text: str) -> int:
        """Write a text, made printable."""
        self.bare.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts, made printable."""
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> _Bytes:
        """The same interface for bytes, which are read as UTF-8."""
        return _Bytes(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bare, name)


class _Bytes:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def write(self, data: bytes) -> int:
        self._terminal.write(data.decode(errors="replace"))
        return len(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def flush(self) -> None:
        self._terminal.flush()


def guard_terminals() -> None:
    """Make standard output and standard error printable where they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream.isatty() and not isinstance(stream, Terminal):
            setattr(sys, name, Terminal(stream))


def bare(stream: Any) -> TextIO:
    """Return the stream behind a `Terminal`, or the stream itself, for our own control codes."""
    return stream.bare if isinstance(stream, Terminal) else stream


def console(stream: Any, **settings: Any) -> Console:
    """Return a rich console on a stream that makes its texts printable."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text
                yield segment if segment.control else Segment(printable(text), segment.style)

    return PrintableConsole(file=bare(stream), highlight=False, **settings)
