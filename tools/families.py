"""Generate docs/families.md, the requests of each family of crystals, and the table of settings in docs/crystals.md.

Nothing on these pages is written by hand: each setting is given to a crystal of the family, and the page shows what the
setting adds to its request. `tests/crystal/test_families.py` compares the same requests with the providers' published
types.

``python -m tools.families`` writes the pages, ``--check`` only reports whether they are up to date.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cantrip_actors.crystal.batch_families import ENDPOINTS
from cantrip_actors.crystal.client import ProviderRequest
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.policy.background import BACKGROUND
from cantrip_actors.crystal.provider import ProviderCrystal, ProviderQuery
from cantrip_actors.crystals import (
    anthropic,
    azure,
    bedrock,
    cohere,
    google,
    local,
    mistral,
    ollama,
    openai,
    openrouter,
    vertex,
    xai,
)
from cantrip_actors.terms.messages import Message, ToolDefinition
from cantrip_actors.terms.server_tools import TAKEN, ServerTool
from tools.pages import ROOT, settle

PAGE = ROOT / "docs" / "families.md"
CRYSTALS = ROOT / "docs" / "crystals.md"
BEGIN = "<!-- Made by `make docs` from the requests of each family; do not edit. -->\n"
END = "<!-- The end of the made part. -->\n"

HEAD = f"""\
{BEGIN}
# What each provider is sent

After this page you know how each setting of `Call` arrives at your provider. Each line has a setting, and the fields
that it adds to the request for the named model. The tests check these requests against the types that the provider
publishes.

If a family has no field for a setting, the request leaves it out, and the answer says so: `metadata["left_out"]` of
the `Response`, which the loom stores with the utterance. If a *model* refuses a value, later requests of the next
hour have the nearest value that it takes (`metadata["adjusted"]` has the wanted value and the sent one), or leave the
setting out. A value that no model takes raises `ProviderError`. `turn.left_out` and `turn.adjusted` say the same for
each turn of an entity.
"""

READ = ToolDefinition("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Family(NamedTuple):
    """A family, and the crystal that represents it."""

    name: str
    crystal: ProviderCrystal
    key: str


class Sample(NamedTuple):
    """A setting, as a user writes it, and the query with it."""

    written: str
    options: Mapping[str, Any] = {}
    choice: str | None = None


SETTINGS = (
    Sample("temperature=0.2", {"temperature": 0.2}),
    Sample("top_p=0.9", {"top_p": 0.9}),
    Sample("max_tokens=2000", {"max_tokens": 2000}),
    Sample('stop=["END"]', {"stop": ("END",)}),
    Sample('effort="high"', {"effort": "high"}),
    Sample('effort="none"', {"effort": "none"}),
    Sample('effort="minimal"', {"effort": "minimal"}),
    Sample('effort="max"', {"effort": "max"}),
    Sample("output_schema={…}", {"output_schema": SCHEMA}),
    Sample('tool_choice="required"', choice="required"),
    Sample('tool_choice="none"', choice="none"),
    Sample('tool_choice="gate:read"', choice="gate:read"),
    Sample("parallel_tool_calls=False", {"parallel_tool_calls": False}),
    Sample('service_tier="default"', {"service_tier": "default"}),
    Sample("frequency_penalty=0.5", {"frequency_penalty": 0.5}),
    Sample("presence_penalty=0.5", {"presence_penalty": 0.5}),
    Sample("logprobs=2", {"logprobs": 2}),
    Sample("seed=7", {"seed": 7}),
    Sample('verbosity="low"', {"verbosity": "low"}),
    Sample('reasoning_summary="none"', {"reasoning_summary": "none"}),
)

TOOLS: Mapping[str, ServerTool] = {
    "web_search": ServerTool("web_search"),
    "url_context": ServerTool("url_context"),
    "code_execution": ServerTool("code_execution"),
    "file_search": ServerTool("file_search", {"stores": ("vs_1",)}),
}


def families() -> list[Family]:
    """Return the families, each with a crystal of a current model."""
    cloud = bedrock("us.anthropic.claude-sonnet-5-5", region="us-east-1", api_key="k")
    return [
        Family("anthropic", anthropic("claude-sonnet-5-5", api_key="k"), "`ANTHROPIC_API_KEY`"),
        Family("openai", openai("gpt-6.1-sol", api_key="k"), "`OPENAI_API_KEY`"),
        Family("openai-chat", openai("gpt-6.1-sol", chat=True, api_key="k"), "`OPENAI_API_KEY`"),
        Family("google", google("gemini-3.1-pro-preview", api_key="k"), "`GEMINI_API_KEY` or `GOOGLE_API_KEY`"),
        Family("openrouter", openrouter("anthropic/claude-sonnet-4.5", api_key="k"), "`OPENROUTER_API_KEY`"),
        Family("xai", xai("grok-4.7", api_key="k"), "`XAI_API_KEY`"),
        Family("mistral", mistral("mistral-medium-latest", api_key="k"), "`MISTRAL_API_KEY`"),
        Family("cohere", cohere("command-a-03-2025", api_key="k"), "`CO_API_KEY` or `COHERE_API_KEY`"),
        Family("ollama", ollama("qwen3", context_window=32_768), "none, or `OLLAMA_API_KEY`"),
        Family("bedrock", cloud, "your AWS credentials, or `AWS_BEARER_TOKEN_BEDROCK`"),
        Family("local", local("http://localhost:8080/v1", "llama3.2"), "none, or `LOCAL_API_KEY`"),
    ]


def clouds() -> list[Family]:
    """Return the cloud variants of families: they have a part of the page, and no column of a table."""
    gemini = vertex("gemini-3.1-pro-preview", project="my-project", location="global", api_key="k")
    claude = vertex("claude-sonnet-5-5", project="my-project", location="global", api_key="k")
    endpoint = "https://my-resource.openai.azure.com"
    classic = azure("my-gpt", endpoint=endpoint, api_version="2024-10-21", api_key="k")
    google_key, azure_key = "your Google Cloud credentials", "`AZURE_OPENAI_API_KEY`, or your login"
    return [
        Family("vertex, with Gemini", gemini, google_key),
        Family("vertex, with Claude", claude, google_key),
        Family("azure", azure("my-gpt", endpoint=endpoint, api_key="k"), azure_key),
        Family("azure, classic", classic, azure_key),
    ]


def request(family: Family, sample: Sample) -> ProviderRequest:
    """Return the request of a family with a setting."""
    query = ProviderQuery([Message("user", "go")], [READ], sample.choice, SamplingSettings.of(sample.options))
    return family.crystal.family.make_request(query)


def additions(before: Any, after: Any) -> Any:
    """Return the part of `after` that `before` lacks."""
    if isinstance(before, dict) and isinstance(after, dict):
        return {name: additions(before.get(name), value) for name, value in after.items() if value != before.get(name)}
    if isinstance(before, list) and isinstance(after, list):
        return [item for item in after if item not in before]
    return after


def describe_setting(family: Family, sample: Sample) -> str:
    """Return the effect of a setting, as a cell of a table."""
    sample_request = request(family, sample)
    plain, body = json.loads(request(family, Sample("")).body), json.loads(sample_request.body)
    fields = additions(plain, body)
    parts = [f"`{json.dumps(fields, ensure_ascii=False)}`"] if fields else []
    parts += [f"without `{name}`" for name in plain if name not in body]
    if sample_request.left_out:
        parts.append(f"left out: {', '.join(f'`{name}`' for name in sample_request.left_out)}")
    parts += [f"adjusted: `{name}` is `{change.sent}`" for name, change in sample_request.adjusted.items()]
    return "; ".join(parts).replace("|", "\\|") or "as without it"


def page() -> str:
    """Return docs/families.md."""
    return "\n".join([HEAD, *(line for family in (*families(), *clouds()) for line in section(family))])


def section(family: Family) -> Iterator[str]:
    """Yield the lines about one family."""
    crystal, kind = family.crystal, family.crystal.family
    yield f"## {family.name}\n"
    yield f"Key: {family.key}. Address: `{crystal.address}{kind.path}`. The model here: `{kind.model}`.\n"
    yield "| `Call(…)` | what is sent |"
    yield "| --- | --- |"
    for sample in SETTINGS:
        yield f"| `{sample.written}` | {describe_setting(family, sample)} |"
    for name, tool in TOOLS.items():
        if name in TAKEN.get(kind.serves, {}):
            limits = ", ".join(sorted(TAKEN[kind.serves][name])) or "no settings"
            sent = describe_setting(family, Sample("", {"server_tools": (tool,)}))
            yield f"| `server_tools=[{name}(…)]`, with {limits} | {sent} |"
    takes = kind.encoder.writer.takes
    pictures = ", ".join(sorted(kind.removeprefix("image/") for kind in takes.kinds)) if takes.any else "none"
    files = ", ".join(f"`{kind}`" for kind in takes.files) or "texts only, told as text"
    learns = ", ".join(f"`{name}`" for name in sorted({*kind.lessons, *kind.written}))
    yield ""
    yield f"- Images: {pictures}. [Files](files.md): {files}."
    yield f"- Left out, or set to the nearest value, if a model refuses it: {learns}."
    answers = [
        name for name, has in (("batch", type(kind) in ENDPOINTS), ("background", type(kind) in BACKGROUND)) if has
    ]
    later = " and ".join(f"`{name}:{crystal.name}`" for name in answers) or "not offered"
    yield f"- [Answering later](batches.md): {later}.\n"


def table() -> str:
    """Return which settings each family sends, as a table."""
    columns = families()
    lines = [
        f"| `Call(…)` | {' | '.join(f'`{family.name}`' for family in columns)} |",
        "| --- |" + " --- |" * len(columns),
    ]
    for sample in SETTINGS:
        cells = ["" if request(family, sample).left_out else "yes" for family in columns]
        lines.append(f"| `{sample.written}` | {' | '.join(cells)} |")
    tools = {name: [name in TAKEN.get(family.crystal.family.serves, {}) for family in columns] for name in TOOLS}
    lines += [
        f"| `server_tools=[{name}(…)]` | {' | '.join('yes' if has else '' for has in row)} |"
        for name, row in tools.items()
    ]
    later = ["yes" if type(family.crystal.family) in ENDPOINTS else "" for family in columns]
    return "\n".join([*lines, f"| [in batches](batches.md), at half price | {' | '.join(later)} |", ""])


def main(argv: list[str] | None = None) -> int:
    """Write or check the pages; return 1 if one is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.families", description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(argv).check
    text = CRYSTALS.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        print(f"{CRYSTALS.name}: expected the lines {BEGIN.strip()} and {END.strip()}", file=sys.stderr)
        return 1
    codes = [settle(PAGE, page(), check=check)]
    codes.append(settle(CRYSTALS, f"{before}{BEGIN}\n{table()}\n{END}{after}", check=check))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
