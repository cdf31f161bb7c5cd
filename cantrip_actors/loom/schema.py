"""The tables of both SQL stores, and how tables of an earlier version become those of the present one.

    records     seq, entity, turn, body     a line each, in order; `turn` for committed turns only, and unique
    entities    no, id, tree, …             one an entity: its parent or original, its name, its phase of life
    trees       no, head, control, …        one a root: the last link of its hash chain, how much mail waits
    checkpoints entity, data                an entity's state after one of its records; rows may be deleted
    leases      token, entity, holder, …    the holder that may write for a tree, while one has claimed it
    blobs       digest, kind, data, seal    images and snapshots that lines refer to, each once
    mail        no, entity, key, taken, …   mail, and which record took it; `line` is empty from then on
    timers      entity, id, due, line, …    when mail is due; schedules have entity 0. A queued submission
                                            has a `queue` and its `place` there instead of `due`
    accounts    name, state                 state that all processes share: limits, bounds and places of queues
    seal        salt, mark, records, link   one row, in sealed looms only (`seal_key.py`)

An entity's `no` is the `seq` of its header. In SQLite an index has the row's number anyway; for Postgres it is named.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = 6
"""The version of these tables; lines have a version of their own, `codec.SCHEMA`."""
READABLE_BY = 5
"""The earliest version that reads and writes these tables as they are, beside processes of this version (N-66).

It is recorded with the version. An upgrade that only adds tables, indexes and columns with defaults does not raise it:
every statement names its columns, so additions do not disturb an earlier version.
"""
MAIL_SINCE = 4
"""The first version with mail, leases that count deaths, and checkpoints."""
TIMERS_SINCE = 5
QUEUES_SINCE = 6

SEAL = "create table seal (salt text not null, mark text not null, records bigint not null, link text not null)"

IS_ASIDE = """substr(body, 1, 17) in ('{"kind":"reward",', '{"kind":"adopted"')"""
"""Which lines are of a kind in `ASIDES`; a line begins with its kind."""
_READING = f"""
create index if not exists asides on records (entity{{seq}}) where {IS_ASIDE.replace("{", "{{")};
create index if not exists forks on entities (parent_turn{{no}}) where forked;
"""
"""Indexes without which reading takes longer: tables of this version from before them do not have them."""

_BLOBS = "create table blobs (digest text primary key, kind text not null, data {bytes} not null, seal text not null);"

_MAIL = """
create table mail (
  no {key}, entity bigint not null, lane smallint not null, loads boolean not null, key text not null,
  digest {bytes} not null, line text not null, taken bigint);
create unique index mail_keys on mail (entity, key);
create index mail_waiting on mail (entity, lane{no}) where taken is null;
create index inboxes on trees (no) where control + intents > 0;
"""
_LEASES = """
alter table holders add column boot text not null default '';
alter table leases add column deaths integer not null default 0;
"""
_CHECKPOINTS = "create table checkpoints (entity {key}, data {bytes} not null);"
_TIMERS = """
create table timers (
  entity bigint not null, id text not null, due double precision, line text not null, primary key (entity, id));
create index due_timers on timers (due, entity, id) where due is not null;
"""
_QUEUES = """
alter table timers add column queue text;
alter table timers add column place double precision;
create index queued_timers on timers (queue, place, entity, id) where queue is not null;
create table if not exists accounts (name text primary key, state text not null);
"""
"""An earlier version reads by `due` only, so it leaves what waits in a queue to nodes that know the bounds."""
_COUNTS = "".join(
    f"alter table trees add column {name} integer not null default 0;" for name in ("control", "intents", "loads")
)

_TABLES = """
create table records (seq {key}, entity bigint not null, turn text, body text not null);
create index records_of on records (entity{seq});
create unique index turns on records (turn) where turn is not null;
create table entities (
  no {key}, id text not null unique, tree bigint not null, parent_entity text, parent_turn text,
  forked boolean not null, name text, lasting boolean not null, life smallint not null);
create index below on entities (parent_entity{no}) where parent_entity is not null and not forked;
create index branches on entities (parent_turn{no}) where parent_turn is not null;
create index named on entities (name{no}) where lasting and name is not null;
create index unfinished on entities (life{no}) where life < 2;
create table trees (
  no {key}, head text not null, control integer not null, intents integer not null, loads integer not null);
create table holders (no {serial}, owner text not null unique, until {time} not null);
create table leases (token {token}, entity text not null unique, holder bigint not null);
create index held on leases (holder);
"""

_IMAGES = """
create table images (digest text primary key, engine text not null, seal text not null, data {bytes} not null);
"""
_PICTURES = """
create table if not exists pictures (digest text primary key, type text not null, data {bytes} not null);
"""
_NO_BLOBS = "select body as digest, body as kind, body as data, body as seal from records where false"
_SNAPSHOTS = "select digest, 'snapshot/' || engine as kind, data, seal from images"
_IMAGES_TOO = " union all select digest, type, data, '' from pictures"
_OLD_BLOBS = (_NO_BLOBS, _SNAPSHOTS, _SNAPSHOTS + _IMAGES_TOO)
"""The blobs in tables of version 1, 2 and 3."""

_UPGRADES = (
    _IMAGES,
    _PICTURES,
    _BLOBS
    + f"insert into blobs {_OLD_BLOBS[2]}; drop table images; drop table pictures;"
    + _COUNTS
    + _MAIL
    + _CHECKPOINTS
    + _LEASES,
    _TIMERS,
    _QUEUES + _READING,
)
"""The statements that upgrade tables of version 1, 2, … to the next one. They change no line."""


def write_statements(found: int, types: Mapping[str, str]) -> str:
    """Return the SQL that makes the current tables from those of version `found`, or from nothing for 0."""
    fresh = (_TABLES, _BLOBS, _MAIL, _CHECKPOINTS, _LEASES, _TIMERS, _QUEUES, _READING)
    parts = _UPGRADES[found - 1 :] if found else fresh
    return "".join(parts).format_map(types)


def select_blobs_query(version: int) -> str:
    """Return, as SQL, where tables of that version keep the blobs."""
    return "blobs" if version > len(_OLD_BLOBS) else f"({_OLD_BLOBS[version - 1]}) as blobs"
