"""Try the clients of Python. Runs in .clients/python, where nothing of this project is installed.

Each function below is one feature of one client: its first part names the client, its second the feature, and it fails
with an exception. A line of JSON says how each went.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

import anthropic
import instructor
import litellm
import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents import OpenAIResponsesModel as AgentsResponses
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, TOKEN = os.environ["SERVICE_URL"], os.environ["SERVICE_TOKEN"]
V1 = f"{URL}/v1"
HELLO: Any = [{"role": "user", "content": "hello"}]
PICTURE = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


class Invoice(BaseModel):
    """An invoice."""

    total: int
    items: list[str]


class Rhyme(BaseModel):
    """A form that no cantrip here has of its own."""

    lines: list[str]


BILL = Invoice(total=3, items=["tea"])


ROSE = Rhyme(lines=["A rose", "is a rose"])


def temperature(city: str) -> int:
    """Return the temperature in a city."""
    return {"Oslo": 3, "Rome": 20}[city]


TRIALS: dict[tuple[str, str], Callable[[], None]] = {}


def trial(client: str, feature: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function as the trial of one feature with one client."""

    def register(work: Callable[[], None]) -> Callable[[], None]:
        TRIALS[client, feature] = work
        return work

    return register


def same(value: Any, wanted: Any) -> None:
    """Fail unless two values are equal."""
    assert value == wanted, f"expected {wanted!r}, got {value!r}"


def catch(kind: type[Exception], work: Callable[[], Any]) -> Exception:
    """Return the error of this class that a function raises."""
    try:
        work()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def allow(text: Any) -> None:
    """Decide, as a person, the request that the text of an answer names."""
    request = re.findall(r"`cantrip requests (\S+)`", str(text))[0]
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    address, body = f"{URL}/api/v1/requests/{request}", b'{"decision": "allow"}'
    with urlopen(Request(address, body, headers)) as answer:
        answer.read()


# openai

OPENAI = openai.OpenAI(base_url=V1, api_key=TOKEN, max_retries=0)


@trial("openai (Python)", "answer")
def openai_answer() -> None:
    same(
        OPENAI.chat.completions.create(model="assistant", messages=HELLO).choices[0].message.content, "you said: hello"
    )
    same(OPENAI.responses.create(model="assistant", input="hello").output_text, "you said: hello")


@trial("openai (Python)", "stream")
def openai_stream() -> None:
    with OPENAI.chat.completions.stream(model="assistant", messages=HELLO) as stream:
        same(stream.get_final_completion().choices[0].message.content, "you said: hello")
    with OPENAI.responses.stream(model="assistant", input="hello") as events:
        same(events.get_final_response().output_text, "you said: hello")


@trial("openai (Python)", "conversation")
def openai_conversation() -> None:
    first = OPENAI.responses.create(model="assistant", input="one")
    second = OPENAI.responses.create(model="assistant", input="recall", previous_response_id=first.id)
    assert "you said: one" in second.output_text, second.output_text
    history: Any = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    chat = OPENAI.chat.completions.create(model="assistant", messages=[*history, {"role": "user", "content": "recall"}])
    assert "two" in str(chat.choices[0].message.content), chat


@trial("openai (Python)", "pictures")
def openai_pictures() -> None:
    parts: Any = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PICTURE}}]
    chat = OPENAI.chat.completions.create(model="assistant", messages=[{"role": "user", "content": parts}])
    same(chat.choices[0].message.content, "I see 1 picture.")


@trial("openai (Python)", "own form")
def openai_own_form() -> None:
    chat = OPENAI.chat.completions.parse(model="invoice", messages=HELLO, response_format=Invoice)
    same(chat.choices[0].message.parsed, BILL)
    same(OPENAI.responses.parse(model="invoice", input="bill", text_format=Invoice).output_parsed, BILL)


@trial("openai (Python)", "any form")
def openai_any_form() -> None:
    chat = OPENAI.chat.completions.parse(model="assistant", messages=HELLO, response_format=Rhyme)
    same(chat.choices[0].message.parsed, ROSE)
    with OPENAI.chat.completions.stream(model="assistant", messages=HELLO, response_format=Rhyme) as stream:
        same(stream.get_final_completion().choices[0].message.parsed, ROSE)
    same(OPENAI.responses.parse(model="assistant", input="hello", text_format=Rhyme).output_parsed, ROSE)
    with OPENAI.responses.stream(model="assistant", input="hello", text_format=Rhyme) as events:
        same(events.get_final_response().output_parsed, ROSE)
    tools = [openai.pydantic_function_tool(Rhyme)]
    chat = OPENAI.chat.completions.parse(model="assistant", messages=HELLO, tools=tools, tool_choice="required")
    same(chat.choices[0].message.tool_calls[0].function.parsed_arguments, ROSE)  # type: ignore[index]


@trial("openai (Python)", "client tools")
def openai_client_tools() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool: Any = {"type": "function", "function": {"name": "temperature", "parameters": parameters}}
    asked: list[Any] = [{"role": "user", "content": "call temperature Oslo"}]
    chat = OPENAI.chat.completions.create(model="assistant", messages=asked, tools=[tool])
    message: Any = chat.choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
    chat = OPENAI.chat.completions.create(
        model="assistant", messages=[*asked, message.model_dump(exclude_none=True), result], tools=[tool]
    )
    same(chat.choices[0].message.content, "It said: 3")


@trial("openai (Python)", "people")
def openai_people() -> None:
    asked: list[Any] = [{"role": "user", "content": "pay 3"}]
    waits = OPENAI.chat.completions.create(model="assistant", messages=asked).choices[0].message.content
    allow(waits)
    asked += [{"role": "assistant", "content": waits}, {"role": "user", "content": "continue"}]
    with OPENAI.chat.completions.stream(model="assistant", messages=asked) as stream:
        same(stream.get_final_completion().choices[0].message.content, "It said: paid 3")
    with OPENAI.responses.stream(model="assistant", input="pay 3") as events:
        response: Any = events.get_final_response()
    allow(response.output_text)
    while response.status == "in_progress":
        response = OPENAI.responses.retrieve(response.id)
    same(response.output_text, "It said: paid 3")
    refused = OPENAI.chat.completions.parse(
        model="assistant", messages=[{"role": "user", "content": "pay 3"}], response_format=Invoice
    )
    assert refused.choices[0].message.parsed is None
    assert str(refused.choices[0].message.refusal).startswith("This call waits for a person")


@trial("openai (Python)", "models")
def openai_models() -> None:
    assert {model.id for model in OPENAI.models.list()} >= {"assistant", "invoice"}


@trial("openai (Python)", "errors")
def openai_errors() -> None:
    error = catch(openai.NotFoundError, lambda: OPENAI.chat.completions.create(model="nobody", messages=HELLO))
    assert "offered: assistant" in str(error), error


# anthropic

ANTHROPIC = anthropic.Anthropic(base_url=URL, api_key=TOKEN, max_retries=0)
SAID: Any = {"model": "assistant", "max_tokens": 100, "messages": HELLO}


def text_of(message: Any) -> str:
    """Return the text of a message of Anthropic's API."""
    return "".join(block.text for block in message.content if block.type == "text")


@trial("anthropic (Python)", "answer")
def anthropic_answer() -> None:
    message = ANTHROPIC.messages.create(**SAID)
    same((text_of(message), message.stop_reason), ("you said: hello", "end_turn"))
    same((message.usage.input_tokens, message.usage.output_tokens), (7, 3))


@trial("anthropic (Python)", "stream")
def anthropic_stream() -> None:
    with ANTHROPIC.messages.stream(**{**SAID, "messages": [{"role": "user", "content": "weather Oslo"}]}) as stream:
        message = stream.get_final_message()
    same([block.type for block in message.content], ["thinking", "text", "text"])
    same(text_of(message), "Let me look.It said: sunny in Oslo")


@trial("anthropic (Python)", "conversation")
def anthropic_conversation() -> None:
    history = [*HELLO, {"role": "assistant", "content": "two"}, {"role": "user", "content": "recall"}]
    message = ANTHROPIC.messages.create(**{**SAID, "messages": history, "system": "Be kind."})
    assert "two" in text_of(message), message
    assert "Be kind." in text_of(message), message


@trial("anthropic (Python)", "pictures")
def anthropic_pictures() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]}
    content = [{"type": "text", "text": "look"}, {"type": "image", "source": source}]
    message = ANTHROPIC.messages.create(**{**SAID, "messages": [{"role": "user", "content": content}]})
    same(text_of(message), "I see 1 picture.")


@trial("anthropic (Python)", "own form")
def anthropic_own_form() -> None:
    bill: Any = {**SAID, "model": "invoice"}
    same(ANTHROPIC.messages.parse(**bill, output_format=Invoice).parsed_output, BILL)
    tool = {"name": "bill", "input_schema": Invoice.model_json_schema()}
    for choice in ({"type": "tool", "name": "bill"}, {"type": "any"}):
        message = ANTHROPIC.messages.create(**bill, tools=[tool], tool_choice=choice)
        with ANTHROPIC.messages.stream(**bill, tools=[tool], tool_choice=choice) as stream:
            streamed = stream.get_final_message()
        for (block,) in (message.content, streamed.content):
            same((block.type, block.name, block.input), ("tool_use", "bill", BILL.model_dump()))


@trial("anthropic (Python)", "any form")
def anthropic_any_form() -> None:
    same(ANTHROPIC.messages.parse(**SAID, output_format=Rhyme).parsed_output, ROSE)
    with ANTHROPIC.messages.stream(**SAID, output_format=Rhyme) as stream:
        same(stream.get_final_message().parsed_output, ROSE)


@trial("anthropic (Python)", "client tools")
def anthropic_client_tools() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools: Any = [{"name": "temperature", "description": "The temperature.", "input_schema": parameters}]
    messages: list[Any] = [{"role": "user", "content": "call temperature Oslo Rome"}]
    asked: Any = {**SAID, "messages": messages, "tools": tools}
    with ANTHROPIC.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (ANTHROPIC.messages.create(**asked), streamed):
        same((message.stop_reason, text_of(message)), ("tool_use", "I call."))
        calls = [block for block in message.content if block.type == "tool_use"]
        same([call.input for call in calls], [{"city": "Oslo"}, {"city": "Rome"}])
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in zip(calls, ("3", "20"), strict=True)
        ]
        more = [*messages, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
        same(text_of(ANTHROPIC.messages.create(**{**asked, "messages": more})), "It said: 20")
        with ANTHROPIC.messages.stream(**{**asked, "messages": more}) as stream:
            same(text_of(stream.get_final_message()), "It said: 20")


@trial("anthropic (Python)", "people")
def anthropic_people() -> None:
    asked: list[Any] = [{"role": "user", "content": "pay 3"}]
    with ANTHROPIC.messages.stream(model="assistant", max_tokens=100, messages=asked) as stream:
        waits = stream.get_final_message()
    allow(text_of(waits))
    asked += [{"role": "assistant", "content": waits.content}, {"role": "user", "content": "continue"}]
    answer = ANTHROPIC.messages.create(model="assistant", max_tokens=100, messages=asked)
    same(text_of(answer), "It said: paid 3")


@trial("anthropic (Python)", "models")
def anthropic_models() -> None:
    assert {model.id for model in ANTHROPIC.models.list(limit=100)} >= {"assistant", "invoice"}
    same(ANTHROPIC.models.retrieve("assistant").display_name, "assistant")


@trial("anthropic (Python)", "errors")
def anthropic_errors() -> None:
    error = catch(anthropic.NotFoundError, lambda: ANTHROPIC.messages.create(**{**SAID, "model": "nobody"}))
    assert "offered: assistant" in str(error), error
    failing = {**SAID, "messages": [{"role": "user", "content": "break"}]}
    catch(anthropic.APIStatusError, lambda: ANTHROPIC.messages.create(**failing))
    with ANTHROPIC.messages.stream(**failing) as stream:
        catch(anthropic.APIStatusError, stream.get_final_message)


# pydantic-ai

PROVIDER = OpenAIProvider(base_url=V1, api_key=TOKEN)
CHAT, RESPONSES = OpenAIChatModel("assistant", provider=PROVIDER), OpenAIResponsesModel("assistant", provider=PROVIDER)
BILLING = OpenAIChatModel("invoice", provider=PROVIDER)


async def read_events(_context: Any, events: Any) -> None:
    """Read a stream to its end: with this, pydantic-ai asks for streams."""
    async for _ in events:
        pass


@trial("pydantic-ai", "answer")
def pydantic_answer() -> None:
    for model in (CHAT, RESPONSES):
        same(PydanticAgent(model).run_sync("hello").output, "you said: hello")


@trial("pydantic-ai", "stream")
def pydantic_stream() -> None:
    same("".join(PydanticAgent(CHAT).run_stream_sync("hello").stream_text(delta=True)), "you said: hello")


@trial("pydantic-ai", "conversation")
def pydantic_conversation() -> None:
    agent = PydanticAgent(CHAT)
    first = agent.run_sync("one")
    output = agent.run_sync("recall", message_history=first.all_messages()).output
    assert "you said: one" in output, output


@trial("pydantic-ai", "own form")
def pydantic_own_form() -> None:
    for output_type in (Invoice, ToolOutput(Invoice), NativeOutput(Invoice)):
        same(PydanticAgent(BILLING, output_type=output_type).run_sync("bill").output, BILL)  # type: ignore[arg-type]


@trial("pydantic-ai", "any form")
def pydantic_any_form() -> None:
    for model in (CHAT, RESPONSES):
        for output_type in (Rhyme, ToolOutput(Rhyme), NativeOutput(Rhyme), PromptedOutput(Rhyme)):
            agent = PydanticAgent(model, output_type=output_type)  # type: ignore[arg-type]
            same(agent.run_sync("hello").output, ROSE)
            same(agent.run_sync("hello", event_stream_handler=read_events).output, ROSE)


@trial("pydantic-ai", "client tools")
def pydantic_client_tools() -> None:
    for model in (CHAT, RESPONSES):
        agent = PydanticAgent(model, tools=[temperature])
        run = agent.run_sync("call temperature Oslo Rome")
        same(run.output, "It said: 20")
        assert "It said: 20" in agent.run_sync("recall", message_history=run.all_messages()).output
        same(agent.run_sync("call temperature Oslo Rome", event_stream_handler=read_events).output, "It said: 20")
        for output_type in (ToolOutput(Rhyme), NativeOutput(Rhyme), PromptedOutput(Rhyme)):
            typed = PydanticAgent(model, tools=[temperature], output_type=output_type)  # type: ignore[arg-type]
            same(typed.run_sync("call temperature Oslo").output, ROSE)


@trial("pydantic-ai", "people")
def pydantic_people() -> None:
    for model in (CHAT, RESPONSES):
        agent = PydanticAgent(model)
        waits = agent.run_sync("pay 3")
        allow(waits.output)
        same(agent.run_sync("continue", message_history=waits.all_messages()).output, "It said: paid 3")
        waits = agent.run_sync("pay 3", event_stream_handler=read_events)
        allow(waits.output)
        same(agent.run_sync("continue", message_history=waits.all_messages()).output, "It said: paid 3")


# instructor


@trial("instructor", "own form")
def instructor_own_form() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON, instructor.Mode.MD_JSON):
        client = instructor.from_openai(OPENAI, mode=mode)
        invoice = client.chat.completions.create(model="invoice", messages=HELLO, response_model=Invoice, max_retries=0)
        same((invoice.total, invoice.items), (3, ["tea"]))


@trial("instructor", "any form")
def instructor_any_form() -> None:
    modes = instructor.Mode
    for mode in (modes.TOOLS, modes.TOOLS_STRICT, modes.JSON_SCHEMA, modes.JSON, modes.MD_JSON, modes.RESPONSES_TOOLS):
        client = instructor.from_openai(OPENAI, mode=mode)
        rhyme = client.chat.completions.create(model="assistant", messages=HELLO, response_model=Rhyme, max_retries=0)
        same(rhyme.lines, ROSE.lines)


# LangChain


def langchain(model: str, **more: Any) -> ChatOpenAI:
    """Return LangChain's client of a model."""
    return ChatOpenAI(base_url=V1, api_key=TOKEN, model=model, max_retries=0, **more)  # type: ignore[arg-type]


@trial("LangChain", "answer")
def langchain_answer() -> None:
    same(langchain("assistant").invoke("hello").content, "you said: hello")


@trial("LangChain", "stream")
def langchain_stream() -> None:
    same("".join(str(chunk.content) for chunk in langchain("assistant").stream("hello")), "you said: hello")


@trial("LangChain", "conversation")
def langchain_conversation() -> None:
    content = langchain("assistant").invoke([("user", "one"), ("assistant", "two"), ("user", "recall")]).content
    assert "two" in content, content


@trial("LangChain", "own form")
def langchain_own_form() -> None:
    for method in ("json_schema", "function_calling"):
        same(langchain("invoice").with_structured_output(Invoice, method=method).invoke("bill"), BILL)  # type: ignore[arg-type]


@trial("LangChain", "any form")
def langchain_any_form() -> None:
    for more in ({}, {"use_responses_api": True}):
        for method in ("json_schema", "function_calling"):
            typed = langchain("assistant", **more).with_structured_output(Rhyme, method=method)  # type: ignore[arg-type]
            same(typed.invoke("hello"), ROSE)
            *_, last = typed.stream("hello")
            same(last, ROSE)
    typed = langchain("assistant").with_structured_output(Rhyme, method="json_mode")
    same(typed.invoke('Answer with JSON that has "lines"'), ROSE)


@trial("LangChain", "client tools")
def langchain_client_tools() -> None:
    tool = langchain_tool(temperature)
    for more in ({}, {"use_responses_api": True}):
        model = langchain("assistant", **more).bind_tools([tool])
        messages: list[Any] = [HumanMessage("call temperature Oslo Rome")]
        message: Any = model.invoke(messages)
        messages += [message, *map(tool.invoke, message.tool_calls)]
        same(model.invoke(messages).text, "It said: 20")
        streamed: Any = None
        for chunk in model.stream("call temperature Oslo"):
            streamed = chunk if streamed is None else streamed + chunk
        same([(call["name"], call["args"]) for call in streamed.tool_calls], [("temperature", {"city": "Oslo"})])


@trial("LangChain", "people")
def langchain_people() -> None:
    for more in ({}, {"use_responses_api": True}):
        model = langchain("assistant", **more)
        waits = model.invoke("pay 3")
        allow(waits.text)
        same(model.invoke([HumanMessage("pay 3"), waits, HumanMessage("continue")]).text, "It said: paid 3")
        streamed: Any = None
        for chunk in model.stream("pay 3"):
            streamed = chunk if streamed is None else streamed + chunk
        allow(streamed.text)
        same(model.invoke([HumanMessage("pay 3"), streamed, HumanMessage("continue")]).text, "It said: paid 3")


# LiteLLM


def litellm_complete(intent: Any, model: str = "assistant", **more: Any) -> Any:
    """Return LiteLLM's answer to a text or to messages."""
    messages = [{"role": "user", "content": intent}] if isinstance(intent, str) else intent
    whose: Any = {"model": f"openai/{model}", "api_base": V1, "api_key": TOKEN, "max_retries": 0}
    return litellm.completion(messages=messages, **whose, **more)


def litellm_stream(intent: Any, **more: Any) -> Any:
    """Return the message that LiteLLM joins of a stream."""
    chunks = list(litellm_complete(intent, stream=True, **more))
    return litellm.stream_chunk_builder(chunks).choices[0].message  # type: ignore[union-attr]


@trial("LiteLLM", "answer")
def litellm_answer() -> None:
    answer = litellm_complete("hello")
    same((answer.choices[0].message.content, answer.usage.total_tokens), ("you said: hello", 10))


@trial("LiteLLM", "stream")
def litellm_streams() -> None:
    same(litellm_stream("hello").content, "you said: hello")


@trial("LiteLLM", "conversation")
def litellm_conversation() -> None:
    history = [*HELLO, {"role": "assistant", "content": "two"}, {"role": "user", "content": "recall"}]
    content = litellm_complete(history).choices[0].message.content
    assert "two" in content, content


@trial("LiteLLM", "pictures")
def litellm_pictures() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PICTURE}}]
    same(litellm_complete([{"role": "user", "content": parts}]).choices[0].message.content, "I see 1 picture.")


@trial("LiteLLM", "own form")
def litellm_own_form() -> None:
    answer = litellm_complete("bill", "invoice", response_format=Invoice)
    same(Invoice.model_validate_json(answer.choices[0].message.content), BILL)


@trial("LiteLLM", "any form")
def litellm_any_form() -> None:
    messages = (litellm_complete("hello", response_format=Rhyme).choices[0].message,)
    for message in (*messages, litellm_stream("hello", response_format=Rhyme)):
        same(Rhyme.model_validate_json(message.content), ROSE)


@trial("LiteLLM", "client tools")
def litellm_client_tools() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    more: Any = {"tools": [{"type": "function", "function": {"name": "temperature", "parameters": parameters}}]}
    asked = [{"role": "user", "content": "call temperature Oslo Rome"}]
    for message in (litellm_complete(asked, **more).choices[0].message, litellm_stream(asked, **more)):
        results = [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": str(temperature(**json.loads(call.function.arguments))),
            }
            for call in message.tool_calls
        ]
        answer = litellm_complete([*asked, message.model_dump(), *results], **more)
        same(answer.choices[0].message.content, "It said: 20")


@trial("LiteLLM", "people")
def litellm_people() -> None:
    waits = litellm_stream("pay 3").content
    allow(waits)
    asked = [{"role": "user", "content": "pay 3"}, {"role": "assistant", "content": waits}]
    answer = litellm_complete([*asked, {"role": "user", "content": "continue"}])
    same(answer.choices[0].message.content, "It said: paid 3")


@trial("LiteLLM", "errors")
def litellm_errors() -> None:
    error = catch(litellm.NotFoundError, lambda: litellm_complete("hello", "nobody"))
    assert "offered: assistant" in str(error), error


# OpenAI Agents SDK

set_tracing_disabled(True)


def agent_of(model: str, kind: Any = OpenAIChatCompletionsModel, **more: Any) -> Any:
    """Return an agent of the Agents SDK on a model."""
    client = openai.AsyncOpenAI(base_url=V1, api_key=TOKEN, max_retries=0)
    settings = ModelSettings(include_usage=True)
    return Agent(name="assistant", model=kind(model=model, openai_client=client), model_settings=settings, **more)


async def stream_agent(agent: Any, intent: str) -> Any:
    """Return what an agent answers in a stream."""
    run = Runner.run_streamed(agent, intent)
    async for _ in run.stream_events():
        pass
    return run.final_output


AGENT_MODELS = (OpenAIChatCompletionsModel, AgentsResponses)


@trial("Agents SDK", "answer")
def agents_answer() -> None:
    same(Runner.run_sync(agent_of("assistant"), "hello").final_output, "you said: hello")


@trial("Agents SDK", "own form")
def agents_own_form() -> None:
    same(Runner.run_sync(agent_of("invoice", output_type=Invoice), "bill").final_output, BILL)


@trial("Agents SDK", "any form")
def agents_any_form() -> None:
    for kind in AGENT_MODELS:
        same(Runner.run_sync(agent_of("assistant", kind, output_type=Rhyme), "hello").final_output, ROSE)
        same(asyncio.run(stream_agent(agent_of("assistant", kind, output_type=Rhyme), "hello")), ROSE)


@trial("Agents SDK", "client tools")
def agents_client_tools() -> None:
    tools = [function_tool(temperature)]
    for kind in AGENT_MODELS:
        agent = agent_of("assistant", kind, tools=tools)
        same(Runner.run_sync(agent, "call temperature Oslo Rome").final_output, "It said: 20")
        agent = agent_of("assistant", kind, tools=tools)
        same(asyncio.run(stream_agent(agent, "call temperature Oslo Rome")), "It said: 20")
        typed = agent_of("assistant", kind, tools=tools, output_type=Rhyme)
        same(Runner.run_sync(typed, "call temperature Oslo").final_output, ROSE)


@trial("Agents SDK", "people")
def agents_people() -> None:
    for kind in AGENT_MODELS:
        waits = Runner.run_sync(agent_of("assistant", kind), "pay 3")
        allow(waits.final_output)
        asked = [*waits.to_input_list(), {"role": "user", "content": "continue"}]
        same(Runner.run_sync(agent_of("assistant", kind), asked).final_output, "It said: paid 3")
        assert "waits for a person" in asyncio.run(stream_agent(agent_of("assistant", kind), "pay 3"))


def main() -> None:
    """Run all trials, and print how each went."""
    for (client, feature), work in TRIALS.items():
        error = ""
        try:
            work()
        except Exception as failure:  # a client's own errors are of any class
            error = f"{type(failure).__name__}: {failure}"[:400]
        sys.stdout.write(json.dumps({"client": client, "feature": feature, "error": error}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
