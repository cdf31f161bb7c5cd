"""The commands of `cantrip crystals`: prove that a provider does what entities rely on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import FAILED, LOOM, Backend, Json, Loop, examples, print_rows, report_errors

if TYPE_CHECKING:
    from rich.text import Text

    from cantrip_actors.crystal.check import ProbeResult

app = typer.Typer(
    name="crystals",
    help="Check crystals against their providers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """Keep `check` a command of its own while it is the only one."""


@app.command(
    "check",
    epilog=examples(
        "cantrip crystals check anthropic:claude-sonnet-5-5", "cantrip crystals check openai:gpt-6.1-sol --json"
    ),
)
def check(
    crystal: Annotated[str, typer.Argument(metavar="CRYSTAL", help="For example anthropic:MODEL; its key is needed.")],
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PROBE", help="Only this probe; repeat for more.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for each probe.")] = 90.0,
    as_json: Json = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Put 25 short queries to a provider, and say which of them do what entities rely on. They cost a few cents."""
    with report_errors(json=as_json, loom=LOOM):
        from dataclasses import asdict

        import anyio

        from cantrip_actors.crystal import resolve
        from cantrip_actors.crystal.check import check as check_crystal

        resolved = resolve(crystal)

        async def run() -> list[ProbeResult]:
            return await check_crystal(resolved, only or (), timeout=timeout)

        results = anyio.run(run, backend=backend.value)
    print_rows([asdict(result) for result in results], _render_lines(results), as_json=as_json)
    failed = sum(result.state == "failed" for result in results)
    if not as_json:
        cost = sum(result.usage.cost for result in results)
        tokens = sum(result.usage.total_tokens for result in results)
        output.print_note(
            f"{len(results) - failed} of {len(results)} do what they should; {tokens:,} tokens, ${cost:.4f}"
        )
    if failed:
        raise typer.Exit(FAILED)


def _render_lines(results: list[ProbeResult]) -> Iterator[Text]:
    from rich.text import Text

    from cantrip_actors.cli.terminal import printable

    styles = {"passed": "green", "failed": "red", "left out": "yellow"}
    for result in results:
        why = result.why or (f"not sent: {', '.join(result.left_out)}" if result.left_out else "")
        line = Text(end="").append(f"{result.state:<10}", styles[result.state]).append(f"{result.probe:<22}", "bold")
        yield line.append(f"{result.seconds:6.1f} s  ").append(printable(why)[:160], "dim")
