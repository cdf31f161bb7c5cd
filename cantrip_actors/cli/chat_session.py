"""A conversation with one entity at a terminal: a line is read, its episode is shown, and so on. A line to an entity
that waits for the reply of a person is the reply.

One task reads the keyboard, in slices, so that it is free when a person has to be asked about a call
(`inline_decisions.py`); nothing is written to the screen meanwhile. What is typed during an episode is a command, or
waits for its end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from cantrip_actors import (
    Cantrip,
    CantripError,
    DecidedEvent,
    Entity,
    EntityEndedEvent,
    EntityEvent,
    Episode,
    EpisodeEndedEvent,
    File,
    Image,
    InvalidFile,
    InvalidImage,
    InvalidIntent,
    Request,
    RequestedEvent,
    Runtime,
    ThreadMessage,
    ToolCallEvent,
    ToolResultEvent,
)
from cantrip_actors.cli.decision_author import door
from cantrip_actors.cli.errors import Interrupted, opening
from cantrip_actors.cli.inline_decisions import Keyboard, attend, has_terminal, screen_size
from cantrip_actors.cli.output import as_text, one_line, print_note, render_loom_option, short
from cantrip_actors.cli.sealed import seal_key
from cantrip_actors.cli.watch import background
from cantrip_actors.own_files.login import get_login
from cantrip_actors.runtime.people.utterances import find_newest_work, find_utterance, reply, rest, talks
from cantrip_actors.stream.pieces import TextPieces
from cantrip_actors.terms.cut_off import render_cut_off

SLICE: Final = 0.1
"""Seconds for which the keyboard is read before others may read it."""
PASTE: Final = 0.03
"""Seconds in which the next line of a text that is pasted arrives."""
RECENT: Final = 6
"""Messages that are shown at the beginning."""

HELP: Final = """\
/steer TEXT   tell it something while it works, before its next step
/stop         interrupt it (so does ctrl-C)
/fork [TEXT]  continue in a copy from here; the original stays as it is
/undo         take your last message back: continue from before it
/attach PATH  send a picture or a file with your next message; without PATH, none
/cost         what this conversation has used
/history [N]  the last N messages
/help         this list
/quit         leave (so does ctrl-D); `cantrip chat NAME` continues
A line that ends with \\ continues on the next one; so do the lines between two lines of \"\"\"."""

FindEntity = Callable[[Runtime], Awaitable[tuple[Entity, Cantrip | None]]]


def run(url: str, find: FindEntity, *, backend: str) -> int:
    """Hold a conversation with the entity that `find` returns; return the exit code. Raises Interrupted and others."""
    if not has_terminal():
        raise InvalidIntent("chat: expected a terminal to talk at; programs use `cantrip send`")

    async def hold() -> int:
        async with AsyncExitStack() as stack:
            with opening():
                runtime = await stack.enter_async_context(Runtime.open(url, seal_key=seal_key()))
            entity, cantrip = await find(runtime)
            return await ChatSession(runtime, entity, cantrip, url).hold()

    before = signal.getsignal(signal.SIGINT)
    try:
        return anyio.run(hold, backend=backend)
    finally:
        signal.signal(signal.SIGINT, before)


class ChatScreen:
    """The text for the terminal; while it is paused, a person is asked something there."""

    def __init__(self) -> None:
        self._is_free = anyio.Event()
        self._is_free.set()
        self._is_at_start = True
        self.pauses = 0
        """How often it was paused: then a prompt has to be written again."""

    def pause(self) -> None:
        """Write nothing until `resume`."""
        self.begin_line()
        self.pauses += 1
        self._is_free = anyio.Event()

    def resume(self) -> None:
        """Write again."""
        self._is_free.set()

    async def wait(self) -> None:
        """Wait until it is not paused."""
        await self._is_free.wait()

    def write(self, text: str) -> None:
        """Write a text as it is."""
        sys.stdout.write(text)
        sys.stdout.flush()
        self._is_at_start = text.endswith("\n")

    def begin_line(self) -> None:
        """End the line that was begun, if any."""
        if not self._is_at_start:
            self.write("\n")

    def write_line(self, text: str) -> None:
        """Write one line, which is cut to the width of the terminal."""
        self.begin_line()
        self.write(f"{one_line(text, max(8, screen_size()[0] - 1))}\n")

    def write_text(self, text: str) -> None:
        """Write whole lines."""
        self.begin_line()
        self.write(f"{text}\n")


class ChatSession:
    """The conversation with one entity."""

    def __init__(self, runtime: Runtime, entity: Entity, cantrip: Cantrip | None, url: str) -> None:
        self._runtime = runtime
        self._entity = entity
        self._followed = {entity.id}
        """The entity and its copies, which another process may run."""
        self._cantrip = cantrip
        self._url = url
        self._by = get_login()
        self._keyboard = Keyboard()
        self._terminal = anyio.Lock()
        """Held by whoever reads the keyboard."""
        self._screen = ChatScreen()
        self._attached: list[File] = []
        """Images and files that go with the next message."""
        self._queued: deque[str] = deque()
        """Messages that were typed while the entity was at work."""
        self._is_working = False
        self._forks = False
        """Whether the next message begins a fork."""

    async def hold(self) -> int:
        """Hold the conversation until the person leaves. Raises Interrupted."""
        signalled: list[int] = []
        async with background() as tasks:
            await tasks.start(self._listen, tasks, signalled)
            await tasks.start(self._attend)
            await self._greet()
            while (message := await self._read_message()) is not None:
                if message.strip() in ("/quit", "/exit"):
                    return 0
                if message.startswith("/") and "\n" not in message:
                    with self._show_errors():
                        await self._obey(message)
                elif message.strip():
                    await self._say(message)
            self._screen.begin_line()
            return 0
        raise Interrupted(signalled[0])

    async def _listen(
        self,
        tasks: anyio.abc.TaskGroup,
        signalled: list[int],
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """End the episode under way at ctrl-C; leave at another one, and at other signals."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if signalled:
                    os._exit(128 + number)
                if number == signal.SIGINT and self._is_working:
                    tasks.start_soon(self._interrupt)  # it waits for the episode's end, and another signal does not
                    continue
                signalled.append(number)
                tasks.cancel_scope.cancel()

    async def _interrupt(self) -> None:
        with self._show_errors():
            await self._entity.interrupt("interrupted at the chat", by=self._by, now=True)

    @contextmanager
    def _show_errors(self) -> Iterator[None]:
        """Show an error of the block, which ends nothing else."""
        try:
            yield
        except CantripError as error:
            self._screen.begin_line()
            print_note(f"error: {error}")

    async def _attend(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await attend(
            self._runtime,
            self._screen,
            self._terminal,
            self._url,
            followed=self._followed,
            keyboard=self._keyboard,
            replies_itself=lambda request: request.is_utterance and request.entity == self._entity.id,
            task_status=task_status,
        )

    async def _greet(self) -> None:
        who = self._entity.name or short(self._entity.id)
        self._screen.write_line(f"{who} · /help lists the commands")
        await self._show_history(RECENT)
        loom = self._runtime.loom
        if await self._runtime.read(lambda: loom.state(self._entity.id)) in ("active", "waiting"):
            if not await self._waits_for_reply():
                self._screen.write_line("it finishes its last intent first")
            await self._follow(self._entity.events(after="0", deltas=True), self._entity.episode, is_quiet=True)

    # Reading

    async def _read_message(self) -> str | None:
        """Return the next message, which may have several lines; None at the end of the input."""
        if self._queued:
            message = self._queued.popleft()
            self._screen.write_line(f"> {message}")
            return message
        line = await self._read_line("> ")
        if line is None:
            return None
        if line.strip() == '"""':
            lines: list[str] = []
            while (line := await self._read_line("| ")) is not None and line.strip() != '"""':
                lines.append(line)
            return "\n".join(lines)
        while line.endswith("\\"):
            following = await self._read_line("| ")
            line = f"{line[:-1]}\n{following or ''}"
        async with self._terminal:
            while pasted := await self._keyboard.line(PASTE):
                line = f"{line}\n{pasted.rstrip(chr(10))}"
        return line

    async def _read_line(self, prompt: str) -> str | None:
        """Return a line; None at the end of the input. Others may read the keyboard in between."""
        self._screen.write(prompt)
        pauses = self._screen.pauses
        while True:
            async with self._terminal:
                line = await self._keyboard.line(SLICE)
            if line is not None:
                self._screen.write("")
                return line.rstrip("\n") if line else None
            if pauses != self._screen.pauses:
                pauses = self._screen.pauses
                self._screen.write(prompt)

    async def _read_meanwhile(self) -> None:
        """Obey what is typed while the entity works: it is steered or interrupted, and other messages wait."""
        while True:
            async with self._terminal:
                line = await self._keyboard.line(SLICE)
            if line == "":
                return
            text = (line or "").strip()
            command, _, rest = text.partition(" ")
            if command == "/steer" and rest:
                await self._steer(rest, "its next step")
            elif command == "/stop":
                await self._interrupt()
            elif text:
                self._queued.append(text)
                self._screen.write_line("· this waits for its answer; /steer TEXT reaches it now, /stop ends it")

    # Commands

    async def _obey(self, message: str) -> None:
        command, _, rest = message.strip().partition(" ")
        rest = rest.strip()
        match command:
            case "/help":
                self._screen.write_text(HELP)
            case "/history":
                await self._show_history(int(rest) if rest.isdecimal() else 20)
            case "/cost":
                await self._show_cost()
            case "/steer" if rest:
                await self._steer(rest, "your next message")
            case "/stop":
                await self._stop_waiting()
            case "/attach":
                await self._attach(rest)
            case "/undo":
                await self._undo()
            case "/fork":
                self._forks = True
                if rest:
                    await self._say(rest)
                else:
                    self._screen.write_line("· your next message begins a copy that continues from here")
            case _:
                self._screen.write_line(f"· {command} is no command here: /help lists them")

    async def _steer(self, text: str, before: str) -> None:
        with self._show_errors():
            await self._entity.steer(text, by=self._by)
            self._screen.write_line(f"· it reads this before {before}")

    async def _show_history(self, count: int) -> None:
        for message in (await self._entity.messages())[-count:] if count else ():
            self._show_message(message)

    def _show_message(self, message: ThreadMessage) -> None:
        if message.role == "user":
            sign = "/steer " if message.is_steering else ""
            text = " ".join([f"{sign}{message.content}", *(attached.label for attached in message.images)])
            self._screen.write_text("\n".join(f"> {line}" for line in text.split("\n")))
        elif message.role == "tool" and message.gate != "done":
            self._screen.write_line(f"· {message.gate}: {message.content}")
        elif message.content:
            self._screen.write_text(message.content)

    async def _show_cost(self) -> None:
        loom = self._runtime.loom
        usage = await self._runtime.read(lambda: loom.subtree_usage(self._entity.id))
        cost = f", ${usage.cost:,.4f}" if usage.cost else ""
        self._screen.write_line(f"· {usage.prompt_tokens:,} tokens in, {usage.completion_tokens:,} out{cost}")

    async def _waits_for_reply(self) -> bool:
        find = partial(find_utterance, self._runtime, self._entity.id, with_children=False)
        return await self._runtime.read(find) is not None

    async def _stop_waiting(self) -> None:
        if await self._waits_for_reply():
            await self._interrupt()
            self._screen.write_line("· it waits for your reply no longer")
        else:
            self._screen.write_line("· it is idle")

    async def _undo(self) -> None:
        if await self._waits_for_reply():
            self._screen.write_line(
                "· a reply is not taken back: /fork continues in a copy, /stop ends the conversation"
            )
            return
        heard = [message for message in await self._entity.messages() if message.role == "user"]
        if await self._entity.undo(by=self._by):
            self._screen.write_line(f"· taken back: {heard[-1].content}")
        else:
            self._screen.write_line("· there is nothing to take back")

    # Episodes

    async def _attach(self, path: str) -> None:
        """Have the next message take a file with it; without a path, take none."""
        if not path:
            self._attached.clear()
            self._screen.write_line("· no file is sent with your next message")
            return
        try:
            attached = await anyio.to_thread.run_sync(partial(_read_attachment, path))
        except InvalidFile as error:
            self._screen.write_line(f"· {error}")
            return
        self._attached.append(attached)
        self._screen.write_line(f"· sent with your next message: {attached.label}")

    async def _say(self, text: str) -> None:
        """Give the entity a message, or a fork of it, and show the episode. An error is shown, and ends only that.

        If the entity waits for a reply, the message is the reply.
        """
        message: Any = [text, *self._attached] if self._attached else text
        self._attached.clear()
        with self._show_errors():
            if self._forks:
                await self._fork(message)
                return
            runtime, entity = self._runtime, self._entity
            if await runtime.read(partial(talks, runtime, entity.id)):
                replied = await reply(runtime, entity.id, message, by=self._by, door=door(), with_children=False)
                if replied is None:
                    work = await entity.post(message, by=self._by)
                else:
                    work = await runtime.read(partial(find_newest_work, runtime, entity))
                await self._follow(work.events(deltas=True), work.result, replied=replied)
                return
            async with self._entity.stream(message, by=self._by) as episode:
                await self._follow(episode.events(), episode.result)

    async def _fork(self, message: Any) -> None:
        """Continue with a long-lived fork from the last turn that is not taken back; without one, begin anew."""
        runtime = self._runtime
        turn_ids = [seen.turn_id for seen in await self._entity.messages() if seen.turn_id is not None]
        turn_id = turn_ids[-1] if turn_ids else None
        if turn_id is not None:
            entity = await runtime.start_fork(turn_id, intent=message, cantrip=self._cantrip, lasting=True, by=self._by)
        elif self._cantrip is not None:
            entity = await runtime.invoke(self._cantrip, message, by=self._by)
        else:
            raise InvalidIntent("chat: another process runs this entity, and its recipe is not known here")
        self._entity, self._forks = entity, False
        self._followed.add(entity.id)
        loom = render_loom_option(self._url)
        self._screen.write_line(f"· from here on a copy: cantrip chat {short(entity.id)}{loom} continues it")
        await self._follow(entity.events(after="0", deltas=True), entity.episode)

    async def _follow(
        self,
        events: AsyncIterator[EntityEvent],
        wait: Callable[[], Awaitable[Episode]],
        *,
        is_quiet: bool = False,
        replied: str | None = None,
    ) -> None:
        """Show the events of an episode, to its end or to an utterance that waits for a reply, and its answer.

        With `is_quiet` only the answer. With `replied`, the id of a request, only what came after its reply.
        """
        pieces = TextPieces()
        self._is_working = True
        try:
            async with background(self._read_meanwhile):
                if not is_quiet:
                    async for event in events:
                        if replied is not None:
                            if isinstance(event, DecidedEvent) and event.request_id == replied:
                                replied = None
                            continue
                        await self._screen.wait()
                        self._show(event, pieces)
                        is_utterance = isinstance(event, RequestedEvent) and event.is_utterance
                        if is_utterance or isinstance(event, EpisodeEndedEvent | EntityEndedEvent):
                            break
                episode = await rest(self._runtime, self._entity.id, wait, with_children=False)
        finally:
            self._is_working = False
        await self._screen.wait()
        if isinstance(episode, Request):
            if episode.text != pieces.turn:
                self._screen.write_text(episode.text)
        elif not episode.terminated:
            self._screen.write_line(f"· {episode.reason}: {episode.summary}")
        elif (answer := as_text(episode.result)) != pieces.turn:
            self._screen.write_text(answer)
        if isinstance(episode, Episode) and episode.cut_off is not None:
            self._screen.begin_line()
            self._screen.write_line(f"· {render_cut_off(episode.cut_off)}")
        self._screen.begin_line()

    def _show(self, event: EntityEvent, pieces: TextPieces) -> None:
        piece = pieces.add(event)
        if piece:
            self._screen.write(piece)
        match event:
            case ToolCallEvent(gate=gate) if gate != "done":
                self._screen.write_line(f"· {gate} {_render_arguments(event.args)}")
            case ToolResultEvent(is_error=True):
                self._screen.write_line(f"· {event.gate} failed: {as_text(event.result)}")
            case _:
                pass


def _read_attachment(path: str) -> File:
    """Return the image or the file at a path, as a person writes it. Raises InvalidFile."""
    place = Path(path.strip("'\"")).expanduser()
    try:
        return Image.read(place)
    except InvalidImage:
        return File.read(place)


def _render_arguments(arguments: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in (arguments or {}).items())
