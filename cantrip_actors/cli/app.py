"""The command `cantrip`: its commands, and the options that apply to all of them.

`main.py` starts and ends the process, `command.py` has what commands share. `cantrip --help` and a mistyped command
answer at once: the module of a command is imported when the command runs, prints its help, or completes its arguments.
Modules that take time to import are imported inside the command that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from cantrip_actors.cli.logs import LogFormat, LogLevel, logs

CODES = (
    "Exit codes: 0 terminated, 3 truncated by a ward, 1 failed, 2 a mistake in the command or recipe, 130 interrupted."
)

COMMANDS = {
    "cast": ("cast", "Cast a recipe on an intent, and print the answer."),
    "arithmetic": (
        "cantrip_demos.arithmetic_command",
        "Compute, by planner, worker and critic: PLAN, WORK, CRITIC, as turns of an entity.",
    ),
    "demo": (
        "cantrip_demos.demo_command",
        (
            "See it work, without a key: entities, children, gates and loom are real, only what the crystal says is "
            "scripted."
        ),
    ),
    "invoke": ("entities", "Make a long-lived entity: it takes further intents with `cantrip send`, and remembers."),
    "send": ("entities", "Give a long-lived entity a further intent, and print the answer."),
    "post": (
        "entities",
        "Give a long-lived entity a further intent, print the receipt, and do not wait for the answer.",
    ),
    "submit": ("entities", "Have some node cast a cantrip, and do not wait for the answer."),
    "stop": ("entities", "End an entity for good, wherever it runs."),
    "abandon": ("entities", "End an interrupted entity, and what it spawned, for good."),
    "entities": ("entities", "List the long-lived entities: their names, their states, and their last answers."),
    "resume": (
        "entities",
        "Resume entities that a crash interrupted, each from where it stood, and print their answers.",
    ),
    "requests": ("requests", "List the requests that wait for a person: calls to approve, and questions."),
    "allow": ("requests", "Allow a call that waits for a person."),
    "deny": (
        "requests",
        "Deny a call that waits for a person, or leave a question unanswered; the entity reads the note.",
    ),
    "answer": ("requests", "Answer a question of an entity."),
    "crashes": ("crashes", "List crash reports, the newest first; with an ID, print one whole."),
    "system": (
        "system",
        "Print the supervision tree of a service: each actor with its state, mailbox, restarts and last exit.",
    ),
    "loom": ("loom", "Look at a loom: every turn of every entity, as it was recorded."),
    "dispatch": ("dispatch", "Dispatch work under a frozen contract, and look at what became of it."),
    "schedule": ("schedules", "Give work to entities at times: once, again and again, or by a cron line."),
    "crystals": ("crystals", "Crystals: prove them against their providers."),
    "serve": (
        "serve",
        "Serve entities over HTTP: an API of our own, server-sent events, OpenAI's API, and a page to chat on.",
    ),
    "top": ("top", "Show what entities do now: running, waiting for people, turns, tokens, cost, restarts."),
    "acp": ("acp", "Let an editor work with an entity, over the Agent Client Protocol on standard input and output."),
    "mcp": ("mcp", "Offer cantrips as tools to any program that speaks the Model Context Protocol."),
    "worker": ("cluster", "Run entities of these cantrips as a node of the loom, until SIGTERM or ctrl-C."),
    "up": ("cluster", "Run several workers on this machine, for trying out, until ctrl-C, which drains them."),
    "cluster": ("cluster", "Look at the nodes of a loom, drain one, choose a release."),
}
"""The commands in the order of the help: the module whose `app` has the command (of this package, if it has
no dot), and the first sentence of its help."""


def commands_of(module: str) -> dict[str, Any]:
    """Import a module of commands, and return its commands and groups by name."""
    holder = typer.Typer(rich_markup_mode=None)
    holder.add_typer(import_module(module if "." in module else f"cantrip_actors.cli.{module}").app)
    return dict(get_group(holder).commands)


class _Commands(TyperGroup):
    """A group that lists its commands from `COMMANDS`, and imports the one that the arguments name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and its arguments."""  # newer typers bring their own click: no common type
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else commands_of(COMMANDS[name][0])[name], rest


app = typer.Typer(
    name="cantrip",
    cls=_Commands,
    help="Language-model agents as supervised actors: cast them, watch them, look at what they did.\n\n"
    "\b\nExamples:\n"
    "  cantrip demo                                   see it work, without a key\n"
    '  cantrip cast vowels.yaml "count the vowels"    cast a recipe on an intent\n'
    "  cantrip loom tree                              what happened, as a tree\n\n" + CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    log_level: Annotated[
        LogLevel | None, typer.Option("--log-level", help="Log lines from this level on; left out: info.")
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", help="Log lines for people, or as JSON; to standard error.")
    ] = None,
) -> None:
    """Set the options that apply to every command."""
    logs.level, logs.form = log_level, log_format
