"""Dispatches that wait for a human, as requests of a runtime.

A dispatch waits for an approval before it starts, for the approval of a phase, or because it is blocked. Its request
has the id `dispatch:<id>`. "allow" makes the same decision as `Dispatcher.approve`, "deny" the same as
`Dispatcher.reject`; the log of the dispatch records it with the name of the person.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cantrip_actors.dispatch.errors import UnknownDispatch
from cantrip_actors.dispatch.events import Approved, Event, PhaseApproved, StatusChanged, Unblocked, make_entry_key
from cantrip_actors.dispatch.log import Dispatches, read_trusted_records
from cantrip_actors.dispatch.record import Record, make_decision
from cantrip_actors.loom import KeyUsed
from cantrip_actors.own_files.claims import HOME
from cantrip_actors.runtime.people.request import Request
from cantrip_actors.terms.errors import AlreadyDecided, UnknownRequest

PREFIX = "dispatch:"

FOLDER = Path(HOME, "dispatches")
"""The folder in which the command line keeps the logs, if none is named."""


@dataclass(frozen=True)
class DispatchRequests:
    """The requests of the dispatches in one folder. Two of the same folder are equal."""

    folder: Path
    log: Dispatches = field(compare=False)

    @classmethod
    def of(cls, log: Dispatches) -> DispatchRequests:
        """Return the requests of the dispatches of a log."""
        return cls(log.folder.absolute(), log)

    def has(self, request_id: str) -> bool:
        """Return whether the id belongs to a dispatch in this folder."""
        return request_id.startswith(PREFIX) and request_id.removeprefix(PREFIX) in self.log.ids()

    def open(self) -> list[Request]:
        """Return a request for each dispatch that waits for a human."""
        return [_make_request(record) for record in read_trusted_records(self.log) if record.waits_for]

    async def decide(
        self, request_id: str, decision: Literal["allow", "deny"], *, by: str, note: str, door: str = "", key: str = ""
    ) -> bool:
        """Approve or reject the dispatch. A repeated decision with a `key` writes nothing, and returns True.

        Raises KeyUsed, UnknownRequest, AlreadyDecided, TamperedRecord, DispatchError.
        """
        dispatch_id, is_repeated = request_id.removeprefix(PREFIX), True
        approval, rejection = make_decision("approve", note), make_decision("reject", note or "denied")

        def decide(record: Record) -> tuple[Event, ...]:
            nonlocal is_repeated
            is_repeated = False
            if not record.waits_for:
                raise _make_error(record)
            return approval(record) if decision == "allow" else rejection(record)

        entry_key = make_entry_key(key, [door, decision, note])
        try:
            await self.log.append_soon(dispatch_id, decide, by="human", author=by, door=door, key=entry_key)
        except KeyUsed:
            record = await self.log.read_soon(dispatch_id)
            if record.waits_for:
                raise
            raise _make_error(record) from None
        except UnknownDispatch as unknown:
            raise UnknownRequest(str(unknown)) from unknown
        return is_repeated


def open_requests(folder: Path | None, seal_key: Path | None) -> DispatchRequests | None:
    """Return the requests that `cantrip requests` lists, too (the entry point `cantrip_actors.requests`)."""
    folder = folder or FOLDER
    return DispatchRequests.of(Dispatches(folder, seal_key=seal_key)) if folder.is_dir() else None


def _make_request(record: Record) -> Request:
    contract, since, entity = record.contract, record.entries[0], None
    if record.status == "blocked":
        since = next(
            entry
            for entry in reversed(record.entries)
            if isinstance(entry.event, StatusChanged) and entry.event.status == "blocked"
        )
        entity = record.runner
    return Request(
        id=PREFIX + record.id,
        kind="dispatch",
        entity=entity,
        turn=None,
        call=None,
        gate="dispatch",
        args={"dispatch": record.id, "title": contract.title, "objective": contract.objective},
        text=record.waits_for,
        schema=None,
        asked_at=since.ts,
        expires_at=None,
    )


def _make_error(record: Record) -> AlreadyDecided | UnknownRequest:
    """Return the error with the newest decision, or one that says that the dispatch waits for none."""
    for entry in reversed(record.entries):
        match entry.event:
            case Approved(note) | PhaseApproved(_, note) | Unblocked(note):
                return AlreadyDecided(PREFIX + record.id, "allow", entry.author, entry.ts, note)
            case StatusChanged("rejected", reason=note):
                return AlreadyDecided(PREFIX + record.id, "deny", entry.author, entry.ts, note)
    return UnknownRequest(f"dispatch {record.id} is {record.status}: it waits for no decision")
