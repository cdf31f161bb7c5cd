"""The images of sandboxes of a JSONL loom: a second file of lines, `<loom>.images`, one an image.

    {"digest":"…","engine":"…","seal":"…","data":"…"}       data in base64

It is written before the line of the log that refers to it, by the writer whom the log's own lock lets in. What a kill
left half is cut off by the next one. The file is opened, and read once, when somebody first wants an image or has one;
it may be removed at any time when nobody writes. `LineFile` is what it shares with the file of pictures.
"""

from __future__ import annotations

import base64
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

import orjson

from cantrip_actors.model.snapshot import SandboxImage

__all__ = ["ImageFile", "LineFile"]

CHUNK = 1 << 22

_LINE = re.compile(rb'\{"digest":"([0-9a-f]+)",[^\n]*\}\n')


class Kept(Protocol):
    """What has a digest."""

    @property
    def digest(self) -> str:
        """It, in hex."""


K = TypeVar("K", bound=Kept)


class LineFile(Generic[K]):
    """A file beside a loom. `write`, `truncate` and `sync` are the loom's own; all of them raise OSError."""

    mode: ClassVar[int] = 0o600
    """Who may read and write it, before the umask."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool,
        write: Callable[[int, bytes], None],
        truncate: Callable[[int, int], None],
        sync: Callable[[int], None] | None,
    ) -> None:
        self.path = path
        self._read_only = read_only
        self._write, self._truncate, self._sync = write, truncate, sync
        self._fd = -1
        self._end = 0
        self._places: dict[str, tuple[int, int]] = {}

    @staticmethod
    @abstractmethod
    def line(kept: K) -> bytes:
        """One of those that are kept, as a line; its digest comes first."""

    @staticmethod
    @abstractmethod
    def kept(line: bytes) -> K:
        """What a line has. Raises ValueError, KeyError or TypeError where it has nothing."""

    def add(self, images: Iterable[K]) -> None:
        """Write those that are not there yet. Nothing has changed where this raises OSError."""
        if self._fd < 0:
            self._open(os.O_RDWR | os.O_APPEND | os.O_CREAT)
        new = [image for image in images if image.digest not in self._places]
        if not new:
            return
        if os.fstat(self._fd).st_size != self._end:  # half an image, of a kill or of a write that failed
            self._truncate(self._fd, self._end)
        lines = [self.line(image) for image in new]
        self._write(self._fd, b"".join(lines))
        if self._sync is not None:
            self._sync(self._fd)
        for image, line in zip(new, lines, strict=True):
            self._places[image.digest] = self._end, len(line)
            self._end += len(line)

    def get(self, digest: str) -> K | None:
        """That of that digest, as it stands there; None where it is not, or its line is none."""
        if not self._look() or (digest not in self._places and not self._seen_more()):
            return None
        place = self._places.get(digest)
        if place is None:
            return None
        try:
            return self.kept(self._pread(*place))
        except (ValueError, KeyError, TypeError):  # somebody changed it
            return None

    def digests(self) -> list[str]:
        """Those of all that are there."""
        return list(self._places) if self._look() else []

    def close(self) -> None:
        """Close the file; it is opened again for whoever reads."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _pread(self, at: int, length: int) -> bytes:
        data = b""
        while len(data) < length and (more := os.pread(self._fd, length - len(data), at + len(data))):
            data += more
        return data

    def _look(self) -> bool:
        """Have it open, to read; False where there is no such file."""
        if self._fd < 0:
            try:
                self._open(os.O_RDONLY if self._read_only else os.O_RDWR | os.O_APPEND)
            except FileNotFoundError:
                return False
        return True

    def _open(self, flags: int) -> None:
        self._fd = os.open(self.path, flags | os.O_CLOEXEC, self.mode)
        self._end, self._places = 0, {}
        self._scan()

    def _seen_more(self) -> bool:
        """Whether a writer has added to it since it was read."""
        if not self._read_only:
            return False
        before = self._end
        self._scan()
        return self._end != before

    def _scan(self) -> None:
        rest = b""
        at = self._end
        while read := os.pread(self._fd, CHUNK, at):
            at += len(read)
            block = rest + read
            whole = block.rfind(b"\n") + 1
            for found in _LINE.finditer(block, 0, whole):
                self._places[found[1].decode()] = self._end + found.start(), found.end() - found.start()
            self._end += whole
            rest = block[whole:]


class ImageFile(LineFile[SandboxImage]):
    """The images of sandboxes."""

    @staticmethod
    def line(kept: SandboxImage) -> bytes:
        """One image."""
        data = base64.b64encode(kept.data).decode()
        said = {"digest": kept.digest, "engine": kept.engine, "seal": kept.seal, "data": data}
        return orjson.dumps(said) + b"\n"

    @staticmethod
    def kept(line: bytes) -> SandboxImage:
        """The image of a line."""
        said = orjson.loads(line)
        return SandboxImage(said["digest"], said["engine"], base64.b64decode(said["data"], validate=True), said["seal"])
