"""What a token may use: casts at a time, cost a day, its time; and that each 429 says which limit and until when."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    AlreadyDecided,
    Cantrip,
    CantripUnknown,
    Circle,
    CrystalError,
    DependenciesUnknown,
    EntityEnded,
    InvalidCantrip,
    InvalidImage,
    InvalidIntent,
    InvalidSchedule,
    LoomError,
    NameTaken,
    ProviderError,
    Runtime,
    RuntimeClosed,
    scripted,
)
from cantrip_actors.http import InvalidTokens, ServiceLimits, Tokens
from cantrip_actors.loom import InboxFull, KeyUsed, QueueFull
from cantrip_actors.runtime.loom.spending import Spending
from cantrip_actors.wards import max_depth, max_turns
from tests.http.serving import Served, served, token

pytestmark = [pytest.mark.real_time, pytest.mark.rule("HTTP-14")]

PRICE = 0.25


def shop(name: str = "shop") -> Cantrip:
    """Each answer costs a quarter of a dollar."""
    answers = scripted(lambda context: {"content": f"sold: {context[-1].content}", "usage": {"cost": PRICE}})
    return Cantrip(answers, circle=Circle(["done"], [max_turns(5)]), name=name)


async def cast(on: Served, name: str, expect: int = 200, **more: Any) -> Any:
    body = {"cantrip": "shop", "intent": "tea", "wait": 5}
    return await on.post("casts", body, expect, headers=on.as_token(name) | more)


async def test_a_token_spends_at_most_its_cost_a_day() -> None:
    poor = token("poor", "cast", "send", "read", max_cost_per_day=0.5)
    async with served([shop()], tokens=[poor, token("rich", "cast", "send", "read")]) as on:
        mine = on.as_token("poor")
        await on.post("entities", {"cantrip": "shop", "intent": "tea", "name": "bob", "wait": 5}, 200, headers=mine)
        await cast(on, "poor", **{"idempotency-key": "second"})
        said = {"model": "shop", "messages": [{"role": "user", "content": "tea"}]}
        turn = (await on.get("entities/bob/turns"))["items"][0]["id"]
        for path, body in (
            ("casts", {"cantrip": "shop", "intent": "tea"}),
            ("entities", {"cantrip": "shop", "intent": "tea", "name": "eve"}),
            ("entities/bob/send", {"intent": "tea"}),
            (f"turns/{turn}/fork", {"intent": "tea"}),
            ("/v1/chat/completions", said),
            ("/v1/chat/completions", {**said, "model": "entity:bob"}),
            ("/v1/responses", {"model": "shop", "input": "tea"}),
        ):
            refused = await on.ask("POST", path, 429, json=body, headers=mine)
            tomorrow = 86_400 - time.time() % 86_400
            assert abs(int(refused.headers["retry-after"]) - tomorrow) < 5
            assert "a cost of $0.5 a day" in refused.text
        assert (await on.post("casts", {"cantrip": "shop", "intent": "tea"}, 429, headers=mine))[
            "limit"
        ] == "cost_per_day"
        await cast(on, "poor", **{"idempotency-key": "second"})  # a repetition costs nothing
        await cast(on, "rich")
        assert len(on.runtime.loom.entities()) == 3


async def test_the_cost_of_today_survives_a_restart_and_counts_another_server(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    poor = token("poor", "cast", max_cost_per_day=0.5)
    async with served([shop()], url, tokens=[poor]) as one, served([shop()], url, tokens=[poor]) as two:
        await cast(one, "poor")
        await cast(two, "poor")
        await cast(one, "poor", 429)
    async with served([shop()], url, tokens=[poor]) as again:
        await cast(again, "poor", 429)


async def test_the_sender_of_an_intent_pays_for_a_day_of_utc_children_included() -> None:
    parents = scripted(
        lambda context: (
            {
                "content": "ask",
                "tool_calls": [{"gate": "call_agent", "args": {"intent": "tea"}}],
                "usage": {"cost": 1.0},
            }
            if context[-1].role == "user"
            else {"content": "done", "usage": {"cost": 1.0}}
        )
    )
    parent = Cantrip(parents, circle=Circle(["done", "call_agent"], [max_turns(5), max_depth(1)]), name="parent")
    now = time.time()
    async with Runtime.open(cantrips=[parent]) as runtime:
        spending = Spending(runtime.loom)
        entity = await runtime.invoke(parent, "hi", name="bob", by="token:a")
        await entity.episode()
        await anyio.sleep(0.01)  # the times of records are in milliseconds
        await entity.send("again", by="token:b")
        shares = [spending.sum(None, one, "day", now) for one in ("token:a", "token:b", "token:c")]
        assert shares == [sum(shares) / 2, sum(shares) / 2, 0.0]
        assert sum(shares) == runtime.loom.subtree_usage(entity.id).cost
        assert spending.sum(None, "token:a", "day", now + 86_400) == 0.0


async def test_casts_that_begin_at_once_do_not_exceed_the_limit() -> None:
    few = token("few", "cast", max_concurrent=3)
    async with served(tokens=[few]) as on:
        answers: list[int] = []

        async def start() -> None:
            body = {"cantrip": "echo", "intent": "nap 30"}
            answers.append((await on.ask("POST", "casts", json=body, headers=on.as_token("few"))).status_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(start)
        assert sorted(answers) == [201] * 3 + [429] * 9
        assert len(on.runtime.loom.entities()) == 3


async def test_every_429_names_its_limit_and_says_when_to_try_again() -> None:
    async with served(limits=ServiceLimits(rate=2, burst=9, casts=1, streams=1), options={"max_waiting": 1}) as on:
        await on.post("entities", {"cantrip": "echo", "intent": "nap 30", "name": "bob"}, 201)
        answers = [await on.ask("POST", "casts", 429, json={"cantrip": "echo", "intent": "hi"})]
        async with on.stream("events"):
            answers.append(await on.ask("GET", "events", 429))
        await on.post("entities/bob/send", {"intent": "two"}, 202)
        full = await on.ask("POST", "entities/bob/send", 429, json={"intent": "three"})
        assert (full.json()["type"], full.json()["entity_id"]) == (
            "urn:cantrip:inbox-full",
            on.runtime.loom.named("bob"),
        )
        while (answered := await on.ask("GET", "cantrips")).status_code == 200:
            pass
        answers.append(answered)
        assert [one.json()["limit"] for one in answers] == ["concurrent_casts", "event_streams", "rate"]
        assert all(int(one.headers["retry-after"]) >= 1 for one in (*answers, full))


@pytest.mark.parametrize(
    ("error", "status", "kind", "later"),
    [
        (InvalidIntent("x"), 422, "invalid-intent", None),
        (InvalidCantrip("x"), 422, "invalid-cantrip", None),
        (InvalidImage("x"), 422, "invalid-image", None),
        (InvalidSchedule("x"), 422, "invalid-schedule", None),
        (KeyUsed("x"), 422, "idempotency-key-reused", None),
        (NameTaken("x"), 409, "name-taken", None),
        (EntityEnded("x"), 409, "ended", None),
        (
            CantripUnknown("x", entity_id="e", cantrip_id="c", cantrip_name=None, offered=()),
            409,
            "cantrip-unknown",
            None,
        ),
        (AlreadyDecided("r", "allow", "ann", "now", ""), 409, "already-decided", None),
        (DependenciesUnknown("x"), 503, "dependencies-unknown", "1"),
        (InboxFull("x"), 429, "inbox-full", "1"),
        (QueueFull("x"), 429, "queue-full", "1"),
        (RuntimeClosed("x"), 503, "closing", "1"),
        (ProviderError("x", status=503, retry_after=7.2), 503, "provider-busy", "8"),
        (ProviderError("x", status=503, retry_after=float("nan")), 503, "provider-busy", "1"),
        (ProviderError("x", status=503, retry_after=float("inf")), 503, "provider-busy", "86400"),
        (ProviderError("x", status=500), 502, "provider", None),
        (CrystalError("x"), 502, "crystal", None),
        (LoomError("cannot write /var/lib/loom.db"), 507, "loom", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_an_error_of_the_runtime_has_its_documented_status(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, kind: str, later: str | None
) -> None:
    async with served() as on:

        async def refuse(*_args: Any, **_more: Any) -> Any:
            raise error

        monkeypatch.setattr(Runtime, "start", refuse)
        answered = await on.ask("POST", "casts", status, json={"cantrip": "echo", "intent": "hi"})
        told = answered.json()
        assert answered.headers["content-type"] == "application/problem+json"
        assert (told["type"], told["status"]) == (f"urn:cantrip:{kind}", status)
        assert {"title", "detail"} <= told.keys()
        assert answered.headers.get("retry-after") == later
        assert "/var/lib" not in answered.text


async def test_all_mistakes_of_a_body_are_in_its_problem() -> None:
    async with served() as on:
        told = await on.post("casts", {"cantrip": 3, "wait": "x", "surprise": 1}, 422)
        assert [one["path"] for one in told["mistakes"]] == ["intent", "wait", "cantrip", "surprise"]
        assert all(one["message"] for one in told["mistakes"])
        assert told["detail"].startswith("intent: ")


async def test_a_body_that_is_not_json_is_415_and_a_large_one_413() -> None:
    async with served(limits=ServiceLimits(body=100)) as on:
        for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""):
            refused = await on.ask("POST", "casts", 415, content=b"{}", headers={"content-type": kind})
            assert refused.json()["type"] == "urn:cantrip:content-type"
        body = {"cantrip": "echo", "intent": "x" * 100}
        assert (await on.post("casts", body, 413))["limit"] == "body_size"
        assert not on.runtime.loom.entities()


def set_clock(monkeypatch: pytest.MonkeyPatch, now: datetime) -> None:
    """Let tokens expire by this time of day."""
    monkeypatch.setattr("cantrip_actors.http.token.datetime", SimpleNamespace(now=lambda _: now))


async def test_an_expired_token_is_refused_from_its_second_on(monkeypatch: pytest.MonkeyPatch) -> None:
    expires = datetime.now(UTC) + timedelta(hours=1)
    async with served(tokens=[token("brief", "read", expires=expires)]) as on:
        set_clock(monkeypatch, expires - timedelta(microseconds=1))
        await on.get("cantrips", headers=on.as_token("brief"))
        set_clock(monkeypatch, expires)
        refused = await on.ask("GET", "cantrips", 401, headers=on.as_token("brief"))
        assert refused.headers["www-authenticate"] == "Bearer"


def test_a_file_of_tokens_has_all_that_a_token_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens.toml"
    digest = token("ci").digest
    file.write_text(
        f"""
[[token]]
name = "ci"
sha256 = "{digest}"
tenant = "acme"
scopes = ["cast", "read"]
expires = 2030-01-02
cantrips = ["echo"]
max_concurrent = 2
max_cost_per_day = 1.5
""",
        encoding="utf-8",
    )
    set_clock(monkeypatch, datetime(2030, 1, 1, 23, 59, tzinfo=UTC))
    found = Tokens.of_file(file).find("ci-token")
    assert found == token(
        *("ci", "cast", "read"),
        tenant="acme",
        expires=datetime(2030, 1, 2, tzinfo=UTC),
        cantrips=frozenset({"echo"}),
        max_concurrent=2,
        max_cost_per_day=1.5,
    )
    set_clock(monkeypatch, datetime(2030, 1, 2, tzinfo=UTC))
    assert Tokens.of_file(file).find("ci-token") is None
    for wrong in ("max_concurrent = 0", "max_cost_per_day = -1", "max_cost_per_day = nan", 'expires = "soon"', "x = 1"):
        file.write_text(f'[[token]]\nname = "ci"\nsha256 = "{digest}"\nscopes = ["read"]\n{wrong}\n', encoding="utf-8")
        with pytest.raises(InvalidTokens, match=wrong.split()[0]):
            Tokens.of_file(file)
