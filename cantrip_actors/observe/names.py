"""Every name of OpenTelemetry's GenAI conventions in this package, and our own; renaming changes only this file.

The names are those of `open-telemetry/semantic-conventions-genai`. The package `opentelemetry-semantic-conventions` has
the earlier ones, so nothing is imported from there; `tests/observe/test_conventions.py` lists each difference.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "cantrip_actors"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/1.42.0"

# operations
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
INVOKE_WORKFLOW: Final = "invoke_workflow"
PLAN: Final = "plan"

# attributes of the conventions
OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
COMPACTED: Final = "gen_ai.conversation.compacted"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
OUTPUT_TYPE: Final = "gen_ai.output.type"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE: Final = "gen_ai.usage.cache_write.input_tokens"
REASONING: Final = "gen_ai.usage.reasoning.output_tokens"
TOOL: Final = "gen_ai.tool.name"
TOOL_CALL: Final = "gen_ai.tool.call.id"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_TYPE: Final = "gen_ai.tool.type"
MODALITY: Final = "gen_ai.token.modality"
OF_MODALITY: Final = "gen_ai.usage.{}.{}_tokens"
SERVER: Final = "server.address"
PORT: Final = "server.port"
WORKFLOW: Final = "gen_ai.workflow.name"
MCP_METHOD: Final = "mcp.method.name"
MCP_VERSION: Final = "mcp.protocol.version"
MCP_SESSION: Final = "mcp.session.id"
TRANSPORT: Final = "network.transport"
ERROR: Final = "error.type"
EXCEPTION: Final = "exception.type"
EXCEPTION_TEXT: Final = "exception.message"

EXCEPTION_TRACE: Final = "exception.stacktrace"
HTTP_METHOD: Final = "http.request.method"
ROUTE: Final = "http.route"
STATUS: Final = "http.response.status_code"
PATH: Final = "url.path"
SCHEME: Final = "url.scheme"
HTTP_DURATION: Final = "http.server.request.duration"

# content
SYSTEM: Final = "gen_ai.system_instructions"
INPUTS: Final = "gen_ai.input.messages"
OUTPUTS: Final = "gen_ai.output.messages"
TOOLS: Final = "gen_ai.tool.definitions"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
DETAILS_EVENT: Final = "gen_ai.client.inference.operation.details"
EXCEPTION_EVENT: Final = "gen_ai.client.operation.exception"
CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

SETTINGS: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "stop": "gen_ai.request.stop_sequences",
    "effort": "gen_ai.request.reasoning.level",
}
"""The parameters of a call that the conventions name."""

PROVIDERS: Final = {
    "openai": "openai",
    "openai-chat": "openai",
    "anthropic": "anthropic",
    "google": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "azure-chat": "azure.ai.openai",
    "mistral": "mistral_ai",
    "groq": "groq",
    "xai": "x_ai",
    "deepseek": "deepseek",
    "perplexity": "perplexity",
    "cohere": "cohere",
}
"""The conventions' provider names, by the first part of a crystal's name."""


def split_crystal_name(crystal: str) -> tuple[str, str]:
    """Return the provider, as the conventions call it, and the model of a crystal's name."""
    provider, _, model = crystal.partition(":")
    return (PROVIDERS.get(provider, provider), model) if model else (crystal, crystal)


# ours
ENTITY: Final = "cantrip.entity.id"
PARENT: Final = "cantrip.parent.entity.id"
NAME: Final = "cantrip.name"
TURNS: Final = "cantrip.turns"
END_REASON: Final = "cantrip.end.reason"
WARD: Final = "cantrip.ward"
DEPTH: Final = "cantrip.depth"
ATTEMPT: Final = "cantrip.attempt"
COST: Final = "cantrip.cost.usd"
USAGE_INPUT: Final = "cantrip.usage.input_tokens"
USAGE_OUTPUT: Final = "cantrip.usage.output_tokens"
TURN: Final = "cantrip.turn.id"
SEQUENCE: Final = "cantrip.turn.sequence"
ATTEMPTS: Final = "cantrip.attempts"
WRAPPERS: Final = "cantrip.gate.wrappers"
MEDIUM: Final = "cantrip.medium"
COMPUTE: Final = "cantrip.compute"
MEMORY: Final = "cantrip.memory"
REPLAYED: Final = "cantrip.replayed"
LINK: Final = "cantrip.link"
BACKFILLED: Final = "cantrip.backfilled"
RETRY_EVENT: Final = "cantrip.retry"
ASKED_EVENT: Final = "cantrip.approval.asked"
DECIDED_EVENT: Final = "cantrip.approval.decided"
DELAY: Final = "cantrip.retry.delay"
REQUEST: Final = "cantrip.request.id"
DECISION: Final = "cantrip.decision"
SUMMARY: Final = "cantrip.summary"
SAMPLING: Final = "cantrip.sampling"

TOOL_METHODS: Final = {"tool": "tools/call", "resources": "resources/list", "read": "resources/read"}
"""The methods by which the tools of a server are called, by kind."""
