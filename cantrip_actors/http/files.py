"""Images and files of requests: URLs and base64 from clients, turned into the `Image` and `File` of an intent."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from cantrip_actors import File, Image
from cantrip_actors.http import models
from cantrip_actors.http.problems import Problem


def intent_of(body: models.IntentBody) -> Any:
    """Return an intent with its images and files. Raises Problem 422, InvalidFile."""
    shown = [*map(image_of, body.images), *(file_of(file.url, file.filename) for file in body.files)]
    return [body.intent, *shown] if shown else check_intent(body.intent)


def answer_of(body: models.DecideBody) -> Any:
    """Return the answer to a question with its images and files. Raises Problem 422, InvalidFile."""
    shown = [*map(image_of, body.images), *(file_of(file.url, file.filename) for file in body.files)]
    return [*(() if body.answer is None else (body.answer,)), *shown] if shown else body.answer


def history_of(body: models.IntentBody) -> list[dict[str, Any]]:
    """Return the earlier conversation of an intent, as the runtime takes it. Raises Problem 422, InvalidImage."""
    return [
        {**message.model_dump(exclude={"images"}), "images": [image_of(url) for url in message.images]}
        for message in body.history
    ]


def check_intent(intent: str) -> str:
    """Return an intent without files. Raises Problem 422 if it says nothing."""
    if not intent.strip():
        raise Problem(422, "invalid-intent", "intent: expected a text that says what to achieve, got only blanks")
    return intent


def image_of(url: str, where: str = "images") -> Image:
    """Return the image of a data: URL or another URL, which a request has in `where`. Raises Problem 422,
    InvalidImage.
    """
    if not url.startswith("data:"):
        return Image.at(url)
    return Image(_parse_data_url(url, where, "data:image/png;base64,…")[1])


def file_of(url: str, filename: str | None = None, where: str = "files") -> File:
    """Return the file of a data: URL or another URL, which a request has in `where`; a picture becomes an `Image`.

    Raises Problem 422, InvalidFile.
    """
    if not url.startswith("data:"):
        return File.at(url, filename=filename)
    media_type, data = _parse_data_url(url, where, "data:application/pdf;base64,…")
    if media_type.startswith("image/"):
        return Image(data)
    is_known = media_type not in ("", "application/octet-stream")
    return File(data, filename=filename, media_type=media_type if is_known else None)


def data_of(text: str, where: str) -> bytes:
    """Return the bytes of a text in base64. Raises Problem 422."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Problem(422, "invalid-file", f"{where}: expected base64: {error}") from None


def _parse_data_url(url: str, where: str, expected: str) -> tuple[str, bytes]:
    """Return the media type and the bytes of a data: URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise Problem(422, "invalid-file", f"{where}: expected {expected}")
    return head.removeprefix("data:").partition(";")[0].strip().lower(), data_of(data, where)
