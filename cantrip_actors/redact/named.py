"""Values that are secrets because of their names, such as `password`, `api_key` or `?sig=`, in any notation.

The notations are those of JSON, YAML, TOML, environments, properties, query strings, connection strings (libpq, ADO)
and source code. A name alone proves little: programs often have `token = tokens[0]`. So the value has to look like a
secret, too (`looks_secret`): letters with digits, not a call, a path, a placeholder or the name of an algorithm.
"""

from __future__ import annotations

import re
from typing import Final

_TAIL: Final = r"(?:[_-]?(?:access[_-]?)?key|[_-]?token|[_-]?value|s)?[0-9]{0,2}"
_QUOTED: Final = r"""["']?\s{0,8}(?:=>|:=|[:=])\s{0,8}(?:"([^"\s]{6,2048})"|'([^'\s]{6,2048})')"""
_BARE: Final = r"""(?:=|["']?:[ \t]{1,8})([^\s"'`<>()\[\]{},;&#|]{6,2048}+)(?=$|[\s;&#"'`<])"""
_QUERY: Final = r"""=([^\s"'`<>()\[\]{},;&#|]{12,2048})"""


_LONG: Final = r"""["']?\s{0,8}[:=]\s{0,8}["']?((?=[A-Za-z._~+/%-]{0,200}[0-9])[A-Za-z0-9._~+/%-]{16,2048}=*)"""
"""Any notation, for a value that is not written by hand."""


_AWS: Final = r"""["']?\s{0,8}[:=]\s{0,8}["']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"""
_OF: Final = "|".join(
    f"(?<={word})" for word in ("api", "api[_-]", "access", "access_", "account", "account_", "private_")
)
"""The words before `key` that make it a secret; a name is searched by its rarest part."""
_OF_LONG: Final = "|".join(
    f"(?<={word}[_-])"
    for word in (
        *("admin", "app", "application", "encryption", "fernet", "ingestion", "license", "master", "shared", "signing"),
        *("storage", "write"),
    )
)
"""Further ones, for values that are not written by hand."""


def _row(name: str, word: str, rest: str, *notations: str) -> tuple[str, str, str]:
    return name, word, rf"(?i:(?:{rest}){_TAIL})(?:{'|'.join(notations)})"


NAMED: Final = (
    _row("password", "passw", "passw(?:or)?d", _QUOTED, _BARE),
    _row("password", "pwd", "pwd", _QUOTED, _BARE),
    _row("token", "token", "(?:(?<=access_)|(?<=auth_))token", _LONG),
    _row("token", "token", "token", _QUOTED, _BARE),
    _row("aws-secret", "secret", "(?=secret_?(?:access_?)?key)secret", _AWS),
    _row("secret", "secret", "(?<=client_)secret", _LONG),
    _row("secret", "secret", "secret", _QUOTED, _BARE),
    _row("api-key", "key", "(?:(?<=api)|(?<=api[_-]))key", _LONG),
    _row("key", "key", f"(?:{_OF})key", _QUOTED, _BARE),
    _row("key", "key", f"(?:{_OF_LONG})key", _LONG),
    _row("secret", "secret", "secret[_-]?key[_-]?base", _LONG),
    _row("token", "_pat", "_pat", _LONG),
    _row("credential", "credential", "credential", _QUOTED, _BARE),
    ("signature", "sig", rf"(?i:(?<=[?&;-])sig(?:nature)?){_QUERY}"),
    ("key", "key", rf"(?i:(?<=[?&])key){_QUERY}"),
    ("code", "code=", rf"(?i:(?<=[?&])code){_QUERY}"),
)
"""Rows: a name, the word to search for, and the expression to try where it begins. The last group is the value."""

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
    """Return whether a value next to a secret's name looks like a secret. A value without quotes may be code."""
    if not _DIGIT.search(value) or not _LETTER.search(value) or _NO_SECRET.match(value):
        return False
    return quoted or not _CODE.match(value)
