"""The published types of providers' requests, from their own packages, which validate every request.

A request of the tests that its provider would refuse by its shape is a failing test (R-30). The
packages are those of the lock; `versions` names them. They are imported when the first request is sent.
"""

import importlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, Literal, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.warnings import TypedDictExtraConfigWarning
from typing_extensions import is_typeddict

PACKAGES = ("openai", "anthropic", "google-genai", "botocore", "mistralai", "cohere", "ollama")

EXTENSIONS = {
    "openrouter": {"usage", "reasoning", "provider", "plugins", "models", "transforms", "cache_control"},
    "anthropic": {"temperature", "top_p", "top_k"},  # the types are those of the newest models, which take none
    "local": {"chat_template_kwargs", "reasoning_effort", "options", "think"},
}
"""Fields that a speaker of somebody else's interface has of its own."""


def versions() -> dict[str, str]:
    """The versions of the packages."""
    return {name: version(name) for name in PACKAGES}


@cache
def adapter(module: str, name: str) -> TypeAdapter[Any]:
    """What validates a type of a package, strictly: no field that it does not have, however deep."""
    package = module.split(".", maxsplit=1)[0]
    found = getattr(importlib.import_module(module), name)
    places = (f"{package}.types", f"{package}.client.models")
    for imported in [one for key, one in sys.modules.items() if key.startswith(places)]:
        for one in vars(imported).values():
            if is_typeddict(one):
                one.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TypedDictExtraConfigWarning)  # some say themselves that they take more
        return TypeAdapter(found)


def whole(value: Any) -> Any:
    """The value with all that pydantic would only look at when it is iterated."""
    if isinstance(value, Mapping):
        return {name: whole(one) for name, one in value.items()}
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        return value
    return [whole(one) for one in value]


def fault(provider: str, path: str, body: bytes) -> str | None:
    """Why the provider would refuse a request by its shape; None where it would not, or nothing is published."""
    provider = provider.partition(":")[0]
    try:
        for validated in parts(provider, path, body):
            whole(validated)
    except Misshapen as error:
        return f"{provider} {path}: {error}"
    except ValidationError as error:
        told = "; ".join(
            f"{'.'.join(map(str, one['loc']))[:200]}: {one['msg']}, got {one['input']!r:.60}"
            for one in error.errors()[:6]
        )
        return f"{provider} {path}: {told}"
    return None


_valid: set[int] = set()
"""Hashes of the messages that were validated: most requests repeat those of the request before."""


def without_valid(provider: str, path: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give a request without messages that were validated in such a request before; the last one always stays."""
    hashes = set()
    for name in ("messages", "input", "contents"):
        if isinstance(messages := request.get(name), list):
            hashed = [(hash((provider, path, *sorted(request), orjson.dumps(one))), one) for one in messages]
            request = {**request, name: [one for key, one in hashed if key not in _valid] or messages[-1:]}
            hashes.update(key for key, _ in hashed)
    yield request
    _valid.update(hashes)  # nothing was raised


def parts(provider: str, path: str, body: bytes) -> Iterator[Any]:
    """Validate a request, or each of those in a batch, whose answers are no streams."""
    if path.endswith("/files"):
        requests = [orjson.loads(line) for line in body.split(b"\r\n\r\n")[-1].splitlines() if line.startswith(b"{")]
        for line in requests:
            assert line.keys() == {"custom_id", "method", "url", "body"}
            yield from checked(provider, line["url"], {**line["body"], "stream": True})
        return
    if path.endswith(".jsonl"):
        yield from lines(provider, body)
        return
    request = orjson.loads(body)
    if path.endswith(("/model-invocation-job", "/batchPredictionJobs")):
        job(path, request)
    elif path.endswith("/messages/batches"):
        yield adapter("anthropic.types.messages.batch_create_params", "BatchCreateParams").validate_python(
            {"requests": [{**one, "params": plain(one["params"])} for one in request["requests"]]}
        )
    elif path.endswith("/batches"):
        yield adapter("openai.types.batch_create_params", "BatchCreateParams").validate_python(request)
    elif path.endswith(":batchGenerateContent"):
        assert request["batch"].keys() == {"displayName", "inputConfig"}
        for one in request["batch"]["inputConfig"]["requests"]["requests"]:
            assert one.keys() == {"request", "metadata"}
            yield from google(one["request"])
    elif path.endswith(("/count_tokens", "/count-tokens", "/count-tokens:rawPredict", ":countTokens", "/input_tokens")):
        yield from counts(path, request)
    elif request.get("background"):
        yield from checked(provider, path, {**request, "stream": True})
    else:
        for shortened in without_valid(provider, path, request):
            yield from checked(provider, path, shortened)


def job(path: str, request: dict[str, Any]) -> None:
    """Validate a job of a cloud; of Vertex's no type is published."""
    if path.endswith("/model-invocation-job"):
        amazon("bedrock", "CreateModelInvocationJob", request)
    else:
        assert request.keys() == {"displayName", "model", "inputConfig", "outputConfig"}


def lines(provider: str, body: bytes) -> Iterator[Any]:
    """Validate the lines of a file of requests in the bucket of a cloud."""
    for line in map(orjson.loads, body.splitlines()):
        if "modelInput" in line:
            assert line.keys() == {"recordId", "modelInput"}
            yield from checked(provider, "/converse-stream", line["modelInput"])
        elif "custom_id" in line:
            yield from checked(provider, ":streamRawPredict", {"stream": True, "model": "m", **line["request"]})
        else:
            labels = line["request"].pop("labels")
            assert all(re.fullmatch(r"[a-z0-9_-]{1,63}", one) for label in labels.items() for one in label)
            yield from google(line["request"])


def plain(request: dict[str, Any]) -> dict[str, Any]:
    """A request to Anthropic without what its newest models do not take."""
    return {name: value for name, value in request.items() if name not in EXTENSIONS["anthropic"]}


def counts(path: str, request: dict[str, Any]) -> Iterator[Any]:
    """Validate a request for a count of tokens."""
    if path.endswith("/count-tokens"):
        amazon("bedrock-runtime", "CountTokens", {"modelId": "m", **request})
    elif path.endswith("/input_tokens"):
        whole_ = adapter("openai.types.responses.input_token_count_params", "InputTokenCountParams")
        yield whole_.validate_python({**request, "input": [named(item) for item in request["input"]]})
    elif path.endswith(":countTokens"):
        inner = request.get("generateContentRequest", request)
        yield from google({name: value for name, value in inner.items() if name != "model"})
    else:
        whole_ = adapter("anthropic.types.message_count_tokens_params", "MessageCountTokensParams")
        yield whole_.validate_python(request)


def checked(provider: str, path: str, request: dict[str, Any]) -> Iterator[Any]:
    """Validate the parts of a request."""
    if path.endswith("/converse-stream"):
        amazon("bedrock-runtime", "ConverseStream", {"modelId": "m", **request})
    elif provider in OWN:
        yield from OWN[provider](request)
    elif path.startswith(("/models/", "/publishers/google/models/")):
        yield from google(request)
    elif path.endswith("/chat/completions"):
        own = {name: value for name, value in request.items() if name not in EXTENSIONS.get(provider, ())}
        own["messages"] = [bare(message) for message in request["messages"]]
        if "tools" in own:  # OpenRouter's own tools are of no published type
            own["tools"] = [tool for tool in own["tools"] if not tool["type"].startswith("openrouter:")]
        whole_ = adapter("openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming")
        yield whole_.validate_python(own)
    elif path.endswith("/responses"):
        whole_ = adapter("openai.types.responses.response_create_params", "ResponseCreateParamsStreaming")
        yield whole_.validate_python({**request, "input": [named(item) for item in request["input"]]})
    elif path.endswith(("/messages", ":streamRawPredict")):
        own = {name: value for name, value in request.items() if name not in EXTENSIONS["anthropic"]}
        types = "anthropic.types.beta" if "mcp_servers" in own else "anthropic.types"  # MCP has a beta header
        if path.endswith(":streamRawPredict"):  # Vertex has the model in the path, and the version in the body
            assert own.pop("anthropic_version") == "vertex-2023-10-16"
            own["model"] = "claude"
        yield adapter(f"{types}.message_create_params", "MessageCreateParamsStreaming").validate_python(own)


def bare(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what DeepSeek, OpenRouter, Google and others want back with it, in fields of their own."""
    kept = {name: value for name, value in message.items() if not name.startswith("reasoning") and name != "images"}
    if isinstance(kept.get("content"), list):
        own = ("video_url", "input_audio")  # films and formats of sound that OpenAI does not take
        told = [{"type": "text", "text": "x"} if part["type"] in own else part for part in kept["content"]]
        sounds = [part for part in kept["content"] if part.get("input_audio", {}).get("format") in ("wav", "mp3")]
        # OpenRouter passes marks for caches on
        kept["content"] = [{k: v for k, v in part.items() if k != "cache_control"} for part in [*told, *sounds]]
    if "tool_calls" in kept:
        kept["tool_calls"] = [{k: v for k, v in call.items() if k != "extra_content"} for call in kept["tool_calls"]]
    return kept


def named(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item of an answer with the id that its type requires and that is not sent when nothing is stored.

    OpenAI's own client for coding sends none either, and its API answers.
    """
    is_said = item.get("type") == "message" and item.get("role") == "assistant"
    return {"id": "x", "status": "completed", **item} if is_said or item.get("type") == "reasoning" else item


@cache
def shape(service: str, operation: str) -> Any:
    """The input of an operation in the service models of botocore."""
    from botocore.session import Session

    return Session().get_service_model(service).operation_model(operation).input_shape


def amazon(service: str, operation: str, request: dict[str, Any]) -> None:
    """Validate a request by a service model."""
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(request, shape(service, operation))
    if report.has_errors():
        raise Misshapen(report.generate_report())


class Misshapen(Exception):
    """A request that a service model refuses."""


def strict(models: Iterable[Any]) -> None:
    """Let models of pydantic refuse fields that they do not have."""
    for one in models:
        if isinstance(one, type) and issubclass(one, BaseModel):
            one.model_config["extra"] = "forbid"
            one.model_rebuild(force=True)


@cache
def cohere_types() -> dict[str, TypeAdapter[Any]]:
    """What validates each field of a request to Cohere: the arguments of its client's method have the types."""
    import cohere
    import cohere.types
    from cohere.v2.client import V2Client

    strict(getattr(cohere.types, name) for name in cohere.types.__all__)
    hints = get_type_hints(V2Client.chat_stream)
    return {name: TypeAdapter(hint) for name, hint in hints.items() if name not in ("request_options", "return")}


def mistral(request: dict[str, Any]) -> Iterator[Any]:
    """Validate a request to Mistral."""
    own = {name: value for name, value in request.items() if name != "response_format"}
    if given := request.get("response_format"):  # its types have another name for the field `schema`
        answer = {{"schema": "schema_definition"}.get(name, name): one for name, one in given["json_schema"].items()}
        own["response_format"] = {**given, "json_schema": answer}
    types = "mistralai.client.models.chatcompletionstreamrequest"
    yield adapter(types, "ChatCompletionStreamRequestTypedDict").validate_python(own)


def cohere(request: dict[str, Any]) -> Iterator[Any]:
    """Validate a request to Cohere."""
    known = cohere_types()
    assert request["stream"] is True
    for name, value in request.items():
        if name != "stream":
            if name not in known:
                raise Misshapen(f"no field {name}")
            yield known[name].validate_python(value)


def ollama(request: dict[str, Any]) -> Iterator[Any]:
    """Validate a request to Ollama."""
    yield ollama_types().validate_python(request)


@cache
def ollama_types() -> TypeAdapter[Any]:
    """What validates a request to Ollama."""
    from ollama import _types as types

    message = types.Message
    message.__annotations__["images"] = list[str]  # the wire has base64, where the package takes paths
    strict([message.ToolCall.Function, message.ToolCall, message, types.Options])
    types.ChatRequest.__annotations__["messages"] = list[message]  # type: ignore[valid-type]
    strict([types.ChatRequest])
    return TypeAdapter(types.ChatRequest)


OWN = {"mistral": mistral, "cohere": cohere, "ollama": ollama}
"""What validates the requests of interfaces that no other provider speaks."""


def google(request: dict[str, Any]) -> Iterator[Any]:
    """Validate a request to `streamGenerateContent`: its parts have types, the whole has none."""
    from google.genai import types

    known = {
        "contents": list[types.Content],
        "tools": list[types.Tool],
        "toolConfig": types.ToolConfig,
        "systemInstruction": types.Content,
        "generationConfig": types.GenerationConfig,
        "safetySettings": list[types.SafetySetting],
        "cachedContent": str,
        "continuationToken": str,
        "serviceTier": types.ServiceTier,
    }
    yield TypeAdapter(list[Literal[tuple(known)]]).validate_python(list(request))  # type: ignore[misc]
    for name, value in request.items():
        yield TypeAdapter(known[name]).validate_python(value)
