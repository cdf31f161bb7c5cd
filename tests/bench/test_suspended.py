"""`python -m bench suspended` measures entities that wait in the middle of a program."""

import orjson
import pytest

from bench import suspended

pytestmark = pytest.mark.real_time  # programs compute in threads and worker processes


def test_suspended_entities_wait_at_once_and_an_exceeded_limit_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(suspended, "LIMIT", -1e9)
    monkeypatch.setattr(suspended, "LANGUAGES", ("python",))
    assert suspended.main(["--entities", "6", "--depth", "2", "--settle", "0", "--check", "--json"]) == 1
    told = orjson.loads(capfdbinary.readouterr().out)
    assert (told["entities"], told["depth"]) == (6, 2)
    assert told["told"]["python"]["threads"] < 20
    assert len(told["over"]) == 1


def test_chains_deeper_than_the_number_of_entities_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        suspended.main(["--entities", "5", "--depth", "20"])
    assert "expected at least as many entities as the chains are deep, got 5, 20" in capsys.readouterr().err
