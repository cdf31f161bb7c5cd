"""Users' own tests under pytest-trio: a runtime works with its autojump clock."""

import pytest

USERS_TEST = """
import pytest
import trio

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_turns


async def slow(context):
    return {"content": "at last", "delay": 3600.0}


@pytest.mark.trio
async def test_an_hour_takes_no_time(autojump_clock):
    began = trio.current_time()
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(scripted(slow), circle=Circle(["done"], [max_turns(1)])), "wait")
    assert episode.result == "at last"
    assert trio.current_time() - began >= 3600
"""


def test_a_runtime_under_pytest_trio_and_its_jumping_clock(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USERS_TEST)
    pytester.runpytest_subprocess("-p", "no:anyio", "-p", "no:cacheprovider").assert_outcomes(passed=1)
