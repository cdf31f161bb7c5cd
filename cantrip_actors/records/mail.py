"""Mail: a message to an entity, which waits in its inbox until a record takes it.

Mail belongs to an entity's identity, not to a process: it is durable before `send` returns, and the record that
takes it (`IntentGiven`, `Steered`, …) is written in the transaction that marks it taken. So each mail is taken exactly
once, and a crash loses none.

There are two lanes. Control mail (steering messages, interrupts, stops, decisions, folds, undos) overtakes intents;
within a lane mail keeps its order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

import msgspec
import orjson

from cantrip_actors.records.codec import convert_from_json, decode_value, dump_json, encode_value
from cantrip_actors.records.records import (
    Decided,
    Ended,
    Folded,
    IntentGiven,
    MailRefused,
    Record,
    Steered,
    Undone,
)
from cantrip_actors.terms.additions import NO_ADDITIONS, Additions, read_additions
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import NO_IMAGES
from cantrip_actors.terms.value import Value

MailKind = Literal["intent", "timer", "steer", "interrupt", "stop", "decision", "compact", "undo"]

CONTROL: Final = 0
INTENTS: Final = 1


class Mail(Value, frozen=True, kw_only=True):
    """One message to an entity. `entity_id` is the root entity whose inbox keeps it; `child` is its addressee
    below it, if any.

    `key` is unique among the entity's mail as long as that is kept. `body` is a JSON object; what it holds depends on
    `kind`. `sender` names a program, a token or an entity; `at` is the time of sending, ISO 8601 in UTC. `images` are
    those of `body`, which names them by their handles. `trace` is the `traceparent` of the span that sends it.
    `dependencies` is the mark of the dependencies with which its sender wants the intent to be worked on; None if it
    gave none.
    """

    entity_id: str
    key: str
    kind: MailKind
    body: Mapping[str, Any]
    sender: str = ""
    at: str = ""
    child: str | None = None
    images: tuple[File, ...] = NO_IMAGES
    trace: str | None = None
    dependencies: str | None = None

    @property
    def lane(self) -> int:
        """CONTROL or INTENTS."""
        return INTENTS if self.kind in ("intent", "timer") else CONTROL

    @property
    def additions(self) -> Additions:
        """What its sender adds to the cantrip of the entity for this intent.

        Raises InvalidCantrip for a body that this version cannot read.
        """
        return read_additions(self.body["additions"]) if "additions" in self.body else NO_ADDITIONS

    @property
    def loads(self) -> bool:
        """Whether an entity that is not loaded is loaded for it: a steering message waits for the next intent."""
        return self.kind != "steer"

    @property
    def digest(self) -> bytes:
        """The digest of the content: kind, child, body and images, but not the sender and the time.

        An interrupt with its sender's key (`keyed`) names the episode that was current when it was first sent.

        Raises LoomError for a body that JSON cannot express.
        """
        images = [image.identity for image in self.images]
        content: dict[str, Any] = {"kind": self.kind, "to": self.child or "", "body": self._content, "images": images}
        try:
            plain = orjson.dumps(content, default=dict, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            plain = b"null"
        if b"null" in plain:  # it may stand for a number that only the standard library can write
            exact = json.loads(dump_json(content))
            plain = json.dumps({name: exact[name] for name in content}, sort_keys=True).encode()
        return blake2b(plain, digest_size=16).digest()

    @property
    def _content(self) -> Mapping[str, Any]:
        if self.kind == "interrupt" and self.body.get("keyed") is True:
            return {name: value for name, value in self.body.items() if name != "episode"}
        return self.body


class MailRow(NamedTuple):
    """A mail as a store keeps it, without its content.

    `no` is its number in the store. `taken` is the number of the record that took it, or None while it waits. `is_new`
    is True in the answer to the post that added it, and False for a repeated one.
    """

    no: int
    taken: int | None
    entity_id: str
    key: str
    lane: int
    loads: bool
    digest: bytes
    is_new: bool = False


class Pending(NamedTuple):
    """A mail that no record has taken, with its number in the store."""

    no: int
    mail: Mail


def get_key(record: Record) -> str | None:
    """Return the key of the mail that a record takes, or None."""
    return record.key if type(record) in _TAKE_MAIL else None  # type: ignore[union-attr]  # its type says so


def make_decision_key(request_id: str) -> str:
    """Return the key of the mail that decides a request. All decisions have the same one, so the first counts."""
    return f"decision:{request_id}"


def encode_mail(mail: Mail) -> bytes:
    """Return a mail as one line, without its newline. Raises LoomError for a body that JSON cannot express."""
    return encode_value(mail, (mail.body,))


def decode_mail(line: bytes) -> Mail:
    """Return the mail of one line; its images have no bytes. Raises LoomError for a line that is not a mail."""
    return decode_value(line, _DECODER, "mail")


_TAKE_MAIL = frozenset({IntentGiven, Steered, MailRefused, Ended, Decided, Folded, Undone})
_DECODER = msgspec.json.Decoder(Mail, dec_hook=convert_from_json)
