"""The native API over real sockets, on both backends: routes, keys, people, tenants, limits, strange requests."""

import json
import re
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import anyio
import httpx
import pytest
import structlog
from starlette.routing import Route

from cantrip_actors import Call, Cantrip, Circle, CrystalError, LoomError, Runtime, ask_first, scripted
from cantrip_actors.dispatch import Dispatches, Progressed, StatusChanged
from cantrip_actors.dispatch.routes import make_extension
from cantrip_actors.http import Service, ServiceLimits, make_app
from cantrip_actors.http.live_page import assets
from cantrip_actors.http.models import EntityState
from cantrip_actors.http.openai import OPENAI_ROUTES
from cantrip_actors.http.openapi import plain_path
from cantrip_actors.http.table import OPERATIONS, ROUTES
from cantrip_actors.http.token import SCOPES
from cantrip_actors.loom import State
from cantrip_actors.mcp_server.tools import offers_of
from cantrip_actors.observe import Telemetry
from cantrip_actors.wards import max_turns
from tests.dispatch.contracts import contract, terms
from tests.http.serving import DISPATCHING, Served, answer, echo, pay, served, token
from tests.pictures import PDF, data_url, png
from tests.slowness import measure_slowness

pytestmark = [pytest.mark.real_time]

KEY = {"idempotency-key": "order-17"}
BLOCKED = (StatusChanged("active"), Progressed("milestone", "half"), StatusChanged("blocked", blocker="a lock"))


async def finish(on: Served, name: str) -> dict[str, Any]:
    """Return an entity once no episode of it is under way."""
    with anyio.fail_after(10):
        while True:
            entity: dict[str, Any] = await on.get(f"entities/{name}")
            if entity["state"] not in ("active", "waiting"):
                return entity
            await anyio.sleep(0.02)


async def wait_for_request(on: Served) -> dict[str, Any]:
    with anyio.fail_after(10):
        while not (found := (await on.get("requests"))["items"]):
            await anyio.sleep(0.02)
    return dict(found[0])


# Routes


@pytest.mark.rule("HTTP-01")
async def test_every_row_of_the_table_works_and_answers_in_its_shape(tmp_path: Path) -> None:
    log = Dispatches(tmp_path)
    dispatching = make_extension(log)
    routes = (*ROUTES, *dispatching.whole_routes)
    async with served(extensions=[dispatching]) as on:
        asked: set[tuple[str, str]] = set()

        async def check(method: str, path: str, status: int, body: Any = None) -> Any:
            answered = await on.ask(method, path, status, json=body)
            row = next(one for one in routes if one.method == method and fits(one.path, f"/api/v1/{path}"))
            asked.add((row.method, row.path))
            model = row.answers[status]
            if isinstance(model, type):
                model.model_validate(answered.json())
                return answered.json()
            return answered

        await check("GET", "cantrips", 200)
        begun = await check("POST", "casts", 201, {"cantrip": "echo", "intent": "hi", "context": {"n": 1}})
        assert (await check("POST", "casts", 200, {"cantrip": "echo", "intent": "hi", "wait": 5}))["terminated"]
        assert (await check("POST", "casts", 202, {"cantrip": "echo", "intent": "nap 9", "wait": 0.01}))["entity_id"]
        assert (await check("POST", "submissions", 202, {"cantrip": "echo", "intent": "hi"}))["entity_id"]
        assert (await check("POST", "submissions", 200, {"cantrip": "echo", "intent": "hi", "wait": 5}))["terminated"]
        await on.runtime.submit("elsewhere", "hi", key="later")
        assert not (await check("GET", "submissions/later", 200))["has_begun"]
        await check("DELETE", "submissions/later", 200)
        ensured = await check("PUT", "entities/new%2Fone", 201, {"cantrip": "echo"})
        assert (ensured["name"], ensured["state"], ensured["intent"]) == ("new/one", "idle", None)
        assert (await check("PUT", "entities/new%2Fone", 200, {"cantrip": "echo"}))["id"] == ensured["id"]
        await check("POST", "entities", 201, {"cantrip": "echo", "intent": "one", "name": "bob"})
        await check("GET", "entities?limit=2&state=terminated", 200)
        assert (await check("GET", "entities/bob", 200))["intent"] == "one"
        told = await check("POST", "entities/bob/send", 200, {"intent": "two", "wait": 5})
        assert told["result"] == "you said: two"
        receipt = await check("POST", "entities/bob/send", 202, {"intent": "nap 0.01"})
        await check("GET", f"entities/bob/receipts/{receipt['key']}", 200)
        await check("POST", "entities/bob/send", 202, {"intent": "nap 1"})
        waiting = await check("POST", "entities/bob/send", 202, {"intent": "unwanted"})
        taken_back = await check("DELETE", f"entities/bob/receipts/{waiting['key']}?why=sold%20out", 200)
        assert taken_back["state"] == "withdrawn"
        await check("POST", "entities/bob/steer", 202, {"text": "psst"})
        await check("POST", "entities/bob/interrupt", 202, {})
        assert (await check("POST", "entities/bob/compact", 200, {"instructions": "Keep names."}))["done"] is True
        assert (await check("POST", "entities/bob/undo", 200, {}))["done"] is True
        (first, *_) = (await check("GET", "entities/bob/turns?limit=1", 200))["items"]
        assert (await check("GET", f"turns/{first['id']}", 200)) == first
        await check("GET", f"turns/{first['id']}/thread", 200)
        await check("GET", f"turns/{first['id']}/input", 200)
        spent = await check("GET", "entities/bob/spending?per=month&zone=Europe/Oslo", 200)
        assert [sorted(each) for each in spent["items"]] == [["period", "usage"]] * len(spent["items"])
        story = await check("GET", "entities/bob/story?limit=2", 200)
        (before,) = (await check("GET", f"entities/bob/story?limit=1&before={story['items'][0]['id']}", 200))["items"]
        assert [one["event"] for one in (before, *story["items"])][-2:] == [one["event"] for one in story["items"]]
        actors = (await check("GET", "system", 200))["items"]
        assert (await check("GET", f"system/actors/{actors[0]['path']}", 200))["kind"] == actors[0]["kind"]
        await check("POST", f"turns/{first['id']}/rewards", 201, {"reward": 0.5})
        fork = await check("POST", f"turns/{first['id']}/fork", 201, {"intent": "elsewhere"})
        assert (await check("GET", "entities/bob/tree", 200))["forks"] == [fork["entity_id"]]
        assert (await check("GET", "loom/search?q=elsewhere", 200))["items"]
        assert (await check("GET", "loom/stats?entity=bob", 200))["entities"] == 1
        lines = (await check("GET", f"loom/export?entity={begun['entity_id']}", 200)).text.splitlines()
        assert [json.loads(line)["sequence"] for line in lines] == [1]
        await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
        request = await wait_for_request(on)
        await check("GET", f"requests?entity={request['entity']}", 200)
        await check("POST", f"requests/{request['id']}", 200, {"decision": "allow"})
        assert (await finish(on, request["entity"]))["episode"]["result"] == "it said: paid 3"
        made = await check(
            "POST", "dispatches", 201, {"contract": terms(needs_approval="yes", decision_needed="when it starts")}
        )
        await check("POST", f"dispatches/{made['id']}/approve", 200, {"note": "now"})
        log.append(made["id"], *BLOCKED, by="worker", author="e1", token=1)
        await check("POST", f"dispatches/{made['id']}/unblock", 200, {"note": "it is gone"})
        await check("POST", f"dispatches/{made['id']}/reject", 200, {"reason": "too late"})
        assert (await check("GET", f"dispatches/{made['id']}", 200))["outcome"] == "too late"
        assert len((await check("GET", "dispatches", 200))["items"]) == 1
        await check("POST", "entities/bob/resume", 202)
        await check("DELETE", "entities/bob?reason=enough", 204)
        await check("DELETE", "entities/bob", 204)
        await check("POST", f"entities/{fork['entity_id']}/abandon", 204)
        await check("GET", f"entities/{begun['entity_id']}/events", 200)
        async with on.stream("events") as reader:
            assert reader.status == 200
            asked.add(("GET", "/api/v1/events"))
        assert asked == {(row.method, row.path) for row in routes}


def fits(pattern: str, path: str) -> bool:
    shape = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(plain_path(pattern)))
    return re.fullmatch(shape, path.partition("?")[0]) is not None


@pytest.mark.rule("HTTP-01")
async def test_the_openapi_document_describes_exactly_the_routes() -> None:
    async with served() as on:
        async with httpx.AsyncClient(base_url=on.url) as anonymous:
            described = (await anonymous.get("/api/v1/openapi.json")).json()
        guard: Any = make_app(on.service, extensions=[DISPATCHING])
        routes = [route for route in guard._app.routes if isinstance(route, Route)]  # what is served
        well_known = "/.well-known/oauth-protected-resource"
        pages = {"/session", "/approve/{token}", *assets()}
        plain = {"/api/v1/openapi.json", "/mcp", well_known, f"{well_known}/mcp", *pages}
        there = {
            (plain_path(route.path), method.lower())
            for route in routes
            for method in (route.methods or set()) - {"HEAD"}
            if route.path not in plain
        }
        told = {(path, method) for path, row in described["paths"].items() for method in row}
        assert told == there
        known = set(described["components"]["schemas"])
        named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)))
        assert named <= known
        assert described["openapi"] == "3.1.0"


@pytest.mark.rule("HTTP-18")
async def test_actions_over_http_are_recorded_with_their_token_and_time() -> None:
    async with served(tokens=[token(one, one, "read", "cast") for one in ("send", "steer", "stop", "reward")]) as on:
        as_ = on.as_token
        await on.post("entities", {"cantrip": "echo", "intent": "one", "name": "bob"}, 201, headers=as_("send"))
        await on.post("entities/bob/send", {"intent": "two", "wait": 5}, 200, headers=as_("send"))
        await on.post("entities/bob/steer", {"text": "psst"}, 202, headers=as_("steer"))
        await on.post("entities/bob/send", {"intent": "nap 30"}, 202, headers=as_("send"))
        with anyio.fail_after(5):
            while (await on.get("entities/bob"))["state"] != "active":
                await anyio.sleep(0.02)
        await on.post("entities/bob/interrupt", {"now": True}, 202, headers=as_("steer"))
        await finish(on, "bob")
        turn = (await on.get("entities/bob/turns"))["items"][0]["id"]
        await on.post(f"turns/{turn}/rewards", {"reward": 1}, 201, headers=as_("reward"))
        forked = await on.post(f"turns/{turn}/fork", {"intent": "x", "wait": 5}, 200, headers=as_("send"))
        entity = on.runtime.loom.named("bob") or ""
        await on.ask("DELETE", "entities/bob", 204, headers=as_("stop"))
        found = []
        for record in on.runtime.loom.records(entity):
            who = getattr(record, "sender", None) or getattr(record, "by", None)
            if who:
                assert getattr(record, "at")  # noqa: B009  # not every kind has one
                found.append((type(record).__name__, who))
        assert found == [
            ("IntentGiven", "token:send"),
            ("IntentGiven", "token:send"),
            ("Steered", "token:steer"),
            ("IntentGiven", "token:send"),
            ("Ended", "token:steer"),
            ("Rewarded", "token:reward"),
            ("Ended", "token:stop"),
        ]
        assert (await on.get(f"entities/{forked['entity_id']}"))["by"] == "token:send"


NAMES = ("a/b", "50%", "a%2Fb", "what? #1", "München")


@pytest.mark.rule("HTTP-01")
@pytest.mark.parametrize("name", NAMES)
async def test_an_entity_of_any_name_is_addressed_by_its_encoded_name(name: str) -> None:
    async with served() as on:
        made = await on.post("entities", {"cantrip": "echo", "intent": "hi", "name": name, "wait": 10}, 200)
        shown = await on.get(f"entities/{quote(name, safe='')}")
        model = await on.get(f"/v1/models/{quote(f'entity:{name}', safe='')}")
        assert (shown["id"], shown["name"], model["id"]) == (made["entity_id"], name, f"entity:{name}")


@pytest.mark.rule("HTTP-01")
async def test_the_location_of_a_receipt_leads_to_it_for_any_key() -> None:
    async with served() as on:
        await on.post("entities", {"cantrip": "echo", "intent": "hi", "name": "bob", "wait": 10}, 200)
        sent = await on.ask(
            "POST", "entities/bob/send", 202, json={"intent": "hi"}, headers={"idempotency-key": "a/?#%2F"}
        )
        assert (await on.get(sent.headers["location"]))["key"] == "a/?#%2F"


def test_the_states_that_a_list_of_entities_takes_are_those_of_the_loom() -> None:
    known = {state for one in get_args(State) for state in get_args(one) or (one,)}
    assert set(get_args(EntityState)) == known - {"timeout", "budget"}  # the loom calls these truncated


@pytest.mark.rule("HTTP-14")
@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("entities?state=typo", 422, "state: expected 'active', 'waiting', 'idle', 'terminated'"),
        ("entities?parent=nobody", 404, "no entity has this id or name"),
        ("entities?nmae=bob", 422, 'nmae: nothing here has this name: did you mean "name"?'),
        ("entities?limit=0", 422, "limit: expected at least 1, got"),
        ("entities/bob/events?after=typo", 422, "after: expected an id of this stream, or 0"),
        ("entities/bob/story?before=typo", 422, "before: expected an id"),
        ("entities/bob/spending?zone=Mars", 422, "zone: expected a name of the IANA database"),
        ("entities/bob/turns?after=typo", 422, "after: expected a whole number"),
        ("events?kinds=typo", 422, "kinds: expected some of actor, "),
        ("events?subtree=nobody", 404, "no entity has this id or name"),
        ("requests?entity=nobody", 404, "no entity has this id or name"),
        ("loom/search?errors=typo", 422, "errors: expected true or false"),
        ("loom/export?format=typo", 422, "format: expected 'jsonl', "),
    ],
)
async def test_a_parameter_that_means_nothing_is_refused_with_what_is_expected(
    path: str, status: int, detail: str
) -> None:
    async with served() as on:
        await on.post("entities", {"cantrip": "echo", "intent": "hi", "name": "bob", "wait": 10}, 200)
        assert detail in (await on.get(path, status))["detail"]


# Keys


@pytest.mark.rule("HTTP-08")
async def test_twenty_posts_with_one_key_make_one_entity() -> None:
    async with served() as on:
        answers: list[httpx.Response] = []

        async def post() -> None:
            body = {"cantrip": "echo", "intent": "nap 0.05", "wait": 5}
            answers.append(await on.ask("POST", "casts", 200, json=body, headers=KEY))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(post)
        assert len(on.runtime.loom.entities()) == 1
        assert len({one.text for one in answers}) == 1
        assert sum(one.headers.get("idempotency-replayed") == "true" for one in answers) == 19


@pytest.mark.rule("HTTP-08")
async def test_a_key_with_another_body_is_refused() -> None:
    async with served() as on:
        body = {"cantrip": "echo", "intent": "one", "name": "bob"}
        await on.post("entities", body, 201, headers=KEY)
        refused = await on.post("entities", {**body, "intent": "two"}, 422, headers=KEY)
        assert refused["type"] == "urn:cantrip:idempotency-key-reused"
        for path, said, other in (
            ("send", {"intent": "a"}, {"intent": "b"}),
            ("steer", {"text": "a"}, {"text": "b"}),
            ("interrupt", {"why": "a"}, {"why": "b"}),
        ):
            key = {"idempotency-key": path}
            first = await on.ask("POST", f"entities/bob/{path}", 202, json=said, headers=key)
            again = await on.ask("POST", f"entities/bob/{path}", 202, json=said, headers=key)
            assert "idempotency-replayed" not in first.headers
            assert again.headers["idempotency-replayed"] == "true"
            await on.post(f"entities/bob/{path}", other, 422, headers=key)
        await on.ask("POST", "casts", 400, json=body, headers={"idempotency-key": "x" * 256})


@pytest.mark.rule("HTTP-08", "HTTP-19")
async def test_a_decision_is_repeated_with_its_key_and_nothing_else() -> None:
    async with served(tokens=[token("ann", "approve")]) as on:
        await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
        request = await wait_for_request(on)
        said = {"decision": "allow", "args": {"amount": 2}}
        path = f"requests/{request['id']}"
        first = await on.ask("POST", path, 200, json=said, headers=KEY)
        await finish(on, request["entity"])
        again = await on.ask("POST", path, 200, json=said, headers=KEY)
        assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
        for other, headers in (
            (said, {}),
            (said, {"idempotency-key": "other"}),
            ({**said, "args": {"amount": 4}}, KEY),
            (said, KEY | on.as_token("ann")),
        ):
            refused = await on.post(path, other, 409, headers=headers)
            assert (refused["decision"], refused["by"]) == ("allow", "admin")


@pytest.mark.rule("HTTP-08", "V-32")
async def test_a_repeated_beginning_has_its_own_answer_after_later_sends() -> None:
    async with served() as on:
        body = {"cantrip": "echo", "intent": "one", "name": "x", "wait": 5}
        first = await on.ask("POST", "entities", 200, json=body, headers=KEY)
        await on.post("entities/x/send", {"intent": "two", "wait": 5}, 200)
        again = await on.ask("POST", "entities", 200, json=body, headers=KEY)
        assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")


@pytest.mark.rule("HTTP-08")
async def test_a_reward_is_given_once_for_a_key() -> None:
    async with served() as on:
        cast = await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 5}, 200)
        path = f"turns/{cast['last_turn']}/rewards"
        first = await on.ask("POST", path, 201, json={"reward": 0.5}, headers=KEY)
        await on.post(path, {"reward": 1}, 201)
        again = await on.ask("POST", path, 201, json={"reward": 0.5}, headers=KEY)
        assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
        assert "idempotency-replayed" not in first.headers
        await on.post(path, {"reward": 0.6}, 422, headers=KEY)
        assert (await on.get(f"turns/{cast['last_turn']}"))["reward"] == 1, "the latest, not the repeated one"


@pytest.mark.rule("HTTP-08")
async def test_the_same_key_for_another_route_is_another_content() -> None:
    async with served() as on:
        body = {"cantrip": "echo", "intent": "hi"}
        await on.post("casts", body, 201, headers=KEY)
        await on.post("entities", {**body, "name": "bob"}, 422, headers=KEY)


@pytest.mark.rule("HTTP-08")
@pytest.mark.parametrize("key", ["", "a b", "x" * 256])
async def test_a_key_is_up_to_255_visible_characters(key: str) -> None:
    async with served() as on:
        body = {"cantrip": "echo", "intent": "hi"}
        await on.post("casts", body, 400, headers={"idempotency-key": key})
        quoted = await on.ask("POST", "casts", 201, json=body, headers={"idempotency-key": f'"{"x" * 255}"'})
        again = await on.ask("POST", "casts", 201, json=body, headers={"idempotency-key": "x" * 255})
        assert again.headers["location"] == quoted.headers["location"]


@pytest.mark.rule("HTTP-14")
async def test_a_turn_whose_content_was_erased_takes_neither_forks_nor_rewards() -> None:
    async with served() as on:
        first = await on.post("/v1/responses", {"model": "echo", "input": "hi"}, 200)
        (entity,) = on.runtime.loom.entities()
        (turn,) = on.runtime.loom.turns(entity)
        await on.ask("DELETE", f"entities/{entity}", 204)
        await on.runtime.forget(entity)
        for path, body in ((f"turns/{turn.id}/fork", {"intent": "x"}), (f"turns/{turn.id}/rewards", {"reward": 1})):
            assert (await on.post(path, body, 409))["type"] == "urn:cantrip:forgotten"
        again = {"model": "echo", "input": "x", "previous_response_id": first["id"]}
        assert (await on.post("/v1/responses", again, 409))["error"]["code"] == "forgotten"


# People


@pytest.mark.rule("V-24")
async def test_the_result_of_a_deferred_call_is_delivered_once() -> None:
    async with served(tokens=[token("ci", "approve", "read")]) as on:
        await on.post("casts", {"cantrip": "echo", "intent": "build docs"}, 201)
        request = await wait_for_request(on)
        assert (request["gate"], request["args"], request["kind"]) == ("build", {"target": "docs"}, "deferred")
        path, headers = f"requests/{request['id']}", on.as_token("ci")
        await on.post(path, {"result": 1, "decision": "allow"}, 422, headers=headers)
        await on.post(path, {"result": 1, "error": "both"}, 422, headers=headers)
        delivered = await on.post(path, {"result": None}, 200, headers=headers | KEY)
        assert (delivered["decision"], delivered["by"]) == ("answer", "ci")
        await on.post(path, {"result": None}, 200, headers=headers | KEY)
        assert (await on.post(path, {"error": "late"}, 409, headers=headers))["decision"] == "answer"
        assert (await finish(on, request["entity"]))["episode"]["result"] == "it said: null"


@pytest.mark.rule("HTTP-19")
async def test_a_request_is_decided_once_and_the_second_caller_gets_the_first_decision() -> None:
    async with served(tokens=[token("ann", "approve", "read")]) as on:
        await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
        request = await wait_for_request(on)
        assert (request["gate"], request["args"], request["kind"]) == ("pay", {"amount": 3}, "approval")
        said = {"decision": "allow", "args": {"amount": 2}}
        await on.post(f"requests/{request['id']}", said, 200, headers=on.as_token("ann"))
        second = await on.post(f"requests/{request['id']}", {"decision": "deny"}, 409)
        assert (second["decision"], second["by"], second["type"]) == ("allow", "ann", "urn:cantrip:already-decided")
        entity = await finish(on, request["entity"])
        assert entity["episode"]["result"] == "it said: paid 2"
        (decided, *_) = (await on.get(f"entities/{request['entity']}/turns"))["items"][0]["decisions"]
        assert (decided["by"], decided["door"]) == ("ann", "token:ann")


@pytest.mark.rule("HTTP-19")
async def test_a_request_is_denied_and_invalid_decisions_are_refused() -> None:
    async with served() as on:
        await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
        request = await wait_for_request(on)
        await on.post(f"requests/{request['id']}", {"answer": "yes"}, 422)
        await on.post(f"requests/{request['id']}", {"decision": "allow", "args": {"amount": "x"}}, 422)
        await on.post("requests/nobody:1:2", {"decision": "allow"}, 404)
        await on.post(f"requests/{request['id']}", {"decision": "deny", "note": "too much"}, 200)
        assert "too much" in (await finish(on, request["entity"]))["episode"]["result"]


@pytest.mark.rule("HTTP-19")
async def test_a_request_is_in_the_loom_before_it_is_shown_and_a_decision_before_it_is_answered() -> None:
    async with served() as on:
        cast = await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
        async with on.stream(f"entities/{cast['entity_id']}/events", "0") as reader:
            with anyio.fail_after(10):
                while (event := await reader.next()) and event["event"] != "request":
                    pass
        assert event is not None
        store = on.runtime.loom.records(cast["entity_id"])
        assert event["data"]["id"] in [getattr(record, "id", None) for record in store]
        await on.post(f"requests/{event['data']['id']}", {"decision": "deny", "note": "no"}, 200, headers=KEY)
        refused = await on.post(f"requests/{event['data']['id']}", {"decision": "allow"}, 409)
        assert (refused["decision"], refused["note"]) == ("deny", "no")


@pytest.mark.rule("HTTP-19")
async def test_a_request_expires() -> None:
    hurried = Cantrip(
        scripted(answer), circle=Circle(["done", ask_first(pay, expires=0.3)], [max_turns(5)]), name="hurried"
    )
    async with served([hurried]) as on:
        cast = await on.post("casts", {"cantrip": "hurried", "intent": "pay 3"}, 201)
        request = await wait_for_request(on)
        assert request["expires_at"] > request["asked_at"]
        entity = await finish(on, cast["entity_id"])
        assert entity["episode"]["result"] == "it said: pay was not run: nobody decided in time"
        refused = await on.post(f"requests/{request['id']}", {"decision": "allow"}, 409)
        assert (refused["type"], refused["decision"]) == ("urn:cantrip:already-decided", "expired")


@pytest.mark.rule("HTTP-19")
async def test_a_remembered_decision_is_used_for_later_calls() -> None:
    async with served() as on:
        await on.post("entities", {"cantrip": "echo", "intent": "pay 3", "name": "bob"}, 201)
        request = await wait_for_request(on)
        await on.post(f"requests/{request['id']}", {"decision": "allow", "remember": "entity"}, 200)
        await finish(on, "bob")
        told = await on.post("entities/bob/send", {"intent": "pay 4", "wait": 10}, 200)
        assert told["result"] == "it said: paid 4"
        assert (await on.get("requests"))["items"] == []


# Who may


ALL = (*ROUTES, *OPENAI_ROUTES, *OPERATIONS, *DISPATCHING.whole_routes)


@pytest.mark.rule("HTTP-11")
@pytest.mark.parametrize("scope", SCOPES)
async def test_a_scope_allows_its_routes_and_no_other(scope: str) -> None:
    async with served(tokens=[token("mine", scope)], telemetry=Telemetry(otel=False)) as on:
        for row in ALL:
            assert row.scope in SCOPES
            path = plain_path(row.path)
            for name, value in (("{id}", "nobody"), ("{key}", "k"), ("{path}", "nowhere")):
                path = path.replace(name, value)
            if path == "/api/v1/events" and scope in ("read", "admin"):
                async with on.stream("events", headers=on.as_token("mine")) as reader:
                    assert reader.status == 200
                continue
            answered = await on.ask(row.method, path, headers=on.as_token("mine"))
            if scope in (row.scope, "admin"):
                assert answered.status_code not in (401, 403), path
            else:
                assert answered.status_code == 403, path
                needed = f'Bearer error="insufficient_scope", scope="{row.scope}"'
                assert answered.headers["www-authenticate"] == needed


@pytest.mark.rule("HTTP-11")
async def test_each_route_needs_a_token() -> None:
    async with served() as on:
        for row in ALL:
            path = plain_path(row.path).replace("{id}", "nobody").replace("{key}", "k")
            for wrong in (
                "Bearer wrong",
                "Bearer",
                "Bearer admin-token x",
                "Basic YWRtaW46YWRtaW4=",
                "admin-token",
                "",
            ):
                refused = await on.ask(row.method, path, 401, headers={"authorization": wrong})
                assert refused.headers["www-authenticate"] == "Bearer"


@pytest.mark.rule("HTTP-11")
async def test_openais_api_needs_the_scope_of_each_action() -> None:
    known = [token("reader", "read"), token("caster", "read", "cast"), token("sender", "read", "send")]
    async with served(tokens=known) as on:
        await on.post("entities", {"cantrip": "echo", "intent": "hi", "name": "bob"}, 201)
        for name, may in (("reader", ""), ("caster", "echo"), ("sender", "entity:bob")):
            for model in ("echo", "entity:bob"):
                status = 200 if model == may else 403
                said = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                await on.ask("POST", "/v1/chat/completions", status, json=said, headers=on.as_token(name))
                asked = {"model": model, "input": "hi"}
                await on.ask("POST", "/v1/responses", status, json=asked, headers=on.as_token(name))


@pytest.mark.rule("W-31")
async def test_the_system_prompt_of_a_cantrip_is_private() -> None:
    call, circle = Call(system_prompt="The code is 1234."), Circle(["done"], [max_turns(3)])
    plain = Cantrip(scripted(["x"]), call, circle, name="plain")
    shown = Cantrip(scripted(["x"]), call, circle, name="shown", description="Answers questions.")
    assert plain.id == shown.id
    async with served([plain, shown]) as on:
        answer = await on.ask("GET", "cantrips", 200)
        assert [one["description"] for one in answer.json()["items"]] == ["plain", "Answers questions."]
        assert "1234" not in answer.text
    offers = offers_of({"plain": plain, "shown": shown})
    described = [str(offer.tool) for offer in offers.values()]
    assert any("Answers questions." in text for text in described)
    assert not any("1234" in text for text in described)


@pytest.mark.rule("HTTP-11")
async def test_a_token_expires_and_casts_only_its_cantrips() -> None:
    from datetime import UTC, datetime

    late = token("late", "read", expires=datetime(2020, 1, 1, tzinfo=UTC))
    few = token("few", "read", "cast", cantrips=frozenset({"other"}))
    async with served([echo(), echo("other")], tokens=[late, few]) as on:
        await on.ask("GET", "cantrips", 401, headers=on.as_token("late"))
        mine = on.as_token("few")
        assert [one["name"] for one in (await on.get("cantrips", headers=mine))["items"]] == ["other"]
        await on.post("casts", {"cantrip": "echo", "intent": "hi"}, 404, headers=mine)
        await on.post("casts", {"cantrip": "other", "intent": "hi"}, 201, headers=mine)


@pytest.mark.rule("HTTP-12")
async def test_another_tenants_ids_are_unknown_everywhere(tmp_path: Path) -> None:
    scopes = [one for one in SCOPES if one != "admin"]
    known = [token("acme", *scopes, tenant="acme"), token("other", *scopes, tenant="other")]
    log = Dispatches(tmp_path)
    log.create(contract(dispatch_id="bob", title="plans"), author="ada")
    dispatching = make_extension(log)
    async with served(tokens=known, extensions=[dispatching]) as on:
        acme, other = on.as_token("acme"), on.as_token("other")
        await on.post("entities", {"cantrip": "echo", "intent": "plans", "name": "bob"}, 201, headers=acme | KEY)
        bob = await on.get("entities/bob", headers=acme)
        turn = (await on.get("entities/bob/turns", headers=acme))["items"][0]["id"]
        await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201, headers=acme)
        request = await wait_for_request(on)
        for row in (*ROUTES, *dispatching.whole_routes):
            for id in ("bob", bob["id"]):
                if "{id}" not in row.path and "{id:path}" not in row.path:
                    continue
                wanted = turn if "/turns/{id}" in row.path else request["id"] if "requests" in row.path else id
                path = plain_path(row.path).replace("{id}", wanted).replace("{key}", "order-17")
                body = {"intent": "x", "text": "x", "reward": 1, "decision": "allow", "cantrip": "echo"}
                body |= {"reason": "x"} | ({"note": "x"} if "dispatches" in row.path else {})
                fields = set(row.body.model_fields) if row.body else set()
                sent = {name: value for name, value in body.items() if name in fields}
                answered = await on.ask(row.method, path, 404, headers=other, json=sent if row.body else None)
                assert "plans" not in answered.text
        assert (await on.get("entities", headers=other))["items"] == []
        assert (await on.get("requests", headers=other))["items"] == []
        assert (await on.get("loom/search?q=plans", headers=other))["items"] == []
        assert (await on.get("loom/stats", headers=other))["turns"] == 0
        assert (await on.ask("GET", "loom/export", 200, headers=other)).text == ""
        events = await on.events("events", headers=other, until=lambda _: True)
        assert events[0]["data"]["entities"] == []
        await on.post("entities", {"cantrip": "echo", "intent": "mine", "name": "bob"}, 201, headers=other | KEY)
        assert (await on.get("entities/bob", headers=other))["id"] != bob["id"]
        listed = [one["id"] for one in (await on.get("/v1/models", headers=other))["data"]]
        assert listed == ["echo", "entity:bob"]


@pytest.mark.rule("HTTP-12")
async def test_another_tenants_ids_are_unknown_as_parameters_and_to_openais_api() -> None:
    scopes = [one for one in SCOPES if one != "admin"]
    known = [token("acme", *scopes, tenant="acme"), token("other", *scopes, tenant="other")]
    telemetry = Telemetry(otel=False)
    async with served(tokens=known, telemetry=telemetry, options={"telemetry": telemetry}) as on:
        acme, other = on.as_token("acme"), on.as_token("other")
        begun = await on.post("/v1/responses", {"model": "echo", "input": "plans"}, 200, headers=acme)
        await on.post("entities", {"cantrip": "echo", "intent": "plans", "name": "bob"}, 201, headers=acme)
        bob = (await on.get("entities/bob", headers=acme))["id"]
        for path in (
            *(f"requests?entity={bob}", f"loom/search?q=plans&entity={bob}", f"loom/stats?entity={bob}"),
            *(f"loom/export?entity={bob}", f"events?subtree={bob}", f"entities?parent={bob}", "/v1/models/entity:bob"),
            f"/v1/responses/{begun['id']}",
        ):
            assert "plans" not in (await on.ask("GET", path, 404, headers=other)).text
        await on.ask("GET", f"entities?cursor={bob}", 422, headers=other)
        for query in ("name=bob", "state=terminated"):
            assert (await on.get(f"entities?{query}", headers=other))["items"] == []
        said = {"messages": [{"role": "user", "content": "x"}], "model": "entity:bob"}
        await on.ask("POST", "/v1/chat/completions", 404, json=said, headers=other)
        again = {"model": "echo", "input": "x", "previous_response_id": begun["id"]}
        await on.ask("POST", "/v1/responses", 404, json=again, headers=other)
        await on.ask("POST", f"/v1/responses/{begun['id']}/cancel", 404, json={}, headers=other)
        overview = await on.get("overview", headers=other)
        assert (overview["entities"], overview["totals"]["turns_today"], overview.get("live")) == ([], 0, None)
        for path in ("/metrics", "system", "crashes", "events?kinds=actor"):
            assert (await on.ask("GET", path, 403, headers=other)).json()["type"] == "urn:cantrip:tenant"
        for form in ("jsonl", "chat", "pairs", "atif"):
            assert (await on.ask("GET", f"loom/export?format={form}", 200, headers=other)).text.strip() == ""
        assert len((await on.get("entities"))["items"]) == 2, "admin sees all"


@pytest.mark.rule("HTTP-12")
async def test_children_and_forks_belong_to_their_tenant() -> None:
    known = [token("acme", "cast", "read", tenant="acme"), token("other", "read", tenant="other")]
    async with served(tokens=known) as on:
        acme, other = on.as_token("acme"), on.as_token("other")
        cast = await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 5}, 200, headers=acme)
        fork = await on.post(f"turns/{cast['last_turn']}/fork", {"intent": "x"}, 201, headers=acme)
        assert (await on.get(f"entities/{fork['entity_id']}", headers=acme))["tenant"] == "acme"
        await on.ask("GET", f"entities/{fork['entity_id']}", 404, headers=other)


# Other sites


@pytest.mark.rule("HTTP-13")
async def test_hosts_origins_and_cookies_of_other_pages_are_refused() -> None:
    async with served(origins=["https://A.example/"]) as on:
        for host in ("evil.example", "127.0.0.1:80@evil.example", "127.0.0.1:x", "[127.0.0.1]x", "[127.0.0.1"):
            await on.ask("GET", "cantrips", 421, headers={"host": host})
        await on.ask("GET", "cantrips", 403, headers={"origin": "https://evil.example"})
        await on.ask("GET", "cantrips", 403, headers={"origin": "null"})
        own = on.url
        await on.ask("GET", "cantrips", 200, headers={"origin": own})
        allowed = await on.ask("GET", "cantrips", 200, headers={"origin": "https://a.example"})
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-credentials" not in allowed.headers
        ask = {"origin": "https://a.example", "access-control-request-method": "POST"}
        preflight = await on.ask("OPTIONS", "casts", 204, headers=ask)
        paths = (await on.get("openapi.json"))["paths"].values()
        methods = {name.upper() for path in paths for name in path if name in ("get", "post", "put", "patch", "delete")}
        assert "PUT" in methods
        assert methods <= set(preflight.headers["access-control-allow-methods"].split(", "))
        may_send = {"Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"}
        assert may_send <= set(preflight.headers["access-control-allow-headers"].split(", "))
        wanted = "authorization,x-stainless-retry-count, traceparent"
        asks = await on.ask("OPTIONS", "/v1/responses", 204, headers={**ask, "access-control-request-headers": wanted})
        assert asks.headers["access-control-allow-headers"].endswith(f", {wanted}")
        odd = await on.ask("OPTIONS", "casts", 204, headers={**ask, "access-control-request-headers": "x(y"})
        assert "x(y" not in odd.headers["access-control-allow-headers"]
        may_read = {"Location", "Retry-After", "Idempotency-Replayed", "X-Should-Retry"}
        assert may_read <= set(allowed.headers["access-control-expose-headers"].split(", "))
        assert allowed.headers["vary"].lower() == "origin"
        await on.ask("OPTIONS", "casts", 403, headers={**ask, "origin": "https://b.example"})


@pytest.mark.rule("W-22")
async def test_a_wrong_path_or_method_is_answered_in_the_shape_of_its_api_with_all_methods() -> None:
    async with served() as on:
        for path, method, status, allow in (
            ("/v1/nothing", "GET", 404, None),
            ("/v1/chat/completions", "GET", 405, "POST"),
            ("/api/v1/entities", "DELETE", 405, "GET, HEAD, POST"),
            ("/api/v1/nothing", "GET", 404, None),
        ):
            answer = await on.ask(method, path, status)
            assert answer.headers.get("allow") == allow
            body = answer.json()
            is_openai = path.startswith("/v1/")
            assert (body["error"]["type"] == "invalid_request_error") if is_openai else (body["status"] == status)
            assert answer.headers.get("x-should-retry") == ("false" if is_openai else None)


@pytest.mark.rule("HTTP-13")
async def test_the_pages_cookie_is_accepted_for_the_page_only() -> None:
    async with served() as on:
        await on.ask("POST", "/session", 401, headers={"authorization": "Bearer wrong"})
        started = await on.ask("POST", "/session", 204)
        (cookie,) = started.headers.get_list("set-cookie")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        headers = {"cookie": cookie.partition(";")[0], "host": on.url.partition("//")[2]}
        async with httpx.AsyncClient(base_url=on.url, headers=headers) as page:
            assert (await page.get("/api/v1/cantrips")).status_code == 200
            body = {"cantrip": "echo", "intent": "hi"}
            for more, status in (
                ({}, 403),
                ({"sec-fetch-site": "cross-site"}, 403),
                ({"sec-fetch-site": "same-site"}, 403),
                ({"sec-fetch-site": "same-origin"}, 201),
                ({"origin": on.url}, 201),
            ):
                answered = await page.post("/api/v1/casts", json=body, headers=more)
                assert answered.status_code == status, more
            shown = await page.get("/")
            assert "script-src 'self'" in shown.headers["content-security-policy"]
            for path in assets():
                kept = await page.get(path)
                assert (kept.status_code, kept.headers["x-content-type-options"]) == (200, "nosniff")
            session = (await page.get("/session")).json()
            assert (session["name"], session["tenant"]) == ("admin", None)


@pytest.mark.rule("HTTP-13")
async def test_the_cookie_of_a_service_with_a_name_is_sent_over_tls_only() -> None:
    async with served(hosts=["notes.example"]) as on:
        (cookie,) = (await on.ask("POST", "/session", 204, headers={"host": "notes.example"})).headers.get_list(
            "set-cookie"
        )
        assert cookie.startswith("__Host-cantrip=admin-token; ")
        assert {"HttpOnly", "SameSite=strict", "Path=/", "Secure"} <= set(cookie.split("; "))
        plain = {"cookie": "cantrip=admin-token", "host": "notes.example"}
        async with httpx.AsyncClient(base_url=on.url) as page:
            assert (await page.get("/api/v1/cantrips", headers=plain)).status_code == 401
            secure = {"cookie": "__Host-cantrip=admin-token", "host": "notes.example"}
            assert (await page.get("/api/v1/cantrips", headers=secure)).status_code == 200


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("gzip, deflate, br, zstd", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("gzip", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("identity", False),
        ("x-gzip", False),
        ("", False),
    ],
)
async def test_the_files_of_the_page_are_compressed_for_clients_that_accept_gzip(
    accepted: str, is_compressed: bool
) -> None:
    async with served() as on, httpx.AsyncClient(base_url=on.url) as client:
        sizes = 0
        for path, text in assets().items():
            sent = await client.get(path, headers={"accept-encoding": accepted})
            assert sent.text == text
            assert ("content-encoding" in sent.headers) is is_compressed
            assert "accept-encoding" in sent.headers["vary"].split(", ")
            assert "etag" not in sent.headers
            sizes += int(sent.headers["content-length"])
            lasts = "no-store" if path == "/" else "public, max-age=31536000, immutable"
            assert sent.headers["cache-control"] == lasts
    assert (sizes < 98_000) is is_compressed  # of 270 kB, of which 100 kB are the parser of Markdown


async def test_without_the_page_there_is_neither_page_nor_session() -> None:
    async with served(page=False) as on:
        await on.ask("GET", "/", 404)
        await on.ask("POST", "/session", 404)


# Limits and strange requests


@pytest.mark.rule("HTTP-14")
async def test_an_exceeded_limit_is_named_in_the_response() -> None:
    limits = ServiceLimits(rate=0.001, burst=6, casts=1, streams=1, body=1000)
    async with served(limits=limits) as on:
        body = {"cantrip": "echo", "intent": "nap 5"}
        await on.post("casts", body, 201)
        refused = await on.ask("POST", "casts", 429, json=body)
        assert (refused.json()["limit"], refused.headers["retry-after"]) == ("concurrent_casts", "1")
        async with on.stream("events") as reader:
            assert reader.status == 200
            assert (await on.get("events", 429))["limit"] == "event_streams"
        assert (await on.post("casts", {**body, "intent": "x" * 1000}, 413))["limit"] == "body_size"
        assert (await on.get("cantrips"))["items"]
        assert (await on.get("cantrips", 429))["limit"] == "rate"


STRANGE = [
    (b"[" * 10_000 + b"]" * 10_000, 400),
    (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 400),
    (b"[" * 102 + b"]" * 102, 400),
    (b'{"cantrip": "echo", "intent": "hi", "context": 1e999}', 400),
    (b'{"cantrip": "echo", "intent": "hi", "context": ' + b"9" * 5000 + b"}", 400),
    (b'{"cantrip": "echo", "intent": "hi", "context": NaN}', 400),
    (b'{"cantrip": "echo", "intent": "\xff"}', 400),
    (b"", 400),
    (b"null", 422),
    (b'{"cantrip": "echo", "intent": 3}', 422),
    (b'{"cantrip": "echo", "intent": " "}', 422),
    (b'{"cantrip": "echo", "intent": "hi", "wait": 301}', 422),
    (b'{"cantrip": "echo", "intent": "hi", "wait": -1}', 422),
    (b'{"cantrip": "echo", "intent": "hi", "images": ["data:image/png;base64,AAAA"]}', 422),
    (b'{"cantrip": "echo", "intent": "hi", "surprise": 1}', 422),
    (b'{"cantrip": "nobody", "intent": "hi"}', 404),
    (b'{"cantrip": "echo", "intent": "hi", "context": 123456789012345678901234567890}', 201),
]


@pytest.mark.rule("HTTP-14")
async def test_malformed_bodies_are_client_errors() -> None:
    async with served() as on:
        kind = {"content-type": "application/json"}
        for body, status in STRANGE:
            answered = await on.ask("POST", "casts", content=body, headers=kind)
            assert answered.status_code == status, body[:80]
        await on.ask("POST", "casts", 415, content=b"{}", headers={"content-type": "text/plain"})
        await on.ask("GET", "entities?limit=0", 422)
        await on.ask("GET", "entities?limit=1&limit=2", 422)
        await on.ask("GET", "entities?cursor=x", 422)
        await on.ask("GET", "loom/search?regex=(", 422)
        await on.ask("GET", "events?kinds=x", 422)
        await on.ask("GET", "entities/%ff", 404)


@pytest.mark.rule("Z-02")
async def test_an_expression_that_is_costly_to_compile_does_not_hold_up_the_loop() -> None:
    gaps = [0.0]

    async def beat() -> None:
        last = anyio.current_time()
        while True:
            await anyio.sleep(0.01)
            now = anyio.current_time()
            gaps.append(now - last)
            last = now

    async with served() as on, anyio.create_task_group() as tasks:
        await on.get("loom/search", params={"regex": "[H]i"})
        tasks.start_soon(beat)
        # this takes three seconds to compile, on a machine that is idle
        await on.ask("GET", "loom/search", params={"regex": "(?i)" + "[\x01-\U0010ffff]" * 400})
        tasks.cancel_scope.cancel()
    assert max(gaps) < 0.5 * measure_slowness()


PYTHON = re.compile(r"\w=…|\w\(|runtime\.|dict|list\[|\bstr\b|instance of|None|True|False")


@pytest.mark.rule("HTTP-15")
@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("casts", [1], "the body: expected an object"),
        ("casts", {"cantrip": "echo"}, "intent: required, but missing"),
        ("casts", {"cantrip": "echo", "intent": 3}, "intent: expected a text"),
        ("casts", {"cantrip": "echo", "intent": " "}, "intent: expected a text that says what to achieve"),
        ("casts", {"cantrip": "echo", "intent": "hi", "images": "x"}, "images: expected an array"),
        ("casts", {"cantrip": "echo", "intent": "hi", "files": ["x"]}, "files.0: expected an object"),
        ("casts", {"cantrip": "echo", "intent": "hi", "files": [{"url": "https://a.b/c.png"}]}, "give it as an image"),
        ("entities", {"cantrip": "echo", "intent": "hi", "name": "bob"}, 'an entity called "bob" is there already'),
        ("entities/{cast}/send", {"intent": "hi"}, "only a long-lived one takes more"),
        ("turns/{turn}/fork", {"intent": "hi", "crystal": "typo"}, "crystal: expected FAMILY:MODEL"),
        ("submissions", {"cantrip": "echo", "intent": "hi", "queue": "typo"}, "queue: expected a queue of this loom"),
        ("dispatches", {"contract": 3}, "contract: expected an object"),
        ("requests/{request}", {"args": [1]}, "args: expected an object"),
        ("requests/{request}", {"decision": "allow", "args": {"amount": "x"}}, '"type":"integer"'),
        ("requests/nobody", {"decision": "allow"}, "no request has this id: GET /api/v1/requests"),
        ("/v1/responses", {"model": "echo", "input": 3}, "input: expected a text"),
        ("/v1/chat/completions", {"model": "echo", "messages": [3]}, "messages.0: expected an object"),
    ],
)
async def test_a_problem_names_the_field_and_what_to_send_and_no_python(path: str, body: Any, detail: str) -> None:
    async with served() as on:
        await on.post("entities", {"cantrip": "echo", "intent": "hi", "name": "bob", "wait": 10}, 200)
        done = await on.post("casts", {"cantrip": "echo", "intent": "hi", "wait": 10}, 200)
        known = {"cast": done["entity_id"], "turn": done["last_turn"]}
        if "{request}" in path:
            await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
            known["request"] = (await wait_for_request(on))["id"]
        answered = await on.ask("POST", path.format(**known), json=body)
        told = answered.json()
        mistakes = [f"{one['path']} {one['message']}" for one in told.get("mistakes", ())]
        shown = told["error"]["message"] if "error" in told else told["detail"]
        assert 400 <= answered.status_code < 500
        assert detail in shown
        assert not PYTHON.search(" ".join([shown, *mistakes]))


@pytest.mark.rule("HTTP-15")
async def test_a_service_that_offers_no_cantrip_for_an_entity_says_which_it_works_with(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url) as runtime:
        other = Cantrip(scripted([{"content": "hi"}]), circle=Circle(["done"], [max_turns(2)]), name="other")
        await (await runtime.invoke(other, "hi", name="bob")).episode()
    async with served(url=url) as on:
        turn = (await on.get("entities/bob/turns"))["items"][0]["id"]
        told = await on.post(f"turns/{turn}/fork", {"intent": "hi"}, 409)
        assert (told["type"], told["cantrip"]) == ("urn:cantrip:cantrip-unknown", "other")
        assert not PYTHON.search(told["detail"])


@pytest.mark.rule("HTTP-15")
async def test_an_internal_error_shows_only_its_id() -> None:
    async with served() as on:

        def broken(*_args: Any, **_more: Any) -> Any:
            raise ZeroDivisionError("/etc/passwd hunter2")

        on.service.limiter.count_request = broken  # type: ignore[method-assign]
        with structlog.testing.capture_logs() as logs:
            answered = await on.ask("GET", "cantrips", 500)
        told = answered.json()
        assert "passwd" not in answered.text
        assert "Traceback" not in answered.text
        (logged,) = [line for line in logs if line.get("error_id")]
        assert logged["error_id"] == told["error_id"]
        assert isinstance(logged["exc_info"], ZeroDivisionError)


@pytest.mark.rule("HTTP-15")
async def test_no_secret_leaves_by_any_route() -> None:
    secret = "correct-horse-battery"  # the secret of this test

    def failing(context: Any) -> dict[str, Any]:
        if context[-1].content == "fail":
            raise CrystalError(f"key {secret} was refused")
        return {"content": f"the key is {secret}"}

    cantrip = Cantrip(scripted(failing), circle=Circle(["done"], [max_turns(3)]), name="leaky")
    few = token("few", "read", "cast")
    async with served([cantrip], options={"secrets": {"key": secret}}, tokens=[few]) as on:
        mine = on.as_token("few")
        cast = await on.post("casts", {"cantrip": "leaky", "intent": "hi", "wait": 5}, 200, headers=mine)
        failed = await on.post("casts", {"cantrip": "leaky", "intent": "fail", "wait": 5}, 502, headers=mine)
        assert failed["type"] == "urn:cantrip:crystal"
        entity = cast["entity_id"]
        shown = [str(cast), str(failed)]
        paths = [f"entities/{entity}", f"entities/{entity}/turns", f"entities/{failed['entity_id']}", "loom/export"]
        shown += [(await on.ask("GET", path, 200, headers=mine)).text for path in paths]
        shown.append(str(await on.events(f"entities/{entity}/events?after=0", headers=mine)))
        said = {"model": "leaky", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        shown.append((await on.ask("POST", "/v1/chat/completions", 200, json=said, headers=mine)).text)
        assert not [text for text in shown if secret in text]
        assert secret in (await on.ask("GET", "loom/export", 200)).text, "with the scope for secrets"


async def test_a_loom_that_cannot_write_is_507_without_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as on:

        async def refuse(*_args: Any, **_more: Any) -> Any:
            raise LoomError("cannot write /var/lib/loom.db")

        monkeypatch.setattr(Runtime, "start", refuse)
        told = await on.post("casts", {"cantrip": "echo", "intent": "hi"}, 507)
        assert "/var/lib" not in json.dumps(told)


async def test_a_runtime_that_drains_refuses_new_work() -> None:
    async with served() as on:
        await on.runtime.drain(1)
        answered = await on.ask("POST", "casts", 503, json={"cantrip": "echo", "intent": "hi"})
        assert answered.headers["retry-after"] == "1"
        await on.get("cantrips")


def test_a_service_refuses_cantrips_without_a_name_of_their_own() -> None:
    nameless = Cantrip(scripted(["hi"]), circle=Circle(["done"], [max_turns(3)]))
    with pytest.raises(ValueError, match="give it a `name`"):
        Service(Runtime.open(), [nameless], tokens=None)
    with pytest.raises(ValueError, match="two cantrips"):
        Service(Runtime.open(), [echo(), echo()], tokens=None)


@pytest.mark.rule("HTTP-01")
def test_a_service_serves_the_cantrips_of_its_runtime() -> None:
    runtime = Runtime.open(cantrips=[echo(), echo("other"), Cantrip(scripted(["hi"]), circle=echo().circle)])
    assert list(Service(runtime).cantrips) == ["echo", "other"]
    assert list(Service(runtime, [echo("other")], tokens=None).cantrips) == ["other"]
    assert list(Service(Runtime.open(), [echo("more")], tokens=None).cantrips) == ["more"]


def librarian() -> Cantrip:
    """Says which files its intent came with."""

    def answers(context: Any) -> dict[str, Any]:
        files = ", ".join(f"{one.kind} {one.filename or one.url or one.media_type}" for one in context[-1].images)
        return {"content": f"{context[-1].content}: {files}"}

    return Cantrip(scripted(answers), circle=Circle(["done"], [max_turns(5)]), name="librarian")


@pytest.mark.rule("HTTP-01", "R-20")
async def test_an_intent_carries_files() -> None:
    report = {"url": data_url(PDF, "application/pdf"), "filename": "report.pdf"}
    notes = {"url": data_url(b"# Buy milk", "application/octet-stream"), "filename": "notes.md"}
    linked, photo = {"url": "https://example.org/a.pdf"}, {"url": data_url(png(), "image/png")}
    async with served([librarian()]) as on:
        body = {"cantrip": "librarian", "intent": "read", "wait": 5, "files": [report, notes, linked, photo]}
        assert (await on.post("casts", body))["result"] == (
            "read: file report.pdf, file notes.md, file https://example.org/a.pdf, image image/png"
        )
        for url in ("data:application/pdf,abc", "data:application/pdf;base64,?", data_url(b"\0", ""), "ftp://a/b"):
            refused = await on.post("casts", {**body, "files": [{"url": url}]}, 422)
            assert refused["type"] == "urn:cantrip:invalid-file", url


@pytest.mark.rule("HTTP-13", "R-20")
async def test_the_size_limit_of_a_body_with_files_is_a_setting() -> None:
    report = {"url": data_url(PDF + b" " * 2_000, "application/pdf"), "filename": "report.pdf"}
    body = {"cantrip": "librarian", "intent": "read", "wait": 5, "files": [report]}
    async with served([librarian()], limits=ServiceLimits(body=1_000)) as on:
        assert (await on.post("casts", body, 413))["limit"] == "body_size"
    async with served([librarian()], limits=ServiceLimits(body=4_000)) as on:
        assert (await on.post("casts", body))["result"] == "read: file report.pdf"


async def test_a_search_is_limited_to_a_sender_and_a_span_of_time() -> None:
    async with served([echo()]) as on:
        await on.post("casts", {"cantrip": "echo", "intent": "my parcel"}, 201)
        (hit, *_) = (await on.get("loom/search?q=parcel"))["items"]
        assert hit["at"].startswith("20")
        assert (await on.get("loom/search", params={"q": "parcel", "by": hit["by"], "since": hit["at"]}))["items"]
        assert not (await on.get("loom/search", params={"q": "parcel", "by": "nobody"}))["items"]
        assert not (await on.get("loom/search", params={"q": "parcel", "until": "2026-01-01T00:00Z"}))["items"]
        await on.ask("GET", "loom/search?q=parcel&since=yesterday", 422)
