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

from cantrip_actors.cli.extensions import find_command, load_command
from cantrip_actors.cli.logs import LogFormat, LogLevel, logs

CODES = "Exit codes: 0 done, 3 truncated by a ward, 1 failed, 2 a mistake in the command or recipe, 130 interrupted."

SECTIONS = {
    "Try it": {
        "demo": ("cantrip_demos.demo_command", "Show agents at work, without a key."),
        "arithmetic": ("cantrip_demos.arithmetic_command", "Compute by planner, worker and critic."),
    },
    "Run entities": {
        "chat": ("chat", "Talk to a long-lived entity at a terminal."),
        "cast": ("entities", "Cast a recipe on an intent, and print the answer."),
        "invoke": ("entities", "Make a long-lived entity, which takes further intents."),
        "ensure": ("entities", "Make a long-lived entity without an intent, unless it exists."),
        "send": ("entities", "Send a long-lived entity an intent, and print the answer."),
        "post": ("entities", "Post an intent, and print its receipt without waiting."),
        "withdraw": ("entities", "Take back an intent or a submission that still waits."),
        "submit": ("entities", "Have some node cast a cantrip, and do not wait for the answer."),
        "undo": ("entities", "Take a long-lived entity back to before its last intent."),
        "compact": ("entities", "Fold older turns out of an entity's context now."),
        "steer": ("control", "Insert a message before an entity's next query."),
        "interrupt": ("control", "End an entity's present episode before its next turn."),
        "fork": ("control", "Continue from a turn with a new entity, and print the answer."),
        "stop": ("entities", "End an entity for good, wherever it runs."),
        "abandon": ("entities", "End an interrupted entity and its children for good."),
        "entities": ("entities", "List the long-lived entities, their states and last answers."),
        "resume": ("entities", "Resume entities that a crash interrupted."),
        "schedule": ("schedules", "Give entities work at times: once, repeatedly, or by cron."),
        "eval": ("evals", "Cast a cantrip on many cases, score the answers, and report."),
        "dispatch": ("cantrip_actors.dispatch.commands", "Dispatch work under a frozen contract, and follow it."),
    },
    "Decide for people": {
        "requests": ("requests", "List the calls and questions that wait for an answer."),
        "allow": ("requests", "Allow a call that waits for a person."),
        "deny": ("requests", "Deny a call, or leave a question unanswered."),
        "answer": ("requests", "Answer a question of an entity."),
        "deliver": ("requests", "Deliver the result of a deferred call."),
    },
    "Watch and read": {
        "top": ("top", "Show what entities do now, and keep the screen up to date."),
        "events": ("events", "Print the recorded events of all entities as lines of JSON."),
        "loom": ("loom", "Look at a loom: every turn of every entity."),
        "system": ("system", "Print the supervision tree of a service."),
        "crashes": ("crashes", "List crash reports, or print one."),
        "crystals": ("crystals", "Check crystals against their providers."),
    },
    "Serve": {
        "serve": ("serve", "Serve entities over HTTP, with a live page and OpenAI's API."),
        "acp": ("acp", "Let an editor work with an entity (Agent Client Protocol)."),
        "mcp": ("mcp", "Offer cantrips as tools (Model Context Protocol)."),
        "worker": ("cluster", "Run entities of these cantrips as a node of the loom."),
        "up": ("cluster", "Run several workers on this machine, to try a cluster."),
        "cluster": ("cluster", "Look at the nodes of a loom, drain one, choose a release."),
    },
}
"""The sections of the help, each with its commands: the module whose `app` has the command (of this package, if it
has no dot), and the first sentence of the command's help."""

COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}


def commands_of(module: str) -> dict[str, Any]:
    """Import a module of commands, and return its commands and groups by name."""
    return _list_commands(import_module(module if "." in module else f"cantrip_actors.cli.{module}").app)


def _list_commands(commands: typer.Typer) -> dict[str, Any]:
    holder = typer.Typer(rich_markup_mode=None)
    holder.add_typer(commands)
    return dict(get_group(holder).commands)


class _Commands(TyperGroup):
    """A group that lists its commands by section, and imports the one that the arguments name.

    Installed packages may add commands, which the help does not list: looking for them takes longer than all the rest.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, also of an installed package."""
        command = super().get_command(ctx, cmd_name)
        return _load_added(cmd_name) if command is None else command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (the name is typer's)
        """Write the sections with their commands and the first sentence of each one's help."""
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and its arguments."""  # newer typers bring their own click: no common type
        name, command, rest = super().resolve_command(ctx, args)
        return name, commands_of(COMMANDS[name][0])[name] if name in COMMANDS else command, rest


def _load_added(name: str) -> Any:
    """Return the command that an installed package adds; None if there is none of this name."""
    entry = find_command(name)
    if entry is None:
        return None
    from cantrip_actors import InvalidCantrip

    try:
        commands = _list_commands(load_command(entry))
    except InvalidCantrip as error:
        raise typer.BadParameter(str(error), param_hint=name) from error
    if name not in commands:
        raise typer.BadParameter(f"{entry.value} has no command of this name", param_hint=name)
    return commands[name]


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


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"cantrip {version('cantrip-actors')}")
        raise typer.Exit


@app.callback()
def options(
    log_level: Annotated[
        LogLevel | None, typer.Option("--log-level", help="Log lines from this level on; left out: info.")
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", help="Log lines for people, or as JSON; to standard error.")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Set the options that apply to every command."""
    logs.level, logs.form = log_level, log_format
