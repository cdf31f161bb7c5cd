"""What people and entities are shown of a record: made from the log, always the same, never read back."""

import json

import pytest

from cantrip_actors.dispatch import (
    Decided,
    Dispatches,
    DoneRefused,
    Folded,
    OutputWritten,
    PhaseFailed,
    Progressed,
    Recovered,
    StatusChanged,
    StepAdvanced,
)
from cantrip_actors.dispatch.events import decode_entry, encode_entry
from cantrip_actors.dispatch.record import folded
from cantrip_actors.dispatch.rehydrate import rehydration
from cantrip_actors.dispatch.summary import overview, summary_of
from cantrip_actors.dispatch.view import markdown
from tests.dispatch.contracts import active, contract, queued, then

LEARNED = (Progressed("discovery", "tags are in lower case"), Progressed("what_failed", "a second index: too slow"))


def busy(**changed):
    record = then(active(**changed), *LEARNED, Progressed("verification", "12 passed", item=1))
    record = then(
        record, OutputWritten("search.py", "knows tags"), Decided("one index", "simple", "two", "rebuild once")
    )
    return then(record, Progressed("milestone", "indexed"))


@pytest.mark.rule("F-40")
class TestMarkdown:
    def test_a_view_shows_contract_and_history(self):
        text = markdown(busy())
        assert text.startswith("<!-- Made from 2026-02-26-notes-mend-the-search.jsonl. Editing")
        for line in (
            "# Dispatch: Mend the search",
            "| Status | active |",
            "1. [x] a tag finds its notes",
            "   > evidence: 12 passed",
            "2. [ ] an unknown tag finds none",
            "- `/srv/notes/search.py` — where the index is built",
            "- `search.py` — knows tags",
            "## What Failed",
            "> Rejected: two",
            "> indexed",
        ):
            assert line in text.splitlines()

    def test_the_same_log_makes_the_same_view(self):
        record = busy(role="loop", depth="full")
        again = folded(decode_entry(encode_entry(entry)) for entry in record.entries)
        assert markdown(again) == markdown(record)

    def test_an_entry_cannot_forge_a_heading_or_a_cell(self):
        text = "fine\n## Progress\n### 9. later — completed\n| Status | completed |"
        record = then(active(), Progressed("milestone", text), Progressed("discovery", text))
        record = then(record, StatusChanged("blocked", blocker="a | b\n# c"))
        lines = markdown(record).splitlines()
        assert lines.count("## Progress") == 1
        assert "| Status | completed |" not in lines
        assert "| Blocker | a \\| b # c |" in lines

    def test_editing_the_view_changes_nothing(self, tmp_path):
        logs = Dispatches(tmp_path)
        record = logs.create(contract(), author="ann")
        view = tmp_path / f"{record.id}.md"
        view.write_text(markdown(record).replace("queued", "completed"))
        assert logs.read(record.id) == record
        assert logs.ids() == (record.id,)


@pytest.mark.rule("F-28", "F-30")
class TestRehydration:
    def test_a_worker_reads_its_contract_progress_and_learned_facts(self):
        record = busy()
        text = rehydration(record)
        for part in (
            record.entries[0].contract_hash[:12],
            record.contract.objective,
            "1. [x] a tag finds its notes\n   > evidence: 12 passed",
            "2. [ ] an unknown tag finds none",
            *record.contract.tasks,
            record.contract.background,
            "tags are in lower case",
            "a second index: too slow",
            "milestone: indexed",
        ):
            assert part in text
        assert "Your dispatches" not in text
        assert "CURRENT" not in text

    def test_a_loop_reads_its_current_step(self):
        steps = ["look", {"purpose": "mend", "actions": "change search.py", "expected": "a tag finds"}, "test"]
        record = then(active(role="loop", steps=steps), StepAdvanced(1, "it is the index"), LEARNED[1])
        text = rehydration(record)
        assert "1. [DONE] look" in text
        assert "2. [CURRENT] mend\n   > actions: change search.py\n   > expected: a tag finds" in text
        assert "a second index: too slow" in text
        assert "nobody has to confirm" in text

    def test_a_worker_with_steps_and_phases_reads_where_it_is_and_what_ends_the_phase(self):
        record = then(active(steps=["look", "mend"], depth="minimal", max_iterations=4), StepAdvanced(1, "it is slow"))
        text = rehydration(then(record, PhaseFailed("debug", ("the cause is unknown",))))
        assert "2. [CURRENT] mend" in text
        assert "Now: debug, attempt 2 of 4\nIt ends with evidence of root_cause (the root cause)" in text

    def test_an_orchestrator_reads_its_running_workers(self):
        over = then(queued(dispatch_id="over"), StatusChanged("rejected", reason="no"), by="human")
        stuck = then(
            active(dispatch_id="stuck"), Progressed("blocker", "x"), StatusChanged("blocked", blocker="no key")
        )
        text = rehydration(active(role="orchestrator"), children=[busy(dispatch_id="busy"), over, stuck])
        assert "- busy [active] Mend the search (1/2 accepted)" in text
        assert "waits for: no key" in text
        assert "over" not in text
        assert "no key" not in rehydration(active(role="worker"), children=[stuck])

    @pytest.mark.rule("F-12")
    def test_a_view_is_bounded_but_keeps_learned_facts(self):
        record = active(lessons=["what failed: a regex"])
        for n in range(60):
            record = then(
                record, Progressed("milestone", f"m{n} " + "x" * 5000), Progressed("discovery", f"learned {n}.")
            )
        text = rehydration(record)
        assert all(f"learned {n}." in text for n in range(60))
        assert "what failed: a regex" in text
        assert "m59 " in text
        assert "m51 " not in text
        assert "52 older ones" in text
        assert len(text) < 10_000

    @pytest.mark.rule("F-12")
    def test_learned_facts_survive_folds_and_recoveries(self):
        record = then(then(busy(), Folded(1, 20)), Recovered("crash"), by="supervisor")
        text = rehydration(then(record, StatusChanged("active")))
        assert "attempt 2 (crash)" not in text  # it is running again; why it crashed is in the log
        assert "attempt 2" in text
        assert all(event.text in text for event in LEARNED)

    @pytest.mark.rule("F-31")
    def test_a_view_shows_refusals_of_done(self):
        assert "refused 1 times" in rehydration(then(active(), DoneRefused("no progress"), by="supervisor"))

    def test_corrected_facts_are_not_shown(self):
        record = then(active(), Progressed("discovery", "the moon is cheese"))
        record = then(record, Progressed("discovery", "it is rock", corrects=record.seq))
        assert "cheese" not in rehydration(record)
        assert "it is rock" in rehydration(record)


@pytest.mark.rule("F-47")
class TestSummaries:
    def test_a_summary_follows_from_the_record(self, tmp_path):
        logs = Dispatches(tmp_path)
        record = logs.create(contract(needs_approval="yes", decision_needed="which index to use"), author="ann")
        assert summary_of(record).waits_for == "approval: which index to use"
        logs.append(record.id, StatusChanged("rejected", reason="another day"), by="human", author="ann")
        for one in logs.records():
            assert summary_of(one) == summary_of(folded(one.entries))
            assert overview([one]) == overview([folded(one.entries)])
        assert summary_of(logs.read(record.id)).outcome == "another day"

    def test_a_view_has_a_json_form(self):
        assert json.loads(json.dumps(summary_of(busy()).model_dump()))["proven"] == 1
