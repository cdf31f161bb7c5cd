"""`Runtime`, the public interface: it casts cantrips and looks up entities.

The supervision tree and its cells are in `tree.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, get_args, overload, runtime_checkable

from cantrip_actors.crystal import Query
from cantrip_actors.crystal.policy.traffic import CrystalStatus
from cantrip_actors.loom import (
    Duration,
    Forgotten,
    Held,
    Loom,
    Pruned,
    Quarantined,
    SealKey,
    State,
    Wanted,
    parse_retention,
)
from cantrip_actors.loom.export.thread_messages import read_messages
from cantrip_actors.loom.opening import check_url
from cantrip_actors.loom.reading.redaction import redacted_loom
from cantrip_actors.loom.stores.facts import EntityFacts
from cantrip_actors.loom.stores.lease import QUARANTINE_FOR
from cantrip_actors.loom.stores.selection import ListedEntity, ListedKind, Page, Selection, format_since
from cantrip_actors.records.records import Header, OnClose
from cantrip_actors.records.tenant import check_tenant, scope_name
from cantrip_actors.records.timers import CatchUp, Overlap, Target
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.redact.redactor import Redactor, Secrets
from cantrip_actors.runtime.circles.tool_servers import HeldServer
from cantrip_actors.runtime.entity.beginnings import Beginning, Beginnings, check_cantrip
from cantrip_actors.runtime.entity.cells import NEVER_BEGAN
from cantrip_actors.runtime.entity.model_inputs import find_model_input
from cantrip_actors.runtime.entity.upgrades import Move, Upgrade
from cantrip_actors.runtime.events.context_variables import find_asker
from cantrip_actors.runtime.events.events import Subscription
from cantrip_actors.runtime.events.instrument import Instrument
from cantrip_actors.runtime.events.loom_feed import LoomFeed
from cantrip_actors.runtime.face.batch import cast_all
from cantrip_actors.runtime.face.entity import Entity
from cantrip_actors.runtime.face.episode import Episode
from cantrip_actors.runtime.face.owner import Owner
from cantrip_actors.runtime.face.run import BEGINNING, EpisodeRun, FollowedEpisode, RunPosition, read_event_id
from cantrip_actors.runtime.face.system import System, read_system
from cantrip_actors.runtime.face.work import Work
from cantrip_actors.runtime.loom.allowances import AllowancePeriod
from cantrip_actors.runtime.loom.core import Limits
from cantrip_actors.runtime.loom.guard import Guard
from cantrip_actors.runtime.loom.outage_log import is_outage
from cantrip_actors.runtime.nodes.cluster import Cluster
from cantrip_actors.runtime.nodes.membership import Node
from cantrip_actors.runtime.nodes.node import serve
from cantrip_actors.runtime.people.request import Request
from cantrip_actors.runtime.people.requests import Remember, RequestFeed, RequestSource
from cantrip_actors.runtime.time.schedules import Schedule, add_schedule, list_schedules
from cantrip_actors.runtime.time.submissions import SUBMITTED, Submission, find_submission, list_submissions, submit
from cantrip_actors.runtime.tree import Tree
from cantrip_actors.stream.events import EntityEvent
from cantrip_actors.terms.answer import Answer_co
from cantrip_actors.terms.arguments import (
    check,
    check_choice,
    check_count,
    check_kind,
    check_name,
    check_seconds,
    check_texts,
    is_finite,
)
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.crystal import Crystal, check_crystal
from cantrip_actors.terms.episode_scope import Provide
from cantrip_actors.terms.errors import (
    CantripError,
    EntityEnded,
    InvalidCantrip,
    InvalidDecision,
    InvalidIntent,
    LoomError,
    RuntimeClosed,
    UnknownEntity,
)
from cantrip_actors.terms.history import History
from cantrip_actors.terms.image import Said
from cantrip_actors.terms.messages import Response, ThreadMessage
from cantrip_actors.terms.model_input import ModelInput
from cantrip_actors.terms.queue import Queue
from cantrip_actors.terms.retry import Retry
from cantrip_actors.terms.tool_server import ToolServer
from cantrip_actors.terms.webhook import Webhook
from cantrip_actors.terms.wrapper import Unattended
from supervisors import WrongTask, inspect
from supervisors.events import Event
from supervisors.interrupts import close_guard, open_guard

if TYPE_CHECKING:
    from cantrip_actors.loom.integrity.verify import Verified
    from cantrip_actors.runtime.face.blocking import BlockingRuntime

__all__ = ["Recover", "Redact", "Runtime", "System"]

Recover = Literal["list", "resume", "abandon"]
Redact = Literal["exports", "at_rest"]

T = TypeVar("T")
Named = TypeVar("Named", Queue, Webhook)

DAY = 86_400.0

SHORTEST_KEY = 16
"""The least number of bytes of a snapshot key."""

_log = get_logger("cantrip_actors.runtime")


@runtime_checkable
class HasId(Protocol):
    """A handle of an entity: an `Entity`, or a `BlockingEntity`."""

    @property
    def id(self) -> str:
        """The entity's id."""


class Runtime:
    """Casts cantrips, and runs their entities on one loom. `async with Runtime.open("jsonl:loom.jsonl") as runtime:
    await runtime.cast(…)`.

    It runs inside any anyio, asyncio or trio program, any number of them in one process, each with its own tree.
    Everything that it started has ended when the `async with` is left.
    """

    def __init__(self, tree: Tree, recover: Recover) -> None:
        self._tree = tree
        self._beginnings = Beginnings(tree)
        self._recover = recover
        self._owner: Owner | None = None
        self._tenant: str | None = None
        self._not_resumed: dict[str, str] = {}

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str] = "memory:",
        *,
        cantrips: Iterable[Cantrip] = (),
        dependencies: Provide | None = None,
        upgrade: Upgrade = "idle",
        recover: Recover = "list",
        passivate_after: float = 300.0,
        secrets: Secrets | Redactor = (),
        redact: Redact = "exports",
        snapshot_key: bytes | None = None,
        max_waiting: int = 1000,
        max_submitted: int = 100_000,
        keep_keys: float = 7 * DAY,
        unattended: Unattended = "wait",
        retention: Mapping[str, Duration | None] | None = None,
        repair: bool = False,
        create: bool = False,
        seal_key: SealKey | None = None,
        telemetry: Instrument | None = None,
        node: Node | None = None,
        stranded_after: float = 60.0,
        queues: Iterable[Queue] = (),
        webhooks: Iterable[Webhook] = (),
        quarantine_for: float | None = QUARANTINE_FOR,
        on_close: OnClose = "end",
    ) -> Runtime:
        """Return a runtime on the loom at `url` (`memory:`, `jsonl:path`, …); enter it with `async with`.

        If one task opens it and another closes it (notebook cells, fixtures of a module), use `runtime = await
        Runtime.open(…)` and `await runtime.aclose()`: the runtime then runs in a task of its own.

        A loom may hold runs that a crash interrupted. `recover` is the treatment of these runs: "list" leaves them to
        `interrupted()`, `resume` and `abandon`; "resume" continues those whose cantrip is among `cantrips`;
        "abandon" ends them. A long-lived entity is loaded when a message is sent to it, and unloaded after
        `passivate_after` seconds without an intent; on a node, after those of its `Node`.

        With `cantrips` the entities of earlier processes continue. A long-lived entity whose cantrip has the name of
        one of them but other content moves to it with its next intent, which the loom records. `upgrade` says
        which entities do: "idle", all of them, as soon as no episode is under way; "never", none; or a function that is
        given a `Move` and returns whether the entity moves. It is called often, so it must be quick. An episode under
        way and a one-shot entity keep their cantrip. If no cantrip here fits, the entity's mail waits, and a send
        raises CantripUnknown. `would_adopt` lists the moves.

        `dependencies` is a function, sync or async, that returns the dependencies of an entity's gates by their names,
        for an `EpisodeScope`: `lambda episode: {"user": episode.sender}`. It is called for each episode, in the process
        that runs it, after a crash and a takeover, too, and for episodes of one `scope` once while the entity is
        loaded. Its result replaces the dependencies in the circle. A name that no gate takes is ignored. It may raise
        `Unavailable`. Without it, an entity whose dependencies no cantrip here has waits, and its callers get
        DependenciesUnknown (docs/service.md).

        `secrets` (texts, or names with texts), the keys of crystals, and gate dependencies with names such as `token`
        are redacted in every event, stream, error and log line, and so are texts that look like a common kind of key. A
        `Redactor` as `secrets` has other patterns. The loom stores the original texts, unless `redact` is "at_rest":
        then no secret is in the loom, and a resumed entity sees the redacted texts.

        Snapshots of the sandboxes of code circles are stored in the loom from time to time, sealed with a key. SQLite
        has it in the file `<loom>.key`, made when it is first needed; that of a JSONL loom ends with the runtime.
        `snapshot_key`, at least 16 secret bytes, replaces that key: for a JSONL loom, for a loom in Postgres, which has
        no key, and for a loom that moves from machine to machine. If a snapshot cannot be trusted or used, programs are
        run again; with `redact="at_rest"` no snapshots are stored.

        At most `max_waiting` intents wait in the inbox of an entity, and as many control messages; further senders get
        InboxFull. `submit` raises QueueFull if `max_submitted` submissions of its priority or a higher one wait. The
        key of a mail is kept for `keep_keys` seconds after the mail was settled (an intent: after its episode ended).
        Until then, a repeated send or post with that key finds the first mail.

        Requests to people (`ask_first`, `question`) wait for a decision however long it takes. With `unattended="deny"`
        they are denied at once while no program in this process follows `requests(follow=True)`.

        `retention` says how long the content of ended entities is kept, by kind: `{"one-shot": "90d", "long-lived":
        None}`. None, the default for both, keeps it for good. Older content is forgotten in the background.

        The file of a loom is made if it is missing. Its folder must exist, so that a mistyped path makes no empty loom;
        with `create` missing folders are made, too.

        A damaged file is refused for writing. With `repair` it is copied, and written anew without the damaged records.

        `seal_key` seals a new loom: at least 16 secret bytes or a text of them, or the `pathlib.Path` of a file of mode
        0600 that holds them. `verify` then detects every forged record, removed end and swapped tree, unless its author
        has the key (docs/loom.md). A sealed loom opens only with its key. A loom that already has records is not
        sealed: copy it to a new one.

        `telemetry` is an `observe.Telemetry`: it traces the entities with OpenTelemetry and counts their turns, calls
        and tokens.

        With `node` the runtime joins the other nodes of the loom, in Postgres or, on one machine, in SQLite. A node
        resumes entities whose nodes died, and loads those for which mail waits, if it serves their cantrips and has
        room (docs/cluster.md). It needs a `snapshot_key` in Postgres if one of its `cantrips` has a code circle.
        A caller that waits for an entity that no living process can run gets Stranded after `stranded_after` seconds.

        `queues` are the queues that `submit` may name. Their bounds are stored in the loom and hold for all of its
        processes, until a runtime is opened with other bounds (docs/cluster.md). A loom in memory or in a JSONL file
        stores no bounds: give its queues each time.

        `webhooks` are addresses that get signed messages about requests to people and about ends, such as
        `Webhook("https://example.org/hook", secret)` (docs/webhooks.md). One process of the loom sends for each.

        Work that is under way when the runtime closes is left as it is if a caller can ask for it again: long-lived
        entities, and work that was begun with a key, submitted or scheduled. The next process finds it interrupted, and
        treats it as `recover` says. Other one-shot entities end, `cancelled`; with `on_close="keep"` they stay, too.

        An entity that crashes again and again is quarantined: its mail waits. It is tried again after `quarantine_for`
        seconds, then after twice as long, and so on up to a day; with None only `resume` continues it.

        Raises ValueError or InvalidCantrip for an invalid option or two cantrips of one name, LoomError for a URL
        that cannot be that of a loom and a key that is too short. Entering raises LoomError if the loom cannot be
        opened, DamagedLoom if it is damaged, and WrongSealKey if `seal_key` is missing, wrong, or given for a loom that
        is not sealed.
        """
        if snapshot_key is not None and not (isinstance(snapshot_key, bytes) and len(snapshot_key) >= SHORTEST_KEY):
            raise LoomError(
                f"snapshot_key: expected at least {SHORTEST_KEY} secret bytes, for example secrets.token_bytes(32)"
            )
        check_choice("recover", recover, get_args(Recover))
        check_choice("redact", redact, get_args(Redact))
        check_choice("unattended", unattended, get_args(Unattended))
        check_choice("on_close", on_close, get_args(OnClose))
        check_seconds("passivate_after", passivate_after)
        check_seconds("keep_keys", keep_keys)
        check_seconds("stranded_after", stranded_after, above_zero=True)
        if quarantine_for is not None:
            check_seconds("quarantine_for", quarantine_for, above_zero=True)
        check_count("max_waiting", max_waiting, "mails")
        check_count("max_submitted", max_submitted, "casts")
        check_kind("repair", repair, bool, "True or False")
        check_kind("create", create, bool, "True or False")
        check_kind("telemetry", telemetry, Instrument | None, "an observe.Telemetry")
        check_kind("node", node, Node | None, "Node(…)")
        check_kind(
            "seal_key", seal_key, bytes | str | os.PathLike | None, "secret bytes, a text of them, or a pathlib.Path"
        )
        expected = "the URL of a loom, as in sqlite:loom.db, or a path"
        check(isinstance(url, (str, os.PathLike)), "url", expected, url, LoomError)
        check(
            dependencies is None or callable(dependencies),
            "dependencies",
            "a function of an EpisodeScope",
            dependencies,
        )
        check_url(os.fspath(url))
        check_kind("cantrips", cantrips, Iterable, "a list of cantrips", InvalidCantrip)
        offered = [check_cantrip("cantrips", cantrip) for cantrip in cantrips]
        guard = Guard(secrets, at_rest=redact == "at_rest")
        kept_for = parse_retention(retention)
        limits = Limits(
            passivate_after,
            max_waiting,
            keep_keys,
            unattended,
            kept_for,
            stranded_after,
            max_submitted,
            quarantine_for,
            on_close,
        )
        tree = Tree(
            os.fspath(url),
            offered,
            limits,
            guard,
            snapshot_key,
            upgrade,
            repair=repair,
            create=create,
            seal_key=seal_key,
            instrument=telemetry,
            node=node,
            queues=_check_named("queues", queues, Queue),
            webhooks=_check_named("webhooks", webhooks, Webhook),
            dependencies=dependencies,
            make_casts=Beginnings,
        )
        return cls(tree, recover)

    @staticmethod
    def blocking(
        url: str | os.PathLike[str] = "memory:", *, backend: str = "asyncio", **options: Any
    ) -> BlockingRuntime:
        """Open a blocking version, for any thread: `with Runtime.blocking(…) as runtime: runtime.cast(…)`.

        Without `with`: `runtime = Runtime.blocking(…)`, and `runtime.close()` at the end.
        """
        from cantrip_actors.runtime.face.blocking import BlockingRuntime

        return BlockingRuntime.open(url, backend=backend, **options)

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open_owned().__await__()

    async def _open_owned(self) -> Self:
        owner = Owner(self)
        await owner.open()
        self._owner = owner
        return self

    async def aclose(self) -> None:
        """Close a runtime that was opened with `await`, from any task of its event loop; at once if it is closed.

        A gate that closes its own runtime is cancelled, as its entity is.

        Raises RuntimeClosed for one that was entered with `async with`: it closes where that block ends.
        """
        self._check_not_tenant("closing")
        if self._owner is not None:
            await self._owner.close(from_within=find_asker() is not None)
        elif self._tree.is_open:
            raise RuntimeClosed("aclose: this runtime was entered with `async with`: it closes where that block ends")

    def tenant(self, name: str) -> Runtime:
        """Return this runtime as a tenant sees it: the same methods, and the entities of that tenant only.

        Its casts, invocations and schedules belong to the tenant, and so do children and forks. Names, keys and ids of
        schedules are the tenant's own. No id, name, key, search, event or request reaches the data of another tenant:
        such data counts as not in this loom. The runtime itself sees all entities; its own names and keys are those of
        the tenant "".

        The tenant's runtime is open as long as this runtime is. Only this runtime can be closed, drained and backed up.
        Raises ValueError unless the name has 1 to 200 characters and no control characters.
        """
        view = copy(self)
        view._tenant = check_tenant(name)  # noqa: SLF001  # a copy of this one
        return view

    def _check_not_tenant(self, what: str) -> None:
        if self._tenant is not None:
            raise LoomError(f"{what} is about the whole loom, and not about a tenant: call it on the runtime itself")

    def _find_id(self, entity: HasId | str) -> str:
        """Return the id of an entity that is given by a handle, a name or an id. Raises LoomError."""
        entity_id = entity.id if isinstance(entity, HasId) else self.loom.named(entity) or entity
        self._check_here(entity_id)
        return entity_id

    def _check_here(self, entity_id: str) -> None:
        check_texts(LoomError, entity=entity_id)
        if not self._tree.belongs_to_tenant(entity_id, self._tenant):
            raise UnknownEntity(entity_id)

    async def __aenter__(self) -> Self:
        self._check_not_tenant("entering")
        open_guard()
        try:
            await self._tree.open()
            try:
                await self._recover_interrupted()
            except BaseException as error:
                await self._tree.close(type(error), error, error.__traceback__)
                raise
        except BaseException:
            close_guard()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            await self._tree.close(kind, error, where)
        except WrongTask as wrong:
            raise RuntimeClosed(
                "the runtime has closed, but its `async with` was left in another task than the one that entered it, "
                "which still runs: open it with `runtime = await Runtime.open(…)`, and close it from any task with "
                "`await runtime.aclose()`"
            ) from wrong
        finally:
            close_guard()

    @property
    def cluster(self) -> Cluster:
        """The nodes of the loom: their states, where an entity runs, and which entities no node can run.

        Any runtime on the loom may read it.
        """
        self._check_not_tenant("a cluster")
        return Cluster(self._tree)

    async def drain(self, grace: float | None = None) -> bool:
        """Refuse further casts and sends, and wait for the running episodes: the first half of a shutdown.

        `grace` is the longest wait in seconds; None waits without a limit. Returns whether all episodes ended; leaving
        the `async with` stops the others. Running entities continue meanwhile, and may cast children. An entity that
        waits for a person is idle, and so is one that asks it: both continue in the next process.

        A node hands its entities over instead: idle ones at once, others at their next border between two turns, when
        no gate is running. Other nodes continue them. The default of `grace` is the node's.

        Raises RuntimeClosed if the runtime is not open, ValueError for a `grace` that is not a number, and without one
        in a gate, which would wait for its own episode. Every later cast and send raises RuntimeClosed, too.
        """
        self._check_not_tenant("draining")
        if grace is not None:
            check_seconds("grace", grace)
        elif self._tree.membership is None and find_asker() is not None:
            raise ValueError(
                "grace: expected seconds, as in drain(grace=30), because the entity whose gate drains is one of those "
                "that it waits for; to wait for it, drain in a task of your program"
            )
        return await self._tree.drain(grace)

    async def serve(self, *, early: Sequence[int] = ()) -> None:
        """Serve as a node until SIGTERM, SIGINT, SIGHUP or `cluster.drain`, then drain; return when that is done.

        A second signal returns at once. `early` is a list to which a handler of the program adds the signals that
        arrive before this method has its own: with such a signal, the node drains at once. Raises RuntimeClosed if the
        runtime has no `node` or is not open.
        """
        self._check_not_tenant("serving")
        self._tree.check_open()
        membership = self._tree.membership
        if membership is None:
            raise RuntimeClosed("serve: expected a runtime that has joined: Runtime.open(…, node=Node(…))")
        await serve(membership, self.drain, early)

    # Casting

    @property
    def cantrips(self) -> Sequence[Cantrip]:
        """The cantrips that `Runtime.open` offers."""
        return tuple(self._tree.cantrips.given)

    @property
    def loom(self) -> Loom:
        """The loom: every turn of every entity, readable also after the runtime has closed."""
        tree = self._tree
        return Loom(tree.store, tree.append_remarks, tenant=self._tenant, in_store=tree.in_store, checks=True)

    @property
    def shown_loom(self) -> Loom:
        """The loom for readers without access to secrets: read-only, with this runtime's secrets redacted."""
        return redacted_loom(self.loom, self._tree.guard.redactor)

    def redact(self, value: Any) -> Any:
        """Return a JSON value with this runtime's secrets redacted; the same object if it contains no secret."""
        return self._tree.guard.redactor.value(value)

    def derive_key(self, purpose: str) -> bytes:
        """Return 32 secret bytes that are the same in each process that opens this loom, on this machine.

        They depend on `purpose` and on the tenant. They are made from the key of the loom's snapshots (`snapshot_key`,
        or the file next to an SQLite loom). Another loom has no such file: without `snapshot_key`, the bytes differ in
        each process.
        """
        check_kind("purpose", purpose, str, "a text")
        return self._tree.derive_key(scope_name(self._tenant or "", purpose))

    async def read(self, work: Callable[[], T], /) -> T:
        """Return the result of `work`, which reads by methods that are not awaited: of the loom, of this runtime.

        A loom on a server may take long to answer. `work` then runs in a thread of the runtime's own, and delays no
        entity: `state = await runtime.read(lambda: runtime.loom.state(entity_id))`. Any other loom is read at once,
        without a thread. `work` may call `loom`, `find`, `entity`, `get_entity`, `Runtime.work`, `get_work`, `receipt`,
        `begun_with`, `has_mail`, `requests()`, `schedules`, `interrupted` and `would_adopt`, and read the properties of
        their results. It must not subscribe to events or change data.
        """
        check(callable(work), "read", "a function without parameters", work)
        return await self._tree.in_store(work)

    async def crystals(self) -> list[CrystalStatus]:
        """Return the status of every crystal in use: running and queued queries, pauses, circuit breakers."""
        return self._tree.crystals.get_status(self._tree.system.now())

    def dump(self) -> str:
        """Return the tree of actors as text, one line for each.

        It sends no message to an actor, so any thread or signal handler may call it. Raises RuntimeClosed if the
        runtime was not opened.
        """
        self._check_not_tenant("a dump of the actors")
        return self._tree.guard.redactor.text(inspect.dump(self._tree.system))

    async def check_writer(self) -> None:
        """Return once the loom's writer has answered: it is alive, and has written all earlier messages.

        Raises RuntimeClosed, and LoomError if the loom cannot write.
        """
        self._tree.check_open()
        await self._tree.append(())

    async def ask(self, crystal: Crystal | str, query: Query, retry: Retry | None = None) -> Response:
        """Send one query to a crystal, for code that needs an answer and no entity; the loom does not record it.

        The query counts towards the same limits, breaker and deadline as the queries of entities. `retry` is as in
        `Cantrip`. Raises CrystalError, ProviderError if the provider failed for good, RuntimeClosed.
        """
        self._tree.check_open()
        check_crystal("ask", crystal)
        check_kind("query", query, Query, "a Query")
        check_kind("retry", retry, Retry | None, "Retry(…)")
        crystals = self._tree.crystals
        used = crystals.find(crystal)
        self._tree.guard.learn(used.crystal, Circle())
        return await crystals.ask(used, query, retry or Retry())

    async def cast(
        self,
        cantrip: Cantrip[Answer_co],
        intent: Said,
        *,
        context: Any = None,
        history: History = (),
        key: str | None = None,
        by: str = "",
        on_close: OnClose | None = None,
    ) -> Episode[Answer_co]:
        """Cast `cantrip` on `intent`, and wait for the episode (SPEC 1.4). `context` is data for the entity.

        It waits, unlike `ActorRef.cast` of `supervisors`, which sends a message and returns at once.

        The intent is a text, or a list of texts, images and files (`["What is on it?", Image.read("a.png")]`).

        `history` are messages of an earlier conversation, which the entity has in its context before the intent: each a
        `Message`, or a mapping with its fields, whose content may be such a list, too. A fold keeps those of the first
        intent.

        With a `key` the entity is cast once: a repeated call with the same content, also from another process or after
        a crash, returns the episode of the existing entity. Other content with that key raises KeyUsed.

        `by` names the caller; the record of the intent has it as its `sender`.

        `on_close` replaces the option of `open` for this entity, if the runtime closes while the entity works: with
        "keep" it stays in the loom as it is, and the next process resumes it. An entity with a key always stays.

        Cancelling the wait stops the entity and its subtree, with the reason `cancelled` in the loom. With a key it
        does not, because other callers may wait for the same entity.

        Raises InvalidIntent without an intent, and InvalidFile for a file that the crystal does not take; CrystalError
        if the crystal breaks its contract or a provider fails for good; LoomError if the loom cannot write;
        EntityCrashed if a bug ended the entity. Each carries `entity_id`.
        """
        entity = await self._beginnings.begin(
            self._make_beginning("cast", cantrip, intent, context, key, by, on_close, history=history)
        )
        return await (entity.result() if key is None else entity.episode())

    async def batch(
        self, cantrip: Cantrip[Answer_co], intents: Iterable[Said], *, key: str, by: str = ""
    ) -> list[Episode[Answer_co] | CantripError]:
        """Cast `cantrip` on each of many intents, with its queries in batches, at half price and within a day.

        Returns an episode for each intent, in the order of the intents, or the error that ended its entity. A crystal
        without batching gets batches of its own. The key of each entity contains the index of its intent: the same call
        in another process continues where this one was killed, and pays for no query twice. `by` is as for `cast`.

        Raises InvalidCantrip if the crystal's provider takes no batches, and InvalidIntent without a key.
        """
        check_cantrip("batch", cantrip)
        check_kind("intents", intents, Iterable, "a list of intents", InvalidIntent)
        check_name("key", key)
        return await cast_all(self.cast, cantrip, intents, key, by)

    async def start(
        self,
        cantrip: Cantrip[Answer_co],
        intent: Said,
        *,
        context: Any = None,
        history: History = (),
        note: Any = None,
        key: str | None = None,
        by: str = "",
        on_close: OnClose | None = None,
    ) -> Entity[Answer_co]:
        """Cast without waiting: the entity runs meanwhile; `await entity.episode()` waits for its end.

        Its beginning is in the loom when this returns: after a crash the entity can be resumed.

        The arguments are those of `cast`, and a `note` for yourself as for `Entity.post`.
        """
        what = self._make_beginning("start", cantrip, intent, context, key, by, on_close, history=history, note=note)
        return await self._beginnings.begin(what, waits=True)

    def stream(
        self,
        cantrip: Cantrip[Answer_co],
        intent: Said,
        *,
        context: Any = None,
        history: History = (),
        key: str | None = None,
        by: str = "",
        resume: str | None = None,
    ) -> EpisodeRun[Answer_co]:
        """Cast, and follow the episode while it happens: `async with runtime.stream(cantrip, intent) as run`.

        `run.text()` yields the text in pieces, `run.events()` the events, and `await run.result()` returns the episode.
        The other arguments are as for `cast`. Leaving the block before the episode has ended ends the entity,
        unless there is a `key`.

        With `resume` only later events come: with a `key` it may be the `id` of an event, in any process; without one
        it is the `position` of a run, and nothing is begun.

        Raises InvalidIntent for a `resume` that is no position; entering the block raises as `start`, or UnknownEntity.
        """
        begin = partial(self._begin_run, cantrip, intent, context, history, key, by)
        return EpisodeRun(begin, resume, keeps=key is not None)

    async def _begin_run(
        self,
        cantrip: Cantrip[Answer_co],
        intent: Said,
        context: Any,
        history: History,
        key: str | None,
        by: str,
        after: RunPosition,
    ) -> FollowedEpisode[Answer_co]:
        if key is None and after.event != BEGINNING:
            if after.entity_id is None:
                raise InvalidIntent(
                    f"resume: expected a key, or the position of a run, got the event {after.event} only"
                )
            entity_id = after.entity_id
            entity = await self._tree.in_store(lambda: self.get_entity(entity_id))
            return await entity._follow_episode_at(after.event)  # noqa: SLF001  # of the same face
        beginning = self._make_beginning("stream", cantrip, intent, context, key, by, None, history=history)
        entity = await self._beginnings.begin(beginning, waits=True)
        return entity._follow_beginning()  # noqa: SLF001  # of the same face

    def _make_beginning(self, *parts: Any, **facts: Any) -> Beginning:
        """Return a new entity of this runtime's tenant, as `Beginnings.make`."""
        return self._beginnings.make(*parts, tenant=self._tenant or "", **facts)

    def set_allowance(self, most: float | None, *, by: str | None = None, per: AllowancePeriod = "day") -> None:
        """Set how much a caller may spend in a day or a month, in US dollars, before it can begin no new work.

        `by` is the sender of the intents, as in `cast`; without it the allowance is for all callers together: of the
        tenant, if this runtime is one of `tenant`, else of the loom. The spending of all processes of the loom counts,
        children included. Days and months are those of UTC. None removes the allowance. It holds for this runtime,
        while it is open.

        Once it is spent, casts, sends, forks and submissions raise AllowanceSpent at every door. Episodes under way
        continue, and so do schedules and repeated calls with a key. Raises ValueError for another amount or period.
        """
        check(most is None or is_finite(most, 0), "most", "a finite number of US dollars >= 0, or None", most)
        check_kind("by", by, str | None, "a text, or None")
        check_choice("per", per, get_args(AllowancePeriod))
        self._tree.allowances.set(most, self._tenant, by, per)

    async def check_allowance(self, *, by: str = "") -> None:
        """Raise AllowanceSpent if this caller could begin no new work now (`set_allowance`).

        It is for callers that undo something before they send. `by` is the sender, as in `cast`.
        """
        check_kind("by", by, str, "a text")
        await self._tree.allowances.check(self._tenant or "", by)

    async def submit(
        self,
        cantrip: str,
        intent: str,
        *,
        key: str | None = None,
        priority: int = 0,
        queue: str = "",
        by: str = "",
    ) -> Submission:
        """Submit a cast of the cantrip with that name to any node; return when the submission is durable.

        Any runtime on the loom may submit. The cast is begun by a node, or another runtime, that offers a cantrip of
        that name in `cantrips`; until one has room, the submission waits.
        Submissions of a higher `priority` (-100 to 100) begin first, and among equals the earliest one. With a
        `key` it is cast once: a repeated call with the same content, from any process, finds the same entity.

        With a `queue` the submission waits there, and begins when the bounds of that queue allow. A queue belongs to
        the whole loom, also if a tenant names it. `by` is as for `cast`.

        Raises InvalidIntent (also for another priority, and for a queue that no runtime was opened with), KeyUsed for
        other content or another queue with that key, QueueFull if too many wait that would begin before it,
        RuntimeClosed, LoomError.
        """
        return await submit(
            self._tree,
            cantrip,
            intent,
            key=key,
            tenant=self._tenant or "",
            priority=priority,
            queue=queue,
            by=by,
        )

    async def submissions(self, *, after: str | None = None, limit: int = 50) -> Page[Submission]:
        """Return a page of the submissions that wait, of all queues, by their keys; `after` is the `next` of a page.

        Raises LoomError for a `limit` that is not 1 to 1,000, RuntimeClosed.
        """
        return await list_submissions(self._tree, self._tenant, after, limit)

    async def submission(self, key: str) -> Submission | None:
        """Return the submission with `key` that any runtime on the loom made, waiting or begun, or None.

        A withdrawn submission is gone. Raises InvalidIntent for a text that is no key, RuntimeClosed, LoomError.
        """
        return await find_submission(self._tree, key, self._tenant or "")

    async def get_submission(self, key: str) -> Submission:
        """Return the submission with `key` as `submission` does; raise UnknownEntity for an unknown key."""
        submission = await self.submission(key)
        if submission is None:
            raise UnknownEntity(key, f"the submission with the key {key!r} is not in this loom")
        return submission

    async def invoke(
        self,
        cantrip: Cantrip[Answer_co],
        intent: Said,
        *,
        name: str | None = None,
        context: Any = None,
        history: History = (),
        note: Any = None,
        key: str | None = None,
        by: str = "",
        on_close: Literal["keep"] | None = None,
    ) -> Entity[Answer_co]:
        """Make a long-lived entity (D-001): it takes further intents with `send`, and remembers.

        `max_turns` counts anew for each intent, budgets over its life. A `name` can be looked up with `entity(name)`,
        in any process that opens the loom. `key` and `by` as for `cast`, and `note` as for `Entity.post`. A long-lived
        entity always stays when its runtime closes. Raises as `cast`, InvalidIntent if the name is invalid, and
        NameTaken if it is taken.
        """
        facts = {"history": history, "note": note, "lasting": True, "name": name}
        what = self._make_beginning("invoke", cantrip, intent, context, key, by, on_close, **facts)
        return await self._beginnings.begin(what, waits=True)

    async def ensure(self, name: str, cantrip: Cantrip[Answer_co]) -> Entity[Answer_co]:
        """Return the long-lived entity of that name; make it if it is missing, without an intent and without a query.

        Any number of callers in any number of processes get the same entity. One that exists keeps its memory and its
        cantrip: if that has the name of one that `Runtime.open` offers, the entity moves as `upgrade` says, and
        otherwise it works with `cantrip` from the first send on, as for `entity`. So does one whose episode a deploy
        has interrupted, if no living process has the cantrip of that episode; if it waits for a person, from the
        decision on.

        Raises InvalidIntent for an invalid name, InvalidCantrip, LoomError, RuntimeClosed.
        """
        return await self._beginnings.ensure(name, check_cantrip("ensure", cantrip), self._tenant or "")

    def id_of_key(self, key: str) -> str:
        """Return the id of the entity that begins, or has begun, with a key of `cast`, `start`, `invoke` or `fork`."""
        return self._beginnings.make_id(check_name("key", key), self._tenant or "")

    def begun_with(self, key: str) -> Entity | None:
        """Return the entity that began with a key of `cast`, `start`, `invoke` or `fork`; None if none has.

        It reads the loom in the calling thread: see `read`.
        """
        entity_id = self.id_of_key(key)
        return self.find(entity_id) if self.loom.has_begun(entity_id) else None

    def entity(self, name: str, *, cantrip: Cantrip[Answer_co] | None = None) -> Entity[Answer_co] | None:
        """Return the long-lived entity of that name, loaded or not; None if no such entity exists, or it was stopped.

        With `cantrip`, the entity works with that cantrip, its crystal and its dependencies from the first send on.
        Without it, an entity of this process continues with its own cantrip. An entity of an earlier process continues
        with the offered cantrip of the same name (see `open`), or with the cantrip of the same content that this
        process knows. If it knows none, a send raises CantripUnknown; if several, LoomError.

        For an entity that is not loaded it reads the loom in the calling thread: see `read`.
        """
        check_texts(LoomError, name=name)
        check_kind("entity", cantrip, Cantrip | None, "a Cantrip", InvalidCantrip)
        entity_id = self._beginnings.find_named(name, self._tenant or "")
        return None if entity_id is None else Entity(self._tree, entity_id, name, cantrip=cantrip)

    def find(self, entity_id: str, *, cantrip: Cantrip[Answer_co] | None = None) -> Entity[Answer_co] | None:
        """Return the entity of that id, cast or invoked, whether it is loaded, idle or over; None if it is unknown.

        `cantrip` is as for `entity`. It reads the loom in the calling thread: see `read`. Raises LoomError for an id
        that is not a text.
        """
        check_texts(LoomError, entity=entity_id)
        check_kind("find", cantrip, Cantrip | None, "a Cantrip", InvalidCantrip)
        cell = self._tree.living.get(entity_id)
        if not (self._tree.belongs_to_tenant(entity_id, self._tenant) and (cell or self.loom.has(entity_id))):
            return None
        name = self.loom.header(entity_id).name if cell is None else cell.plan.name
        return Entity(self._tree, entity_id, name, cell, cantrip=cantrip)

    def get_entity(self, entity: str, *, cantrip: Cantrip[Answer_co] | None = None) -> Entity[Answer_co]:
        """Return the entity of that id, as `find` does, else the one of that name, as `entity` does.

        It reads the loom in the calling thread: see `read`. Raises UnknownEntity if neither is there, LoomError.
        """
        found = self.find(entity, cantrip=cantrip) or self.entity(entity, cantrip=cantrip)
        if found is None:
            raise UnknownEntity(entity)
        return found

    def would_adopt(self) -> list[Move]:
        """Return the moves to offered cantrips that entities will make with their next intents, oldest entity first.

        Nothing changes. An entity that moves elsewhere or ends before does not make its move; an entity that this
        process has loaded with a cantrip of its own does not either. It reads the loom in the calling thread: see
        `read`. Raises LoomError if `upgrade` raises.
        """
        return [move for move in self._tree.list_moves() if self._tree.belongs_to_tenant(move.entity_id, self._tenant)]

    def work(self, work_id: str) -> Work | None:
        """Return the work with that `id`, which this process or another one began, sent or submitted; None if unknown.

        It waits, shows events, cancels, withdraws and continues: see `Work`. It reads the loom in the calling thread:
        see `read`. Raises LoomError for an id that is not a text.
        """
        check_texts(LoomError, work=work_id)
        if work_id.startswith(SUBMITTED):
            submission = Submission(self._tree, work_id[len(SUBMITTED) :], self._tenant or "")
            return submission if submission.is_known else None
        entity_id, _, key = work_id.partition(".")
        entity = self.find(entity_id)
        if entity is None:
            return None
        work = Work(self._tree, entity_id, key, entity_name=entity.name)
        return work if work.id == work_id and work.is_known else None

    def get_work(self, work_id: str) -> Work:
        """Return the work with that id as `work` does; raise UnknownEntity for an unknown id."""
        work = self.work(work_id)
        if work is None:
            raise UnknownEntity(work_id, f"the work {work_id!r} is not in this loom")
        return work

    def receipt(self, entity: HasId | str, key: str) -> Work:
        """Return an intent that was posted or sent with `key`, by this process or another.

        "" is the key of the first intent, which was not sent. It reads the loom in the calling thread: see `read`.

        `entity` is a handle, a name or an id. Raises UnknownEntity for an unknown entity or key, and for the key of a
        control message.
        """
        check_texts(LoomError, key=key)
        entity_id = self._find_id(entity)
        work = Work(self._tree, entity_id, key, entity_name=self.loom.header(entity_id).name)
        work.check()
        return work

    def has_mail(self, entity: HasId | str, key: str) -> bool:
        """Return whether mail of any kind was posted to an entity with `key`, and the key is still kept.

        It reads the loom in the calling thread: see `read`.

        Raises LoomError for an unknown entity.
        """
        check_texts(LoomError, key=key)
        entity_id = self._find_id(entity)
        return self._tree.store.find_mail(self._tree.find_root(entity_id), key) is not None

    async def fork(
        self,
        turn_id: str,
        *,
        intent: Said,
        crystal: Crystal | str | None = None,
        cantrip: Cantrip[Answer_co] | None = None,
        context: Any = None,
        history: History = (),
        key: str | None = None,
        by: str = "",
        on_close: OnClose | None = None,
    ) -> Episode[Answer_co]:
        """Continue from a turn of any run with a new entity (LOOM-4); the original thread is untouched.

        The fork has the context of the path to that turn, then `intent`. It works with `cantrip`, or with the cantrip
        that was in force at that turn; `crystal`, if given, replaces the cantrip's crystal. `key`, `by` and
        `on_close` as for `cast`.

        Raises LoomError for an unknown turn, and if its cantrip is not known in this process or was used with several
        dependencies; else as `cast`.
        """
        parts = {"context": context, "history": history, "key": key, "by": by, "on_close": on_close}
        entity = await self.start_fork(turn_id, intent=intent, crystal=crystal, cantrip=cantrip, **parts)
        return await (entity.result() if key is None else entity.episode())

    async def start_fork(
        self,
        turn_id: str,
        *,
        intent: Said,
        crystal: Crystal | str | None = None,
        cantrip: Cantrip[Answer_co] | None = None,
        context: Any = None,
        history: History = (),
        lasting: bool = False,
        key: str | None = None,
        by: str = "",
        on_close: OnClose | None = None,
    ) -> Entity[Answer_co]:
        """Fork as `fork` does, without waiting for the episode: the fork's beginning is in the loom.

        A `lasting` fork is a long-lived entity, as `invoke` makes one: it takes further intents.
        """
        check_kind("lasting", lasting, bool, "True or False")
        begin = partial(self._beginnings.fork, self.loom, turn_id, intent, crystal, cantrip)
        return await begin(context, key, by, on_close, history=history, lasting=lasting)

    # Listings

    async def entities(
        self,
        *,
        state: State | None = None,
        kind: ListedKind | None = None,
        cantrip: str | None = None,
        prefix: str | None = None,
        since: str | datetime | None = None,
        parent: HasId | str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Page[ListedEntity]:
        """Return a page of the entities in the loom, newest first; `before` is the `next` of the page before it.

        Only entities are listed that are in this `state` (as of `loom.state`), of this `kind` ("root", "child", "fork"
        or "lasting"), that work with the cantrip of that name, whose names begin with `prefix`, that began at `since`
        (ISO 8601 with an offset, or a datetime) or later, and that `parent` spawned. The loom is read in its own thread
        if it cannot answer at once, and the time depends on the size of the page, not of the loom.

        Raises LoomError for an unknown cursor or parent, and for a condition or a `limit` (1 to 1,000) that is wrong.
        """
        earliest = None if since is None else format_since(since)

        def look() -> Page[ListedEntity]:
            parent_id = None if parent is None else self.loom.header(self._find_id(parent)).entity_id
            selection = Selection(state, kind, cantrip, prefix, earliest, parent_id)
            return self.loom.page(selection, cursor=before, limit=limit)

        return await self._tree.in_store(look)

    async def messages(self, entity: HasId | str) -> list[ThreadMessage]:
        """Return the thread of an entity as messages, as `Entity.messages` does; `entity` is a handle, a name or an id.

        Raises UnknownEntity, LoomError.
        """
        return await self._tree.in_store(lambda: read_messages(self.loom, self._find_id(entity)))

    async def model_input(self, turn_id: str) -> ModelInput:
        """Return the input of a crystal for the answer of a turn: messages, images, system prompt, gates, settings.

        It is computed from the loom, as the entity computed it then. It has secrets: show it only to people who may see
        them. Raises LoomError for an unknown or forgotten turn.
        """
        return await find_model_input(self._tree, self.loom, turn_id)

    # Requests to people

    @overload
    def requests(
        self, *, follow: Literal[False] = False, entity: HasId | str | None = None, to: str | None = None
    ) -> list[Request]: ...
    @overload
    def requests(self, *, follow: Literal[True], attend: bool = True, to: str | None = None) -> RequestFeed: ...
    def requests(
        self,
        *,
        follow: bool = False,
        attend: bool = True,
        entity: HasId | str | None = None,
        to: str | None = None,
    ) -> list[Request] | RequestFeed:
        """Return the requests that wait for a person, of all entities in the loom, the oldest first.

        With an `entity` only its own; that costs the same however many others wait. With `to`, the name of a person,
        without those that address another person. With `follow`, return a feed: the
        open ones, then each new one, also of other processes that write the loom
        (`async for request in runtime.requests(follow=True)`). While a feed is open, requests count as attended; with
        `attend=False` they do not, because no person is asked. A list is read in the calling thread, from the loom, as
        by `interrupted`, and from the files of `add_request_source`: on an event loop, await `list_requests` for these.
        A feed reads in another thread, and waits while the loom cannot be read. Raises RuntimeClosed.
        """
        check_kind("follow", follow, bool, "True or False")
        requests = self._tree.requests
        if follow:
            self._tree.check_open()
            return requests.follow(self._tenant, attend=attend, to=to)
        self._tree.check_not_closed()  # a list needs no event loop: `read` makes it in a thread
        if entity is not None:
            return [request for request in requests.open_of(self._find_id(entity)) if request.is_for(to)]
        open_requests = (request for request in requests.open(self._tenant) if request.is_for(to))
        return sorted(open_requests, key=lambda request: request.asked_at)

    async def list_requests(self, *, after: str | None = None, limit: int = 50) -> Page[Request]:
        """Return a page of the open requests: of `limit` waiting entities, those that began first come first.

        `after` is the `next` of the page before it. The first page also has the requests that are not of waiting
        entities: questions of servers of tools, and those of `add_request_source`. Raises LoomError for an unknown
        cursor, RuntimeClosed.
        """
        self._tree.check_not_closed()
        return await self._tree.requests.read_page(self.loom, after, limit)

    async def decide(
        self,
        request_id: str,
        decision: Literal["allow", "deny"] | None = None,
        *,
        answer: Any = None,
        by: str = "program",
        note: str = "",
        args: Mapping[str, Any] | None = None,
        remember: Remember = "once",
        door: str = "",
        key: str | None = None,
        memo: Any = None,
    ) -> bool:
        """Decide a request: allow or deny a call, or answer a question. The decision is durable when this returns.

        Any process that opens the loom may decide, whether or not it knows the entity's cantrip. `by` names the person
        or program that decides, and `note` is the reason: the entity reads the note of a denial. With "allow", `args`
        replaces the arguments of the call. `answer` is a JSON value that fits the schema of the question; the reply to
        an utterance is a text, or a list of texts, images and files. `remember="entity"` applies the decision to later
        calls of that gate by that entity for which the condition of `ask_first` says the same.

        `door` is the evidence for `by`: "terminal:<login>", "editor:<login>", "mcp:<login>", "token:<name>", or "" for
        a program that has no authentication. It is in the record, in `loom show` and in exports. `memo` is JSON that
        you keep with the decision for yourself: no crystal sees it.

        The same decision with the same `key` may be sent again: it counts once, and this returns True, that it repeats
        an earlier one. It returns False for the first.

        Raises UnknownRequest; AlreadyDecided, with the first decision, for a request that was decided or has expired;
        InvalidDecision for one that does not fit the request; InboxFull, LoomError, RuntimeClosed.
        """
        check_texts(InvalidDecision, request_id=request_id, door=door)
        self._tree.check_open()
        return await self._tree.requests.decide(
            request_id,
            decision,
            answer=answer,
            by=by,
            note=note,
            args=args,
            remember=remember,
            door=door,
            key=key,
            memo=memo,
            tenant=self._tenant,
        )

    async def deliver(
        self,
        call_id: str,
        result: Any = None,
        *,
        error: str | None = None,
        later: Mapping[str, Mapping[str, Any]] | None = None,
        by: str = "program",
        door: str = "",
        key: str | None = None,
        memo: Any = None,
    ) -> bool:
        """Deliver the result of a deferred call, `@gate(deferred=True)`. It is durable when this returns.

        `call_id` is the id of the request that `requests()` lists. Any process that opens the loom may deliver, whether
        or not it knows the entity's cantrip. `result` is any value that a gate may return: a JSON value, a dataclass, a
        pydantic model, an image. With `error`, a text, the entity observes a failed call instead. `later` has the
        results of later calls of the same answer of the crystal, by the ids of the calls, each as `{"result": …}` or
        `{"error": "…"}`: the entity does not wait for these. `by`, `door`, `key`, `memo` and the returned value are
        as in `decide`.

        Raises UnknownRequest; AlreadyDecided, with the first delivery, for a call that has a result or has expired;
        InvalidDecision for a call that is not deferred and for an invalid result; InboxFull, LoomError, RuntimeClosed.
        """
        check_texts(InvalidDecision, call_id=call_id, door=door)
        self._tree.check_open()
        return await self._tree.requests.deliver(
            call_id, result, error=error, later=later, by=by, door=door, key=key, memo=memo, tenant=self._tenant
        )

    def add_request_source(self, source: RequestSource) -> None:
        """Add a source of requests that are not records of entities, to list and decide them. `Dispatcher` adds one."""
        check_kind("source", source, RequestSource, "an object with has, open and decide, and a hash")
        self._tree.requests.add(source, self._tenant or "")

    def events(
        self,
        wanted: Callable[[EntityEvent], bool] | None = None,
        *,
        entity: str | None = None,
        deltas: bool = False,
        after: str | None = None,
    ) -> Subscription | LoomFeed:
        """Subscribe to the events of all entities (SPEC 7.2) for which `wanted` is true; for observation only.

        With `entity`, an id, only to those of that entity, from now on. With `deltas` the pieces of answers
        (`StreamedEvent`) are among the events. This reads nothing of the loom.

        With `after`, the `id` of an event that was read in this way, or "0" for the beginning of the loom, the recorded
        events come from the loom: each once and in order, whichever process runs the entity, and with an id that is the
        same in every process. So a reader continues after the last event that it handled. `Entity.events(after=…)` does
        the same for one entity, with ids of its own. Raises InvalidIntent for a text that is no id.
        """
        check(wanted is None or callable(wanted), "wanted", "a function of an event", wanted)
        check_kind("entity", entity, str | None, "the id of an entity")
        if after is not None:
            begin = read_event_id(after)
            if entity is not None or deltas:
                raise InvalidIntent(f"events: after: expected neither entity nor deltas with it, got {after!r}")
            return LoomFeed(self._tree, self.loom, begin, wanted)
        own = wanted if self._tenant is None else self._select_own(wanted)
        return self._tree.bus.subscribe(own, entity_id=entity, deltas=deltas)

    def _select_own(self, wanted: Callable[[EntityEvent], bool] | None) -> Callable[[EntityEvent], bool]:
        is_own = partial(self._tree.belongs_to_tenant, tenant=self._tenant)
        return lambda event: is_own(event.entity_id) and (wanted is None or wanted(event))

    def use_server(self, server: ToolServer) -> AbstractAsyncContextManager[HeldServer]:
        """Keep a server of tools running while the context is open: `async with runtime.use_server(server) as held`.

        Entities that have the server share it. Use it to list and render the server's prompts before an entity exists.
        The server starts at once, and calls wait for the connection. Raises RuntimeClosed.
        """
        self._tree.check_open()
        check_kind("server", server, ToolServer, "a server of tools, as from mcp.http(…)", InvalidCantrip)
        return self._tree.tool_servers.use(server)

    def inspect(self) -> System:
        """Return the supervision tree, the crystals in use, the counters, the loom, requests and streams.

        It reads state and asks no actor, so it answers while the event loop is blocked: from any thread, and in a
        signal handler. Raises RuntimeClosed if the runtime was not opened.
        """
        self._check_not_tenant("the supervision tree")
        return read_system(self._tree)

    @property
    def telemetry(self) -> Instrument | None:
        """The `telemetry` that this runtime was opened with."""
        return self._tree.instrument

    def watch_actors(self, sink: Callable[[Event], object]) -> Callable[[], None]:
        """Call `sink` with the starts, exits and restarts of actors. Return a function that stops the calls.

        `sink` runs inside the supervisors, so it must neither wait nor raise. Raises RuntimeClosed if the runtime was
        not opened.
        """
        self._check_not_tenant("the supervision tree")
        check(callable(sink), "sink", "a function of an event", sink)
        sinks, own = self._tree.system.sinks, partial(sink)  # its own identity: one function may watch several times
        sinks.append(own)
        return lambda: sinks.remove(own) if own in sinks else None

    def watch(self, publish: Callable[[Sequence[EntityEvent]], None]) -> Callable[[], None]:
        """Call `publish` with the events of every entity, streamed ones included; return a function that stops it.

        `publish` runs in the runtime's own tasks, so it must not wait. If it raises, the error is logged, and it is not
        called any more. `observe.Upserts` is made for this, and lets each of its subscribers read at its own pace:
        `runtime.watch(upserts.publish)`.
        """
        check(callable(publish), "publish", "a function of events", publish)
        return self._tree.watchers.add(publish if self._tenant is None else self._limit_to_own(publish))

    def _limit_to_own(
        self, publish: Callable[[Sequence[EntityEvent]], None]
    ) -> Callable[[Sequence[EntityEvent]], None]:
        def publish_own(events: Sequence[EntityEvent]) -> None:
            own = [event for event in events if self._tree.belongs_to_tenant(event.entity_id, self._tenant)]
            if own:
                publish(own)

        return publish_own

    # Schedules

    async def schedule(
        self,
        target: Cantrip | str,
        intent: str,
        *,
        at: str | datetime | None = None,
        every: float | None = None,
        cron: str | None = None,
        zone: str | None = None,
        id: str | None = None,
        catch_up: CatchUp = "one",
        overlap: Overlap = "skip",
        to: Target | None = None,
    ) -> Schedule:
        """Schedule an intent for an entity, or a cast of a cantrip on it, once or repeatedly.

        `target` is the name of a long-lived entity, which gets the intent at each firing; or a cantrip with a name, or
        the name of one of `cantrips`, of which each firing casts a new one-shot entity. An entity's name comes first;
        `to` says which it is ("entity" or "cantrip"); then the name need not be known here yet. The schedule stores the
        name: a firing is carried out by a runtime that is open and, for a cantrip, offers one with that name. Until
        then the firing stays due.

        Give one of `at` (a time, ISO 8601 or a datetime), `every` (seconds, counted from now, at least 1) and `cron`
        (five fields). Times without an offset are local to `zone`, a name such as "Europe/Oslo"; left out: UTC.

        `catch_up` is the treatment of times that pass while no runtime is open: "one" firing for all of them, "all" of
        them one after the other (at most 100), or "skip". `overlap` is the treatment of a time at which the last firing
        is still at work: "skip" this one, "queue" it, or "stop" the last one.

        With an `id` the call may be repeated, for example at each start of a program: the same arguments change
        nothing, others replace the rule before the next firing. Left out: a new id.

        Raises InvalidSchedule for a rule that never fires, an unknown zone, an unknown name or a cantrip without one;
        InvalidIntent; RuntimeClosed; LoomError if the loom cannot write.
        """
        return await add_schedule(
            self._tree,
            target,
            intent,
            at=at,
            every=every,
            cron=cron,
            zone=zone,
            id=id,
            catch_up=catch_up,
            overlap=overlap,
            to=to,
            tenant=self._tenant or "",
        )

    def schedules(self) -> list[Schedule]:
        """Return all schedules of the loom by their ids, as they are now. One that never fires again is gone.

        It reads the loom in the calling thread: for a loom on a server, `await runtime.read(runtime.schedules)`.
        """
        return list_schedules(self._tree, self._tenant)

    # Recovery

    def interrupted(self) -> list[Header]:
        """Return the root entities with a running episode that no process runs, because their process died.

        Long-lived entities that wait for an intent are idle, not interrupted, unless children of theirs worked in the
        background. Children are resumed with their parents.
        It reads the loom in the calling thread: for a loom on a server, `await runtime.read(runtime.interrupted)`.
        """
        return [header for header in self._tree.launcher.find_interrupted() if self._tenant in (None, header.tenant)]

    @property
    def not_resumed(self) -> Mapping[str, str]:
        """The interrupted entities that `recover="resume"` did not resume when the loom was opened, by id, each with
        the reason: its cantrip is not known here or is ambiguous, its dependencies are missing, its records cannot be
        read, or it is quarantined. With `recover="abandon"`: those that could not be ended.

        Each is a warning in the log, too. `resume` with a `cantrip`, or `abandon`, settles one.
        """
        belongs = self._tree.belongs_to_tenant
        return {id: why for id, why in self._not_resumed.items() if belongs(id, self._tenant)}

    def is_interrupted(self, entity: HasId | str) -> bool:
        """Return whether `interrupted` has this entity; it reads the loom in the calling thread, too."""
        return self._tree.launcher.find_if_interrupted(self._find_id(entity)) is not None

    async def resume(
        self, entity_id: str, *, cantrip: Cantrip[Answer_co] | None = None, by: str = ""
    ) -> Entity[Answer_co]:
        """Resume an entity that a crash interrupted, from its log alone; or load an idle entity that is not loaded.

        No recorded work is repeated; `machine/loop.py` says how unfinished work continues. The cantrip is the given
        one, or the known one with the same content. A given cantrip is recorded (`Adopted`): this is how a long-lived
        entity gets another system prompt, other gates or another crystal, and also one that waits for a person or for
        the result of a call. `by` names the person or program that resumes an interrupted episode, for the record
        (`Resumed`). Resuming lifts a quarantine.

        Raises LoomError for an unknown entity or cantrip; Held if another process runs it, or if it is loaded with a
        different cantrip and works or is idle; EntityEnded if it has ended.
        """
        await self._tree.in_store(partial(self._check_here, entity_id))
        check_kind("resume", cantrip, Cantrip | None, "a Cantrip", InvalidCantrip)
        check_texts(by=by)
        before = self._tree.living.get(entity_id)
        if before is not None and cantrip is not None and cantrip.id != before.plan.cantrip.id:
            await self._tree.launcher.unload_waiting(before)
        cell = await self._tree.launcher.restore(entity_id, cantrip, lift=True, by=by)
        if cell is before and cantrip is not None and cantrip.id != cell.plan.cantrip.id:
            raise Held(
                f"entity {entity_id} is loaded with another cantrip ({cell.plan.cantrip.id}): use "
                "runtime.entity(name, cantrip=…), or give it the new one after `passivate_after` seconds without an "
                "intent, or as the first thing in a new runtime"
            )
        return Entity(self._tree, entity_id, cell.plan.name, cell)

    async def abandon(self, entity_id: str, *, by: str = "") -> None:
        """End an interrupted entity and its children, in the loom; they cannot be resumed afterwards.

        `by` names the person or program that ends them, for the record.
        """
        check_texts(by=by)
        await self._tree.in_store(partial(self._check_here, entity_id))
        if self._tree.living.get(entity_id) is not None:
            raise LoomError(f"entity {entity_id} runs: stop it instead")
        await self._tree.launcher.abandon(entity_id, sender=by)

    async def forget(
        self, entity: HasId | str, *, by: str = "", why: str = "", forks: bool = False, parents: bool = False
    ) -> Forgotten:
        """Delete the content of an entity that has ended, and of everything that it spawned.

        Tombstones stay, so that the tree of turns and its hash chain are as they were, and so does a record with the
        author, time and reason of the deletion. Images, snapshots and mail to which no other record refers are deleted.
        `entity` is a handle, a name or an id. With `forks` the entities that were forked from it are forgotten as well,
        and with `parents` the entities that spawned it and quote its result, with everything that they spawned;
        otherwise the result lists both. Repeating the call finishes one that a crash interrupted.

        The loom is rewritten, which takes time for a large one; entities wait meanwhile, the event loop does not.

        Raises LoomError for an unknown entity, and for one that has not ended, or whose fork is loaded: stop it first;
        Held if another process runs it.
        """
        check_texts(by=by, why=why)
        entity_id = await self._tree.in_store(partial(self._find_id, entity))
        return await self._tree.forget(Wanted([entity_id], by, why, forks, parents=parents))

    async def prune(self, older_than: Duration, *, dry_run: bool = False) -> Pruned:
        """Forget the entities that ended longer ago than `older_than`: "90d", "12h", seconds or a timedelta.

        With `dry_run` nothing is changed, and the result lists what would be forgotten. Raises ValueError, LoomError.
        """
        check_kind("dry_run", dry_run, bool, "True or False")
        return await self._tree.prune(older_than, dry_run=dry_run, tenant=self._tenant)

    async def backup(self, file: str | os.PathLike[str]) -> Verified:
        """Copy the loom as it is at this moment to a new SQLite or JSONL file, and verify the copy; entities continue.

        Raises LoomError if the file exists, if the loom is in memory, and if the copy does not verify; ValueError for
        a `file` that is not a path.
        """
        self._check_not_tenant("a backup")
        check_kind("file", file, str | os.PathLike, "the path of a new file")
        return await self._tree.make_backup(file)

    async def _recover_interrupted(self) -> None:
        """Resume, abandon or list interrupted entities, as `recover` says; load the entities for which mail waits.

        A listed entity that asked another one is loaded when the answer comes: the answer is like mail to it.
        """
        tree = self._tree
        listed: list[str] = []
        for entity_id in await tree.in_store(partial(tree.loom.unfinished, idle=False)):
            header = None
            try:
                async with tree.launcher.quarantine_crashes(entity_id):
                    header = await tree.in_store(partial(tree.launcher.find_if_interrupted, entity_id))
                    why = "" if header is None else await self._recover_entity(header, listed)
            except (Held, EntityEnded):
                _log.info("another process has resumed an entity", entity=entity_id)
                continue
            except CantripError as error:  # one that cannot be read, for example: it must not keep the others waiting
                if is_outage(error) or not tree.is_open:
                    raise
                why = str(error)
                if isinstance(error, Quarantined):
                    tree.registry.send(error)
            if why:
                self._not_resumed[entity_id] = why
                name = None if header is None else header.cantrip_name
                _log.warning("an entity is not resumed", entity=entity_id, cantrip=name, why=why)
        if listed:
            _log.info("entities were interrupted", count=len(listed), newest=listed[-1])
        await tree.inboxes.poll()
        tree.scheduler.wake()

    async def _recover_entity(self, header: Header, listed: list[str]) -> str:
        """Resume, abandon or list an interrupted entity, as `recover` says; return why it is not resumed, or ""."""
        tree, entity_id = self._tree, header.entity_id
        if self._recover == "abandon":
            await self.abandon(entity_id)
        elif not tree.store.shared and not await tree.in_store(partial(tree.loom.has_begun, entity_id)):
            # no caller has its id, and it cannot be resumed; in a shared loom it may just be beginning
            await tree.launcher.abandon(entity_id, f"it {NEVER_BEGAN}")
        elif self._recover == "list":
            listed.append(entity_id)
            tree.inboxes.note_answer(entity_id)
        else:
            facts = await tree.in_store(partial(tree.loom.facts, entity_id))
            if not await tree.in_store(partial(tree.is_clear, facts)):
                tree.inboxes.note_answer(entity_id)
                return _explain_unclear(tree, facts)
            await tree.launcher.restore(entity_id, facts=facts)
        return ""


def _explain_unclear(tree: Tree, facts: EntityFacts) -> str:
    """Return why no cantrip of this process can continue an entity."""
    try:
        tree.find_cantrip(facts)
    except LoomError as problem:
        return str(problem)
    return "it had dependencies that no cantrip of this process has: resume it with cantrip=…"


def _check_named(what: str, values: Iterable[Named], kind: type[Named]) -> list[Named]:
    """Return queues or webhooks as a list. Raises ValueError unless they are of that kind, and each name is there once.

    The name of a webhook without one is its URL.
    """
    expected = f"a list of {kind.__name__}(…)"
    check_kind(what, values, Iterable, expected)
    checked = list(values)
    for value in checked:
        check_kind(what, value, kind, expected)
    names = [value.name for value in checked]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what}: expected each name once, got {', '.join(map(repr, twice))} several times")
    return checked
