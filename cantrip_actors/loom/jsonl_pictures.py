"""The pictures of a JSONL loom: a file of lines beside it, `<loom>.pictures`, one an image, each image once.

    {"digest":"…","type":"image/png","data":"…"}       data in base64

How it is written, read and cut after a kill is `jsonl_images.py`'s; only the lines are others. This file is part of the
loom: without it, what entities were shown is known by its digest alone.
"""

from __future__ import annotations

import base64
from typing import ClassVar

import orjson

from cantrip_actors.loom.jsonl_images import LineFile
from cantrip_actors.loom.pictures import Picture

__all__ = ["PictureFile"]


class PictureFile(LineFile[Picture]):
    """The file beside a loom; who may read the one may read the other."""

    mode: ClassVar[int] = 0o644

    @staticmethod
    def line(kept: Picture) -> bytes:
        """One picture."""
        data = base64.b64encode(kept.data).decode()
        return orjson.dumps({"digest": kept.digest, "type": kept.media_type, "data": data}) + b"\n"

    @staticmethod
    def kept(line: bytes) -> Picture:
        """The picture of a line."""
        said = orjson.loads(line)
        return Picture(said["digest"], said["type"], base64.b64decode(said["data"], validate=True))
