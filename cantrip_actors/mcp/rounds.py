"""The requests of a current server before it answers one of ours (MRTR), and the responses so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from mcp_types import (
    CreateMessageRequest,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
)
from pydantic import BaseModel, TypeAdapter

from cantrip_actors.terms.wrapper import Inquiry

_REQUEST: Final[TypeAdapter[Any]] = TypeAdapter(InputRequest)
_RESPONSES: Final[Mapping[type, type[BaseModel]]] = {
    ElicitRequest: ElicitResult,
    CreateMessageRequest: CreateMessageResult,
    ListRootsRequest: ListRootsResult,
}


@dataclass
class ServerQuestions:
    """The requests of a server before it answers, and the responses so far; `state` is the server's own."""

    rounds: int
    state: str | None
    requests: dict[str, Any]
    responses: dict[str, Any]

    @classmethod
    def after(cls, before: ServerQuestions | None, result: InputRequiredResult) -> ServerQuestions:
        """Return the requests that a server has answered with, after those before."""
        rounds = 1 if before is None else before.rounds + 1
        return cls(rounds, result.request_state, dict(result.input_requests or {}), {})

    @property
    def open(self) -> list[tuple[str, Any]]:
        """The requests without a response."""
        return [(name, request) for name, request in self.requests.items() if name not in self.responses]

    def resume(self, name: str) -> dict[str, Any]:
        """Return it as JSON, for a call that continues when the request `name` is answered."""
        return {
            "rounds": self.rounds,
            "state": self.state,
            "asks": name,
            "requests": {key: _encode_json(request) for key, request in self.requests.items()},
            "responses": {key: _encode_json(response) for key, response in self.responses.items()},
        }

    @classmethod
    def read(cls, inquiry: Inquiry) -> Self:
        """Return the requests from before a call was continued, with the person's answer."""
        state = inquiry.state
        requests = {key: _REQUEST.validate_python(request) for key, request in state["requests"].items()}
        responses: dict[str, Any] = {
            key: _RESPONSES[type(requests[key])].model_validate(response)
            for key, response in state["responses"].items()
        }
        answer, name = inquiry.answer, state["asks"]
        if inquiry.decision != "answer":
            responses[name] = ElicitResult(action="decline")
        elif isinstance(requests[name].params, ElicitRequestURLParams):
            responses[name] = ElicitResult(action="accept" if answer is True else "decline")
        else:
            responses[name] = ElicitResult(action="accept", content=answer)
        return cls(state["rounds"], state["state"], requests, responses)


def _encode_json(model: BaseModel) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
