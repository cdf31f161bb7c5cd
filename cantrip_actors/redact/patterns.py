"""The patterns of common keys, by which unregistered secrets are found.

A row has a name, its literals, one of which must occur before its expression is tried, and the expression. If it has a
group, the group is the secret and the rest stays readable: the host of a URL, the word `Bearer`. There are three kinds
of rows, each cheap on clean text:

- of words: words that begin like a service's keys (`services.py`), or have another shape that only keys have. Only long
  words are searched for the literals, and prose has none.
- of names: values next to telling names, such as `password` or `api_key` (`named.py`). The expression is tried at such
  a name, and its match has to look like a secret.
- of places: blocks of private keys, passwords in URLs, headers: the expression is tried at its literal.

Rows match only what is certainly a key. Prose, source code, hashes and ids are kept. Every expression takes linear
time: no match is tried within another, and lookaheads are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Literal

from cantrip_actors.redact.named import NAMED
from cantrip_actors.redact.services import SERVICES, KeyedService


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """A kind of secret: `expression` is tried if a text has one of `anchors`.

    Anchors are in lower case, and any case fits. By default the whole text is searched with the expression then. With
    `within="places"` it is tried only where an anchor begins, and with `within="names"` the match of its group has to
    look like a secret, too (`named.py`). With `within="words"` anchors are searched only in words of 15 characters or
    more, and the case has to match.
    """

    name: str
    anchors: tuple[str, ...]
    source: str
    within: Literal["text", "words", "places", "names"] = "text"

    @property
    def expression(self) -> re.Pattern[str]:
        """The expression, compiled when it is first tried: compiling all of them takes a tenth of a program's start."""
        return _compile(self.source)


@cache
def _compile(source: str) -> re.Pattern[str]:
    return re.compile(source)


def _place(name: str, anchor: str, expression: str) -> SecretPattern:
    return SecretPattern(name, (anchor,), expression, "places")


def _word(name: str, anchors: str, expression: str) -> SecretPattern:
    return SecretPattern(name, tuple(anchors.split()), expression, "words")


_ALONE = r"(?<![A-Za-z0-9])"
"""A key does not begin in the middle of a word: `task-…` is not a key of OpenAI."""


def _prefix(prefix: str, rest: str, not_after: str = "[A-Za-z0-9]") -> str:
    """Return `_ALONE`, prefix and rest as an expression with the literal first, which is ten times as fast."""
    literal = re.escape(prefix)
    return f"{literal}(?<!{not_after}{literal}){rest}"


_NO_MORE = r"(?![A-Za-z0-9+/_=-])"


def _of_service(service: KeyedService) -> Iterator[SecretPattern]:
    """Yield the rows of a service of the table: one for each prefix, as one literal is searched for fast."""
    rest = f"[{service.alphabet}]"
    digit = f"(?={rest}{{0,200}}?[0-9])" if service.digit else ""
    count = f"{{{service.least},{service.most or ''}}}"
    end = _NO_MORE if service.most else ""
    before = "[A-Za-z0-9+/]" if service.most else "[A-Za-z0-9]"
    for prefix in service.prefixes:
        yield _word(service.name, prefix, _prefix(prefix, f"{digit}{rest}{count}{end}", before))


COMMON: tuple[SecretPattern, ...] = (
    *chain.from_iterable(map(_of_service, SERVICES)),
    # also DeepSeek and others that use the prefix; with a digit, since CSS classes begin so too
    _word("openai-key", "sk-", _prefix("sk-", r"(?!ant-)(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{20,}")),
    _word("aws-key", "AKIA ASIA ABIA ACCA", rf"{_ALONE}(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    _word("airtable-token", "pat", _prefix("pat", r"[A-Za-z0-9]{14}\.[a-f0-9]{64}")),
    _word(
        "resend-key",
        "re_",
        _prefix("re_", r"(?=[A-Za-z_]{0,40}[0-9])[1-9A-Za-z]{8}_[1-9A-Za-z]{24}(?![A-Za-z0-9_])"),
    ),
    _word(
        "1password-key",
        "A3-",
        _prefix("A3-", r"[A-Z0-9]{6}-[A-Z0-9]{6}-?[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}"),
    ),
    _word("terraform-token", ".atlasv1.", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}"),
    _word("telegram-token", ":AA", r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])"),
    _word(
        "azure-secret", "~", r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~.-])"
    ),
    # keys of Azure that name their service behind a plus sign, so that scanners find them
    _word(
        "azure-key",
        "+ASt +ASb +AEh +ABa +AMC +ACR",
        r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{33,76}\+A(?:St|Sb|Eh|Ba|MC|CR)[A-Za-z0-9+/]{5,6}={0,2}(?![A-Za-z0-9+/])",
    ),
    _word("firebase-key", ":APA91b", r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{4,40}:APA91b[A-Za-z0-9_-]{100,}"),
    _word("deepl-key", ":fx", r"(?<![A-Za-z0-9-])[a-f0-9]{8}(?:-[a-f0-9]{4}){3}-[a-f0-9]{12}:fx(?![A-Za-z0-9])"),
    _word("mapbox-token", "sk.eyJ tk.eyJ", r"(?<![A-Za-z0-9])[st]k\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"),
    _word("workato-token", "wrka", r"(?<![A-Za-z0-9])wrka[a-z]{0,2}-eyJ[A-Za-z0-9_.-]{80,}"),
    _word("clickup-token", "pk_", r"(?<![A-Za-z0-9])pk_[0-9]{1,12}_[A-Za-z0-9]{32}(?![A-Za-z0-9])"),
    _word(
        "authress-key",
        ".acc- .acc_",
        r"(?<![A-Za-z0-9])(?:sc|ext|scauth|authress)_[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[a-z0-9+/_=-]{30,120}",
    ),
    _word("discord-hook", "/api/webhooks/", r"discord(?:app)?\.com/api/webhooks/[0-9]{8,20}/([A-Za-z0-9_-]{40,})"),
    _word(
        "discord-token",
        "MD MT Mj Mz ND NT Nj Nz OD OT",
        r"(?<![A-Za-z0-9_.-])[MNO][A-Za-z0-9]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}(?![\w.-])",
    ),
    _word("teams-hook", "webhook.office.com/", r"webhook\.office\.com/webhookb2/([A-Za-z0-9@/-]{60,})"),
    _word("slack-hook", "hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_-]{16,})"),
    _word("mailchimp-key", "-us", r"(?<![A-Za-z0-9])[a-f0-9]{32}-us[0-9]{1,2}(?![A-Za-z0-9])"),
    _word("facebook-token", "|", r"(?<![A-Za-z0-9])[0-9]{15,16}\|[A-Za-z0-9_-]{27,40}(?![A-Za-z0-9_-])"),
    _word("maxmind-key", "_mmk", r"(?<![A-Za-z0-9])[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk(?![A-Za-z0-9])"),
    _word("salesforce-token", "!A", r"(?<![A-Za-z0-9])00D[A-Za-z0-9]{12}!A[A-Za-z0-9._-]{60,}"),
    _word("jwt", "eyJ", _prefix("eyJ", r"[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]{6,}){2,4}", "[A-Za-z0-9_-]")),
    # a block without an end was cut off: redact all of it
    _place(
        "private-key",
        "-----begin ",
        r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        r"[\s\S]*?(?:-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    _place(
        "authorization",
        "authorization",
        r"(?i:authorization)[\"']?\s{0,8}[:=](?:\s{0,8}[\"']?(?i:bearer|basic|token|apikey|negotiate|ssws|geniekey|bot|key)\s{1,8}([^\s\"',;<>\[\]]{6,})"
        r"|(?<=:)\s{0,8}[\"']?(?!(?i:digest|bearer|basic|token|ssws|geniekey|bot|key)\b)((?=[A-Za-z._~+/-]{0,200}[0-9])[A-Za-z0-9._~+/=-]{16,})(?!\())",
    ),
    _place(
        "digest",
        "authorization",
        r"(?i:authorization[\"']?\s{0,8}[:=]\s{0,8}[\"']?digest)\s[^\n]{0,500}?\b(?i:response)=\"?([a-f0-9]{32,128})",
    ),
    _place(
        "cookie",
        "cookie",
        r"(?i:cookie)[\"']?\s{0,3}:\s{0,3}[\"']?((?=[^\n0-9]{0,200}[0-9])[\w.-]{1,64}=[^\s\"'<>;,\\\[\]]{6,}(?:;\s?[\w.-]{1,64}=[^\s;\"'<>\[\]]{1,})*)",
    ),
    _place(
        "bearer-token",
        "bearer",
        r"(?i:(?<![A-Za-z0-9_])bearer)\s{1,8}((?=[A-Za-z._~+/-]{0,200}[0-9])[A-Za-z0-9._~+/-]{16,}=*|[A-Za-z0-9._~+/-]{32,}=*)",
    ),
    *(SecretPattern(name, (word,), expression, "names") for name, word, expression in NAMED),
    _place(
        "netrc",
        "machine",
        r"machine\s{1,8}\S{1,255}\s{1,8}login\s{1,8}\S{1,255}\s{1,8}password\s{1,8}(?!\[redacted:)(\S{4,})",
    ),
    SecretPattern(
        "pgpass",
        (":5432:",),
        r"(?m)^(?=[^:\n]{0,255}[.*g-zG-Z])[\w.*-]{1,255}:(?:[0-9]{4,5}|\*):[\w*-]{1,63}:[\w.-]{1,63}:(?!\[redacted:)(?=[^\s:]{0,200}[0-9])([^\s:/]{4,255})$",
    ),
    # the part before the host of a URL; a marker of an earlier pass is not a password
    _place(
        "url-password",
        "://",
        r"://[^\s/@:\"'<>\[\]]{0,256}:(?!\[redacted:[\w.-]{1,64}\]@)([^\s/\"'<>]{1,1024})@",
    ),
    _place("url-token", "://", r"://([^\s/@:\"'<>\[\]]{16,1024})@"),
)
"""The default patterns of a `Redactor`."""
