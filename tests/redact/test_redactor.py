"""Secrets are redacted in every encoding, at every position of a value, in streams, logs and errors."""

import base64
import html
import io
import json
import string
import time
from urllib.parse import quote, quote_plus

import orjson
import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from cantrip_actors.records.records import Utterance
from cantrip_actors.redact.logs import log_processor, redact_error
from cantrip_actors.redact.patterns import COMMON
from cantrip_actors.redact.redactor import CIRCLE, REMEMBERED, Redactor
from cantrip_actors.redact.stream import RedactedStream
from cantrip_actors.terms.messages import ToolCall, Usage
from tests.loom.histories import texts, values

KEY = 'k3y-Äbc/def+"q\\z🔑=9'
WORDS = "correct horse battery staple"

secrets = st.text(string.ascii_letters + string.digits + "+/=_-.~!$&%\"'\\äß🔑", min_size=8, max_size=40).filter(
    lambda text: text.strip() == text and len(set(text)) > 4 and "redacted" not in text
)


def escaped(text):
    """Every sign as an escape of JSON, as no writer does and every reader reads."""
    return "".join(f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else json.dumps(sign)[1:-1] for sign in text)


WRITINGS = {
    "as it is": lambda text: text,
    "in JSON": lambda text: json.dumps(text)[1:-1],
    "in JSON, as UTF-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "in JSON in JSON": lambda text: json.dumps(json.dumps(text))[1:-1],
    "in JSON with slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "every sign escaped": escaped,
    "half of it escaped": lambda text: text[:3].replace("\\", "\\\\") + escaped(text[3:]),
    "in an URL": lambda text: quote(text, safe=""),
    "in an URL, lower case": lambda text: quote(text, safe="").lower() if text.lower() == text else quote(text),
    "in a form": quote_plus,
    "in a page": html.escape,
    "in an URL in JSON": lambda text: json.dumps(quote(text, safe="/"))[1:-1].replace("/", "\\/"),
    "in base64": lambda text: base64.b64encode(text.encode()).decode(),
    "in base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "in base64 after one byte": lambda text: base64.b64encode(b"u" + text.encode()).decode(),
    "in base64 after a user's name": lambda text: base64.b64encode(b"me:" + text.encode() + b"@x").decode(),
    "in base64 after two bytes": lambda text: base64.b64encode(b"u:" + text.encode() + b"!").decode(),
    "in hex": lambda text: text.encode().hex(),
    "in upper hex": lambda text: text.encode().hex().upper(),
    "over two lines": lambda text: text[:5] + "\n    " + text[5:],
}


class TestKnownSecrets:
    @pytest.mark.parametrize("written", WRITINGS.values(), ids=WRITINGS)
    def test_a_known_secret_is_redacted_in_every_encoding(self, written):
        said = Redactor({"search": KEY}).text(f"it is {written(KEY)} here")
        assert said.startswith("it is ")
        assert said.endswith(" here")
        assert said.count("[redacted:search]") == 1
        rest = said.replace("[redacted:search]", "").removeprefix("it is ").removesuffix(" here")
        assert len(rest) <= 8, rest  # what stood before or after it in the same base64

    @given(secret=secrets, before=texts, after=texts, way=st.sampled_from(sorted(WRITINGS)))
    def test_any_secret_is_redacted_at_any_position_in_every_encoding(self, secret, before, after, way):
        redactor = Redactor([secret], patterns=())
        written = WRITINGS[way](secret)
        said = redactor.text(before + written + after)
        assert written not in said
        assert secret not in said
        assert redactor.text(said) == said

    @given(first=secrets, second=secrets, overlap=st.integers(1, 7))
    @example(first="abcdefgh", second="efghijkl", overlap=4)
    def test_overlapping_secrets_are_redacted_completely(self, first, second, overlap):
        second = first[-overlap:] + second
        redactor = Redactor({"a": first, "b": second}, patterns=())
        assert redactor.text(f"<{first}{second[overlap:]}>") == "<[redacted:a]>"

    def test_a_secret_within_another_is_redacted_with_it(self):
        redactor = Redactor({"short": "abcd-efgh", "long": "xx-abcd-efgh-yy"})
        assert redactor.text("xx-abcd-efgh-yy") == "[redacted:long]"

    def test_overlapping_occurrences_of_a_secret_are_redacted(self):
        assert Redactor(["abcabcabc"]).text("abcabcabcabc!") == "[redacted:secret]!"

    def test_each_line_of_a_multiline_key_is_redacted(self):
        key = "-----BEGIN X-----\nMIIEpAIBAAKCAQEA7\nq83vEjRWeJCrze8Sm\n-----END X-----"
        assert Redactor({"pem": key}).text("grep says: q83vEjRWeJCrze8Sm") == "grep says: [redacted:pem]"

    def test_a_passphrase_wrapped_over_two_lines_is_redacted(self):
        assert Redactor({"pass": WORDS}).text("correct horse\n  battery staple.") == "[redacted:pass]."

    def test_an_empty_secret_is_ignored_and_a_short_one_is_refused(self):
        assert Redactor(["", "  "]).text("anything") == "anything"
        with pytest.raises(ValueError, match="'pin' has fewer than 4 characters") as refused:
            Redactor({"pin": "123"})
        assert "123" not in str(refused.value)

    @pytest.mark.parametrize("given", ["one-secret", 7, None, [7], [("name",)], {"name": None}, {1: "a-secret"}])
    def test_secrets_that_are_not_a_collection_of_texts_are_refused(self, given):
        with pytest.raises(ValueError, match="secrets: expected a list of texts, or a mapping") as refused:
            Redactor(given)
        assert "a-secret" not in str(refused.value)
        assert "one-secret" not in str(refused.value)

    def test_no_repr_or_error_shows_a_secret(self):
        redactor = Redactor({"search": KEY})
        assert repr(redactor) == f"<Redactor of 1 secrets and {len(COMMON)} patterns>"

    def test_knowing_adds_secrets(self):
        redactor = Redactor({"a": "first-secret"}).knowing({"b": "second-secret"})
        assert redactor.text("first-secret second-secret") == "[redacted:a] [redacted:b]"

    def test_the_name_of_a_secret_is_escaped_in_its_marker(self):
        assert Redactor({"my key]<b>": "first-secret"}).text("first-secret") == "[redacted:my-key--b-]"


# made here, so that no scanner takes this file for a leak
ALNUM = "a1B2c3D4e5F6g7H8i9J0" * 5
EXAMPLES = {
    "anthropic-key": "sk-" + "ant-api03-" + ALNUM[:40],
    "openai-key": "sk-" + "proj-" + ALNUM[:40],
    "google-key": "AI" + "za" + ALNUM[:35],
    "google-token": "ya29" + "." + ALNUM[:40],
    "aws-key": "AK" + "IA" + ALNUM[:16].upper(),
    "github-token": "gh" + "p_" + ALNUM[:36],
    "gitlab-token": "gl" + "pat-" + ALNUM[:20],
    "slack-token": "xo" + "xb-123456789012-" + ALNUM[:24],
    "stripe-key": "sk" + "_live_" + ALNUM[:24],
    "huggingface-token": "hf" + "_" + ALNUM[:34],
    "groq-key": "gsk" + "_" + ALNUM[:52],
    "xai-key": "xai" + "-" + ALNUM[:80],
    "perplexity-key": "pplx" + "-" + ALNUM[:48],
    "npm-token": "npm" + "_" + ALNUM[:36],
    "pypi-token": "pypi" + "-" + ALNUM[:60],
    "sendgrid-key": "SG" + "." + ALNUM[:22] + "." + ALNUM[:43],
    "jwt": "ey" + "JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + ALNUM[:43],
}
IN_CONTEXT = {
    "aws-secret": (f"aws_secret_access_key = {ALNUM[:40]}", "aws_secret_access_key = {}"),
    "slack-hook": ("https://hooks.slack.com/" + f"services/T0/B0/{ALNUM[:24]}", "https://hooks.slack.com/services/{}"),
    "authorization": ("Authorization: Basic dXNlcjpw", "Authorization: Basic {}"),
    "bearer-token": (f"curl -H 'bearer {ALNUM[:20]}'", "curl -H 'bearer {}'"),
    "api-key": (f"?api_key={ALNUM[:20]}&q=1", "?api_key={}&q=1"),
    "url-password": ("postgres://me:hun/ter@db:5432/x".replace("/ter", "ter"), "postgres://me:{}@db:5432/x"),
    "url-token": (f"https://{ALNUM[:20]}@github.example/x", "https://{}@github.example/x"),
    "private-key": (
        "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nnext",
        "{}\nnext",
    ),
}


class TestPatterns:
    @pytest.mark.parametrize("name", EXAMPLES)
    @pytest.mark.parametrize("around", ["{}", "key={}", "({}).", '"{}"', "a {} b", "x\n{}\ny", '{{"k":"{}"}}'])
    def test_keys_of_known_services_are_redacted(self, name, around):
        said = Redactor().text(around.format(EXAMPLES[name]))
        assert said == around.format(f"[redacted:{name}]")

    @pytest.mark.parametrize("name", EXAMPLES)
    def test_keys_in_json_inside_json_are_redacted(self, name):
        text = json.dumps(json.dumps({"text": f"line\n{EXAMPLES[name]}\nline"}))
        said = Redactor().text(text)
        assert EXAMPLES[name] not in said
        assert f"[redacted:{name}]" in json.loads(json.loads(said))["text"]

    @pytest.mark.parametrize("name", IN_CONTEXT)
    def test_secrets_beside_a_telling_name_are_redacted(self, name):
        text, said = IN_CONTEXT[name]
        assert Redactor().text(text) == said.format(f"[redacted:{name}]")

    @pytest.mark.parametrize("name", IN_CONTEXT)
    def test_redacting_twice_changes_nothing(self, name):
        once = Redactor().text(IN_CONTEXT[name][0])
        assert Redactor().text(once) is once

    def test_a_truncated_private_key_is_redacted(self):
        text = "-----BEGIN " + "PRIVATE KEY-----\nMIIEvQ"
        assert Redactor().text(f"see {text}") == "see [redacted:private-key]"
        assert Redactor().text(json.dumps({"file": text})).startswith('{"file": "[redacted:private-key]')

    @pytest.mark.parametrize(
        "text",
        [
            "the bearer of bad news, and a basic authorization scheme",
            "task-force-1234567890123456789012",
            "class='sk-folding-cube-animation-x sk-circle'",
            "0123456789abcdef0123456789abcdef01234567",
            "01a2002a-8ab4-71ba-9d5e-8e88887fdc93",
            "https://example.org/a:b@c?key=value and mail me@example.org",
            "http://localhost:8080/x@y",
            "C:\\users\\new\\table, 100 % sure & more",
            "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
            "-----BEGIN PUBLIC KEY-----\nMIIE\n-----END PUBLIC KEY-----",
            "an api_key is required; tokens: 12345",
            "eyJust a word, eyJ.eyJ.x",
        ],
    )
    def test_text_without_a_secret_is_not_changed(self, text):
        assert Redactor().text(text) is text

    @pytest.mark.parametrize(
        "text",
        [
            "sk-" * 100_000,
            "eyJ" * 100_000,
            "://" * 100_000,
            "-----BEGIN " * 30_000,
            "a" * 300_000,
            "authorization: bearer " * 15_000,
            "\\" * 300_000,
            "%41" * 100_000,
            "&#65;" * 60_000,
            "://a:" + "b:" * 150_000,
            "api_key=" * 40_000,
            "eyJhbGciOi." * 30_000,
            "password=" * 30_000,
            "pwd_access_key0=-" * 40_000,
            'token: "' + "a1" * 150_000,
            "api_key: a1" * 30_000,
            "secret 1 " * 30_000,
            "-----BEGIN PRIVATE KEY-----" * 10_000,
            "Cookie: a=" * 30_000,
            "authorization: digest " * 15_000,
            "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6 " * 8_000,
            "password=hunter22 " * 15_000,
            "Z2hwX2ExQjJjM0Q0ZTVGNmc3SDhpOUowazFMMm0zTjRvNVA2 " * 6_000,
            "a1" * 150_000,
            "MTa1.a1" * 40_000,
        ],
        ids=lambda text: text[:12],
    )
    def test_redacting_any_text_takes_bounded_time(self, text):
        began = time.process_time()
        Redactor(["some-secret-or-other"]).text(text)
        assert time.process_time() - began < 10


class TestValues:
    @given(value=values, secret=secrets, data=st.data())
    def test_a_secret_planted_anywhere_in_a_value_is_redacted(self, value, secret, data):
        planted = plant(value, secret, data)
        redactor = Redactor([secret], patterns=())
        text = json.dumps(redactor.value(planted), ensure_ascii=False)
        assert json.dumps(secret, ensure_ascii=False)[1:-1] not in text
        assert redactor.value(redactor.value(planted)) == redactor.value(planted)

    @given(value=values)
    def test_a_clean_value_is_returned_as_the_same_object(self, value):
        assert Redactor(["not-in-there-ever"]).value(value) is value

    def test_redacted_keys_of_a_mapping_stay_distinct(self):
        said = Redactor(["secret-1", "secret-2"]).value({"secret-1": 1, "secret-2": 2, "c": 3})
        assert said == {"[redacted:secret]": 1, "[redacted:secret]#2": 2, "c": 3}

    def test_secrets_in_numbers_and_bytes_are_redacted(self):
        redactor = Redactor(["1234567890"])
        assert redactor.value([12345678901, 5, b"x1234567890", True]) == [
            "[redacted:secret]1",
            5,
            "x[redacted:secret]",
            True,
        ]

    def test_records_and_tuples_keep_their_kind(self):
        record = Utterance(
            entity_id="e",
            turn_id="t",
            content="it is my-secret",
            tool_calls=(ToolCall("c", "f", {"k": ["my-secret"]}), ToolCall("d", "g", {})),
            usage=Usage(1),
            duration_ms=2.0,
        )
        said = Redactor(["my-secret"]).value(record)
        assert said == Utterance(
            entity_id="e",
            turn_id="t",
            content="it is [redacted:secret]",
            tool_calls=(ToolCall("c", "f", {"k": ["[redacted:secret]"]}), ToolCall("d", "g", {})),
            usage=Usage(1),
            duration_ms=2.0,
        )

    def test_a_value_that_contains_itself_is_redacted_and_a_clean_one_stays_the_same(self):
        inner = {"text": "fine"}
        outer = [inner, "my-secret"]
        inner["around"] = outer
        redactor = Redactor(["my-secret"])
        assert redactor.value(outer) == [{"text": "fine", "around": CIRCLE}, "[redacted:secret]"]
        outer[1] = "fine"
        assert redactor.value(outer) is outer
        assert inner["around"] is outer

    def test_a_part_that_a_value_contains_twice_is_redacted_twice(self):
        part = ["my-secret"]
        assert Redactor(["my-secret"]).value([part, (part,)]) == [["[redacted:secret]"], (["[redacted:secret]"],)]

    def test_secrets_at_any_depth_are_redacted(self):
        value = "my-secret"
        for _ in range(5000):
            value = [value] if isinstance(value, (str, dict)) else {"k": value}
        said = Redactor(["my-secret"]).value(value)
        while not isinstance(said, str):
            said = said[0] if isinstance(said, list) else said["k"]
        assert said == "[redacted:secret]"


def plant(value, secret, data):
    """The secret somewhere in a value: instead of a part, within a text, or as a key."""
    if isinstance(value, str):
        at = data.draw(st.integers(0, len(value)))
        return value[:at] + secret + value[at:]
    if isinstance(value, list) and value:
        at = data.draw(st.integers(0, len(value) - 1))
        return [*value[:at], plant(value[at], secret, data), *value[at + 1 :]]
    if isinstance(value, dict) and value:
        key = data.draw(st.sampled_from(list(value)))
        if data.draw(st.booleans()):
            return {**value, key + secret: value[key]}
        return {**value, key: plant(value[key], secret, data)}
    return secret


class TestStreams:
    @given(secret=secrets, before=texts, after=texts, cuts=st.lists(st.integers(0, 99), max_size=6))
    def test_redacted_pieces_add_up_to_the_redacted_whole(self, secret, before, after, cuts):
        redactor = Redactor([secret, WORDS])
        text = f"{before} {secret} {WORDS}{after}".replace("\n", " ").replace("\r", " ")
        places = sorted({min(cut, len(text)) for cut in cuts})
        pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        stream = RedactedStream(redactor)
        said = "".join([stream.feed(piece) for piece in pieces] + [stream.close()])
        assert secret not in said
        assert said == redactor.text(text)

    @pytest.mark.parametrize("name", [*EXAMPLES, *IN_CONTEXT])
    def test_a_stream_fed_one_character_at_a_time_is_redacted(self, name):
        text = f"see {IN_CONTEXT[name][0] if name in IN_CONTEXT else EXAMPLES[name]} there"
        stream = RedactedStream(Redactor())
        assert "".join([stream.feed(sign) for sign in text] + [stream.close()]) == Redactor().text(text)

    def test_a_stream_holds_back_the_last_word(self):
        stream = RedactedStream(Redactor())
        assert [stream.feed(piece) for piece in ("He", "llo wor", "ld ", "!")] == ["", "Hello ", "world ", ""]
        assert stream.close() == "!"

    def test_a_long_word_is_passed_on_in_the_end(self):
        stream = RedactedStream(Redactor(["my-secret-key"]))
        out = "".join(stream.feed("x" * 1000) for _ in range(50))
        assert len(out) > 40_000
        assert (out + stream.feed("my-secret") + stream.feed("-key") + stream.close()).endswith("x[redacted:secret]")


class TestLogs:
    @pytest.fixture
    def logged(self):
        """What a logger of this kind has written."""
        out = io.StringIO()
        yield_to = structlog.wrap_logger(
            structlog.PrintLogger(out),
            processors=[log_processor(Redactor({"search": KEY})), structlog.processors.KeyValueRenderer()],
        )
        return yield_to, out

    @pytest.mark.parametrize(
        "fields",
        [
            {"text": f"a {KEY}"},
            {"deep": [{"k": (KEY, 1)}]},
            {KEY: 1},
            {"error": ValueError(f"bad key {KEY}")},
            {"object": type("Client", (), {"__repr__": lambda _: f"<Client {KEY}>"})()},
            {"objects": [{"x": type("Client", (), {"__repr__": lambda _: f"<Client {KEY}>"})()}]},
        ],
        ids=["a text", "deep", "a key", "an error", "an object", "objects in lists"],
    )
    def test_no_log_line_has_a_secret(self, logged, fields):
        logger, out = logged
        event = f"event {KEY}"
        logger.warning(event, **fields)
        assert out.getvalue().count("[redacted:search]") == 2
        assert not any(piece in out.getvalue() for piece in (KEY, repr(KEY)[1:-1]))

    def test_no_logged_traceback_has_a_secret(self, logged):
        logger, out = logged
        try:
            raise ValueError(f"bad key {KEY}")
        except ValueError:
            logger.exception("it failed")
        assert "ValueError: bad key [redacted:search]" in out.getvalue().encode().decode("unicode_escape")

    def test_a_clean_log_line_is_not_changed(self, logged):
        error = ValueError("fine")
        line = {"event": "x", "exc_info": error, "n": 1, "list": [1]}
        assert log_processor(Redactor([KEY]))(None, "info", dict(line)) == line


class TestErrors:
    def test_an_errors_text_cause_notes_and_group_are_redacted(self):
        cause = ConnectionError(f"refused {KEY}")
        error = ValueError(f"bad {KEY}", 3)
        error.__cause__ = cause
        error.add_note(f"tried {KEY}")
        group = ExceptionGroup("two", [error, KeyError(KEY)])
        assert redact_error(group, Redactor([KEY])) is group
        assert error.args == ("bad [redacted:secret]", 3)
        assert cause.args == ("refused [redacted:secret]",)
        assert error.__notes__ == ["tried [redacted:secret]"]
        assert KEY not in repr(group.exceptions[1])

    def test_an_errors_attributes_are_redacted_wherever_they_are_kept(self):
        class Slotted(Exception):
            __slots__ = ("told",)

        slotted = Slotted()
        slotted.told = KEY
        away = FileNotFoundError(2, f"no {KEY}", f"/keys/{KEY}")
        missing = ImportError(f"no {KEY}", name=KEY)
        broken = SyntaxError("bad", ("program", 1, 1, f"key = {KEY}"))
        undecoded = UnicodeDecodeError("utf-8", KEY.encode(), 0, 1, f"after {KEY}")
        errors = [away, missing, broken, undecoded, slotted]
        for error in errors:
            redact_error(error, Redactor([KEY]))
        assert KEY not in f"{list(map(str, errors))} {slotted.told} {missing.name} {broken.text}"
        assert (away.errno, away.filename) == (2, "/keys/[redacted:secret]")

    def test_an_error_with_a_circle_of_causes_is_redacted(self):
        one, two = ValueError("a"), ValueError(KEY)
        one.__context__, two.__context__ = two, one
        redact_error(one, Redactor([KEY]))
        assert str(two) == "[redacted:secret]"


def test_clean_text_costs_microseconds():
    redactor = Redactor([f"key-number-{n}-abcdefgh" for n in range(5)])
    text = "The quick brown fox jumps over the lazy dog. " * 22
    best = min(timed(redactor, text) for _ in range(20))
    assert best < 1e-3  # about 35 µs a kilobyte; a slow machine is no failure


def timed(redactor, text):
    began = time.perf_counter()
    for _ in range(10):
        redactor.text(text)
    return (time.perf_counter() - began) / 10


def test_redacted_values_can_be_written_by_orjson():
    assert orjson.loads(orjson.dumps(Redactor(["my-secret"]).value({"a": ["my-secret"]}))) == {
        "a": ["[redacted:secret]"]
    }


def test_a_text_that_was_clean_is_searched_again_for_further_secrets() -> None:
    redactor = Redactor()
    assert redactor.value(["open sesame"]) == ["open sesame"]
    further = redactor.knowing({"DOOR": "open sesame"})
    assert further.text("open sesame") == "[redacted:DOOR]"
    assert redactor.text("open sesame") == "open sesame"


def test_a_redactor_finds_secrets_after_more_clean_texts_than_it_remembers() -> None:
    redactor = Redactor({"DOOR": "open sesame"})
    for number in range(REMEMBERED + 2):
        assert redactor.text(f"clean {number}") == f"clean {number}"
    assert redactor.text("open sesame") == "[redacted:DOOR]"
    assert len(redactor._clean) < REMEMBERED
