"""`python -m bench serve` measures HTTP beside the process, and says when a limit does not hold."""

import orjson
import pytest

from bench import serve

pytestmark = pytest.mark.real_time


def test_an_exceeded_limit_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(serve, "STREAMS_LIMIT", 0.0)
    monkeypatch.setattr(serve, "TURN", 0.01)
    assert serve.main(["--casts", "5", "--streams", "2", "--json"]) == 1
    told = orjson.loads(capfdbinary.readouterr().out)
    assert told["over"]
    assert told["cast_http"] > told["cast_inside"] > 0
