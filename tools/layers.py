"""The allowed imports of each package, row by row.

The contracts in pyproject.toml keep imports pointing downwards, along whole chains. This table is narrower: it names
the neighbours and the libraries that each package may import itself, and keeps clocks, chance and I/O out of
the pure packages. The *face* is what users import: ``cantrip_actors`` itself and the modules that lie directly in it.

``python -m tools.layers`` checks it, as part of ``make lint``.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FACE = "cantrip_actors"
WHOLE = frozenset({FACE, "supervisors", "conformance", "bench"})
"""Names written in full in the table; the others are packages of `cantrip_actors`."""

_WAITS = "asyncio concurrent contextvars multiprocessing queue sched select selectors signal threading"
_REACHES_OUT = "http io logging os shutil socket sqlite3 ssl subprocess tempfile urllib"
_DIFFERS_EACH_TIME = "random secrets time uuid"
IMPURE = frozenset(f"{_WAITS} {_REACHES_OUT} {_DIFFERS_EACH_TIME}".split())


class Row(NamedTuple):
    """The imports of one package: allowed neighbours, allowed libraries (None: any), forbidden standard modules."""

    inside: frozenset[str]
    outside: frozenset[str] | None
    never: frozenset[str] = frozenset()


def _row(inside: str = "", outside: str | None = "", never: frozenset[str] = frozenset()) -> Row:
    neighbours = {name if name.split(".")[0] in WHOLE else f"{FACE}.{name}" for name in inside.split()}
    return Row(frozenset(neighbours), None if outside is None else frozenset(outside.split()), never)


COMMON = "anyio orjson pydantic structlog"

ROWS: dict[str, Row] = {
    "supervisors": _row("", "anyio structlog trio typing_extensions"),
    "cantrip_actors.terms": _row(
        "",
        "pydantic pydantic_core annotated_types typing_extensions msgspec orjson jsonschema referencing yaml",
        IMPURE,
    ),
    "cantrip_actors.redact": _row("lazy_exports", "orjson structlog", IMPURE),
    "cantrip_actors.user_code": _row("", "anyio"),
    "cantrip_actors.own_files": _row("", "structlog"),
    "cantrip_actors.lazy_exports": _row(""),
    "cantrip_actors.records": _row("terms", "msgspec orjson", IMPURE),
    "cantrip_actors.machine": _row("terms records lazy_exports", "cronsim msgspec orjson", IMPURE),
    "cantrip_actors.page": _row(""),
    "cantrip_actors.stream": _row("terms redact records machine", "msgspec orjson", IMPURE),
    "cantrip_actors.loom": _row(
        "terms own_files redact records machine stream page lazy_exports", f"{COMMON} msgspec psycopg"
    ),
    "cantrip_actors.crystal": _row("terms user_code redact records stream", f"{COMMON} genai_prices httpx httpx2 yaml"),
    "cantrip_actors.circle": _row(
        "terms user_code own_files redact records machine",
        f"{COMMON} httpx jsonschema msgspec playwright pydantic_core pydantic_monty pyseccomp wasmtime"
        " tree_sitter tree_sitter_bash tree_sitter_javascript yaml",
    ),
    "cantrip_actors.mcp": _row("terms own_files redact", f"{COMMON} httpx2 mcp mcp_types"),
    "cantrip_actors.runtime": _row(
        "terms user_code redact records machine stream loom crystal circle supervisors", f"{COMMON} msgspec uuid_utils"
    ),
    "cantrip_actors.recipes": _row("terms own_files crystal circle mcp cantrip_actors", f"{COMMON} yaml"),
    "cantrip_actors.agentic": _row("terms records machine runtime cantrip_actors lazy_exports", COMMON),
    "cantrip_actors.dispatch": _row(
        "terms user_code own_files records redact machine loom circle runtime recipes cli http cantrip_actors"
        " lazy_exports",
        f"{COMMON} msgspec rich typer yaml",
    ),
    "cantrip_actors.evals": _row("terms user_code recipes cantrip_actors", COMMON),
    "cantrip_actors.observe": _row(
        "terms redact records machine stream loom runtime cantrip_actors supervisors lazy_exports",
        f"{COMMON} msgspec opentelemetry starlette uuid_utils",
    ),
    "cantrip_actors.testing": _row(
        "terms user_code redact records machine loom crystal circle runtime cantrip_actors supervisors lazy_exports",
        f"{COMMON} hypothesis outcome psycopg pytest trio uuid_utils",
    ),
    "cantrip_actors.cluster": _row("", "ray"),
    "cantrip_actors.cli": _row(
        "terms own_files redact records stream loom crystal circle runtime recipes evals"
        " cantrip_actors cluster observe http acp mcp mcp_server",
        f"{COMMON} click httpx rich typer yaml starlette",
    ),
    "cantrip_actors.http": _row(
        "terms user_code own_files redact records stream page loom runtime observe mcp_server cantrip_actors"
        " supervisors",
        f"{COMMON} httpx hypercorn jwt mcp starlette",
    ),
    "cantrip_actors.acp": _row(
        "terms user_code own_files redact records stream crystal circle runtime observe mcp cantrip_actors", f"{COMMON}"
    ),
    "cantrip_actors.mcp_server": _row(
        "terms user_code own_files redact records stream loom runtime observe cantrip_actors", f"{COMMON} mcp"
    ),
    "cantrip_actors.__main__": _row("cli"),
    FACE: _row("terms records machine stream loom crystal circle runtime supervisors lazy_exports", COMMON),
    # Outside the wheel: these import what a user imports.
    "bench": _row("cantrip_actors agentic dispatch http observe redact testing supervisors", None),
    # The bench measures a chunk together with the code that frames it.
    "bench.crystals": _row("cantrip_actors crystal", None),
    # The bench reads each kind of stream as its clients do, and its crystal streams.
    "bench.pace": _row("cantrip_actors acp stream", None),
    "bench.serve": _row("cantrip_actors bench bench.pace http", None),
    # The bench starts the shared server as the suites start theirs; a crystal of it streams.
    "bench.peers": _row("cantrip_actors bench stream conformance", None),
    # The bench installs the peers, opens the stores and draws as `bench peers` does.
    "bench.service": _row("cantrip_actors bench bench.peers stream", None),
    "bench.delays": _row("cantrip_actors bench conformance", None),
    "bench.partition": _row("cantrip_actors bench bench.service conformance", None),
    "bench.cluster": _row("cantrip_actors bench bench.cluster_node conformance", None),
    "bench.cluster_node": _row("cantrip_actors conformance", None),
    "conformance": _row("cantrip_actors supervisors", None),
    # Fuzzing calls the parsers themselves.
    "conformance.cancel": _row("cantrip_actors supervisors conformance circle stream", None),
    "conformance.fuzz": _row("cantrip_actors conformance terms records circle crystal dispatch recipes cli", None),
    "examples": _row("cantrip_actors agentic evals http testing supervisors", None),
    # The demos have commands of their own, which use what all commands share.
    "examples.cantrip_demos": _row("cantrip_actors agentic cli redact", None),
}


class Import(NamedTuple):
    """One name that a module imports, in full."""

    target: str
    line: int


def imports(source: str, module: str, *, package: bool) -> Iterator[Import]:
    """Yield every import of a module, also those inside functions and those for types only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                package_parts = parts[: len(parts) - node.level + package]
                base = ".".join([*package_parts, base] if base else package_parts)
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)


def row_of(name: str) -> str | None:
    """Return the package of a module (``cantrip_actors.wards`` is in the public face), or None."""
    parts = name.split(".")
    for length in (2, 1):
        if (candidate := ".".join(parts[:length])) in ROWS:
            return candidate
    return None


def faults(source: str, module: str, file: str, *, package: bool) -> Iterator[str]:
    """Yield the imports of a module that are not allowed."""
    here = row_of(module)
    if here is None:
        return
    row = ROWS[here]
    for imported in imports(source, module, package=package):
        there, top = row_of(imported.target), imported.target.split(".")[0]
        if there is not None:
            allowed = there == here or there in row.inside
        elif top in sys.stdlib_module_names:
            allowed = top not in row.never
        else:
            allowed = row.outside is None or top in row.outside
        if not allowed:
            yield f"{file}:{imported.line}: {here} may not import {imported.target} (tools/layers.py has the table)"


def main() -> int:
    """Check the tree; the exit code says whether it is clean."""
    problems: list[str] = []
    files = sorted(path for top in {name.split(".")[0] for name in ROWS} for path in (ROOT / top).rglob("*.py"))
    for path in files:
        relative = path.relative_to(ROOT)
        package = path.name == "__init__.py"
        module = ".".join((relative.parent if package else relative.with_suffix("")).parts)
        problems += faults(path.read_text(encoding="utf-8"), module, relative.as_posix(), package=package)
    print(*problems, sep="\n") if problems else print(f"layers: {len(files)} modules, each within its row")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
