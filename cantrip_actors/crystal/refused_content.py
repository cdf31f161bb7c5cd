"""Finds the images and files that a provider refused, which later requests leave out.

A provider refuses a whole request for one broken picture or one expired file id, and would refuse every later request
with it. Its words rarely tell which one it was, so one of these groups is left out, the first that is not empty:

1. the files that the refusal names by id or address;
2. of the files that the provider has not accepted before, those whose bytes are broken;
3. of these, those in the element of the request that the refusal names (`messages.2.content.0…`);
4. all files that it has not accepted before;
5. all files, if the refusal is about a file.

The crystal remembers a group only if the provider then answers (`provider.py`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from cantrip_actors.crystal.shapes import parse_object
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.image_header import is_broken

_STATUSES: Final = frozenset((400, 415, 422))
_STATUSES_OF_FILES: Final = frozenset((403, 404))
"""The statuses of a file that has expired or belongs to somebody else; other things have them as well."""
_ABOUT_FILES: Final = re.compile(
    r"\b(?:images?|pictures?|photos?|files?|documents?|pdfs?|media|audio|videos?|attachments?|base64)\b|image_url|file_id",
    re.IGNORECASE,
)
_ELEMENT: Final = re.compile(r"\b(?:messages|contents|input)[.\[](\d+)")


def find_refused_content(
    error: ProviderError, body: bytes, items: str, files: Mapping[str, File], accepted: Collection[str]
) -> frozenset[str]:
    """Return the keys of the `files` of a request to leave out because of its refusal; empty if it is not about them.

    `body` is the request, whose list of messages is its field `items`. `accepted` are the keys of files that the
    provider has accepted before.
    """
    words = str(error)
    is_about_files = _ABOUT_FILES.search(words) is not None
    if not files or error.retryable or error.overflows:
        return frozenset()
    if error.status not in _STATUSES and not (error.status in _STATUSES_OF_FILES and is_about_files):
        return frozenset()
    named = {key for key, file in files.items() if (address := file.file_id or file.url) and address in words}
    new = {key: file for key, file in files.items() if key not in accepted}
    broken = {key for key, file in new.items() if isinstance(file, Image) and is_broken(file.find_data() or b"")}
    groups: Iterable[Iterable[str]] = (
        named,
        broken,
        _find_in_element(words, body, items, new),
        new,
        files if is_about_files else (),
    )
    return next((frozenset(group) for group in map(tuple, groups) if group), frozenset())


def _find_in_element(words: str, body: bytes, items: str, files: Mapping[str, File]) -> set[str]:
    """Return the keys of the files in the element of the request that a refusal names."""
    named, elements = _ELEMENT.search(words), (parse_object(body) or {}).get(items)
    if named is None or not isinstance(elements, list) or int(named[1]) >= len(elements):
        return set()
    text = dump_exactly(elements[int(named[1])]).decode()
    contents = {key: file.file_id or file.url or file.base64() for key, file in files.items()}
    return {key for key, content in contents.items() if content and content in text}
