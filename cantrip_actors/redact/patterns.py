"""What common keys look like: the table by which secrets are known that nobody told the runtime about.

A row has a name, the literals of which one must be in a text before its expression is tried (which is what makes clean
text cheap), and the expression. Where it has a group, the group is the secret and the rest stays readable: the host of
an URL, the word `Bearer`.

Rows err on the side of what is certainly a key: prefixes that their issuers chose to be found. Prose, hashes and ids
stay as they are. Every expression takes linear time: no start can be tried within the match of another, and what is
looked ahead at has a bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["COMMON", "SecretPattern"]


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """A kind of secret: `expression` is tried where a text holds one of `anchors` (in lower case; any case fits)."""

    name: str
    anchors: tuple[str, ...]
    expression: re.Pattern[str]


def _pattern(name: str, anchors: str, expression: str) -> SecretPattern:
    return SecretPattern(name, tuple(anchors.split()), re.compile(expression))


_ALONE = r"(?<![A-Za-z0-9])"
"""A key does not begin in the middle of a word: `task-…` is none of OpenAI's."""


def _prefixed(prefix: str, rest: str, not_after: str = "[A-Za-z0-9]") -> str:
    """`_ALONE`, the prefix and the rest, in an order that is searched for ten times as fast: what is literal first."""
    literal = re.escape(prefix)
    return f"{literal}(?<!{not_after}{literal}){rest}"


COMMON: tuple[SecretPattern, ...] = (
    _pattern("anthropic-key", "sk-ant-", _prefixed("sk-ant-", r"[A-Za-z0-9_-]{16,}")),
    # also OpenRouter, DeepSeek and others that took the prefix over; a digit, since CSS classes begin so too
    _pattern("openai-key", "sk-", _prefixed("sk-", r"(?!ant-)(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{20,}")),
    _pattern("google-key", "aiza", _prefixed("AIza", r"[A-Za-z0-9_-]{35}")),
    _pattern("google-token", "ya29. gocspx-", rf"{_ALONE}(?:ya29\.[A-Za-z0-9_-]{{20,}}|GOCSPX-[A-Za-z0-9_-]{{20,}})"),
    _pattern("aws-key", "akia asia abia acca", rf"{_ALONE}(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    _pattern(
        "aws-secret",
        "secret_access_key secretaccesskey secret_key",
        r"(?i:secret_?(?:access_?)?key)[\"']?\s{0,8}[:=]\s{0,8}[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
    ),
    _pattern(
        "github-token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        rf"{_ALONE}(?:gh[pousr]_[A-Za-z0-9]{{30,}}|github_pat_[A-Za-z0-9_]{{22,}})",
    ),
    _pattern("gitlab-token", "glpat-", _prefixed("glpat-", r"[A-Za-z0-9_-]{20,}")),
    _pattern(
        "slack-token", "xox xapp-", rf"{_ALONE}(?:xox[abeoprs]-[A-Za-z0-9-]{{10,}}|xapp-[0-9]-[A-Za-z0-9-]{{10,}})"
    ),
    _pattern("slack-hook", "hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows)/([A-Za-z0-9/_-]{16,})"),
    _pattern("stripe-key", "k_live_ k_test_", rf"{_ALONE}[rs]k_(?:live|test)_[A-Za-z0-9]{{16,}}"),
    _pattern("huggingface-token", "hf_", _prefixed("hf_", r"[A-Za-z0-9]{30,}")),
    _pattern("groq-key", "gsk_", _prefixed("gsk_", r"[A-Za-z0-9]{32,}")),
    _pattern("xai-key", "xai-", _prefixed("xai-", r"[A-Za-z0-9]{40,}")),
    _pattern("perplexity-key", "pplx-", _prefixed("pplx-", r"[A-Za-z0-9]{32,}")),
    _pattern("npm-token", "npm_", _prefixed("npm_", r"[A-Za-z0-9]{36}")),
    _pattern("pypi-token", "pypi-", _prefixed("pypi-", r"[A-Za-z0-9_-]{50,}")),
    _pattern("sendgrid-key", "sg.", _prefixed("SG.", r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}")),
    _pattern("jwt", "eyj", _prefixed("eyJ", r"[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]{6,}){2,4}", "[A-Za-z0-9_-]")),
    # one without an end was cut off: what there is of it goes
    _pattern(
        "private-key",
        "private",
        r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        r"[\s\S]*?(?:-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    _pattern(
        "authorization",
        "authorization",
        r"(?i:authorization)[\"']?\s{0,8}[:=]\s{0,8}[\"']?(?i:bearer|basic|token)\s{1,8}([^\s\"',;<>\[\]]{6,})",
    ),
    _pattern(
        "bearer-token",
        "bearer",
        r"(?i:\bbearer)\s{1,8}((?=[A-Za-z._~+/-]{0,200}[0-9])[A-Za-z0-9._~+/-]{16,}=*|[A-Za-z0-9._~+/-]{32,}=*)",
    ),
    _pattern(
        "api-key",
        "x-api-key x-goog-api-key api_key apikey api-key client_secret access_token auth_token x-amz-signature",
        r"(?i:x-api-key|x-goog-api-key|api[_-]?key|client_secret|access_token|auth_token|x-amz-signature)"
        r"[\"']?\s{0,8}[:=]\s{0,8}[\"']?((?=[A-Za-z._~+/%-]{0,200}[0-9])[A-Za-z0-9._~+/%-]{16,}=*)",
    ),
    # what stands before the host of an URL; a marker of an earlier pass is no password
    _pattern(
        "url-password",
        "://",
        r"(?<=://)[^\s/@:\"'<>\[\]]{0,256}:(?!\[redacted:[\w.-]{1,64}\]@)([^\s/\"'<>]{1,1024})@",
    ),
    _pattern("url-token", "://", r"(?<=://)([^\s/@:\"'<>\[\]]{16,1024})@"),
)
"""The patterns that a `Redactor` has unless it is given others."""
