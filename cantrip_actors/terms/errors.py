"""The errors that the public API raises: one small hierarchy under `CantripError`.

The failures that an entity meets are not here: a gate that fails, a child that crashes or a ward that refuses is an
observation with `is_error` (D-011), never an exception of the host. A bug of the runtime is not a `CantripError`
either: it leaves its actor as a crash, and the supervisor decides.

Every message names the expected value, the actual value, and a remedy. The errors of crystals are defined in
`usage.py`, because they carry the tokens that were spent on them.
"""

from __future__ import annotations

import difflib
import heapq
import math
from collections.abc import Iterable, Sequence

from cantrip_actors.terms.usage import CantripError, CrystalError, ProviderError

__all__ = ["CantripError", "CrystalError", "ProviderError"]

LONGEST_NAME = 64
"""Characters of a wrong name that are compared with others: a comparison takes long."""


class InvalidCantrip(CantripError, ValueError):
    """A cantrip, or a part of one, is invalid; raised when it is made (CANTRIP-1, CANTRIP-3, CIRCLE-1/2)."""


class InvalidFile(CantripError, ValueError):
    """Bytes, a file, an address or an id that cannot be given to an entity, or that its crystal does not accept."""


class InvalidImage(InvalidFile):
    """Bytes, a file or an address that is not a picture, or not one that an entity may be given."""


class InvalidIntent(CantripError, ValueError):
    """A cast, send or fork without a usable intent (INTENT-1)."""


class NameTaken(InvalidIntent):
    """A long-lived entity of that name exists already."""


class InvalidSchedule(CantripError, ValueError):
    """A schedule that never fires, names an unknown zone, entity or cantrip, or combines what excludes each other."""


class ImmutableError(CantripError, AttributeError):
    """An attempt to change an immutable value, such as the call of a cantrip (CALL-1)."""


class LoomError(CantripError):
    """The loom refused a change (it is append-only, LOOM-3), does not have what was requested, or cannot write."""


class UnknownEntity(LoomError):
    """The loom has no such entity, or the caller may not see it; also for submissions. A service answers it with 404.

    `entity` is the name, id or key that was looked for.
    """

    def __init__(self, entity: str, message: str | None = None) -> None:
        super().__init__(message or f"entity {entity} is not in this loom")
        self.entity = entity


class ReadOnlyLoom(LoomError):
    """The loom was opened for writing, and this process may not write to its file or to its folder."""


class CantripUnknown(LoomError):
    """No cantrip of this process can continue an entity: none has its content id, and the entity cannot move to
    another.

    `cantrip_id` is the content id that the entity works with, `cantrip_name` the name of its cantrip, if it has one.
    `offered` are the names and content ids of the cantrips that were given to `Runtime.open`.
    """

    def __init__(
        self,
        message: str,
        *,
        entity_id: str,
        cantrip_id: str,
        cantrip_name: str | None,
        offered: Sequence[tuple[str | None, str]],
    ) -> None:
        super().__init__(message)
        self.entity_id = entity_id
        self.cantrip_id = cantrip_id
        self.cantrip_name = cantrip_name
        self.offered = tuple(offered)


class DependenciesUnknown(LoomError):
    """This process cannot say which dependencies the gates of an entity should have, so the entity waits.

    Open the runtime with `dependencies=`, or give a cantrip with the right dependencies: `runtime.entity(name,
    cantrip=…)`, `runtime.resume(entity_id, cantrip=…)`, `runtime.fork(…, cantrip=…)`.
    """


class Stranded(CantripUnknown):
    """No living process can run the entity. Its mail waits; call `episode` again to wait, too.

    `offered` are the names and content ids of the cantrips that living nodes serve.
    """


class AskCycle(CantripError):
    """An entity asked another entity that is, directly or through others, waiting for it.

    `path` names the entities, each of which waits for the next; the first is also the last.
    """

    def __init__(self, path: Sequence[str]) -> None:
        super().__init__(f"no answer can come, because each of these waits for the next: {' -> '.join(path)}")
        self.path = tuple(path)


class UnknownRequest(CantripError, LookupError):
    """No request has that id, or the caller may not see it."""


class InvalidDecision(CantripError, ValueError):
    """A decision does not fit its request: its kind, its arguments or its answer."""


class AlreadyDecided(CantripError):
    """The request was already decided, or has expired, or its episode has ended: the first decision counts.

    `decision` is "allow", "deny", "answer" or "expired"; `by`, `at` (ISO 8601, UTC) and `note` are those of the first
    decision.
    """

    def __init__(self, request_id: str, decision: str, by: str, at: str, note: str) -> None:
        who = f" by {by}" if by else ""
        when = f" at {at}" if at else ""
        happened = f"was decided before{who}{when}: {decision}; the first decision counts"
        if decision == "expired":
            happened = f"is not open any more{when}: it has expired, or the episode that asked has ended"
        super().__init__(f"request {request_id} {happened}")
        self.request_id = request_id
        self.decision = decision
        self.by = by
        self.at = at
        self.note = note


class EntityCrashed(CantripError):
    """The entity's actor crashed and its supervisor gave up. `__cause__` is the exception that it crashed with."""


class Unavailable(CantripError):
    """Raised by a companion or a step around a gate whose service cannot be reached: the entity waits and tries again.

    `retry_after` is the seconds until then. Waiting is no crash, and interrupting or stopping the entity ends it.
    """

    def __init__(self, why: str = "a service cannot be reached", *, retry_after: float) -> None:
        if not (isinstance(retry_after, (int, float)) and 0 < retry_after < math.inf):
            raise ValueError(f"Unavailable: expected retry_after as a positive number of seconds, got {retry_after!r}")
        super().__init__(why)
        self.retry_after = float(retry_after)


class EntityEnded(CantripError):
    """An entity that was sent something has ended, or ended before it had handled it."""


class EntityInterrupted(CantripError):
    """The episode that is waited for was interrupted, and nothing continues it: its process ended in it.

    A runtime with `recover="list"` leaves such entities to the caller.
    """

    def __init__(self, entity_id: str) -> None:
        super().__init__(
            f"entity {entity_id} was interrupted, and nothing continues it: call runtime.resume or runtime.abandon "
            'with its id, or open the runtime with recover="resume"'
        )
        self.entity_id = entity_id


class Truncated(CantripError):
    """The result of an episode was taken that has no answer, because a ward, a person or a failure ended the episode.

    It is raised for cantrips with an `answer` type. `ward` names the ward, None without one; `reason` says why the
    episode ended, and `summary` what was accomplished until then.
    """

    def __init__(self, entity_id: str, reason: str, ward: str | None, summary: str | None) -> None:
        super().__init__(
            f"the episode of entity {entity_id} ended without an answer ({ward or reason}): "
            f"{summary or 'nothing was accomplished'}"
        )
        self.entity_id = entity_id
        self.reason = reason
        self.ward = ward
        self.summary = summary


class AnswerMisfit(CantripError, ValueError):
    """An answer is not of the type that its reader has, because another version of the cantrip gave it."""


class AllowanceSpent(CantripError):
    """A caller, a tenant or all of them have spent what they may spend in this day or month: give the work later.

    `most` is the allowance in US dollars, `per` "day" or "month", `retry_after` the seconds until the next one begins
    (in UTC). `by` and `tenant` say whose it is; None is all of them.
    """

    def __init__(self, by: str | None, tenant: str | None, most: float, per: str, retry_after: float) -> None:
        whose = f"{by!r}" if by is not None else f"tenant {tenant!r}" if tenant is not None else "all callers together"
        super().__init__(
            f"{whose} may have a cost of ${most:g} a {per}, which is spent: try again in {retry_after:.0f} s"
        )
        self.by = by
        self.tenant = tenant
        self.most = most
        self.per = per
        self.retry_after = retry_after


class UnfinishedWork(CantripError):
    """The episode of a piece of work has not ended, never began, or ended without a turn to continue from."""

    def __init__(self, work: str, state: str = "working") -> None:
        advice = {
            "withdrawn": "its intent was withdrawn: send another one, with another key",
            "refused": "its entity ended before it took the intent: send the intent to another one",
            "settled": "it ended without a turn: begin a new entity",
        }.get(state, "wait for its result first")
        super().__init__(f"work {work} has no end to continue from: {advice}")
        self.work = work


class Withdrawn(CantripError):
    """The intent was withdrawn while it waited in the inbox: its entity never saw it.

    `by` says who withdrew it, "" if unknown, and `why` the reason. Its key stays used.
    """

    def __init__(self, entity_id: str, key: str, by: str, why: str) -> None:
        who = f" by {by}" if by else ""
        super().__init__(
            f"the intent with key {key!r} was withdrawn{who} before entity {entity_id} took it: {why}; "
            "to have it worked on after all, send it with another key"
        )
        self.entity_id = entity_id
        self.key = key
        self.by = by
        self.why = why


class RuntimeClosed(CantripError):
    """The runtime is not open yet, or is closed."""


def find_nearest(name: object, known_names: Iterable[str]) -> list[str]:
    """Return the few known names that are most like a name, nearest first.

    Only names that share a pair of letters with it are compared.
    """
    wanted = str(name)[:LONGEST_NAME]
    pairs = {wanted[at : at + 2] for at in range(len(wanted) - 1)}
    shared = {known: sum(pair in known for pair in pairs) / (len(known) + len(wanted)) for known in known_names}
    likely = heapq.nlargest(30, sorted(shared), key=shared.__getitem__)
    return difflib.get_close_matches(wanted, likely, n=5, cutoff=0.5)


def suggest_nearest(name: object, known_names: Iterable[str]) -> str:
    """Return the hint that ends a message about an unknown name: the nearest known name, and all known names.

    >>> suggest_nearest("max_turn", ["max_turns", "max_depth"])
    'did you mean "max_turns"? known: max_depth, max_turns'
    """
    names = sorted(set(known_names))
    listed = f"known: {', '.join(names)}" if names else "there are none"
    close = difflib.get_close_matches(str(name)[:LONGEST_NAME], names, n=1)
    return f'did you mean "{close[0]}"? {listed}' if close else listed
