"""`python -m bench peers` does the same work with every library, and what one cannot do is a row with the reason."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.peers import environments, plot
from bench.peers.command import main
from bench.peers.environments import NotInstalledError, install
from bench.peers.measuring import Measured, ProgramError, interleave, measure, run_program
from bench.peers.places import NoStoreError, Place, Stores
from bench.peers.programs.ours import Ours
from bench.peers.programs.work import Job, _measure
from bench.peers.report import TABLES, as_json, as_text, find_ratio, list_gaps
from bench.peers.subjects import OURS, SUBJECTS, WORKS, Subject, Work

SUBJECT = {subject.name: subject for subject in SUBJECTS}
OURS_MEMORY, GRAPH = SUBJECT["ours"], SUBJECT["LangGraph"]
SHORT = Work("20", Job("run", 20))
CPU = TABLES[0].columns[0]


def measure_by(run, find_python=lambda _: Path("python"), subjects=(OURS_MEMORY, GRAPH), works=(SHORT,), **options):
    options = {"rounds": 1, "open_place": Stores(None).open, **options}
    return measure(subjects, works, find_python=find_python, run=run, **options)


def make_measured(**cpu: float) -> Measured:
    names = {"ours": "ours", "graph": "LangGraph", "sqlite": "ours, SQLite", "graph_sqlite": "LangGraph, SQLite"}
    figures = {(names[key], "20"): {"cpu_us": value, "wall_us": value, "peak_mb": 50.0} for key, value in cpu.items()}
    return Measured(figures, {("AutoGen", "20"): "cannot be installed: no network"}, 1, {"LangGraph": "langgraph 1.2"})


def test_each_round_does_each_work_by_one_subject_after_the_other() -> None:
    order = [
        (number, work.name, subject.name) for number, work, subject in interleave([OURS_MEMORY, GRAPH], WORKS[:2], 2)
    ]
    assert order == [
        (number, work, subject) for number in (1, 2) for work in ("20", "200") for subject in ("ours", "LangGraph")
    ]


def test_the_median_of_the_rounds_counts() -> None:
    figures = iter([1.0, 9.0, 2.0])
    measured = measure_by(lambda *_: {"cpu_us": next(figures)}, subjects=[OURS_MEMORY], rounds=3)
    assert measured.figures["ours", "20"] == {"cpu_us": 2.0}


def test_a_peer_that_cannot_be_installed_is_a_row_and_the_rest_runs() -> None:
    def find_python(subject: Subject) -> Path:
        if subject is GRAPH:
            raise NotInstalledError("cannot be installed: no network")
        return Path("python")

    measured = measure_by(lambda *_: {"cpu_us": 5.0}, find_python=find_python)
    assert measured.figures == {("ours", "20"): {"cpu_us": 5.0}}
    assert "LangGraph: 20: cannot be installed: no network" in as_text(measured).splitlines()


def test_a_peer_whose_program_fails_is_a_row_and_is_not_tried_again() -> None:
    tried = []

    def run(python: Path, program: str, job: Job) -> dict[str, float]:
        tried.append(program)
        if program == GRAPH.program:
            raise ProgramError("failed: ImportError")
        return {"cpu_us": 5.0}

    measured = measure_by(run, rounds=2)
    assert tried == ["ours", "langgraph_agents", "ours"]
    assert measured.gaps["LangGraph", "20"] == "failed: ImportError"
    assert ("LangGraph", "20") not in measured.figures


def test_a_work_that_a_library_lacks_is_a_row_with_the_reason() -> None:
    measured = measure_by(lambda *_: {"cpu_us": 5.0}, works=WORKS)
    assert measured.gaps == {("ours", "resume"): "keeps nothing", ("LangGraph", "resume"): "keeps nothing"}


def test_nothing_begins_after_the_time_of_the_run() -> None:
    over = iter([False, True])
    measured = measure_by(lambda *_: {"cpu_us": 5.0}, is_over=lambda: next(over))
    assert list(measured.figures) == [("ours", "20")]
    assert measured.gaps["LangGraph", "20"] == "not measured: the time of the run was over"


def test_a_subject_without_its_store_is_a_row() -> None:
    measured = measure_by(lambda *_: {"cpu_us": 5.0}, subjects=[SUBJECT["ours, Postgres"]])
    assert "no Postgres" in measured.gaps["ours, Postgres", "20"]
    with pytest.raises(NoStoreError), Stores(None).open("postgres"):
        pass


def test_bytes_are_those_of_the_turns_that_a_smaller_run_does_not_have() -> None:
    def run(python: Path, program: str, job: Job) -> dict[str, float]:
        (Path(job.folder) / "file").write_bytes(bytes(1000 + 10 * job.count * job.repeat))
        return {"cpu_us": 5.0}

    work = Work("20", Job("run", 20, repeat=6), less=Job("run", 20))
    measured = measure_by(run, subjects=[SUBJECT["ours, SQLite"]], works=[work])
    assert measured.figures["ours, SQLite", "20"]["bytes"] == 10


def test_a_run_is_killed_and_resumed_in_the_same_store() -> None:
    jobs: list[Job] = []

    def run(python: Path, program: str, job: Job) -> dict[str, float]:
        jobs.append(job)
        return {"cpu_ms": 5.0}

    measure_by(run, subjects=[SUBJECT["ours, SQLite"]], works=[work for work in WORKS if work.name == "resume"])
    assert [job.what for job in jobs] == ["kill", "resume"]
    assert jobs[0].folder == jobs[1].folder


@pytest.mark.real_time
def test_a_program_that_fails_has_its_last_line_as_the_reason() -> None:
    with pytest.raises(ProgramError, match="failed: ModuleNotFoundError: No module named 'smolagents'"):
        run_program(Path(sys.executable), "smolagents_agents", Job("run", 1), limit=60)


@pytest.mark.real_time
def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(ProgramError, match="took longer than 0 s"):
        run_program(Path(sys.executable), "smolagents_agents", Job("run", 1), limit=0.001)


@pytest.mark.real_time
def test_an_installation_that_fails_has_the_last_word_of_the_installer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fail = [sys.executable, "-SIc", "raise SystemExit('warning\\nno such package')"]
    monkeypatch.setattr(environments, "_list_ways", lambda *_: [[fail], [fail]])
    with pytest.raises(NotInstalledError, match=r"^cannot be installed: no such package$"):
        install(["smolagents"], tmp_path)


@pytest.mark.parametrize(
    "job", [Job("run", 5, agents=2), Job("delegate", 3), Job("stream", 10)], ids=lambda job: job.what
)
def test_our_program_does_each_work(job: Job, tmp_path: Path) -> None:
    figures = asyncio.run(_measure(Ours("memory", tmp_path), job))
    assert figures["cpu_us"] > 1
    assert figures["peak_mb"] > 10


def test_a_ratio_is_to_ours_with_the_same_kind_of_store() -> None:
    measured = make_measured(ours=100.0, graph=2000.0, sqlite=200.0, graph_sqlite=6000.0)
    assert find_ratio(measured, GRAPH, CPU) == 20
    assert find_ratio(measured, SUBJECT["LangGraph, SQLite"], CPU) == 30
    assert find_ratio(measured, SUBJECT["AutoGen"], CPU) is None
    assert all(subject.ours in OURS.values() for subject in SUBJECTS)


def test_the_table_has_figures_ratios_reasons_and_versions() -> None:
    text = as_text(make_measured(ours=100.0, graph=2000.0))
    rows = [line.split() for line in text.splitlines()]
    assert ["LangGraph", "2,000", "(x", "20.0)"] in rows
    assert ["ours", "100"] in rows
    assert "AutoGen: 20: cannot be installed: no network" in text
    assert "LangGraph: langgraph 1.2" in text


def test_works_with_the_same_reason_share_a_line() -> None:
    measured = Measured({}, {("AutoGen", "20"): "no network", ("AutoGen", "200"): "no network"}, 1)
    assert list(list_gaps(measured)) == ["AutoGen: 20, 200: no network"]


def test_the_json_has_figures_ratios_and_reasons() -> None:
    report = as_json(make_measured(ours=100.0, graph=2000.0), "python -m bench peers")
    assert report["subjects"]["LangGraph"]["works"]["20"]["cpu_us"] == 2000
    assert report["subjects"]["AutoGen"]["works"]["20"] == {"reason": "cannot be installed: no network"}
    assert report["ratios"]["LangGraph: 20 cpu_us"] == 20
    assert report["command"] == "python -m bench peers"


def test_the_picture_has_a_bar_for_each_subject_with_a_figure() -> None:
    measured = make_measured(ours=100.0, graph=2000.0)
    figures = {(name, "200"): value for (name, _), value in measured.figures.items()}
    drawing = ET.fromstring(plot.draw_svg(measured._replace(figures=figures)))
    bars = [element for element in drawing.iter() if element.tag.endswith("rect") and element.get("x")]
    texts = [element.text or "" for element in drawing.iter() if element.tag.endswith("text")]
    assert len(bars) == 2
    assert float(bars[0].attrib["width"]) < float(bars[1].attrib["width"])
    assert "2,000  x 20.0" in texts


def test_without_a_chromium_the_page_is_written_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    plot.write_plots(make_measured(ours=100.0), tmp_path / "new")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["peers.html"]
    assert "no peers.png" in capsys.readouterr().err


def test_the_command_prints_the_tables_and_writes_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def open_stores(_: str | None) -> Iterator[Stores]:
        yield Stores(None)

    def refuse(*_: object) -> Path:
        raise NotInstalledError("cannot be installed: no network")

    monkeypatch.setattr("bench.peers.command.open_stores", open_stores)
    monkeypatch.setattr("bench.peers.command.install", refuse)
    monkeypatch.setattr("bench.peers.command.run_program", lambda *_, limit: {"cpu_us": limit})
    assert main(["--quick", "--only", "autogen", "--works", "20,2000", "--json", str(tmp_path / "peers.json")]) == 0
    assert "AutoGen: 20: cannot be installed: no network" in capsys.readouterr().out
    assert b'"cpu_us": 30.0' in (tmp_path / "peers.json").read_bytes()
    with pytest.raises(SystemExit):
        main(["--works", "21"])


def test_a_place_is_empty_and_is_removed() -> None:
    def look(place: Place) -> Path:
        assert place.measure_size() == 0
        (place.folder / "file").write_bytes(b"12345")
        assert place.measure_size() == 5
        return place.folder

    with Stores(None).open("sqlite") as place:
        folder = look(place)
    assert not folder.exists()
