"""Logs that earlier versions wrote stay readable, verifiable and writable; `golden/` has one, with every kind of entry.

`python -m tests.dispatch.test_golden` writes it again; do that only to add entries.
"""

import hashlib
import shutil
import tempfile
from itertools import count
from pathlib import Path

import pytest

from cantrip_actors.dispatch import Dispatches, Progressed, TamperedRecord, markdown
from cantrip_actors.dispatch import events as e
from tests.dispatch.contracts import contract

GOLDEN = Path(__file__).parent / "golden"
NAME = "mend-the-search"
PAGE = "32a1ecc49295cf1c"
"""The first digits of the SHA-256 of the page that the recorded log becomes."""

TERMS = {"needs_approval": "yes", "decision_needed": "Whether tags are worth an index at all."}
WORKER, SUPERVISOR, HUMAN = ({"by": by, "author": f"a {by}"} for by in ("worker", "supervisor", "human"))
STEPS = [
    (e.Approved("fine"), HUMAN),
    (e.StatusChanged("active"), {**WORKER, "token": 1}),
    (e.Progressed("milestone", 'lines\nand "quotes" ü \ud800'), {**WORKER, "token": 1, "turn_id": "t1"}),
    (e.OutputWritten("src/search.py", "the index"), {**WORKER, "token": 1, "turn_id": "t2"}),
    (e.Decided("tags first", "they are asked for", "dates", "an index each"), {**WORKER, "token": 1}),
    (e.Folded(1, 4), {**WORKER, "token": 1}),
    (e.DoneRefused("evidence is missing"), {**SUPERVISOR, "token": 1}),
    (e.StepAdvanced(1, "the index has tags"), {**WORKER, "token": 1}),
    (e.StepReturned(1, "a test failed"), {**WORKER, "token": 1}),
    (e.StepSkipped(1, "nothing to do"), {**WORKER, "token": 1}),
    (e.PhasePassed("debug", (("root_cause", "the index"),)), {**WORKER, "token": 1}),
    (e.PhaseFailed("tests", ("they are red", "they are slow")), {**WORKER, "token": 1}),
    (e.PhaseFailed("tests", ("they are red",)), {**WORKER, "token": 1}),
    (e.PhaseApproved("tests", "red is fine"), HUMAN),
    (e.StatusChanged("queued", reason="approved"), HUMAN),
    (e.StatusChanged("active"), {**WORKER, "token": 1}),
    (e.Recovered("its lease expired"), {**SUPERVISOR, "token": 2}),
    (e.StatusChanged("active"), {**WORKER, "token": 2}),
    (e.Progressed("verification", "12 passed", item=1), {**WORKER, "token": 2}),
    (e.Progressed("verification", "13 passed", item=2), {**WORKER, "token": 2}),
    (e.Progressed("discovery", "tags are in lower case"), {**WORKER, "token": 2}),
    (e.Progressed("discovery", "tags keep their case", corrects=23), {**WORKER, "token": 2}),
    (e.StatusChanged("blocked", blocker="the key is missing"), {**WORKER, "token": 2}),
    (e.Unblocked("the key is in the vault"), HUMAN),
    (e.StatusChanged("queued", reason="the key is there"), HUMAN),
    (e.StatusChanged("rejected", reason="another one does it"), HUMAN),
    (e.Closed("kept for its lessons"), HUMAN),
]


def write_log(folder: Path) -> bytes:
    seconds = count()
    logs = Dispatches(folder, clock=lambda: f"2026-02-26T09:00:{next(seconds):02}.000Z")
    logs.create(
        contract(dispatch_id=NAME, role="loop", depth="full", max_iterations=2, wards=[{"max_turns": 9}], **TERMS),
        author="ann",
    )
    for event, how in STEPS:
        logs.append(NAME, event, **how)
    return logs.path(NAME).read_bytes()


@pytest.fixture
def logs(tmp_path):
    shutil.copy(GOLDEN / f"{NAME}.jsonl", tmp_path)
    return Dispatches(tmp_path)


@pytest.mark.rule("F-04")
def test_a_recorded_log_is_decoded_as_expected(logs) -> None:
    record = logs.read(NAME)
    assert [entry.event for entry in record.entries[1:] if entry.author != "runtime"] == [event for event, _ in STEPS]
    assert hashlib.sha256(markdown(record).encode(errors="surrogatepass")).hexdigest().startswith(PAGE)


@pytest.mark.rule("F-07")
def test_the_same_entries_are_written_as_the_same_bytes(tmp_path) -> None:
    assert write_log(tmp_path) == (GOLDEN / f"{NAME}.jsonl").read_bytes()


@pytest.mark.rule("F-07", "F-10")
def test_a_recorded_log_is_continued_where_it_was_torn(tmp_path, logs) -> None:
    lines = (GOLDEN / f"{NAME}.jsonl").read_bytes().splitlines(keepends=True)
    logs.path(NAME).write_bytes(b"".join(lines[:5]) + lines[5][:30])
    record = logs.append(NAME, Progressed("milestone", "continued"), **WORKER, token=1)
    assert (record.seq, Dispatches(tmp_path).read(NAME)) == (6, record)


@pytest.mark.rule("F-04")
def test_a_recorded_log_that_was_edited_is_found(logs) -> None:
    path = logs.path(NAME)
    path.write_bytes(path.read_bytes().replace(b"12 passed", b"99 passed"))
    with pytest.raises(TamperedRecord, match="line 21 is not to be trusted"):
        logs.read(NAME)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        (GOLDEN / f"{NAME}.jsonl").write_bytes(write_log(Path(place)))
        page = markdown(Dispatches(place).read(NAME)).encode(errors="surrogatepass")
    print(f"PAGE = {hashlib.sha256(page).hexdigest()[:16]!r}")  # noqa: T201
