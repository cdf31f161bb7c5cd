"""The project's own recordings (`tests/wire`): what each comes to, however it is framed, and that it can go back."""

import copy
import json
import tomllib
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors.crystal.constructors import anthropic, cohere, google, mistral, ollama, openai
from cantrip_actors.crystal.replay import DECODERS, Recording, faults, recordings
from cantrip_actors.crystal.sse import Framing
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.messages import Message
from conformance.wire import main
from tests.crystal.asking import request
from tests.exhaustive import EXAMPLES, FULL

FOLDER = Path(__file__).parent.parent / "wire"
EXPECTED = tomllib.loads((FOLDER / "expected.toml").read_text(encoding="utf-8"))
MODEL = "the-model"
CRYSTALS = {
    "anthropic": anthropic(MODEL, api_key="k"),
    "openai-responses": openai(MODEL, api_key="k"),
    "openai-chat": openai(MODEL, chat=True, api_key="k"),
    "google": google(MODEL, api_key="k"),
    "mistral": mistral(MODEL, api_key="k"),
    "cohere": cohere(MODEL, api_key="k"),
    "ollama": ollama(MODEL),
}
each_recording = pytest.mark.parametrize("name", EXPECTED)


def recorded(name) -> Recording:
    family = name.partition("/")[0]
    (found,) = recordings(FOLDER / name, family)
    return found


def heard(family, chunks):
    """What these bytes come to, the response or the error, and the payloads that were shown."""
    decoder, framing, payloads = DECODERS[family](MODEL), Framing(), []
    try:
        for chunk in chunks:
            for event in framing.feed(chunk):
                payloads += decoder.feed(event)
        for event in framing.close():
            payloads += decoder.feed(event)
        response = decoder.finish()
    except CrystalError as error:
        return str(error), [*payloads, *decoder.fail(error)]
    return response, payloads + decoder.draft.take()


def told(outcome):
    """An outcome in the words of `expected.toml`."""
    response, error = outcome.response, outcome.error
    if response is None:
        made = {"error": str(error), "status": getattr(error, "status", None)}
        retryable = getattr(error, "retryable", None)
        made |= {
            "retryable": "none" if retryable is None else retryable,
            "retry_after": getattr(error, "retry_after", None),
        }
    else:
        usage = response.usage
        made = {
            "content": response.content,
            "thinking": response.thinking,
            "calls": [[call.id, call.gate, call.arguments] for call in response.tool_calls] or None,
            "usage": [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
            "stop_reason": response.metadata.get("stop_reason"),
            "images": [image.digest for image in response.images] or None,
            "kept": json.dumps(response.blocks[0]["content"], ensure_ascii=False) if response.blocks else None,
        }
    return {name: value for name, value in made.items() if value is not None}


def test_each_recording_is_expected_and_each_expectation_recorded():
    files = {f"{file.parent.name}/{file.name}" for file in FOLDER.glob("*/*")}
    assert files == set(EXPECTED)


@pytest.mark.rule("CRYSTAL-6")
@each_recording
def test_a_recording_decodes_as_expected(name):
    outcome = recorded(name).play()
    assert told(outcome) == EXPECTED[name]
    assert faults(outcome.payloads) == []


def data(events, *, field=b"data: ", end=b"\n\n", between=b"", names=True):
    for event in events:
        kind = json.loads(event).get("type")
        yield b"".join([between, b"event: %b\n" % kind.encode() if names and kind else b"", field, event, end])


def in_lines(events):
    """Each event over several `data` lines, as the specification lets a server."""
    for event in events:
        text = json.dumps(json.loads(event), indent=1, ensure_ascii=False).encode()
        yield b"".join(b"data: %b\n" % line for line in text.split(b"\n")) + b"\n"


def whole(events):
    """One body where there is one, else a list of bodies, as Gemini sends without `alt=sse`."""
    return events[0] if len(events) == 1 else b"[" + b"\n,\n".join(events) + b"]\n"


FRAMINGS = {
    "without names": lambda events: b"".join(data(events, names=False)),
    "without a space": lambda events: b"".join(data(events, field=b"data:")),
    "comments": lambda events: b"".join(data(events, between=b": OPENROUTER PROCESSING\n\n: \n\n")),
    "ids and retries": lambda events: b"".join(data(events, between=b"id: 7\nretry: 1000\n")),
    "a byte order mark": lambda events: b"\xef\xbb\xbf" + b"".join(data(events)),
    "carriage returns": lambda events: b"".join(data(events)).replace(b"\n", b"\r\n"),
    "several lines": lambda events: b"".join(in_lines(events)),
    "no last blank line": lambda events: b"".join(data(events))[:-2],
    "JSON a line": lambda events: b"\n".join(events) + b"\n",
    "a JSON list": whole,
}


@each_recording
def test_decoding_does_not_depend_on_framing_and_chunking(name):
    recording = recorded(name)
    family, events = recording.family, list(recording.events)
    wanted, shown = heard(family, [recording.framed()])
    for framing, frame in FRAMINGS.items():
        text = frame(events)
        if family == "openai-chat" and "stop_reason" not in EXPECTED[name]:  # then only this says that it is over
            if "JSON" in framing:
                continue
            text += b"\n\ndata: [DONE]\n\n"
        for size in (len(text), 1, *([5] if FULL else [])):
            found, payloads = heard(family, [text[at : at + size] for at in range(0, len(text), size)])
            assert (framing, size, found) == (framing, size, wanted)
            assert (framing, size, payloads) == (framing, size, shown)


@pytest.mark.rule("CRYSTAL-6")
@pytest.mark.parametrize("name", [name for name, wanted in EXPECTED.items() if "error" not in wanted])
def test_a_decoded_answer_goes_back_in_the_next_request(name):
    recording = recorded(name)
    response, _ = heard(recording.family, [recording.framed()])
    said = Message("assistant", response.content, response.tool_calls, blocks=response.blocks, images=response.images)
    results = [Message("tool", f"result {n}", (), call.id, call.gate) for n, call in enumerate(response.tool_calls)]
    body = orjson.dumps(request(CRYSTALS[recording.family], [Message("user", "go"), said, *results])).decode()
    for call in response.tool_calls:
        names = (call.gate, f"{call.gate}_call", f"{call.gate}_request")  # the latter are of the provider's own tools
        assert any(f'"{name}"' in body for name in names)
    for n in range(len(results)):
        assert f"result {n}" in body
    for signature in signatures(response.blocks):
        assert json.dumps(signature, ensure_ascii=False) in body


def signatures(value):
    """Whatever in the kept blocks only its provider can read."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from signatures(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            opaque = ("signature", "thoughtSignature", "thought_signature", "encrypted_content", "encrypted_index")
            is_text = isinstance(one, str) and one and not one.startswith("sha256:")  # the bytes of an image go back
            if name in (*opaque, "data", "fingerprint") and is_text:
                yield one
            yield from signatures(one)


ODD = (None, 0, -1, "", "x", "{}", [], {}, [1], {"a": 1}, True, 3.5, "\ud800", 10**25)


def places(value):
    """Every place in a value: what holds it, and under which name or number."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inside:
        yield value, name
        yield from places(one)


@settings(max_examples=3 * EXAMPLES)
@given(name=st.sampled_from(list(EXPECTED)), chance=st.randoms(use_true_random=False))
def test_a_changed_recording_is_an_answer_or_an_error(name, chance):
    recording = recorded(name)
    events = [json.loads(event) for event in recording.events]
    for _ in range(chance.choice((1, 1, 2, 3))):
        if found := list(places(events)):
            holder, place = chance.choice(found)
            if chance.random() < 0.3:
                del holder[place]
            else:
                holder[place] = copy.deepcopy(chance.choice(ODD))
    if events and chance.random() < 0.3:
        events.insert(chance.randrange(len(events)), chance.choice(events))
    if chance.random() < 0.2:
        chance.shuffle(events)
    if events:
        changed = recording._replace(events=tuple(json.dumps(event).encode() for event in events))
        outcome, text = changed.play(), changed.framed()
        assert faults(outcome.payloads) == []
        if outcome.response is not None:
            response, _ = heard(changed.family, [text])
            said = Message(
                "assistant", response.content, response.tool_calls, blocks=response.blocks, images=response.images
            )
            assert request(CRYSTALS[changed.family], [Message("user", "go"), said])
        again = changed.play(text[at : at + 3] for at in range(0, len(text), 3))
        assert (again.payloads, again.response, str(again.error)) == (*outcome[:2], str(outcome.error))


def test_the_referee_accepts_every_encoded_request(capsys):
    assert main([str(FOLDER)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(EXPECTED)} passed, 0 failed"
