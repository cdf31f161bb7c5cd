"""Rates, open streams and sizes of bodies: those of the service, and those of single tokens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, RateLimitError
from typer.testing import CliRunner

from cantrip_actors.cli.app import app
from cantrip_actors.http import InvalidTokens, ServiceLimits, ServiceSettings, Tokens
from tests.http.serving import Served, open_stream, process, served, token

pytestmark = [pytest.mark.real_time, pytest.mark.rule("W-32")]

SMALL = ServiceLimits().with_requests_per_minute(3)


async def count_until_refused(on: Served, name: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return how many requests are answered, and the answer that refuses the next one."""
    for count in range(50):
        answer = await on.ask("POST" if body else "GET", path, json=body, headers=on.as_token(name))
        if answer.status_code == 429:
            return count, answer
    raise AssertionError(f"50 requests of {name} to {path} are answered")


async def test_each_token_has_its_requests_a_minute_at_each_door() -> None:
    chat = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    doors: list[tuple[str, Any]] = [("cantrips", None), ("/v1/models", None), ("/v1/chat/completions", chat)]
    doors.append(("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}))
    names = [f"{kind}{at}" for at in range(len(doors)) for kind in ("usual", "more")]
    tokens = [token(name, "read", "cast", requests_per_minute=5 if name.startswith("more") else None) for name in names]
    async with served(limits=SMALL, tokens=tokens) as on:
        for at, (path, body) in enumerate(doors):
            for kind, most, wait in (("usual", 3, 20), ("more", 5, 12)):
                count, refused = await count_until_refused(on, f"{kind}{at}", path, body)
                assert count == most
                assert wait - 5 < int(refused.headers["retry-after"]) <= wait
                assert f"{most} requests a minute" in refused.text


async def test_the_openai_client_sees_its_own_error() -> None:
    async with (
        served(tokens=[token("slow", "read", requests_per_minute=1)]) as on,
        AsyncOpenAI(base_url=f"{on.url}/v1", api_key="slow-token", max_retries=0) as client,
    ):
        await client.models.list()
        with pytest.raises(RateLimitError) as refused:
            await client.models.list()
    assert refused.value.code == "rate_limit_exceeded"
    assert 50 < int(refused.value.response.headers["retry-after"]) <= 60


async def test_a_token_has_its_number_of_open_streams_of_all_kinds_together() -> None:
    tokens = [token("one", "read", "cast", max_streams=1), token("usual", "read")]
    async with served(tokens=tokens, limits=ServiceLimits(streams=2)) as on:
        headers = on.as_token("one")
        nap: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "nap 60"}], "stream": True}
        async with on.client.stream("POST", "/v1/chat/completions", json=nap, headers=headers) as chat:
            assert chat.status_code == 200
            begun = len(on.runtime.loom.entities())
            for method, path, body in (
                ("GET", "events", None),
                ("GET", "loom/export", None),
                ("GET", "/mcp", None),
                ("POST", "/v1/chat/completions", nap),
                ("POST", "/v1/responses", {"model": "echo", "input": "nap 60", "stream": True}),
            ):
                refused = await on.ask(method, path, 429, json=body, headers=headers)
                assert int(refused.headers["retry-after"]) >= 1, path
                assert "1 open streams" in refused.text
            assert len(on.runtime.loom.entities()) == begun
            async with (
                open_stream(on.url, "/api/v1/events", on.as_token("usual")) as first,
                open_stream(on.url, "/api/v1/events", on.as_token("usual")) as second,
                open_stream(on.url, "/api/v1/events", on.as_token("usual")) as third,
            ):
                assert (first.status, second.status, third.status) == (200, 200, 429)
        closed_at = time.monotonic()
        while (await on.ask("GET", "loom/export", headers=headers)).status_code == 429:
            assert time.monotonic() < closed_at + 10


async def test_a_token_has_its_largest_body_at_each_door() -> None:
    tokens = [token("small", "cast", "read", max_body=0.001), token("large", "cast", "read", max_body=3)]
    async with served(tokens=tokens, limits=ServiceLimits(body=2000)) as on:
        for size, fits in ((500, ("small", "admin", "large")), (1500, ("admin", "large")), (2 << 20, ("large",))):
            for name in ("small", "admin", "large"):
                text, headers = "x" * size, on.as_token(name)
                ping = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"x": text}}}
                for path, body in (("casts", {"cantrip": "echo", "intent": text}), ("/mcp", ping)):
                    answer = await on.ask("POST", path, json=body, headers=headers)
                    assert (answer.status_code != 413) == (name in fits), (size, name, path, answer.text[:200])


def test_the_file_of_tokens_has_the_limits_of_each_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    row = f'[[token]]\nname = "ci"\nsha256 = "{token("ci").digest}"\nscopes = ["read"]\n'
    file.write_text(f"{row}requests_per_minute = 90\nmax_streams = 2\nmax_body = 0.5\n")
    ci = Tokens.of_file(file).find("ci-token")
    assert ci is not None
    limits = ServiceLimits().of(ci)
    assert (limits.rate, limits.burst, limits.streams, limits.body, limits.casts) == (1.5, 90, 2, 1 << 19, 16)
    for wrong in ("requests_per_minute = 0", "max_streams = 0", "max_body = 0", "max_body = -1", "max_streams = 1.5"):
        file.write_text(f"{row}{wrong}\n")
        with pytest.raises(InvalidTokens, match=wrong.partition(" ")[0]):
            Tokens.of_file(file)


def test_the_command_sets_the_limits_of_the_service(tmp_path: Path) -> None:
    import httpx

    options = ("--requests-per-minute", "2", "--max-streams", "1")
    with process(tmp_path, "asyncio", *options) as on:
        answers = [httpx.get(f"{on.url}/api/v1/cantrips", headers=on.headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 20 < int(answers[2].headers["retry-after"]) <= 30


@pytest.mark.parametrize("command", [["serve"], ["mcp", "--http"]], ids=" ".join)
def test_the_limits_of_a_service_are_options(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[ServiceSettings] = []
    recipe = tmp_path / "clerk.yaml"
    recipe.write_text('name: clerk\ncrystal: {scripted: ["Hello."]}\ncircle: {gates: [done], wards: [max_turns: 3]}\n')

    async def serve(settings: ServiceSettings, _show: Any) -> None:
        served.append(settings)

    monkeypatch.setattr("cantrip_actors.http.serve", serve)
    options = ["--max-body", "20", "--requests-per-minute", "60", "--max-streams", "2", "--loom", "memory:"]
    done = CliRunner().invoke(app, [command[0], str(recipe), *command[1:], *options])
    assert done.exit_code == 0, done.output
    limits = served[0].limits
    assert (limits.body, limits.rate, limits.streams) == (20 << 20, 1.0, 2)
