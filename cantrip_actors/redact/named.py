"""Values that are secrets because of what they are called: beside `password`, `api_key`, `?sig=`, in whatever notation.

The notations are those of JSON, YAML, TOML, environments, properties, query strings, connection strings (libpq, ADO)
and source code. A name alone proves little: programs say `token = tokens[0]` all day. So the value has to look like a
secret, too (`looks_secret`): letters with digits, not a call, a path, a placeholder or the name of an algorithm.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["NAMED", "looks_secret"]

_TAIL: Final = r"(?:[_-]?(?:access[_-]?)?key|[_-]?token|[_-]?value|s)?[0-9]{0,2}"
_QUOTED: Final = r"""["']?\s{0,8}(?:=>|:=|[:=])\s{0,8}(?:"([^"\s]{6,2048})"|'([^'\s]{6,2048})')"""
_BARE: Final = r"""(?:=|["']?:[ \t]{1,8})([^\s"'`<>()\[\]{},;&#|]{6,2048})(?=$|[\s;&#"'`<])"""
_QUERY: Final = r"""=([^\s"'`<>()\[\]{},;&#|]{12,2048})"""


_LONG: Final = r"""["']?\s{0,8}[:=]\s{0,8}["']?((?=[A-Za-z._~+/%-]{0,200}[0-9])[A-Za-z0-9._~+/%-]{16,2048}=*)"""
"""Any notation, for a value that nobody would write by hand."""


_AWS: Final = r"""["']?\s{0,8}[:=]\s{0,8}["']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"""
_OF: Final = "|".join(
    f"(?<={word})" for word in ("api", "api[_-]", "access", "access_", "account", "account_", "private_")
)
"""What a key is of, so that it is a secret: a name is looked for by its rarest part."""


def _named(name: str, word: str, rest: str, *notations: str) -> tuple[str, str, str]:
    return name, word, rf"(?i:{rest}){_TAIL}(?:{'|'.join(notations)})"


NAMED: Final = (
    _named("password", "passw", "passw(?:or)?d", _QUOTED, _BARE),
    _named("password", "pwd", "pwd", _QUOTED, _BARE),
    _named("token", "token", "(?:(?<=access_)|(?<=auth_))token", _LONG),
    _named("token", "token", "token", _QUOTED, _BARE),
    _named("aws-secret", "secret", "(?=secret_?(?:access_?)?key)secret", _AWS),
    _named("secret", "secret", "(?<=client_)secret", _LONG),
    _named("secret", "secret", "secret", _QUOTED, _BARE),
    _named("api-key", "key", "(?:(?<=api)|(?<=api[_-]))key", _LONG),
    _named("key", "key", f"(?:{_OF})key", _QUOTED, _BARE),
    _named("credential", "credential", "credential", _QUOTED, _BARE),
    ("signature", "sig", rf"(?i:(?<=[?&;-])sig(?:nature)?){_QUERY}"),
    ("key", "key", rf"(?i:(?<=[?&])key){_QUERY}"),
    ("code", "code=", rf"(?i:(?<=[?&])code){_QUERY}"),
)
"""Rows: a name, the word that is searched for, and what is tried where one begins. The last group is the value."""

_DIGIT: Final = re.compile(r"[0-9]")
_LETTER: Final = re.compile(r"[A-Za-z]")
_NO_SECRET: Final = re.compile(
    r"[#$<%*/.~{\[(]"  # a variable, a placeholder, a path
    r"|https?:|file:|env:|vault:"
    r"|(?i:(?:sha|md|aes|des|rc|rs|hs|es|ps|utf|base|hmac|pbkdf|scrypt|bcrypt|argon|ed|curve|secp|oauth|http|iso|latin|cp"
    r"|u?int|float|str|bytes|uuid|rfc|win|python|py|x|v)[-_]?[0-9]{1,4}(?:[-_.a-z]*[0-9]{0,4})?$)"
    r"|(?i:(?:your|my|the|some|test|example|fake|dummy|sample|change)[-_ ]?\w*$)"
    r"|(?i:.{0,8}(?:xxx|\*\*\*|\.\.\.|\u2026))"
)
_CODE: Final = re.compile(
    r"[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+$|(?:[A-Z][a-z]+[0-9]*){2,}$"
    r"|(?i:\w{0,40}?(?:arg|buf|key|name|param|pass|passwd|password|ptr|secret|str|tok|token|val|value|var)s?_?[0-9]{1,2}$)"
)
"""Names in a program: `self.token2`, `arg1`, `Ed25519PrivateKey`."""


def looks_secret(value: str, *, quoted: bool) -> bool:
    """Return whether a value beside a name of a secret looks like one. What has no quotes may be code."""
    if not _DIGIT.search(value) or not _LETTER.search(value) or _NO_SECRET.match(value):
        return False
    return quoted or not _CODE.match(value)
