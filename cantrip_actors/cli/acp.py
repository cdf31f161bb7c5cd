"""`cantrip acp`: an entity in an editor, over standard input and output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cantrip_actors.cli.command import LOOM, Backend, Dependencies, Loop, MaxCostPerDay, Url, examples, report_errors

app = typer.Typer()


@app.command("acp", epilog=examples("cantrip acp notes.yaml", "cantrip acp notes.yaml --check"))
def acp(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe, or module:attribute.")],
    loom: Url = LOOM,
    dependencies: Dependencies = None,
    debug: Annotated[
        Path | None, typer.Option("--debug", metavar="FILE", help="Append every message in either direction there.")
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Let the entity run programs in the editor's terminals.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Try the protocol with a scripted model, without an editor, and end.")
    ] = False,
    max_cost_per_day: MaxCostPerDay = None,
    backend: Loop = Backend.asyncio,
) -> None:
    """Let an editor work with an entity (Agent Client Protocol).

    An editor starts this command itself. Its sessions are long-lived entities in the loom: they continue after a crash.
    """
    from cantrip_actors.acp.stdio import take_standard_streams

    messages, answers = (None, None) if check else take_standard_streams()  # before any code of the user runs
    with report_errors(json=False, loom=loom):
        from functools import partial

        import anyio

        from cantrip_actors import Runtime
        from cantrip_actors.acp.self_check import check_agent
        from cantrip_actors.acp.stdio import run_agent
        from cantrip_actors.cli.cantrip_source import load_dependencies
        from cantrip_actors.cli.offered_cantrips import load_cantrips
        from cantrip_actors.cli.sealed import seal_key

        (cantrip,) = load_cantrips(loom, [recipe])
        if messages is None or answers is None:
            steps = anyio.run(check_agent, cantrip, backend=backend.value)
            typer.echo("\n".join(steps))
            return

        async def serve() -> None:
            options: Any = {"seal_key": seal_key(), "dependencies": load_dependencies(dependencies)}
            async with Runtime.open(loom, cantrips=[cantrip], **options) as runtime:
                runtime.set_allowance(max_cost_per_day)
                await run_agent(runtime, cantrip, messages, answers, debug=debug, terminal=terminal)

        anyio.run(partial(serve), backend=backend.value)
        sys.stderr.flush()
