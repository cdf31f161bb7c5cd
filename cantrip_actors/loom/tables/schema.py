"""The tables of both SQL stores, and how tables of an earlier version become those of the present one.

    records     seq, entity, turn, body     a line each, in order; `turn` for committed turns only, and unique
    entities    no, id, tree, …             one an entity: its parent or original, its name, how it stands now
    trees       no, head, control, …        one a root: the last link of its hash chain, how much mail waits
    checkpoints entity, data                an entity's state after one of its records; rows may be deleted
    leases      token, entity, holder, …    the holder that may write for a tree, while one has claimed it
    blobs       digest, kind, data, seal    images and snapshots that lines refer to, each once
    mail        no, entity, key, taken, …   mail, and which record took it; `line` is empty from then on
    timers      entity, id, due, line       when mail is due; schedules have entity 0
    submissions id, queue, rank, at, line   casts that wait in a queue, in the order of rank, at and id
    accounts    name, state                 state that all processes share: limits, bounds and places of queues
    seal        salt, mark, records, link   one row, in sealed looms only (`seal_key.py`)
    tallies     tenant, state, many         in SQLite only: how many entities of a tenant are in a state

An entity's `no` is the `seq` of its header. In SQLite an index has the row's number anyway; for Postgres it is named.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = 1
"""The version of these tables; lines have a version of their own, `codec.SCHEMA`."""
READABLE_BY = 1
"""The earliest version that reads and writes these tables as they are, beside processes of this version.

It is recorded with the version. A step that only adds tables, indexes and columns with defaults does not raise it:
every statement names its columns, so additions do not disturb an earlier version.
"""
STEPS: tuple[str, ...] = ()
"""The statements that make tables of version 1, 2, … those of the next version. They change no line."""

SEAL = "create table seal (salt text not null, mark text not null, records bigint not null, link text not null)"

IS_ASIDE = """substr(body, 1, 17) in ('{"kind":"reward",', '{"kind":"adopted"', '{"kind":"undone",')"""
"""Which lines are of a kind in `ASIDES`; a line begins with its kind."""

IS_OF_KIND = {
    "root": "parent_entity is null and not forked",
    "child": "parent_entity is not null and not forked",
    "fork": "forked",
    "lasting": "lasting",
}
"""Which entities are of which kind in listings (`selection.ListedKind`)."""

_TABLES = f"""
create table records (seq {{key}}, entity bigint not null, turn text, body text not null);
create index records_of on records (entity{{seq}});
create unique index turns on records (turn) where turn is not null;
create index asides on records (entity{{seq}}) where {IS_ASIDE.replace("{", "{{")};
create table entities (
  no {{key}}, id text not null unique, tree bigint not null, parent_entity text, parent_turn text,
  forked boolean not null, name {{ordered}}, lasting boolean not null, tenant text not null, at {{ordered}} not null,
  life smallint not null, state text not null, cantrip text);
create index below on entities (parent_entity, at{{no}}) where parent_entity is not null;
create index branches on entities (parent_turn{{no}}) where parent_turn is not null;
create index forks on entities (parent_turn{{no}}) where forked;
create index named on entities (name, tenant{{no}}) where name is not null;
create index newest on entities (at{{no}});
create index newest_of_state on entities (state, at{{no}});
create index newest_of_cantrip on entities (cantrip, at{{no}});
create index newest_of_tenant on entities (tenant, at{{no}});
create index newest_roots on entities (at{{no}}) where {IS_OF_KIND["root"]};
create index newest_children on entities (at{{no}}) where {IS_OF_KIND["child"]};
create index newest_forks on entities (at{{no}}) where {IS_OF_KIND["fork"]};
create index newest_lasting on entities (at{{no}}) where {IS_OF_KIND["lasting"]};
create index unfinished on entities (life{{no}}) where life < 2;
create table trees (
  no {{key}}, head text not null, control integer not null default 0, intents integer not null default 0,
  loads integer not null default 0);
create index inboxes on trees (no) where control + intents > 0;
create table holders (
  no {{serial}}, owner text not null unique, until {{time}} not null, boot text not null default '');
create table leases (
  token {{token}}, entity text not null unique, holder bigint not null, deaths integer not null default 0,
  ends double precision, why text not null default '');
create index held on leases (holder);
create table blobs (digest text primary key, kind text not null, data {{bytes}} not null, seal text not null);
create table mail (
  no {{key}}, entity bigint not null, lane smallint not null, loads boolean not null, key text not null,
  digest {{bytes}} not null, line text not null, taken bigint);
create unique index mail_keys on mail (entity, key);
create index mail_waiting on mail (entity, lane{{no}}) where taken is null;
create table checkpoints (entity {{key}}, data {{bytes}} not null);
create table timers (
  entity bigint not null, id text not null, due double precision, line text not null, primary key (entity, id));
create index due_timers on timers (due, entity, id) where due is not null;
create table submissions (
  id {{ordered}} primary key, queue text not null, rank smallint not null,
  at double precision not null, line text not null);
create index next_submissions on submissions (queue, rank, at, id);
create table accounts (name text primary key, state text not null);
"""


def write_statements(found: int, types: Mapping[str, str]) -> str:
    """Return the SQL that makes the current tables from those of version `found`, or from nothing for 0."""
    return ("".join(STEPS[found - 1 :]) if found else _TABLES).format_map(types)
