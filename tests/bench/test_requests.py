"""`python -m bench requests` measures entities that wait for people."""

import orjson
import pytest

from bench import requests

pytestmark = pytest.mark.real_time  # entities are unloaded while the measurement looks


@pytest.mark.rule("C-22")
def test_an_exceeded_limit_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(requests, "LIMIT", -1e9)
    monkeypatch.setattr(requests, "PASSIVE", 0.0)
    assert requests.main(["--entities", "5", "--json"]) == 1
    told = orjson.loads(capfdbinary.readouterr().out)
    assert told["over"]
    assert told["list"] > 0
