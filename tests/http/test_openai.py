"""OpenAI's own client is the referee of our copy of its API."""

import json
from typing import Any, Literal

import anyio
import openai
import pytest
from anyio import to_thread
from pydantic import BaseModel, Field

from cantrip_actors import Cantrip, Circle, CrystalError, gate, scripted
from cantrip_actors.http import openai as openai_door
from cantrip_actors.observe import FellBehind, Telemetry
from cantrip_actors.observe.readers import count_reader
from cantrip_actors.wards import max_turns
from tests.http.serving import ADMIN, Served, echo, served
from tests.pictures import MP3, PDF, data_url

# On trio, OpenAI's client leaves its own async generators to the garbage collector.
pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def thinker() -> Cantrip:
    """Thinks, speaks, calls a gate, and ends with an answer that it did not speak before."""

    def answers(context: Any) -> dict[str, Any]:
        if context[-1].role == "user":
            said = {"content": "Let me see.", "thinking": "hm", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
            return {**said, "tool_calls": [{"gate": "done", "args": {"answer": f"It is {context[-1].content}"}}]}
        return {"content": "never"}

    return Cantrip(scripted(answers), circle=Circle(["done"], [max_turns(5)]), name="thinker")


def client_of(on: Served, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{on.url}/v1", api_key=ADMIN, max_retries=0, **more)


@pytest.mark.rule("WIRE-01")
async def test_the_client_lists_models_chats_and_streams() -> None:
    async with served([echo(), thinker()]) as on, client_of(on) as client:
        await on.runtime.invoke(on.service.cantrips["echo"], "hi", name="bob")
        assert [one.id async for one in client.models.list()] == ["echo", "thinker", "entity:bob"]
        assert (await client.models.retrieve("entity:bob")).owned_by == "cantrip"
        messages: Any = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(model="echo", messages=messages, temperature=0.5)
        assert whole.choices[0].message.content == "you said: hello"
        assert (whole.choices[0].finish_reason, whole.usage and whole.usage.total_tokens) == ("stop", 10)
        options: Any = {"include_usage": True}
        stream = await client.chat.completions.create(
            model="thinker", messages=messages, stream=True, stream_options=options
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        assert text == "Let me see.\n\nIt is hello"
        assert (chunks[-1].usage and chunks[-1].usage.prompt_tokens) == 5
        assert chunks[-2].choices[0].finish_reason == "stop"


@pytest.mark.rule("WIRE-01")
async def test_the_synchronous_client_works_too() -> None:
    said: Any = [{"role": "user", "content": "hello"}]
    usage: Any = {"include_usage": True}

    def use(client: openai.OpenAI) -> list[Any]:
        chat, responses = client.chat.completions, client.responses
        with chat.stream(model="echo", messages=said, stream_options=usage) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        with responses.stream(model="echo", input="hello") as events:
            last = [event.type for event in events][-1]
            response = events.get_final_response()
        assert "content.delta" in kinds
        assert last == "response.completed"
        assert (final.usage and final.usage.total_tokens) == 10
        return [
            [one.id for one in client.models.list()],
            chat.create(model="echo", messages=said).choices[0].message.content,
            final.choices[0].message.content,
            responses.create(model="echo", input="hello").output_text,
            response.output_text,
        ]

    async with served() as on:
        with openai.OpenAI(base_url=f"{on.url}/v1", api_key=ADMIN) as client:
            assert await to_thread.run_sync(use, client) == [["echo"], *["you said: hello"] * 4]


@pytest.mark.rule("WIRE-02")
async def test_a_previous_response_that_cannot_be_continued_is_an_error_in_openais_shape() -> None:
    async with served() as on, client_of(on) as client:
        begun = await client.responses.create(model="echo", input="nap 30", background=True)
        with pytest.raises(openai.ConflictError) as early:
            await client.responses.create(model="echo", input="two", previous_response_id=begun.id)
        assert early.value.body["param"] == "previous_response_id"  # type: ignore[index]  # its type is object
        for unknown in ("resp_nobody", "nobody", f"{begun.id}x", f"{begun.id}.x"):
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(model="echo", input="two", previous_response_id=unknown)


@pytest.mark.rule("HTTP-09")
async def test_a_background_response_survives_the_end_of_its_stream() -> None:
    async with served() as on:
        said = {"model": "echo", "input": "nap 0.6", "stream": True, "background": True}
        with anyio.move_on_after(0.3):
            await on.post("/v1/responses", said)
        (entity,) = on.runtime.loom.entities()
        with anyio.fail_after(10):
            assert (await on.runtime.get_entity(entity).episode()).result == "it said: slept"


async def test_a_quiet_stream_has_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_door, "QUIET", 0.1)
    async with served() as on:
        said = {"model": "echo", "messages": [{"role": "user", "content": "nap 0.5"}], "stream": True}
        text = (await on.ask("POST", "/v1/chat/completions", 200, json=said)).text
        assert text.count(": still here\n\n") >= 2
        assert text.endswith("data: [DONE]\n\n")


@pytest.mark.rule("METRIC-02")
async def test_a_stream_of_openai_has_a_reader_in_its_own_dialect() -> None:
    telemetry, seen = Telemetry(otel=False), []

    @gate
    async def peek() -> str:
        """Look at the metrics."""
        with anyio.fail_after(10):
            while not telemetry.counters.read_values("cantrip.streams")["openai",]:
                await anyio.sleep(0.01)
        seen.append(telemetry.counters.read_values("cantrip.streams"))
        return "x"

    says: Any = [{"tool_calls": [{"gate": "peek", "args": {}}]}, {"content": "so"}]
    peeking = Cantrip(scripted(says), circle=Circle(["done", peek], [max_turns(5)]), name="peeking")
    said = {"model": "peeking", "messages": [{"role": "user", "content": "go"}], "stream": True}
    async with served([peeking], options={"telemetry": telemetry}, telemetry=telemetry) as on:
        await on.ask("POST", "/v1/chat/completions", 200, json=said)
        none = {("openai",): 0, ("acp",): 0, ("mcp",): 0, ("native",): 0}
        assert seen == [{**none, ("openai",): 1}]
        assert telemetry.counters.read_values("cantrip.streams") == none


@pytest.mark.rule("METRIC-02")
def test_a_reader_that_falls_behind_is_counted_in_its_dialect() -> None:
    telemetry = Telemetry(otel=False)
    with pytest.raises(FellBehind), count_reader(telemetry, "openai"):
        raise FellBehind("slow")
    assert telemetry.counters.read_values("cantrip.streams.dropped") == {("openai",): 1}


@pytest.mark.rule("WIRE-01")
async def test_responses_stream_through_the_clients_accumulator() -> None:
    async with served([echo(), thinker()]) as on, client_of(on) as client:
        whole = await client.responses.create(model="echo", input="hello")
        assert (whole.output_text, whole.status) == ("you said: hello", "completed")
        async with client.responses.stream(model="thinker", input="hello") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        assert "response.reasoning_summary_text.delta" in kinds
        assert final.output_text == "Let me see.It is hello"
        assert (await client.responses.retrieve(final.id)).output_text == "It is hello"


@pytest.mark.rule("WIRE-02")
async def test_a_previous_response_is_continued_or_forked() -> None:
    async with served() as on, client_of(on) as client:
        first = await client.responses.create(model="echo", input="one")
        second = await client.responses.create(model="echo", input="two", previous_response_id=first.id)
        assert len(on.runtime.loom.entities()) == 1
        third = await client.responses.create(model="echo", input="other", previous_response_id=first.id)
        assert third.output_text == "you said: other"
        _, fork = on.runtime.loom.entities()
        loom = on.runtime.loom
        assert loom.header(fork).forked
        assert [turn.utterance for turn in loom.thread(loom.turns(fork)[-1].id)] == ["you said: one", "you said: other"]
        assert (await client.responses.retrieve(second.id)).output_text == "you said: two"


async def test_a_response_in_the_background_is_found_later_and_can_be_cancelled() -> None:
    async with served() as on, client_of(on) as client:
        begun = await client.responses.create(model="echo", input="nap 30", background=True)
        assert begun.status == "queued"
        assert (await client.responses.retrieve(begun.id)).status == "in_progress"
        await client.responses.cancel(begun.id)
        with anyio.fail_after(5):
            while (await client.responses.retrieve(begun.id)).status == "in_progress":
                await anyio.sleep(0.02)
        assert (await client.responses.retrieve(begun.id)).status == "cancelled"
        await client.responses.delete(begun.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(begun.id)


@pytest.mark.rule("C-19")
async def test_cancelling_a_response_ends_no_other_one() -> None:
    async with served() as on, client_of(on) as client:
        await (await on.runtime.invoke(on.service.cantrips["echo"], "hi", name="bob")).episode()
        first = await client.responses.create(model="entity:bob", input="nap 1", background=True)
        second = await client.responses.create(model="entity:bob", input="unwanted", background=True)
        assert (await client.responses.retrieve(second.id)).status == "queued"
        assert (await client.responses.cancel(second.id)).status == "cancelled"
        assert (await client.responses.retrieve(second.id)).status == "cancelled"
        with anyio.fail_after(5):
            while (await client.responses.retrieve(first.id)).status == "in_progress":
                await anyio.sleep(0.02)
        assert (await client.responses.retrieve(first.id)).status == "completed"
        assert (await client.responses.cancel(first.id)).status == "completed"


async def test_an_entity_is_a_model_that_remembers() -> None:
    async with served() as on, client_of(on) as client:
        await (await on.runtime.invoke(on.service.cantrips["echo"], "hi", name="bob")).episode()
        said: Any = [{"role": "user", "content": "before"}, {"role": "user", "content": "again"}]
        whole = await client.chat.completions.create(model="entity:bob", messages=said)
        assert whole.choices[0].message.content == "you said: again"
        assert len(on.runtime.loom.turns(on.runtime.loom.entities()[0])) == 2


async def test_system_messages_may_be_refused() -> None:
    async with served() as on, client_of(on) as client:
        said: Any = [{"role": "system", "content": "Be rude."}, {"role": "user", "content": "hello"}]
        on.service.system_messages = "refuse"
        with pytest.raises(openai.BadRequestError, match="refuses system messages"):
            await client.chat.completions.create(model="echo", messages=said)


@pytest.mark.rule("WIRE-03")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "x"}]),
        ("n", 2),
        ("logprobs", True),
        ("n", 0),
        ("response_format", {"type": "grammar"}),
    ],
)
async def test_an_unsupported_parameter_is_an_error_in_openais_shape(name: str, value: Any) -> None:
    async with served() as on, client_of(on) as client:
        said: Any = [{"role": "user", "content": "hello"}]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="echo", messages=said, extra_body={name: value})
        body: Any = refused.value.body
        assert (body["param"], body["code"], body["type"]) == (name, "unsupported_parameter", "invalid_request_error")


@pytest.mark.rule("WIRE-03")
@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (
            "chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": [1]}},
            "response_format.json_schema",
        ),
        ("chat/completions", {"response_format": "text"}, "response_format"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages"),
        ("chat/completions", {"stream_options": "usage", "stream": True}, "stream_options"),
        ("responses", {"text": {"format": 3}}, "text.format"),
        ("responses", {"input": [[]]}, "input"),
    ],
)
async def test_a_value_of_the_wrong_type_is_an_error_in_openais_shape(path: str, more: Any, param: str) -> None:
    async with served() as on:
        said = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "input": "hi", **more}
        error = (await on.post(f"/v1/{path}", said, 400))["error"]
        assert error["type"] == "invalid_request_error"
        assert param in (error["param"] or error["message"])
        assert not on.runtime.loom.entities()


class Line(BaseModel):
    """A line of an invoice."""

    what: str
    price: float = Field(ge=0)
    note: str | None = None


class Invoice(BaseModel):
    """An invoice."""

    total: int
    lines: list[Line]
    currency: Literal["EUR", "NOK"] = "EUR"


INVOICE = {"total": 3, "lines": [{"what": "tea", "price": 3, "made_up": 1}]}
WHOLE = Invoice(total=3, lines=[Line(what="tea", price=3)])


def billing() -> Cantrip:
    """Return a cantrip whose answer is an invoice, after a word that no client asked for."""

    @gate
    def done(answer: Invoice) -> None:
        """Finish with the invoice."""

    script = [{"content": "I add it up.", "tool_calls": [{"gate": "done", "args": {"answer": INVOICE}}]}]
    return Cantrip(scripted(script * 9), circle=Circle([done], [max_turns(3)]), name="billing")


@pytest.mark.rule("W-20")
async def test_typed_answers_of_openais_client_are_objects_of_their_type() -> None:
    said: Any = [{"role": "user", "content": "bill"}]
    async with served([billing()]) as on, client_of(on) as client:
        chat = await client.chat.completions.parse(model="billing", messages=said, response_format=Invoice)
        assert chat.choices[0].message.parsed == WHOLE
        assert "made_up" not in str(chat.choices[0].message.content)
        async with client.chat.completions.stream(model="billing", messages=said, response_format=Invoice) as stream:
            assert (await stream.get_final_completion()).choices[0].message.parsed == WHOLE
        response = await client.responses.parse(model="billing", input="bill", text_format=Invoice)
        assert response.output_parsed == WHOLE
        async with client.responses.stream(model="billing", input="bill", text_format=Invoice) as events:
            assert (await events.get_final_response()).output_parsed == WHOLE


@pytest.mark.rule("W-20")
@pytest.mark.parametrize("choice", ["named", "required"])
@pytest.mark.parametrize("stream", [False, True])
async def test_one_tool_that_the_client_demands_is_called_with_the_answer(choice: str, stream: bool) -> None:
    tool = openai.pydantic_function_tool(Invoice)
    flat: Any = {"type": "function", **tool["function"]}
    wanted: Any = {"type": "function", "function": {"name": "Invoice"}} if choice == "named" else "required"
    flat_wanted: Any = {"type": "function", "name": "Invoice"} if choice == "named" else "required"
    said: Any = [{"role": "user", "content": "bill"}]
    async with served([billing()]) as on, client_of(on) as client:
        if stream:
            async with client.chat.completions.stream(
                model="billing", messages=said, tools=[tool], tool_choice=wanted
            ) as chunks:
                chat = await chunks.get_final_completion()
            async with client.responses.stream(
                model="billing", input="bill", tools=[flat], tool_choice=flat_wanted
            ) as events:
                response: Any = await events.get_final_response()
        else:
            ask: Any = {"messages": said, "tools": [tool], "tool_choice": wanted}
            chat = await client.chat.completions.create(model="billing", **ask)
            response = await client.responses.create(
                model="billing", input="bill", tools=[flat], tool_choice=flat_wanted
            )
    (choice_of_chat,) = chat.choices
    (call,) = choice_of_chat.message.tool_calls or ()
    assert choice_of_chat.finish_reason == ("stop" if choice == "named" else "tool_calls")
    (item,) = response.output
    for function in (call.function, item):  # type: ignore[union-attr]
        assert function.name == "Invoice"
        assert Invoice.model_validate_json(function.arguments) == WHOLE


@pytest.mark.rule("W-20", "WIRE-03")
async def test_a_form_that_the_answers_do_not_have_is_refused() -> None:
    said = {"model": "billing", "messages": [{"role": "user", "content": "bill"}]}
    other = {**Invoice.model_json_schema(), "required": ["total", "lines", "due"]}
    async with served([billing()]) as on:
        for more, param in (
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": other}}},
                "response_format",
            ),
            ({"modalities": ["text", "audio"]}, "modalities"),
        ):
            error = (await on.post("/v1/chat/completions", {**said, **more}, 400))["error"]
            assert (error["param"], error["code"]) == (param, "unsupported_parameter")
        assert not on.runtime.loom.entities()


@pytest.mark.rule("W-20")
async def test_default_settings_of_clients_change_nothing() -> None:
    usual = {
        "n": 1, "stream": False, "logprobs": False, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True,
        "modalities": ["text"], "temperature": 1, "top_p": 1, "stop": None, "seed": 1, "store": True, "metadata": {},
        "user": "anna", "max_completion_tokens": 100, "reasoning_effort": "low", "service_tier": "auto",
        "response_format": {"type": "text"}, "frequency_penalty": 0, "logit_bias": None, "functions": None,
        "truncation": "auto", "include": [], "text": {"format": {"type": "text"}, "verbosity": "low"},
        "top_logprobs": 0,
    }  # fmt: skip
    async with served() as on:
        said = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "input": "hi", **usual}
        for path in ("chat/completions", "responses"):
            await on.post(f"/v1/{path}", said, 200)
        tool = {"type": "function", "function": {"name": "x"}}
        await on.post("/v1/chat/completions", {**said, "tools": [tool], "tool_choice": "none"}, 200)


@pytest.mark.rule("W-22")
async def test_a_request_whose_entity_failed_is_not_tried_again() -> None:
    def breaks(_: Any) -> Any:
        raise CrystalError("it is broken")

    broken = Cantrip(scripted(breaks), circle=Circle(["done"], [max_turns(3)]), name="broken")
    async with served([broken]) as on, client_of(on) as client:
        said: Any = [{"role": "user", "content": "hello"}]
        with pytest.raises(openai.APIStatusError):
            await client.with_options(max_retries=2).chat.completions.create(model="broken", messages=said)
        assert len(on.runtime.loom.entities()) == 1


@pytest.mark.rule("W-20")
async def test_an_answer_without_the_form_is_an_error() -> None:
    @gate
    def done(answer: Invoice) -> None:
        """Finish with the invoice."""

    talks = Cantrip(scripted(["Three euros."] * 2), circle=Circle([done], [max_turns(3)]), name="talks")
    async with served([talks]) as on, client_of(on) as client:
        said: Any = [{"role": "user", "content": "bill"}]
        with pytest.raises(openai.InternalServerError, match="without such an answer"):
            await client.with_options(max_retries=2).chat.completions.parse(
                model="talks", messages=said, response_format=Invoice
            )
        assert len(on.runtime.loom.entities()) == 1


@pytest.mark.rule("WIRE-03")
async def test_the_arguments_of_done_can_be_the_form() -> None:
    @gate
    def done(count: int) -> int:
        """Say how many."""
        return count

    answers = scripted([{"tool_calls": [{"gate": "done", "args": {"count": 3}}]}])
    counts = Cantrip(answers, circle=Circle([done], [max_turns(3)]), name="counts")
    schema = counts.circle.open_gates["done"].definition.parameters
    async with served([counts]) as on, client_of(on) as client:
        wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        said: Any = [{"role": "user", "content": "count"}]
        whole = await client.chat.completions.create(model="counts", messages=said, response_format=wanted)
        assert json.loads(whole.choices[0].message.content or "") == {"count": 3}


async def test_errors_have_the_classes_of_openais_client() -> None:
    async with served() as on, client_of(on) as client:
        said: Any = [{"role": "user", "content": "hello"}]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nobody", messages=said)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="echo", messages=[])


@pytest.mark.rule("WIRE-01", "R-20")
async def test_files_and_audio_come_in_the_shapes_of_both_apis() -> None:
    def answers(context: Any) -> dict[str, Any]:
        return {"content": ", ".join(one.filename or str(one.url) for one in context[-1].images)}

    reader = Cantrip(scripted(answers), circle=Circle(["done"], [max_turns(5)]), name="reader")
    data = data_url(PDF, "application/pdf")
    async with served([reader]) as on, client_of(on) as client:
        parts: Any = [
            {"type": "text", "text": "read"},
            {"type": "file", "file": {"file_data": data, "filename": "a.pdf"}},
            {"type": "file", "file": {"file_data": data.partition(",")[2], "filename": "bare.pdf"}},
            {"type": "input_audio", "input_audio": {"data": data_url(MP3, "").partition(",")[2], "format": "mp3"}},
        ]
        chat = await client.chat.completions.create(model="reader", messages=[{"role": "user", "content": parts}])
        assert chat.choices[0].message.content == "a.pdf, bare.pdf, audio.mp3"
        asked: Any = [
            {"type": "input_text", "text": "read"},
            {"type": "input_file", "file_data": data, "filename": "a.pdf"},
            {"type": "input_file", "file_url": "https://example.org/b.pdf"},
        ]
        told = await client.responses.create(model="reader", input=[{"role": "user", "content": asked}])
        assert told.output_text == "a.pdf, https://example.org/b.pdf"
        stored: Any = [{"type": "input_text", "text": "read"}, {"type": "input_file", "file_id": "file-1"}]
        with pytest.raises(openai.BadRequestError, match="keeps no files"):
            await client.responses.create(model="reader", input=[{"role": "user", "content": stored}])
