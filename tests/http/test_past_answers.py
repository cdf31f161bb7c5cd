"""Responses that a client has continued with results or replies: each stays as it was, and names the one before it."""

import json
from typing import Any

import anyio
import pytest
from openai.types.responses import Response

from cantrip_actors import Cantrip, Circle, ask_first, scripted
from cantrip_actors.wards import max_depth, max_turns
from tests.http.serving import Served, in_process, nap, pay, token
from tests.http.test_client_tools import FLAT
from tests.http.test_person import interview

pytestmark = pytest.mark.rule("W-20")

Policy = dict[str, list[Any]]


def look(*cities: str, text: str | None = None) -> dict[str, Any]:
    calls = [{"gate": "weather", "args": {"city": city}} for city in cities]
    return {"content": text, "tool_calls": calls, "usage": {"prompt_tokens": 10, "completion_tokens": 1}}


def do(gate: str, **args: Any) -> dict[str, Any]:
    return {"content": f"I {gate}.", "tool_calls": [{"gate": gate, "args": args}]}


def acting(policy: Policy) -> Cantrip:
    """Return a cantrip that acts by a list for each intent."""

    def act(context: Any) -> Any:
        at = max(number for number, message in enumerate(context) if message.role == "user")
        answers = sum(message.role == "assistant" for message in context[at:])
        return policy[context[at].content][answers]

    circle = Circle(["done", "call_agent", "call_agent_batch", nap, ask_first(pay)], [max_turns(9), max_depth(2)])
    return Cantrip(scripted(act, record=False), circle=circle, name="acting")


class Conversation:
    """A client that continues each response with results of all its calls, or with a message."""

    def __init__(self, on: Served, model: str = "acting", **more: Any) -> None:
        self.on = on
        self.model = model
        self.more = more
        self.posted: list[Any] = []

    async def post(self, content: Any) -> Any:
        previous = self.posted[-1]["id"] if self.posted else None
        body = {"model": self.model, "input": content, "tools": [FLAT], "previous_response_id": previous, **self.more}
        self.posted.append(await self.on.post("/v1/responses", body, 200))
        await anyio.sleep(5)  # so that each has a time of its own
        return self.posted[-1]

    async def answer(self) -> Any:
        calls = [item for item in self.posted[-1]["output"] if item["type"] == "function_call"]
        return await self.post(
            [
                {"type": "function_call_output", "call_id": item["call_id"], "output": item["arguments"]}
                for item in calls
            ]
        )

    async def run(self, intent: str) -> list[list[str]]:
        """Return the cities of the calls of each response until the last one."""
        response, cities = await self.post(intent), list[list[str]]()
        while listed := [item["arguments"] for item in response["output"] if item["type"] == "function_call"]:
            cities.append([text.split('"')[3] for text in listed])
            response = await self.answer()
        return cities

    async def check_stored(self) -> None:
        """Check that each response is as it was, and names the one before it."""
        before, created = None, 0
        for response in self.posted:
            stored = await self.on.get(f"/v1/responses/{response['id']}")
            assert stored["created_at"] >= created + 4
            for name in ("id", "status", "output", "usage"):
                assert stored[name] == response[name]
            assert stored["previous_response_id"] == before
            before, created = response["id"], stored["created_at"]


async def test_a_response_stays_as_it_was_after_its_client_has_continued_it() -> None:
    policy: Policy = {
        "go": [look("Oslo", "Rome", text="I look."), look("Bern", text="Again."), "It snows."],
        "and now?": [look("Oslo"), "It rains."],
    }
    async with in_process([acting(policy)]) as on:
        talk = Conversation(on)
        assert await talk.run("go") == [["Oslo", "Rome"], ["Bern"]]
        assert await talk.run("and now?") == [["Oslo"]]
        await talk.check_stored()


async def test_each_response_with_calls_of_children_names_the_one_before_it() -> None:
    policy: Policy = {
        "go": [do("call_agent", intent="look"), look("Bern"), do("call_agent", intent="more"), "It snows."],
        "look": [look("Oslo"), look("Rome"), "sun"],
        "more": [look("Lima"), "rain"],
    }
    async with in_process([acting(policy)]) as on:
        talk = Conversation(on)
        assert await talk.run("go") == [["Oslo"], ["Rome"], ["Bern"], ["Lima"]]
        await talk.check_stored()


@pytest.mark.parametrize("seconds", [0, 1])
async def test_children_that_work_at_the_same_time_wait_for_their_client_together_or_one_after_the_other(
    seconds: float,
) -> None:
    policy: Policy = {
        "go": [do("call_agent_batch", intents=["a", "b"]), "Both have looked."],
        "a": [look("Oslo"), "sun"],
        "b": [do("nap", seconds=seconds), look("Rome"), "snow"],
    }
    async with in_process([acting(policy)]) as on:
        talk = Conversation(on)
        await talk.post("go")
        await anyio.sleep(3)  # the client takes so long
        while [item for item in talk.posted[-1]["output"] if item["type"] == "function_call"]:
            await talk.answer()
        assert talk.posted[-1]["output"][0]["content"][0]["text"] == "Both have looked."
        stored = [await on.get(f"/v1/responses/{response['id']}") for response in talk.posted]
        assert [response["previous_response_id"] for response in stored[1:]] == [one["id"] for one in talk.posted[:-1]]


@pytest.mark.parametrize("seconds", [0, 1])
async def test_no_call_comes_to_its_client_again_when_another_child_comes_to_wait_between_two_results(
    seconds: float,
) -> None:
    policy: Policy = {
        "go": [do("call_agent_batch", intents=["a", "b"]), "Both have looked."],
        "a": [look("Oslo", "Rome"), "sun"],
        "b": [do("nap", seconds=seconds), look("Lima"), "snow"],
    }
    async with in_process([acting(policy)]) as on:
        assert await Conversation(on).run("go") == [["Oslo", "Rome"], ["Lima"]]


async def test_results_that_come_with_a_background_response_continue_the_entity() -> None:
    async with in_process([acting({"go": [look("Oslo", "Rome"), look("Bern"), "It snows."]})]) as on:
        talk = Conversation(on, background=True)
        await talk.post("go")
        for types in (["function_call"] * 2, ["function_call"], ["message"]):
            talk.posted[-1] = await on.get(f"/v1/responses/{talk.posted[-1]['id']}")
            assert [item["type"] for item in talk.posted[-1]["output"]] == types
            if "function_call" in types:
                assert (await talk.answer())["status"] == "queued"
        await talk.check_stored()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_of_two_requests_with_different_results_of_a_call_one_is_refused(is_stream: bool) -> None:
    async with in_process([acting({"go": [look("Oslo"), do("nap", seconds=9), "It snows."]})]) as on:
        begun = await Conversation(on).post("go")
        statuses: list[int] = []

        async def answer(text: str) -> None:
            result = {"type": "function_call_output", "call_id": begun["output"][0]["call_id"], "output": text}
            body = {"model": "acting", "input": [result], "tools": [FLAT], "stream": is_stream}
            statuses.append((await on.ask("POST", "/v1/responses", json=body)).status_code)

        async with anyio.create_task_group() as tasks:
            for text in ("snow", "sun"):
                tasks.start_soon(answer, text)
        assert sorted(statuses) == [200, 409]


async def test_a_client_that_wants_one_call_at_a_time_gets_one_in_each_response() -> None:
    policy: Policy = {
        "go": [look("Oslo", "Rome", "Bern", text="I look."), do("call_agent_batch", intents=["a", "b"]), "It snows."],
        "a": [look("Lima", "Kyiv"), "sun"],
        "b": [look("Paris"), "rain"],
    }
    async with in_process([acting(policy)]) as on:
        talk = Conversation(on, parallel_tool_calls=False)
        cities = await talk.run("go")
        assert cities[:3] == [["Oslo"], ["Rome"], ["Bern"]]
        assert sorted(cities[3:]) == [["Kyiv"], ["Lima"], ["Paris"]]
        await talk.check_stored()
        both = Conversation(on, parallel_tool_calls=True)
        assert (await both.run("go"))[0] == ["Oslo", "Rome", "Bern"]


@pytest.mark.parametrize("between", [do("pay", amount=3), do("call_agent", intent="more")])
async def test_no_call_comes_to_its_client_again_after_the_entity_has_waited_between_two_results(
    between: dict[str, Any],
) -> None:
    calls = [*look("Oslo")["tool_calls"], *between["tool_calls"], *look("Rome")["tool_calls"]]
    policy: Policy = {"go": [{"content": None, "tool_calls": calls}, "It snows."], "more": [look("Lima"), "rain"]}
    async with in_process([acting(policy)]) as on:
        talk = Conversation(on)
        await talk.post("go")
        answered = await talk.answer()
        for request in on.runtime.requests():
            if request.kind == "approval":
                await on.runtime.decide(request.id, "allow", by="anna")
                await anyio.sleep(1)
                answered = await on.get(f"/v1/responses/{answered['id']}")
        if answered["output"][0]["type"] == "function_call":
            assert [item["arguments"] for item in answered["output"]] == ['{"city":"Lima"}']
            answered = await talk.answer()
        assert answered["output"][-1]["content"][0]["text"] == "It snows."
        turns = on.runtime.loom.turns(on.runtime.loom.entities()[0])
        results = [call.result for turn in turns for call in turn.gate_calls if call.gate == "weather"]
        assert results == ['{"city":"Oslo"}', '{"city":"Rome"}']


async def test_a_response_to_which_a_person_has_replied_stays_as_it_was() -> None:
    async with in_process([interview()]) as on:
        talk = Conversation(on, "interview")
        for text in ("Go.", "Anna", "blue"):
            await talk.post(text)
        await talk.check_stored()


async def test_a_reference_to_the_text_of_a_continued_response_is_that_text() -> None:
    async with in_process([acting({"go": [look("Oslo", text="I look."), "It snows."]})]) as on:
        talk = Conversation(on)
        await talk.run("go")
        reference = {"type": "item_reference", "id": talk.posted[0]["output"][0]["id"]}
        body = {"model": "acting", "input": [reference, {"role": "user", "content": "go"}], "tools": [FLAT]}
        await on.post("/v1/responses", body, 200)
        (intent,) = on.runtime.loom.intents(on.runtime.loom.entities()[-1])
        assert [past.content for past in intent.history] == ["I look."]


@pytest.mark.rule("W-41")
@pytest.mark.parametrize("is_child", [False, True])
async def test_a_message_between_the_decision_of_a_person_and_the_end_follows_the_response(is_child: bool) -> None:
    paying = [do("pay", amount=3), do("nap", seconds=60), "It is paid."]
    policy: Policy = {"go": [do("call_agent", intent="pay"), "It is paid."] if is_child else paying, "pay": paying}
    async with in_process([acting(policy)]) as on:
        body: dict[str, Any] = {"model": "acting", "input": "go"}
        begun = await on.post("/v1/responses", body, 200)
        assert begun["status"] == "in_progress"
        (request,) = on.runtime.requests()
        await on.runtime.decide(request.id, "allow", by="anna")
        await anyio.sleep(1)
        again = {**body, "input": "continue", "previous_response_id": begun["id"]}
        answered = await on.post("/v1/responses", again, 200)
        assert (answered["id"], answered["status"]) == (begun["id"], "completed")
        assert answered["output"][-1]["content"][0]["text"] == "It is paid."
        assert len(on.runtime.loom.intents(str(answered["id"]).removeprefix("resp_"))) == 1


async def test_a_message_that_waits_behind_the_calls_of_another_client_gets_its_own_answer() -> None:
    policy: Policy = {"one": [look("Oslo"), "It snows."], "two": [look("Rome"), "It rains."], "three": ["No tools."]}
    async with in_process([acting(policy)]) as on:
        await on.runtime.ensure("bob", acting(policy))
        body = {"model": "entity:bob", "tools": [FLAT]}
        first = await on.post("/v1/responses", {**body, "input": "one"}, 200)
        behind = await on.post("/v1/responses", {**body, "input": "three", "background": True}, 200)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await on.post("/v1/responses", {**body, "input": "two"}, 200))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.sleep(5)
            waiting = await on.get(f"/v1/responses/{behind['id']}")
            assert (waiting["status"], waiting["output"], answers) == ("queued", [], [])
            (item,) = first["output"]
            result = {"type": "function_call_output", "call_id": item["call_id"], "output": "snow"}
            await on.post("/v1/responses", {**body, "input": [result]}, 200)
        assert answers[0]["output"][0]["arguments"] == '{"city":"Rome"}'


@pytest.mark.rule("HTTP-14")
@pytest.mark.parametrize("is_child", [False, True])
async def test_casts_that_wait_for_their_client_or_a_person_leave_room_for_others(is_child: bool) -> None:
    acts = {"look": look("Oslo"), "pay": do("pay", amount=3)}
    policy: Policy = {"work": [do("nap", seconds=60), "Done."], **{name: [act] for name, act in acts.items()}}
    policy |= {f"delegate {name}": [do("call_agent", intent=name)] for name in acts}
    few = token("few", "read", "cast", max_concurrent=1)
    async with in_process([acting(policy)], few) as on:
        headers = on.as_token("few")
        for name in acts:
            said = [{"role": "user", "content": f"delegate {name}" if is_child else name}]
            tools = [{"type": "function", "function": {key: FLAT[key] for key in ("name", "parameters")}}]
            body = {"model": "acting", "messages": said, "tools": tools}
            await on.post("/v1/chat/completions", body, 200, headers=headers)
        await on.post("casts", {"cantrip": "acting", "intent": "work"}, 201, headers=headers)
        await on.post("casts", {"cantrip": "acting", "intent": "work"}, 429, headers=headers)


@pytest.mark.rule("WIRE-02")
async def test_a_response_is_whole_by_the_models_of_openais_client_and_is_retrieved_with_its_parameters() -> None:
    policy: Policy = {
        "go": [look("Oslo", text="I look."), "It snows."],
        "nothing": [{**do("done", answer=""), "content": None}],
    }
    async with in_process([acting(policy)]) as on:
        talk = Conversation(on)
        await talk.run("go")
        for response in (*talk.posted, await talk.post("nothing")):
            stored = await on.ask("GET", f"/v1/responses/{response['id']}?include[]=a&include[]=b", 200)
            Response.model_validate_json(stored.text, strict=True)
            assert stored.json()["output"] == response["output"]
        body = {"model": "acting", "input": "nothing", "stream": True}
        streamed = await on.ask("POST", "/v1/responses", 200, json=body)
        assert read_data(streamed.text)[-1]["response"]["output"] == talk.posted[-1]["output"] == []
        refused = (await on.ask("GET", f"/v1/responses/{talk.posted[0]['id']}?stream=true", 400)).json()
        assert refused["error"]["param"] == "stream"


def read_data(text: str) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
