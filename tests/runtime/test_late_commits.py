"""A process is killed while the server commits for it: the commit ends after the next process has looked.

A trigger that sleeps holds the commit up. The server does not notice meanwhile that its client is gone.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import psycopg
import pytest

from cantrip_actors import Cantrip, Circle, NameTaken, Runtime, scripted
from cantrip_actors.records.records import IntentGiven
from cantrip_actors.wards import max_turns
from tests.forked import Forked
from tests.loom import postgres
from tests.runtime.spells import done, say

pytestmark = pytest.mark.real_time

LIFE = """
import sys, anyio
from tests.runtime.test_late_commits import live

anyio.run(live, sys.argv[1])
"""

SLOW = """
create table slow (on_commit text);
create function sleep() returns trigger language plpgsql as $$
  begin
    if exists (select 1 from slow where on_commit = tg_argv[0]) then perform pg_sleep(1.5); end if;
    return null;
  end $$;
create constraint trigger begins after insert on entities deferrable initially deferred
  for each row execute function sleep('an entity begins');
create constraint trigger sets after insert on timers deferrable initially deferred
  for each row execute function sleep('a timer is set');
create constraint trigger fires after delete on timers deferrable initially deferred
  for each row execute function sleep('a timer fires');
create constraint trigger takes after update on mail deferrable initially deferred
  for each row execute function sleep('the mail of a timer is taken');
"""


def answer(context: Any) -> object:
    said = next(message for message in reversed(context) if message.role == "user").content
    is_first = said == "start" and context[-1].role == "user"
    return say("wake_me", in_seconds=0.1, why="it is time") if is_first else done(said)


WAKES = Cantrip(scripted(answer, record=False), circle=Circle(["done", "wake_me"], [max_turns(5)]), name="wakes")


async def live(url: str) -> int:
    """Begin the entity unless it is there, wait until its timer has woken it, and return how often that happened."""
    async with Runtime.open(url, cantrips=[WAKES], recover="resume") as runtime:
        while True:
            entity = runtime.entity("keeper")
            if entity is None:
                try:
                    entity = await runtime.invoke(WAKES, "start", name="keeper")
                except NameTaken:  # by the life before, which the server has committed for meanwhile
                    entity = runtime.entity("keeper")
                    assert entity is not None
                    await runtime.resume(entity.id)
            given = [one.intent for one in runtime.loom.records(entity.id) if isinstance(one, IntentGiven)]
            if "it is time" in given and runtime.loom.state(entity.id) == "idle":
                return given.count("it is time")
            await anyio.sleep(0.05)


@contextmanager
def asking(url: str) -> Iterator[Any]:
    server, _, schema = url.partition("&schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"set search_path to {schema}")
        yield connection


def kill_at_commit(url: str, when: str) -> None:
    """Kill a life while the server commits this for it."""
    with asking(url) as server:
        server.execute("insert into slow values (%s)", (when,))
        life = Forked(LIFE, url)
        until = time.monotonic() + 20
        while not server.execute("select 1 from pg_stat_activity where wait_event = 'PgSleep'").fetchall():
            assert time.monotonic() < until, life.poll()
            time.sleep(0.01)
        life.kill()
        life.wait()
        server.execute("delete from slow")


@pytest.mark.rule("N-09", "N-23", "N-48")
@pytest.mark.parametrize(
    "when", ["an entity begins", "a timer is set", "a timer fires", "the mail of a timer is taken"]
)
async def test_a_timer_wakes_its_entity_once_when_a_process_is_killed_in_a_commit(when: str) -> None:
    url = postgres.fresh()
    async with Runtime.open(url):
        pass
    with asking(url) as server:
        server.execute(SLOW)
    kill_at_commit(url, when)
    with anyio.fail_after(30):
        assert await live(url) == 1
    async with Runtime.open(url) as runtime:
        await anyio.sleep(2)
        assert [header.name for header in runtime.loom.headers()] == ["keeper"]
