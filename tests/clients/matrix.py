"""What each published client can do with our service: the tables in docs/http.md.

``python -m tests.clients.matrix`` tries all clients and writes the tables; the test beside it compares them. The
clients are in .clients (`make clients`). Those of one language run in one process, because importing them costs most.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.http.serving import process

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
CLIENTS: Final = ROOT / ".clients"
PYTHON: Final = CLIENTS / "python" / "bin" / "python"
PAGE: Final = ROOT / "docs" / "http.md"
EXAMPLES: Final = ROOT / "docs" / "front-ends.md"
BEGIN: Final = "<!-- Made by `python -m tests.clients.matrix`, which tries these clients; do not edit. -->\n"
END: Final = "<!-- The end of the made part. -->\n"

COMMON: Final = {"stream": "stream", "conversation": "earlier messages", "pictures": "pictures", "errors": "errors"}
OF_APIS: Final = {
    "answer": "answer",
    **COMMON,
    "own form": "typed answer, as `done` has it",
    "any form": "typed answer of any form",
    "client tools": "the client's tools",
    "people": "waits for a person",
    "models": "models",
    "tokens": "counting tokens",
}
OF_FRONT_ENDS: Final = {
    **COMMON,
    "gates": "reasoning and calls of gates",
    "children": "texts of children",
    "approvals": "approvals",
    "questions": "questions",
    "client tools": "the page's tools",
    "resume": "resume",
    "example": "the example of its page",
}
"""The features of each table, in the order and the words of the page."""

FRONT_ENDS: Final = ("useChat", "AG-UI")
LANGUAGES: Final = {
    "Python": (
        "openai (Python)",
        "anthropic (Python)",
        "pydantic-ai",
        "instructor",
        "LangChain",
        "LiteLLM",
        "Agents SDK",
    ),
    "JavaScript": ("openai (JS)", "anthropic (JS)", "AI SDK", "useChat", "AG-UI"),
}
"""The clients of each language."""


class Trial(NamedTuple):
    """One feature of one client."""

    client: str
    feature: str


def find_languages() -> list[str]:
    """Return the languages whose clients are there."""
    commands = {"Python": PYTHON.exists(), "JavaScript": _find_node() and (CLIENTS / "node_modules" / "ai").exists()}
    return [language for language, is_there in commands.items() if is_there]


def _find_node() -> str | None:
    kits = ROOT / ".kits" / "node_modules" / ".bin"
    return shutil.which("node", path=f"{kits}{os.pathsep}{os.environ['PATH']}")


def try_clients(languages: list[str]) -> dict[Trial, str]:
    """Return the error of each trial, "" for a feature that works."""
    commands = {"Python": [str(PYTHON), str(HERE / "run.py")], "JavaScript": [str(_find_node()), "run.mjs"]}
    serves, more = "tests.clients.cantrips:ASSISTANT", "tests.clients.cantrips:INVOICE"
    with TemporaryDirectory() as folder, process(Path(folder), "asyncio", more, serves=serves) as service:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"SERVICE_URL": service.url, "SERVICE_TOKEN": service.token, "NO_COLOR": "1"}
        environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks a site for the prices of models
        environment |= {"API": f"{service.url}/api/v1", "TOKEN": service.token}
        if "JavaScript" in languages:
            shutil.copy(HERE / "run.mjs", CLIENTS)  # packages are looked for beside the program
            _write_examples()
        running = [
            subprocess.Popen(commands[language], cwd=CLIENTS, env=environment, stdout=subprocess.PIPE, text=True)
            for language in languages
        ]
        try:
            lines = [line for child in running for line in child.communicate(timeout=900)[0].splitlines()]
        finally:
            for child in running:
                child.kill()
                child.communicate()
    results = [json.loads(line) for line in lines if line.startswith("{")]
    return {Trial(result["client"], result["feature"]): result["error"] for result in results}


def _write_examples() -> None:
    """Write the programs of docs/front-ends.md for the cantrip that is served here."""
    for name, program in re.findall(r"```js file=(\S+)\n(.*?)```", EXAMPLES.read_text(), re.DOTALL):
        (CLIENTS / name).write_text(program.replace("/echo`", "/assistant`"))


def render(results: Mapping[Trial, str]) -> str:
    """Return the rows of the clients that were tried."""
    tried = [client for names in LANGUAGES.values() for client in names if any(client == t.client for t in results)]
    return "".join(f"{_render_row(client, results)}\n" for client in tried)


def render_tables(rows: Iterable[str]) -> str:
    """Return the tables that have these rows: one of the APIs, and one of front ends."""
    apis, front_ends = [], []
    for row in rows:
        (front_ends if get_client(row) in FRONT_ENDS else apis).append(row)
    return "\n".join(_render_table(*table) for table in ((OF_APIS, apis), (OF_FRONT_ENDS, front_ends)))


def get_client(row: str) -> str:
    """Return the client that a row is about."""
    return row.split(" | ", maxsplit=1)[0].removeprefix("| ")


def _render_table(features: Mapping[str, str], rows: Iterable[str]) -> str:
    head = [f"| client | {' | '.join(features.values())} |", f"|{' --- |' * (len(features) + 1)}"]
    return "".join(f"{line}\n" for line in [*head, *rows])


def _render_row(client: str, results: Mapping[Trial, str]) -> str:
    features = OF_FRONT_ENDS if client in FRONT_ENDS else OF_APIS
    cells = [_render_cell(results.get(Trial(client, feature))) for feature in features]
    return f"| {client} | {' | '.join(cells)} |"


def _render_cell(error: str | None) -> str:
    return "" if error is None else "no" if error else "yes"


def main() -> None:
    """Try all clients, and write the table."""
    languages = find_languages()
    if languages != [*LANGUAGES]:
        sys.exit("some clients are not in .clients; `make clients` gets them")
    results = try_clients(languages)
    for trial, error in results.items():
        if error:
            sys.stderr.write(f"{trial.client}, {trial.feature}: {error}\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{render_tables(render(results).splitlines())}{END}{after}")


if __name__ == "__main__":
    main()
