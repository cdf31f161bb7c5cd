"""`cantrip demo serve`: one kill, two processes, no event lost."""

import pytest

pytestmark = pytest.mark.real_time


@pytest.mark.rule("HTTP-03")
def test_the_demo_misses_no_event_although_the_service_was_killed(process):
    said = process("demo", "serve")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert "serves the cantrip counter at http://127.0.0.1:" in lines[0]
    assert "its stream sent entity, turn, turn. The stream is cut here." in lines[1]
    assert lines[2].endswith("was killed with SIGKILL, in the middle of the work.")
    assert lines[3].endswith("The same POST, with the same key, found the same entity.")
    assert lines[4].endswith("and sent 6 more, to the end.")
    assert lines[5:] == ["It counted to 6. The reader saw every event once."]


def test_the_demo_refuses_a_loom_that_only_one_process_can_open(cantrip):
    said = cantrip("demo", "serve", "--loom", "memory:")
    assert said.code == 2
    assert "two processes use it" in said.err
