"""A secret anywhere in a loom: no export in any format and no redacted record contains a byte of it."""

import dataclasses
import inspect
import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors.loom.export.atif import atif_json, segments, trajectory
from cantrip_actors.loom.export.chat import chat_jsonl
from cantrip_actors.loom.export.conversation import conversation_of
from cantrip_actors.loom.export.html import html_page
from cantrip_actors.loom.export.pairs import pairs_jsonl
from cantrip_actors.loom.export.thread import thread_jsonl
from cantrip_actors.loom.reading.redaction import redact_record, redacted_loom
from cantrip_actors.loom.reading.search import Query, search
from cantrip_actors.loom.reading.view import Loom
from cantrip_actors.records.codec import decode, encode
from cantrip_actors.records.records import IntentGiven, Requested, Rewarded, Steered, Utterance
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.terms.errors import LoomError
from cantrip_actors.terms.history import PastMessage
from cantrip_actors.terms.messages import ToolCall
from tests.loom.histories import AT, header, histories, records, turn
from tests.loom.test_view import loom_of

SECRET = 'k3y-Äbc/def+"q\\z🔑=9'
REDACTOR = Redactor({"search": SECRET})
FORMS = (SECRET, json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1])
places = st.sampled_from(["{}", "a {} b", "{0}{0}", "\n{}\n"]).map(lambda place: place.format(SECRET))


def taken_out(loom):
    """Everything that can be taken out of a loom, as one text."""
    pieces = [b"".join(html_page(loom)), b"".join(pairs_jsonl(loom))]
    for entity in loom.entities():
        pieces += [thread_jsonl(loom.turns(entity)), *chat_jsonl([conversation_of(loom, entity)], metadata=True)]
        pieces += [atif_json(trajectory(loom, entity)), *map(atif_json, segments(loom, entity))]
    return b"\n".join(pieces).decode() + repr(list(search(loom, Query(text="k3y"))))


@settings(max_examples=40)  # each takes the whole loom out twice, in seven forms
@given(histories(), st.data())
def test_no_export_format_contains_a_secret(history, data):
    for entity in history.unfinished[:2]:
        history.take([Steered(entity, data.draw(places), AT)], together=False)
    extra = header("zz", name=data.draw(places))
    extra = dataclasses.replace(extra, call={"system_prompt": data.draw(places), SECRET: 1}, crystal=data.draw(places))
    said = {data.draw(places): [data.draw(places), {"x": (1, SECRET)}]}
    call = ToolCall("c", data.draw(places), {"x": data.draw(places)})
    past = PastMessage("user", data.draw(places)), PastMessage("assistant", data.draw(places), (call,))
    history.take([extra, IntentGiven("zz", data.draw(places), AT, said, history=past)], together=False)
    history.take(turn("zz", "zt", None, text=said), together=False)
    loom = loom_of(*history.batches)
    assert any(form in taken_out(loom) for form in FORMS)
    told = taken_out(redacted_loom(loom, REDACTOR))
    assert not any(form in told for form in FORMS)
    assert "[redacted:search]" in told


LINKS = {"at", "reason", "ward", "key", "sender", "to", "previous", "mail", "cantrip_name", "decision"}
"""Texts that say when and how, that link records, mail and cantrips, or that are one of a few words."""


@given(records, st.data())
def test_a_redacted_record_does_not_contain_the_secret(record, data):
    texts = [f.name for f in dataclasses.fields(record) if isinstance(getattr(record, f.name), str)]
    said = [name for name in texts if not name.endswith(("_id", "_entity", "_turn")) and name not in LINKS]
    if not said or isinstance(record, Rewarded):
        return
    planted = dataclasses.replace(record, **{data.draw(st.sampled_from(said)): data.draw(places)})
    kept = encode(redact_record(planted, REDACTOR)).decode()
    assert not any(form in kept for form in FORMS)
    assert type(decode(kept.encode())) is type(record)


@given(records)
def test_a_clean_record_is_the_same_object(record):
    assert redact_record(record, Redactor(["not-in-there-ever"], patterns=())) is record


def test_a_redacted_loom_has_the_same_tree():
    loom = loom_of([header("e"), IntentGiven("e", SECRET, AT), *turn("e", "t", None, text=SECRET)])
    seen = redacted_loom(loom, REDACTOR)
    assert seen.entities() == loom.entities()
    assert seen["t"].observation == "[redacted:search]"
    assert loom["t"].observation == SECRET
    assert seen["t"].metadata == loom["t"].metadata


async def test_no_method_of_a_redacted_loom_returns_a_secret():
    secret, call = "hunter2-hunter2", ToolCall("c", "pay", {"to": "hunter2-hunter2"})
    said = Utterance(entity_id="e", turn_id="t2", content=secret, tool_calls=(call,), duration_ms=1.0)
    request = Requested(entity_id="e", turn_id="t2", tool_call_id="c", gate="pay", at=AT, why=secret, args=call.args)
    loom = loom_of([header("e", lasting=True), IntentGiven("e", secret, AT), *turn("e", "t", None, text=secret)])
    await loom._append([said, request])
    loom._store.quarantine("e", f"ValueError: {secret}", 0.0)
    seen = redacted_loom(loom, Redactor([secret]))
    arguments = {"entity_id": "e", "root": "e", "turn_id": "t", "number": 0, "time": AT, "name": "notes", "key": "k"}
    arguments |= {"call_id": "c", "cut": lambda records: records[1:]}
    showing = set()
    for name, method in inspect.getmembers(Loom, inspect.isfunction):
        if name.startswith("_") or name in ("attach", "reward", "prune", "forget"):
            continue
        _, *parameters = inspect.signature(method).parameters.values()
        values = [arguments[one.name] for one in parameters if one.default is one.empty]
        answers = [getattr(shown, name)(*values) for shown in (loom, seen)]
        texts = [repr([*answer] if isinstance(answer, Iterator) else answer) for answer in answers]
        assert secret not in texts[1], name
        showing |= {name} if secret in texts[0] else set()
    assert showing >= {"records", "newest_records", "newest_round", "facts", "quarantines", "open_request", "turns"}


async def test_a_redacted_loom_is_read_only():
    loom = redacted_loom(loom_of([header("e"), *turn("e", "t", None)]), REDACTOR)
    with pytest.raises(LoomError, match="for reading"):
        await loom.reward("t", 1.0)


def test_a_redacted_loom_can_be_redacted_again():
    loom = loom_of([header("e"), IntentGiven("e", f"{SECRET} hunter2", AT)])
    seen = redacted_loom(redacted_loom(loom, REDACTOR), Redactor(["hunter2"]))
    assert seen.records("e")[-1].intent == "[redacted:search] [redacted:secret]"
