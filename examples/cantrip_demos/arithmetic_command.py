"""The command `cantrip arithmetic "12 * 7"`: a task of the domain `cantrip_demos.arithmetic`.

Planner, worker and critic are plain functions, or a crystal plays all of them. Either way the run is an entity with its
steps in the loom. A crystal that plays the critic may accept a wrong number, so the domain's own critic checks the
answer as well. Exit codes: 0 accepted, 1 rejected or failed, else as usual.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    FAILED,
    LOOM,
    TRUNCATED,
    Backend,
    Json,
    Loop,
    Quiet,
    Url,
    examples,
    report_errors,
    run,
    show_next_commands,
    with_thread,
)

if TYPE_CHECKING:
    from cantrip_actors import Crystal, Episode, Runtime

app = typer.Typer(rich_markup_mode=None)


@app.command(
    "arithmetic",
    epilog=examples(
        'cantrip arithmetic "12 * 7"',
        'cantrip arithmetic "-3 - -4" --json',
        'cantrip arithmetic "12 * 7" --crystal anthropic:claude-sonnet-5-5',
        'cantrip arithmetic "2 + 3" --local',
    ),
    context_settings={"ignore_unknown_options": True},  # "-3 - 4" is not an option
)
def arithmetic(
    expression: Annotated[
        str, typer.Argument(metavar="EXPRESSION", help="Two whole numbers with + - * x or × between them.")
    ],
    loom: Url = LOOM,
    crystal: Annotated[
        str | None,
        typer.Option("--crystal", metavar="NAME", help="A crystal that plays every role: anthropic:MODEL, …"),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="The model on this machine plays every role.")] = False,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="FILE", help="With --local: a GGUF file other than its own.")
    ] = None,
    attempts: Annotated[
        int, typer.Option("--attempts", min=0, help="Attempts that each call of an agent has, in all.")
    ] = 3,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Compute by planner, worker and critic.

    PLAN, WORK and CRITIC are turns of an entity. Without --crystal or --local each role is a plain function. The number
    goes to standard output. One that is rejected, or that a crystal accepted although it is wrong, does not: the exit
    code is 1 then.
    """
    with report_errors(json=as_json, loom=loom):
        from cantrip_actors.agentic import trace_of
        from cantrip_demos.arithmetic import make_agent_dispatcher, make_controller, parse

        if local and crystal is not None:
            raise typer.BadParameter("either --local or --crystal", param_hint="--local")
        if model is not None and not local:
            raise typer.BadParameter("it goes with --local", param_hint="--model")
        task = parse(expression)
        with _open_player(crystal, model, local=local) as player:

            async def work(runtime: Runtime) -> Episode:
                controller = make_controller(dispatcher=make_agent_dispatcher(player, attempts))
                return with_thread(await controller.cast(runtime, task.model_dump_json()))

            episode = run(loom, work, backend=backend, quiet=quiet or as_json)
        checked = _check(episode.result) if episode.terminated else None
        if as_json:
            output.print_json(
                {**output.episode_json(episode, loom), "checked": checked, "trace": trace_of(episode.thread)}
            )
        else:
            _show(episode, loom, checked)
        right = checked is not None and checked["decision"] == "ACCEPT"
        raise typer.Exit(TRUNCATED if checked is None else 0 if right else FAILED)


@contextlib.contextmanager
def _open_player(crystal: str | None, model: Path | None, *, local: bool) -> Iterator[Crystal | str | None]:
    """Yield the player of the roles; a server runs until the block ends."""
    if not local:
        yield crystal
        return
    from cantrip_actors.crystals import Timeouts
    from cantrip_actors.crystals import local as crystal_at
    from cantrip_demos.local import model_file, serving

    file = model_file(model)
    with serving(file) as address:
        yield crystal_at(address, file.stem, timeouts=Timeouts(first=120, between=60))


def _check(response: dict[str, Any]) -> dict[str, Any]:
    """Return the run's decision; if it is to accept, the decision of the domain's own critic."""
    from cantrip_demos.arithmetic import ArithmeticCriticInput, critique

    decision: dict[str, Any] = response["critic_decision"]
    if decision["decision"] == "REJECT":
        return decision
    critic_input = {
        "plan": response["task"],
        "worker_id": response["worker_id"],
        "worker_answer": response["worker_output"]["result"],
    }
    return critique(ArithmeticCriticInput.model_validate(critic_input)).model_dump()


def _show(episode: Episode, loom: str, checked: dict[str, Any] | None) -> None:
    if checked is None:
        output.print_note(f"truncated: {episode.summary}")
    elif checked["decision"] == "ACCEPT":
        output.print_lines([str(episode.result["worker_output"]["result"]["value"])])
    else:
        accepted = episode.result["critic_decision"]["decision"] == "ACCEPT"
        how = "wrong, although its critic accepts it" if accepted else "rejected"
        feedback, value = checked["feedback"], episode.result["worker_output"]["result"]["value"]
        output.print_note(
            f"{how}: {feedback['kind']}: {feedback['message']} ({episode.result['worker_id']} said {value})"
        )
    show_next_commands(episode, loom)
