"""Requests to OpenAI's and Anthropic's API with a conversation: its messages are the entity's context (W-21)."""

import json
from typing import Any

import pytest

from cantrip_actors import Call, Cantrip, Circle, Message, scripted
from cantrip_actors.http.request_messages import CONTINUE
from cantrip_actors.wards import max_turns
from tests.http.serving import Served, in_process, served
from tests.pictures import data_url, png

pytestmark = [pytest.mark.real_time, pytest.mark.rule("W-21")]

PICTURE = data_url(png(), "image/png")
IMAGE = {"type": "image_url", "image_url": {"url": PICTURE}}


def noting(seen: list[list[Message]]) -> Cantrip:
    """Return a cantrip whose crystal notes its messages."""

    def answer(context: Any) -> dict[str, Any]:
        seen.append(list(context))
        return {"tool_calls": [{"gate": "done", "args": {"answer": f"answer {len(seen)}"}}]}

    return Cantrip(scripted(answer), Call("Be terse."), Circle(["done"], [max_turns(5)]), name="notes")


def show(messages: list[Message]) -> list[tuple[Any, ...]]:
    """Return role, text, calls and images of each message after the call."""
    return [
        (
            message.role,
            message.content,
            [(call.id, call.gate, call.args) for call in message.tool_calls] or message.tool_call_id,
            len(message.images),
        )
        for message in messages[1:]
    ]


def name_answer(answer: dict[str, Any]) -> str:
    """Return the text of an answer in any of the three dialects."""
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    return str((answer.get("content") or answer["output"][0]["content"])[0]["text"])


LOOK = ("look", {"at": "a"})
CALLS = [("c1", *LOOK), ("c2", *LOOK)]
EXPECTED = [
    ("system", "Be kind.", None, 0),
    ("user", "What is\non it?", None, 1),
    ("assistant", "I look.", CALLS, 0),
    ("tool", "a cat", "c1", 0),
    ("tool", "a dog", "c2", 1),
    ("assistant", "A cat.", None, 0),
    ("user", "And now?", None, 0),
]


def chat_messages() -> list[dict[str, Any]]:
    image = IMAGE
    calls = [
        {"id": id, "type": "function", "function": {"name": "look", "arguments": '{"at": "a"}'}} for id in ("c1", "c2")
    ]
    return [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "What is"}, image, {"type": "text", "text": "on it?"}]},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "a dog"}, image]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "And now?"},
    ]


def response_items() -> dict[str, Any]:
    image = {"type": "input_image", "image_url": PICTURE}
    question = [{"type": "input_text", "text": "What is"}, image, {"type": "input_text", "text": "on it?"}]
    call = {"type": "function_call", "name": "look", "arguments": '{"at": "a"}'}
    items = [
        {"role": "user", "content": question},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {**call, "call_id": "c1"},
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "a dog"}, image],
        },
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "And now?"},
    ]
    return {"instructions": "Be kind.", "input": items}


def anthropic_messages() -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]}
    image = {"type": "image", "source": source}
    uses = [{"type": "tool_use", "id": id, "name": "look", "input": {"at": "a"}} for id in ("c1", "c2")]
    result = [{"type": "text", "text": "a dog"}, image]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "a cat"},
        {"type": "tool_result", "tool_use_id": "c2", "content": result},
    ]
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What is"}, image, {"type": "text", "text": "on it?"}]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, *uses]},
        {"role": "user", "content": results},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
        {"role": "user", "content": "And now?"},
    ]
    return {"system": "Be kind.", "max_tokens": 100, "messages": messages}


BODIES: dict[str, Any] = {
    "chat/completions": lambda: {"messages": chat_messages()},
    "responses": response_items,
    "messages": anthropic_messages,
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_conversation_is_the_context_of_the_entity(path: str) -> None:
    seen: list[list[Message]] = []
    async with served([noting(seen)]) as on:
        answer = await on.post(f"/v1/{path}", {"model": "notes", **BODIES[path]()}, 200)
        assert name_answer(answer) == "answer 1"
        (messages,) = seen
        assert show(messages) == EXPECTED
        assert messages[3].thinking == "hm"
        assert [image.after for image in messages[2].images] == [7]
        (entity,) = on.runtime.loom.entities()
        given: Any = on.runtime.loom.records(entity)[1]
        assert (given.intent, given.context) == ("And now?", None)


ONLY_A_PICTURE: dict[str, Any] = {
    "chat/completions": {"messages": [{"role": "user", "content": [IMAGE]}]},
    "responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]},
    "messages": {
        "max_tokens": 9,
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]},
                    }
                ],
            }
        ],
    },
}


@pytest.mark.parametrize("path", ONLY_A_PICTURE)
async def test_a_message_of_only_a_picture_is_an_intent(path: str) -> None:
    seen: list[list[Message]] = []
    async with served([noting(seen)]) as on:
        await on.post(f"/v1/{path}", {"model": "notes", **ONLY_A_PICTURE[path]}, 200)
        assert [(message.role, len(message.images)) for message in seen[0]] == [("system", 0), ("user", 1)]


USER: dict[str, Any] = {"role": "user", "content": "hi"}
REFUSED: dict[str, tuple[str, Any, str]] = {
    "an answer at the end": (
        "chat/completions",
        {"messages": [USER, {"role": "assistant", "content": "I"}]},
        r"messages[1]: expected a message of the user at the end",
    ),
    "an answer at the end of Anthropic's": (
        "messages",
        {"max_tokens": 9, "system": "x", "messages": [USER, {"role": "assistant", "content": "I"}]},
        r"messages[1]: expected a message of the user at the end",
    ),
    "a result of an unknown call": (
        "chat/completions",
        {"messages": [USER, {"role": "tool", "tool_call_id": "c1", "content": "a"}]},
        "no call has the id 'c1'",
    ),
    "another role": (
        "chat/completions",
        {"messages": [{"role": "robot", "content": "a"}, USER]},
        "messages[0]: expected one",
    ),
    "a part of another kind": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "video"}]}, USER]},
        "messages[0]: expected texts, images, files and audio, got 'video'",
    ),
    "a content that is no text": ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "audio, got 3"),
    "a picture in another encoding": (
        "chat/completions",
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,Y"}}]}
            ]
        },
        "messages[0]: expected base64",
    ),
    "a picture of a system": (
        "chat/completions",
        {"messages": [{"role": "system", "content": [IMAGE]}, USER]},
        "expected a system message of text",
    ),
    "a picture that is none": (
        "chat/completions",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}}],
                },
                USER,
            ]
        },
        "messages[0]: image: expected",
    ),
    "audio of an earlier answer": (
        "chat/completions",
        {"messages": [USER, {"role": "assistant", "audio": {"id": "a"}}, USER]},
        "messages[1]: audio of an earlier answer is not kept here",
    ),
    "a call without a name": (
        "chat/completions",
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}, USER]},
        "messages[1]: expected calls with an id and the name of a function",
    ),
    "an item of elsewhere": (
        "responses",
        {"instructions": "x", "input": [{"type": "item_reference", "id": "msg_1"}, USER]},
        "input[0]: no response has an item with this id",
    ),
    "an item of a provider's tool": (
        "responses",
        {"input": [{"type": "web_search_call", "id": "ws_1"}, USER]},
        "input[0]: expected messages",
    ),
    "a block of a provider's tool": (
        "messages",
        {"max_tokens": 9, "messages": [USER, {"role": "assistant", "content": [{"type": "server_tool_use"}]}, USER]},
        "messages[1]: expected texts, images, documents",
    ),
    "an empty message": ("chat/completions", {"messages": [USER, {"role": "user", "content": " "}]}, "has no text"),
    "no message of a user": (
        "chat/completions",
        {"messages": [{"role": "system", "content": "a"}]},
        "a message of the user",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_part_that_cannot_be_in_a_history_is_refused_with_its_place(name: str) -> None:
    path, body, problem = REFUSED[name]
    async with served([noting([])]) as on:
        error = (await on.post(f"/v1/{path}", {"model": "notes", **body}, 400))["error"]
        assert problem in error["message"]
        assert not on.runtime.loom.entities()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("is_end", [False, True])
async def test_results_of_calls_that_another_service_made_are_history_also_before_the_last_message(
    path: str, is_end: bool
) -> None:
    body = BODIES[path]()
    messages = body["input" if path == "responses" else "messages"]
    del messages[-2]  # the answer to the results
    if is_end:
        del messages[-1]
    seen: list[list[Message]] = []
    async with in_process([noting(seen)]) as on:
        await on.post(f"/v1/{path}", {"model": "notes", **body}, 200)
        wanted = [part for part in EXPECTED if part[1] not in ("A cat.", "And now?")]
        last = CONTINUE if is_end else "And now?"
        assert [part[:2] for part in show(seen[0])] == [*(part[:2] for part in wanted), ("user", last)]
        lost = [part for part in messages if part.get("role") != "assistant" and part.get("type") != "function_call"]
        body["input" if path == "responses" else "messages"] = lost
        error = (await on.post(f"/v1/{path}", {"model": "notes", **body}, 400))["error"]
        assert "no call has the id 'c1'" in error["message"]


async def test_system_messages_after_the_last_of_the_user_precede_it() -> None:
    seen: list[list[Message]] = []
    async with served([noting(seen)]) as on:
        messages = [USER, {"role": "system", "content": "Be quick."}]
        await on.post("/v1/chat/completions", {"model": "notes", "messages": messages}, 200)
    assert [part[:2] for part in show(seen[0])] == [("system", "Be quick."), ("user", "hi")]


async def test_old_functions_and_refusals_are_part_of_the_history() -> None:
    seen: list[list[Message]] = []
    messages = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "a cat"},
        {"role": "assistant", "content": None, "refusal": "I cannot."},
        {"role": "assistant", "content": ""},
        USER,
    ]
    async with served([noting(seen)]) as on:
        await on.post("/v1/chat/completions", {"model": "notes", "messages": messages}, 200)
    assert show(seen[0])[1:4] == [
        ("assistant", None, [("", "look", {})], 0),
        ("tool", "a cat", None, 0),
        ("assistant", "I cannot.", None, 0),
    ]


async def chat(on: Served, model: str, messages: list[dict[str, Any]], key: str | None = None) -> dict[str, Any]:
    headers = {} if key is None else {"idempotency-key": key}
    body = {"model": model, "messages": messages}
    return dict((await on.ask("POST", "/v1/chat/completions", 200, json=body, headers=headers)).json())


async def test_a_long_lived_entity_gets_only_the_messages_that_it_does_not_have() -> None:
    seen: list[list[Message]] = []
    async with served([noting(seen)]) as on:
        await on.runtime.ensure("bob", on.service.cantrips["notes"])
        system, first = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "one"}
        answer = (await chat(on, "entity:bob", [system, first]))["choices"][0]["message"]
        elsewhere = [{"role": "user", "content": "aside"}, {"role": "assistant", "content": "yes"}]
        conversation = [system, first, answer, *elsewhere, {"role": "user", "content": "two"}]
        for _ in range(2):
            again = await chat(on, "entity:bob", conversation, key="k")
            assert name_answer(again) == "answer 2"
    given = [part[:2] for part in show(seen[1]) if part[0] in ("user", "system") or part[1] == "yes"]
    assert given == [
        ("system", "Be kind."),
        ("user", "one"),
        ("user", "aside"),
        ("assistant", "yes"),
        ("user", "two"),
    ]


async def test_instructions_of_further_responses_are_given_once() -> None:
    seen: list[list[Message]] = []
    async with served([noting(seen)]) as on:
        body = {"model": "notes", "instructions": "Be kind.", "input": "one"}
        first = await on.post("/v1/responses", body, 200)
        items = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
        await on.post("/v1/responses", {**body, "input": items, "previous_response_id": first["id"]}, 200)
    said = [part[1] for part in show(seen[1]) if part[0] in ("user", "system")]
    assert said == ["Be kind.", "one", "one", "two"]


async def test_the_native_api_takes_a_history() -> None:
    seen: list[list[Message]] = []
    history = [
        {"role": "user", "content": "What is on it?", "images": [PICTURE]},
        {"role": "assistant", "tool_calls": [{"id": "c1", "gate": "look", "args": {"at": "a"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    ]
    expected = [
        ("user", "What is on it?", None, 1),
        ("assistant", None, [("c1", *LOOK)], 0),
        ("tool", "a cat", "c1", 0),
        ("user", "go", None, 0),
    ]
    async with served([noting(seen)]) as on:
        body = {"intent": "go", "history": history, "wait": 10}
        await on.post("/api/v1/casts", {"cantrip": "notes", **body}, 200)
        await on.post("/api/v1/entities", {"cantrip": "notes", "name": "bob", **body}, 200)
        await on.post("/api/v1/entities/bob/send", body, 200)
        bad = {"cantrip": "notes", "intent": "go", "history": [{"role": "user"}]}
        assert "history[0]" in (await on.post("/api/v1/casts", bad, 422))["detail"]
    assert [show(messages)[-4:] for messages in seen] == [expected] * 3


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_reference_to_an_item_of_a_response_stands_for_it(is_stream: bool) -> None:
    seen: list[list[Message]] = []

    def answer(context: Any) -> dict[str, Any]:
        seen.append(list(context))
        if context[-1].content == "look":
            return {"content": "I look.", "tool_calls": [{"gate": "look", "args": {"at": "a"}}]}
        return {"content": "Let me see.", "tool_calls": [{"gate": "done", "args": {"answer": f"answer {len(seen)}"}}]}

    cantrip = Cantrip(scripted(answer), Call("Be terse."), Circle(["done"], [max_turns(5)]), name="notes")
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    async with served([cantrip]) as on:

        async def respond(*items: Any) -> list[dict[str, Any]]:
            """Return references to the items of an answer."""
            body = {"model": "notes", "input": list(items), "tools": [tool], "stream": is_stream}
            text = (await on.ask("POST", "/v1/responses", 200, json=body)).text
            last = json.loads(text.rpartition("data: ")[2])
            output = (last["response"] if is_stream else last)["output"]
            return [{"type": "item_reference", "id": item["id"]} for item in output]

        one, look = {"role": "user", "content": "one"}, {"role": "user", "content": "look"}
        first = await respond(one)
        called = await respond(one, *first, look)
        call_id = f"call_{called[-1]['id'].removeprefix('fc_')}"
        result = {"type": "function_call_output", "call_id": call_id, "output": "a cat"}
        last = await respond(one, *first, look, *called, result)
        await respond(one, *first, look, *called, result, *last, {"role": "user", "content": "two"})
    assert show(seen[1]) == [("user", "one", None, 0), ("assistant", "answer 1", None, 0), ("user", "look", None, 0)]
    assert show(seen[-1]) == [
        *show(seen[1]),
        ("assistant", "I look.", [(call_id, *LOOK)], 0),
        ("tool", "a cat", call_id, 0),
        ("assistant", "answer 3", None, 0),
        ("user", "two", None, 0),
    ]


async def test_a_retrieved_response_names_the_one_before_it() -> None:
    async with served([noting([])]) as on:
        body: dict[str, Any] = {"model": "notes", "input": "one"}
        first = await on.post("/v1/responses", body, 200)
        second = await on.post("/v1/responses", {**body, "previous_response_id": first["id"]}, 200)
        third = await on.post("/v1/responses", {**body, "previous_response_id": second["id"]}, 200)
        fork = await on.post("/v1/responses", {**body, "previous_response_id": second["id"]}, 200)
        ids = [None, first["id"], second["id"], second["id"]]
        assert [made["previous_response_id"] for made in (first, second, third, fork)] == ids
        read = [await on.get(f"/v1/responses/{made['id']}") for made in (first, second, third, fork)]
        assert [response["previous_response_id"] for response in read] == ids


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_usage_has_the_reasoning_tokens_of_the_crystal(path: str) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 7, "reasoning_tokens": 5}
    calls = [{"gate": "done", "args": {"answer": "a"}}]
    thinker = Cantrip(
        scripted(lambda _: {"tool_calls": calls, "usage": usage}), circle=Circle(["done"], [max_turns(5)]), name="notes"
    )
    async with served([thinker]) as on:
        body = {"model": "notes", "messages": [USER], "input": "hi"}
        counted = (await on.post(f"/v1/{path}", body, 200))["usage"]
    name = "completion_tokens_details" if path == "chat/completions" else "output_tokens_details"
    assert counted[name] == {"reasoning_tokens": 5}


@pytest.mark.rule("W-26")
class TestSpeakers:
    """Messages with a `name`: the model sees who says what, and the loom records it."""

    MESSAGES: tuple[dict[str, Any], ...] = (
        {"role": "user", "name": "anna", "content": "Tea, please."},
        {"role": "assistant", "name": "desk", "content": "Anything else?"},
        {"role": "user", "name": "bob", "content": [IMAGE, {"type": "text", "text": "This one."}]},
        {"role": "user", "content": "That is all."},
        {"role": "user", "name": "anna", "content": [{"type": "text", "text": "Thanks."}]},
    )

    @pytest.mark.parametrize("path", ["chat/completions", "responses"])
    async def test_the_texts_of_users_begin_with_their_names(self, path: str) -> None:
        seen: list[list[Message]] = []
        field = "messages" if path == "chat/completions" else "input"
        async with in_process([noting(seen)]) as on:
            await on.post(f"/v1/{path}", {"model": "notes", field: list(self.MESSAGES)}, 200)
            texts = [message.content for message in seen[0][1:]]
            assert texts[:2] == ["anna: Tea, please.", "Anything else?"]
            assert str(texts[2]).startswith("bob:")
            assert str(texts[2]).endswith("This one.")
            assert texts[3:] == ["That is all.", "anna: Thanks."]
            (entity,) = on.runtime.loom.entities()
            assert on.runtime.loom.intents(entity)[0].intent == "anna: Thanks."

    async def test_the_texts_of_several_assistants_begin_with_their_names(self) -> None:
        seen: list[list[Message]] = []
        more = {"role": "assistant", "name": "cook", "content": "It is ready."}
        async with in_process([noting(seen)]) as on:
            messages = [*self.MESSAGES[:3], more, self.MESSAGES[-1]]
            await on.post("/v1/chat/completions", {"model": "notes", "messages": messages}, 200)
            said = [message.content for message in seen[0] if message.role == "assistant"]
            assert said == ["desk: Anything else?", "cook: It is ready."]

    async def test_a_long_lived_entity_gets_a_repeated_message_of_a_speaker_once(self) -> None:
        seen: list[list[Message]] = []
        async with in_process([noting(seen)]) as on:
            await on.runtime.ensure("desk", noting(seen))
            first = {"role": "user", "name": "anna", "content": "Tea."}
            said = await chat(on, "entity:desk", [first])
            answered = {"role": "assistant", "content": name_answer(said)}
            await chat(on, "entity:desk", [first, answered, {**first, "name": "bob"}])
            assert [message.content for message in seen[1] if message.role == "user"] == ["anna: Tea.", "bob: Tea."]

    async def test_a_message_of_ag_ui_begins_with_the_name_of_its_user(self) -> None:
        seen: list[list[Message]] = []
        async with in_process([noting(seen)]) as on:
            message = {"id": "m", "role": "user", "name": "Anna  Berg", "content": "Tea."}
            await on.ask("POST", "ag-ui/notes", 200, json={"threadId": "t", "runId": "r", "messages": [message]})
            assert seen[0][-1].content == "Anna Berg: Tea."

    @pytest.mark.parametrize("name", ["anna: yes\nbob", "a" * 65, 5])
    async def test_a_name_that_could_be_taken_for_a_text_is_refused(self, name: Any) -> None:
        async with in_process([noting([])]) as on:
            messages = [{"role": "user", "name": name, "content": "Tea."}]
            refused = await on.post("/v1/chat/completions", {"model": "notes", "messages": messages}, 400)
            assert (
                "messages[0]: name: expected at most 64 characters without white space" in refused["error"]["message"]
            )
