"""Where the tables of an SQL store contradict its lines, for `verify`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

from cantrip_actors.loom.stores.inbox import mark_fault
from cantrip_actors.loom.stores.rules import read_header_facts
from cantrip_actors.loom.tables.mail_tables import SCHEDULES
from cantrip_actors.loom.tables.table_rows import decode_optional_text, decode_text, fetch_pages
from cantrip_actors.machine.project import Life, as_header
from cantrip_actors.records.codec import decode
from cantrip_actors.records.submissions import decode_submission
from cantrip_actors.records.timers import decode_timer
from cantrip_actors.terms.errors import LoomError

Fetch = Callable[..., list[Any]]
"""Returns the rows of a query with these values."""


def find_table_faults(fetch: Fetch, half_forgotten: Container[str]) -> Iterator[str]:
    """Yield where the tables of entities, mail, timers and submissions contradict the lines.

    The tombstones of a half forgotten entity name no mail any more.
    """
    yield from _find_entity_faults(fetch)
    yield from _find_mail_faults(fetch, half_forgotten)
    yield from _find_timer_faults(fetch)
    yield from _find_submission_faults(fetch)


def _find_entity_faults(fetch: Fetch) -> Iterator[str]:
    for no, body, parent, turn, forked, name, lasting, tenant, began in fetch_pages(fetch, _BEGINNINGS):
        if body is None:
            yield f"record {no} is missing, and an entity should begin with it"
            continue
        try:
            header = as_header(decode(decode_text(body).encode()))
        except LoomError:  # `verify` reports it
            continue
        row = (
            decode_optional_text(parent),
            decode_optional_text(turn),
            bool(forked),
            decode_optional_text(name),
            bool(lasting),
            decode_text(tenant),
            decode_text(began),
        )
        if header is not None and row != read_header_facts(header):
            yield f"record {no}: the row of its entity differs from this line"


def _find_mail_faults(fetch: Fetch, half_forgotten: Container[str]) -> Iterator[str]:
    for no, key, entity, lasting, body in fetch_pages(fetch, _MARKS):
        try:
            record = decode(decode_text(body or "").encode())
        except LoomError:  # `verify` reports it, or the record is missing
            record = None
        if record is not None and record.entity_id in half_forgotten:
            continue
        fault = mark_fault(no, decode_text(entity), decode_text(key), record, lasting=bool(lasting))
        if fault is not None:
            yield fault
    for (entity,) in fetch(_MISCOUNTED):
        yield f"the tree of entity {decode_text(entity)} has a wrong count of waiting mail"


def _find_timer_faults(fetch: Fetch) -> Iterator[str]:
    """Yield the timers without a living entity, and those whose row contradicts their line."""
    for no, id, due, line, entity, life in fetch_pages(fetch, _ALL_TIMERS, after=(SCHEDULES - 1, "")):
        owner = decode_optional_text(entity) or ""
        named = f"timer {decode_text(id)}{f' of entity {owner}' if owner else ''}"
        try:
            timer = decode_timer(decode_text(line).encode())
        except LoomError as error:
            yield f"{named}: {error}"
            continue
        row = decode_text(id), due, owner
        if no != SCHEDULES and (life is None or life >= Life.OVER):
            yield f"{named}: its entity has ended, or never began"
        elif row != (timer.id, timer.due, timer.entity_id):
            yield f"{named}: its row differs from its line"


def _find_submission_faults(fetch: Fetch) -> Iterator[str]:
    query = "select id, queue, rank, at, line from submissions where id > ? order by id limit ?"
    for id, queue, *position, line in fetch_pages(fetch, query, after=("",)):
        try:
            row = decode_submission(decode_text(line).encode())
        except LoomError as error:
            yield f"submission {decode_text(id)}: {error}"
            continue
        if (decode_text(id), decode_text(queue), position) != (row.id, row.queue, list(row.position[:2])):
            yield f"submission {decode_text(id)}: its row differs from its line"


_BEGINNINGS = """
select no, body, parent_entity, parent_turn, forked, name, lasting, tenant, at
  from entities left join records on seq = no and entity = no where no > ? order by no limit ?
"""
_MARKS = """
select mail.no, key, root.id, root.lasting, body from mail join entities root on root.no = mail.entity
  left join (records join entities on entities.no = records.entity) on seq = taken and entities.tree = mail.entity
  where taken is not null and mail.no > ? order by mail.no limit ?
"""
_ALL_TIMERS = """
select entity, timers.id, due, line, entities.id, life from timers left join entities on no = entity
  where (entity, timers.id) > (?, ?) order by entity, timers.id limit ?
"""
_MISCOUNTED = """
select id from trees join entities using (no) left join (
  select mail.entity, sum(1 - lane) as control, sum(lane) as intents, sum(case when loads then 1 else 0 end) as loads
    from mail where taken is null group by mail.entity) counted on counted.entity = trees.no
  where trees.control <> coalesce(counted.control, 0) or trees.intents <> coalesce(counted.intents, 0)
    or trees.loads <> coalesce(counted.loads, 0)
"""
