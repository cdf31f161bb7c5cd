"""The bodies of front ends, with the fields that this service reads. Others are ignored, as the protocols expect."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from cantrip_actors.http.bodies import Lenient, Strict


class UiApprovalJson(Lenient):
    """The decision of a person about a call."""

    id: str
    approved: bool | None = None
    reason: str | None = None


class UiPartJson(Lenient):
    """A part of a message of `useChat`: a text, a file, or a call with its decision or its output."""

    type: str = ""
    text: str | None = None
    url: str | None = None
    mediaType: str | None = None  # noqa: N815  # the protocol's names, here and below
    filename: str | None = None
    toolCallId: str | None = None  # noqa: N815
    state: str | None = None
    approval: UiApprovalJson | None = None
    output: Any = None
    errorText: str | None = None  # noqa: N815


class UiMessageJson(Lenient):
    """A message of `useChat`."""

    id: str = Field(min_length=1, max_length=200)
    role: str
    parts: list[UiPartJson] = Field(default_factory=list)


class UiChatBody(Lenient):
    """What `useChat` sends."""

    id: str = Field(min_length=1, max_length=200, description="the chat; the name of its entity")
    messages: list[UiMessageJson] = Field(min_length=1)
    trigger: str = "submit-message"


class ChatQuery(Strict):
    """The query of the messages of a chat."""

    limit: int = Field(default=100, ge=1, le=500, description="How many of the newest intents.")


class UiChatJson(BaseModel):
    """The messages of a chat: those that its stream continues, and those that wait for their turn."""

    messages: list[dict[str, Any]]
    waiting: list[dict[str, Any]]


class AgUiSourceJson(Lenient):
    """Where the bytes of a file are: in a URL, or in base64."""

    type: str
    url: str | None = None
    value: str | None = None
    data: str | None = None
    mimeType: str | None = None  # noqa: N815


class AgUiPartJson(AgUiSourceJson):
    """A part of a message of AG-UI: a text, or a file, whose source may be in a member of its own."""

    text: str | None = None
    filename: str | None = None
    source: AgUiSourceJson | None = None


class AgUiMessageJson(Lenient):
    """A message of AG-UI."""

    id: str = Field(min_length=1, max_length=200)
    role: str
    name: str | None = None
    content: str | list[AgUiPartJson] | None = None
    toolCallId: str | None = None  # noqa: N815
    error: str | None = None


class AgUiResumeJson(Lenient):
    """The answer to an interrupt of an earlier run."""

    interruptId: str  # noqa: N815
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AgUiApprovalJson(Lenient):
    """The payload of an answer to a request for approval."""

    approved: bool
    reason: str | None = None
    args: dict[str, Any] | None = None


class AgUiToolJson(Lenient):
    """A tool that the page carries out."""

    name: str
    description: str | None = None
    parameters: Any = None


class AgUiContextJson(Lenient):
    """A fact that the page has for the agent."""

    description: str
    value: str


class AgUiBody(Lenient):
    """The request of AG-UI's clients to run an agent."""

    threadId: str = Field(min_length=1, max_length=200, description="the name of the entity")  # noqa: N815
    runId: str  # noqa: N815
    messages: list[AgUiMessageJson] = Field(default_factory=list)
    resume: list[AgUiResumeJson] = Field(default_factory=list)
    tools: list[AgUiToolJson] = Field(default_factory=list)
    context: list[AgUiContextJson] = Field(default_factory=list)
    state: Any = None
