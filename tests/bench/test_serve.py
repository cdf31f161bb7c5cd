"""`python -m bench serve` measures HTTP beside the process, and says when a limit does not hold."""

import orjson
import pytest

from bench import serve
from bench.pace import Pace, list_faults

pytestmark = pytest.mark.real_time


def test_an_exceeded_limit_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(serve, "STREAMS_LIMIT", 0.0)
    monkeypatch.setattr(serve, "TURN", 0.01)
    assert serve.main(["--casts", "5", "--streams", "2", "--words", "40", "--json"]) == 1
    told = orjson.loads(capfdbinary.readouterr().out)
    assert told["over"]
    assert told["cast_http"] > told["cast_inside"] > 0
    streams = {
        "chat completions",
        "responses",
        "native events",
        "runtime.stream",
        "ACP",
        "many: median",
        "many: slowest",
    }
    assert told["pace"].keys() == streams
    assert all(pace["rate"] > 0 and pace["first"] > 0 for pace in told["pace"].values())


@pytest.mark.rule("W-10")
@pytest.mark.parametrize(
    ("seen", "has_fault"),
    [
        ([number / 50 + 0.02 for number in range(100)], False),
        ([number / 50 + 0.04 for number in range(100)], True),
        ([number / 50 + 0.02 for number in range(0, 100, 2)], True),
        ([number / 50 + 0.02 for number in range(100) if not 20 <= number < 28], True),
    ],
    ids=["each word at once", "a late beginning", "every second word", "a gap of eight words"],
)
def test_a_stream_that_is_late_or_stutters_is_a_fault(seen: list[float], has_fault: bool) -> None:
    pace = Pace.of([number / 50 for number in range(100)], seen)
    assert list(list_faults({"chat": pace, "many: slowest": pace})) == (["chat"] if has_fault else [])
