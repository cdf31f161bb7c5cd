"""A Postgres server that refuses writes for a while: no intent is lost, and no gate runs twice."""

from contextlib import suppress
from typing import Any

import psycopg
import pytest

from cantrip_actors import LoomError, Runtime, gate
from tests.loom import postgres
from tests.runtime.spells import cantrip, done, say

pytestmark = [pytest.mark.real_time, pytest.mark.rule("C-10")]

REFUSE = """
create function refuse() returns trigger as $$ begin raise exception 'refused' using errcode = '{code}'; end $$
language plpgsql; create trigger refuse before insert on records for each row execute function refuse()
"""


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        pytest.param("53100", "Make room on the server's disk", id="full disk"),
        pytest.param("25006", "it is a standby, or was set read-only", id="read-only"),
        pytest.param("57014", "raise its statement_timeout", id="statement timeout"),
    ],
)
async def test_a_server_that_refuses_writes_for_a_while_loses_and_repeats_nothing(code: str, advice: str) -> None:
    paid: list[str] = []

    @gate
    async def pay(what: str) -> str:
        """Pay."""
        paid.append(what)
        return f"paid {what}"

    def policy(context: Any) -> Any:
        last = context[-1]
        return done(last.content) if last.role == "tool" else say("pay", what=last.content)

    payer, url = cantrip(policy, pay, name="payer"), postgres.fresh()
    server, _, schema = url.partition("&schema=")
    async with Runtime.open(url, cantrips=[payer]) as runtime:
        entity = await runtime.invoke(payer, "one", name="payer")
        await entity.episode()
        with psycopg.connect(server, autocommit=True, options=f"-csearch_path={schema}") as database:
            database.execute(REFUSE.format(code=code))
            with pytest.raises(LoomError, match=advice):
                await entity.send("two", key="two")
            with pytest.raises(LoomError, match=advice):
                await runtime.cast(payer, "three")
            database.execute("drop trigger refuse on records")
        with suppress(LoomError):  # from an attempt that began before: the entity has its intent, and tries by itself
            await entity.send("two", key="two")
        assert (await entity.send("two", key="two")).result == "paid two"
    assert paid == ["one", "two"]
