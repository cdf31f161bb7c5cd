"""Downloads: the file that a call waits for is put into a folder, whole and under a safe name; every other is refused.

A browser writes a download into a folder of its own first, through the session's proxy, which bounds its bytes. From
there it is copied into a draft in the entity's folder. The draft gets its name by a link, which replaces nothing and
follows no symlink: so the file appears whole or not at all, also if the process is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.confine import explain_refusal, place

if TYPE_CHECKING:
    from playwright.async_api import Download

BEGIN: Final = 3.0
"""Seconds in which a download has to begin after the click."""

LONGEST: Final = 80
"""Characters of the name of a file, without its suffix."""

LONGEST_SUFFIX: Final = 12

LONGEST_IN_BYTES: Final = 200
"""Bytes of both: file systems have names of 255 bytes, and a number is added."""

MOST_OF_ONE_NAME: Final = 1000
"""Files whose names differ in a number alone."""

_SIGNS: Final = frozenset(" ._-()+")
"""Characters of a name beside letters and digits. Marks that turn the direction of text are not among them."""

_DRAFT: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Downloads:
    """The downloads that the pages of one session begin. Used in the driver's loop alone."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._expected: asyncio.Future[Download] | None = None

    async def take(self, download: Download) -> None:
        """Give a download that has begun to the call that waits for one, or refuse it."""
        if self._expected is not None and not self._expected.done():
            self._expected.set_result(download)
            return
        self._note(f"a download was refused: {json.dumps(download.suggested_filename, ensure_ascii=False)}")
        await download.cancel()

    async def receive(self, start: Callable[[], Awaitable[None]]) -> tuple[Path, str]:
        """Return the file of the download that `start` begins, and the name that its page suggests.

        Raises GateError if none begins; playwright's Error for one that fails.
        """
        self._expected = asyncio.get_running_loop().create_future()
        try:
            await start()
            async with asyncio.timeout(BEGIN):
                download = await self._expected
        except TimeoutError as late:
            raise GateError("no download began: look() shows what the page did instead") from late
        finally:
            self._expected = None
        try:
            return await download.path(), download.suggested_filename
        except asyncio.CancelledError:
            self._note("a download did not end in time and was cancelled")
            await download.cancel()
            raise


def save_download(root: Path, source: Path, suggested: str) -> tuple[str, int]:
    """Move a file into the folder `root`, under a name that is free there; return that name, and its bytes. Blocks.

    Raises GateError if the folder does not exist, is full, or keeps the name for the runtime.
    """
    here = place(root, ".")
    draft = f".{secrets.token_hex(8)}.draft"
    with here.folder() as folder:
        try:
            with source.open("rb") as data, os.fdopen(os.open(draft, _DRAFT, 0o666, dir_fd=folder), "wb") as file:
                shutil.copyfileobj(data, file)
                size = file.tell()
            for name in list_names(suggested):
                replace(here, parts=(name,), requested=name).check_target(folder)
                with suppress(FileExistsError):
                    os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                    return name, size
            raise GateError(f'there are {MOST_OF_ONE_NAME} files with a name like "{name}"')
        except OSError as error:
            raise explain_refusal(error, name_safely(suggested)) from error
        finally:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            with suppress(OSError):
                source.unlink()


def list_names(suggested: str) -> Iterator[str]:
    """Yield safe names for a file: the one like `suggested` first, then those with a number."""
    name = Path(name_safely(suggested))
    yield name.name
    for number in range(2, MOST_OF_ONE_NAME + 1):
        yield f"{name.stem}-{number}{name.suffix}"


def name_safely(suggested: str) -> str:
    """Return a name for a file that is one component of a path, visible, and made of letters, digits and few signs."""
    last = suggested.replace("\\", "/").rpartition("/")[2]
    safe = "".join(character if character.isalnum() or character in _SIGNS else "_" for character in last)
    name = Path(safe.strip(" .-") or "download")
    suffix = name.suffix[:LONGEST_SUFFIX].rstrip(" .")
    stem = name.stem[:LONGEST].encode()[: LONGEST_IN_BYTES - len(suffix.encode())].decode(errors="ignore")
    return f"{stem.rstrip(' .')}{suffix}"
