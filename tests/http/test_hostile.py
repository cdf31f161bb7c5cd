"""Hostile clients: any JSON in any field of any route is a client error or a valid answer, never a failure of ours."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import Runtime
from cantrip_actors.dispatch import Dispatches
from cantrip_actors.dispatch.routes import make_extension
from cantrip_actors.http import Service, ServiceLimits, Tokens, make_app
from cantrip_actors.http.openai import OPENAI_ROUTES
from cantrip_actors.http.openapi import plain_path
from cantrip_actors.http.table import OPERATIONS, ROUTES, ApiRoute
from cantrip_actors.http.token import SCOPES
from tests.dispatch.contracts import contract, terms
from tests.exhaustive import FULL
from tests.http.serving import ADMIN, DISPATCHING, ECHO, token
from tests.pictures import PDF, data_url, png

pytestmark = [pytest.mark.real_time, pytest.mark.rule("HTTP-14")]

ALL = (*ROUTES, *OPENAI_ROUTES, *OPERATIONS, *DISPATCHING.whole_routes)
NOT_OURS = {500, 507}
"""Statuses that blame the service."""


@dataclass
class Attacked:
    """A service in a thread of its own, and the ids that it knows."""

    portal: BlockingPortal
    client: httpx.AsyncClient
    ids: dict[str, list[str]]

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {ADMIN}", **more.pop("headers", {})}
        return self.portal.call(lambda: self.client.request(method, path, headers=headers, **more))


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, list[str]]]]:
    limits = ServiceLimits(rate=1e9, burst=1e9, casts=1_000_000, longest_wait=0.05)
    log = Dispatches(folder)
    log.create(contract(dispatch_id="mend"), author="ada")
    async with Runtime.open(cantrips=[ECHO]) as runtime:
        served = Service(runtime, [ECHO], tokens=Tokens([token("admin", *SCOPES)]), limits=limits)
        app = make_app(served, extensions=[make_extension(log)])
        async with served.open():
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                done = await runtime.cast(ECHO, "hi")
                bob = await runtime.invoke(ECHO, "hi", name="bob")
                await bob.episode()
                await runtime.start(ECHO, "pay 3")
                while not (requests := list(runtime.requests())):
                    await bob.episode()
                yield (
                    client,
                    {
                        "": [done.entity_id, "bob", requests[0].entity or ""],
                        "turns": [done.thread[0].id],
                        "requests": [requests[0].id, "dispatch:mend"],
                        "dispatches": ["mend"],
                        "v1": [f"resp_{bob.id}.", "echo", "entity:bob"],
                    },
                )


@pytest.fixture(params=["asyncio", "trio"])
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attacked]:
    with (
        start_blocking_portal(request.param) as portal,
        portal.wrap_async_context_manager(service(tmp_path)) as (client, ids),
    ):
        yield Attacked(portal, client, ids)


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([10**400, -1, 0, 1e308])
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
USUAL = st.sampled_from(
    [
        *(
            "echo",
            "bob",
            "entity:bob",
            "hi",
            "pay 1",
            "nap 0",
            "allow",
            "deny",
            "entity",
            "cancel",
            "resp_x",
            "\0",
            "é",
            "/",
            "",
        ),
        *([], {}, [{}], [[]], 0.01, {"amount": 1}, {"include_usage": 3}, {"format": {"type": "json_schema"}}),
        [{"role": "user", "content": "hello"}],
        [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        *({"type": "json_schema", "json_schema": {"schema": {}}}, {"type": "json_object"}),
        *([data_url(png(), "image/png")], [{"url": data_url(PDF, "application/pdf")}]),
    ]
)
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}, "schema": {}}
PART: list[Any] = [
    {"type": "text", "text": "hi"},
    {"type": "image_url", "image_url": {"url": data_url(png(), "image/png"), "detail": "low"}},
    {"type": "input_image", "image_url": "https://example.org/a.png"},
    {"type": "file", "file": {"file_data": data_url(PDF, "application/pdf"), "filename": "a.pdf"}},
    {"type": "input_file", "file_url": "https://example.org/a.pdf"},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
]
SAID: list[Any] = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": PART}]
GIVEN = {
    "intent": "hi",
    "context": {"n": 1},
    "images": [data_url(png(), "image/png")],
    "files": [{"url": data_url(PDF, "application/pdf"), "filename": "a.pdf"}],
    "wait": 0.01,
    "on_disconnect": "continue",
}
WHOLE: dict[str, dict[str, Any]] = {
    "CastBody": {"cantrip": "echo", **GIVEN},
    "BeginBody": {"cantrip": "echo", "name": "eve", **GIVEN},
    "SendBody": GIVEN,
    "ForkBody": {"cantrip": "echo", "crystal": "scripted:x", **GIVEN},
    "SteerBody": {"text": "psst"},
    "InterruptBody": {"why": "lunch", "now": True},
    "DecideBody": {"decision": "allow", "answer": None, "note": "x", "args": {"amount": 1}, "remember": "entity"},
    "RewardBody": {"reward": 0.5, "by": "ann"},
    "NewDispatch": {
        "contract": terms(
            dispatch_id="mend-2",
            decision_needed="whether it may",
            budget=0.5,
            wards=[{"max_turns": 3}],
            outputs=["a.py"],
            steps=[{"purpose": "to begin"}],
            depth="full",
            max_iterations=3,
        )
    },
    "ApproveDispatch": {"note": "x"},
    "RejectDispatch": {"reason": "x"},
    "UnblockDispatch": {"note": "x"},
    "ChatBody": {
        "model": "echo",
        "messages": SAID,
        "stream": False,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "x"}}],
        "functions": [{"name": "x"}],
        "n": 1,
        "logprobs": False,
        "response_format": FORMAT,
        "temperature": 0.5,
    },
    "ResponseBody": {
        "model": "echo",
        "input": SAID,
        "instructions": "Be terse.",
        "previous_response_id": "resp_x",
        "background": False,
        "stream": False,
        "text": {"format": FORMAT},
        "tools": [],
        "top_logprobs": 0,
        "store": True,
    },
}
"""For each model a body with all of its fields."""


@st.composite
def mutations(draw: st.DrawFn, value: Any) -> Any:
    """Replace a part of a value, at any depth, by any JSON value."""
    parts = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not parts or not draw(st.integers(0, 3)):
        return draw(USUAL | VALUES)
    part = draw(st.sampled_from(parts))
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[part] = draw(mutations(changed[part]))
    return changed


@st.composite
def bodies(draw: st.DrawFn, row: ApiRoute) -> Any:
    """Return a body with a few of the fields of a route, of which one part or none is replaced."""
    assert row.body is not None
    whole = WHOLE.get(row.body.__name__, {"surprise": 1})
    needed = {name for name, field in row.body.model_fields.items() if field.is_required()}
    extra = (
        draw(st.sets(st.sampled_from(sorted(whole.keys() - needed)), max_size=3)) if whole.keys() - needed else set()
    )
    body = {name: whole[name] for name in whole if name in needed | extra}
    return draw(mutations(body)) if draw(st.integers(0, 5)) else body


def check(answered: httpx.Response, told: str) -> None:
    assert answered.status_code not in NOT_OURS, f"{told}: {answered.status_code} {answered.text}"
    assert "Traceback" not in answered.text, told
    if answered.status_code >= 400:
        problem = answered.json()
        assert problem.get("detail") or problem["error"]["message"], told


@given(data=st.data())
@settings(max_examples=30 if FULL else 10, deadline=None)
@pytest.mark.parametrize(
    "row", [row for row in ALL if row.body is not None], ids=lambda row: f"{row.method} {row.path}"
)
def test_any_json_in_any_field_is_a_client_error_or_an_answer(
    attacked: Attacked, row: ApiRoute, data: st.DataObject
) -> None:
    body = data.draw(bodies(row))
    path = path_of(attacked, row, data)
    sent = json.dumps(body).encode("utf-8", "surrogatepass")
    answered = attacked.ask(row.method, path, content=sent, headers={"content-type": "application/json"})
    check(answered, f"{path} {sent!r}")


@given(data=st.data())
@settings(max_examples=20 if FULL else 10, deadline=None)
@pytest.mark.parametrize(
    "row",
    [row for row in ALL if row.body is None and row.path != "/api/v1/events"],
    ids=lambda row: f"{row.method} {row.path}",
)
def test_any_parameter_is_a_client_error_or_an_answer(attacked: Attacked, row: ApiRoute, data: st.DataObject) -> None:
    values = (
        st.text(max_size=8)
        | NUMBERS.map(str)
        | st.sampled_from([*attacked.ids[""], "9" * 5000, "1e999", "true", "0.1"])
    )
    query = data.draw(st.dictionaries(st.sampled_from([*row.query.model_fields, "x"]), values, max_size=3))
    if row.path.endswith("/events"):
        query["after"] = data.draw(values)
    path = path_of(attacked, row, data, ended=row.path.endswith("/events"))
    check(attacked.ask(row.method, path, params=query), f"{row.method} {path} {query}")


def path_of(attacked: Attacked, row: ApiRoute, data: st.DataObject, *, ended: bool = False) -> str:
    """Return a path of a row with known ids, sometimes with any text."""
    path = plain_path(row.path)
    for name in re.findall(r"{(\w+)}", path):
        fits = attacked.ids[
            next(
                (one for one in ("turns", "requests", "dispatches") if f"{one}/{{" in path),
                "v1" if path[1] == "v" else "",
            )
        ]
        known = st.sampled_from(fits[:1] if ended else fits)
        text = data.draw(known if ended else known | known | st.text(min_size=1, max_size=6))
        path = path.replace(f"{{{name}}}", quote(text, safe=""))
    return path
