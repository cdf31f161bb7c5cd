"""`python -m bench service` measures services under load, and what cannot be measured is a line with the reason."""

import asyncio
import json
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import anyio
import anyio.abc
import pytest

from bench.peers.environments import NotInstalledError
from bench.peers.places import Stores
from bench.service.load import LoadError, drive
from bench.service.measuring import OURS, SERVICES, Cell, ServiceFigures, measure
from bench.service.provider import FIRST, SECOND, list_chunks
from bench.service.report import as_json, as_text, find_ratio, write_bars
from bench.service.where import render_phases

OF = {service.name: service for service in SERVICES}
SQLITE, POSTGRES, PEER = OF[OURS], OF["ours, Postgres"], OF["pydantic-ai"]


def make_query(*tools: str, has_result: bool = False) -> dict[str, object]:
    messages = [{"role": "user", "content": "Oslo"}, *([{"role": "tool"}] if has_result else [])]
    return {"messages": messages, "tools": [{"function": {"name": name}} for name in tools]}


def read_answer(query: dict[str, object]) -> tuple[str, str, str]:
    """Return the text of an answer, the tool that it calls, and the arguments."""
    text, name, args = "", "", ""
    for chunk in list_chunks(query)[:-2]:
        event = json.loads(chunk.partition(b"data: ")[2])
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                name += call["function"].get("name", "")
                args += call["function"]["arguments"]
    return text.strip(), name, args


def make_figures(**cpu: float) -> ServiceFigures:
    names = {"ours": OURS, "peer": PEER.name}
    figures = {
        Cell(names[key], 1, 50): {"cpu_us": value, "requests_s": 10.0, "events": 30.0, "first_ms": 1.0, "whole_ms": 2.0}
        for key, value in cpu.items()
    }
    return ServiceFigures(figures, {Cell(POSTGRES.name, 1, 50): "no Postgres"}, 1, {PEER.name: "pydantic-ai 9"})


def measure_by(start, services=(SQLITE, PEER), find_python=lambda _: Path("python"), rounds=1):
    open_place = Stores(None).open
    return measure(services, [1, 4], [1, 50], rounds, find_python=find_python, open_place=open_place, start=start)


def test_the_provider_calls_a_tool_first_and_then_answers_by_the_tool_of_the_library() -> None:
    assert read_answer(make_query("weather", "done")) == (FIRST, "weather", '{"city": "Oslo"}')
    report = '{"city": "Oslo", "celsius": 11.0, "advice": "Take a coat."}'
    assert read_answer(make_query("weather", "final_result", has_result=True)) == (
        SECOND,
        "final_result",
        report,
    )
    assert read_answer(make_query("weather", "done", has_result=True))[1:] == ("done", f'{{"answer": {report}}}')


def test_each_service_is_started_once_for_all_numbers_of_clients() -> None:
    started = []

    @contextmanager
    def start(service, _python, workers, _place):
        started.append((service.name, workers))
        yield lambda clients: {"cpu_us": float(clients)}

    measured = measure_by(start)
    assert started == [(OURS, 1), (PEER.name, 1), (OURS, 4), (PEER.name, 4)]
    assert measured.figures[Cell(PEER.name, 4, 50)] == {"cpu_us": 50.0}


def test_a_service_that_does_not_start_is_not_tried_again_and_the_others_run() -> None:
    started = []

    @contextmanager
    def start(service, _python, workers, _place):
        started.append((service.name, workers))
        if service is PEER:
            raise LoadError("did not start: ImportError")
        yield lambda clients: {"cpu_us": 1.0}

    measured = measure_by(start, rounds=2)
    assert started.count((PEER.name, 1)) == 1
    assert measured.gaps[Cell(PEER.name, 1, 1)] == "did not start: ImportError"
    assert Cell(OURS, 4, 50) in measured.figures


def test_a_service_that_cannot_be_installed_or_has_no_store_is_a_line() -> None:
    @contextmanager
    def start(*_):
        yield lambda clients: {"cpu_us": 1.0, "requests_s": 1.0, "events": 1.0, "first_ms": 1.0, "whole_ms": 1.0}

    def find_python(service):
        if service is PEER:
            raise NotInstalledError("cannot be installed: no network")
        return Path("python")

    text = as_text(measure_by(start, (SQLITE, POSTGRES, PEER), find_python))
    assert "pydantic-ai, workers: 4: cannot be installed: no network" in text.splitlines()
    assert "ours, Postgres, workers: 1: no Postgres on this machine, and no --postgres URL" in text.splitlines()


def test_the_ratio_is_to_ours_on_sqlite_under_the_same_load() -> None:
    measured = make_figures(ours=100.0, peer=250.0)
    assert find_ratio(measured, Cell(PEER.name, 1, 50), "cpu_us") == 2.5
    assert "250 (x 2.50)" in as_text(measured)
    report = as_json(measured, "python -m bench service")
    assert [cell["cpu_ratio"] for cell in report["cells"]] == [1.0, 2.5]
    assert report["gaps"] == [{"service": "ours, Postgres", "workers": 1, "clients": 50, "reason": "no Postgres"}]


def test_the_page_has_a_bar_for_each_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    write_bars(make_figures(ours=100.0, peer=250.0), tmp_path)
    page = (tmp_path / "service.html").read_text(encoding="utf-8")
    drawing = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    assert len([element for element in drawing.iter() if element.get("x") and element.tag.endswith("rect")]) == 2
    assert "250  x 2.50" in page


def test_the_phases_are_shares_of_the_cpu_of_a_request(tmp_path: Path) -> None:
    path = tmp_path / "phases.json"
    path.write_text('{"redaction": 1, "the loom": 3}')
    assert render_phases(path, 1000.0).split("\n") == [
        "      750 us  75.0%  the loom",
        "      250 us  25.0%  redaction",
    ]


def drive_against(answer: bytes, clients: int) -> dict[str, float]:
    """Put a service that always answers with these bytes under load; all requests together take 0.5 s of CPU."""

    async def serve(client: anyio.abc.SocketStream) -> None:
        with suppress(anyio.BrokenResourceError):  # a client that does not like an answer goes
            async with client:
                async for request in client:
                    await client.send(answer * request.count(b"}"))

    async def run() -> dict[str, float]:
        readings = iter([1.0, 1.5])
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            (measured,) = await asyncio.gather(
                drive(port, clients, 0.05, lambda: next(readings)), return_exceptions=True
            )
            tasks.cancel_scope.cancel()
        if isinstance(measured, BaseException):
            raise measured
        return measured

    return asyncio.run(run())


@pytest.mark.real_time
def test_the_cpu_is_shared_by_the_requests() -> None:
    figures = drive_against(b"HTTP/1.1 200 OK\r\n\r\nevent: text\nevent: report\n0\r\n\r\n", 3)
    requests = 0.5e6 / figures["cpu_us"]
    assert requests == pytest.approx(round(requests))
    assert requests >= 3
    assert figures["events"] == 2
    assert figures["first_ms"] <= figures["whole_ms"]


@pytest.mark.real_time
def test_an_answer_without_a_report_is_an_error() -> None:
    with pytest.raises(LoadError, match="without a report"):
        drive_against(b"HTTP/1.1 500 Oh\r\n\r\noh0\r\n\r\n", 1)
