"""`cantrip dispatch`: contracts in, decisions in, views out; all of it through the log."""

import json
import os
import re

import pytest

from cantrip_actors.dispatch import (
    Approved,
    Dispatches,
    PhaseFailed,
    Progressed,
    StatusChanged,
    contract_template,
    from_markdown,
)

ID = "2026-02-26-notes-mend-the-search"
CONTRACT = {
    "title": "Mend the search",
    "project": "notes",
    "repo": "/srv/notes",
    "priority": "high",
    "dispatched_at": "2026-02-26",
    "needs_approval": False,
    "objective": "The search finds notes by their tags.",
    "acceptance": ["a tag finds its notes"],
    "scope": ["the user interface"],
    "background": "Tags were added in May, and the index never learned of them.",
    "sources": [{"path": "/srv/notes/search.py", "description": "where the index is built"}],
    "technical_context": "Python 3.11, no new dependency.",
    "tasks": ["index the tags"],
    "verification": "pytest tests/test_search.py is green",
}
GATED = {"needs_approval": True, "decision_needed": "May the index be built anew?"}


@pytest.fixture
def dispatched(cantrip, place):
    """Dispatch a contract with some fields changed; its log's lines, and the logs."""

    def new(**changed):
        (place / "contract.json").write_text(json.dumps(CONTRACT | changed))
        assert cantrip("dispatch", "new", "contract.json", "--by", "ann").code == 0
        return Dispatches(place / ".cantrip/dispatches")

    return new


def begin(logs, *events):
    worker = {"by": "worker", "author": "w", "token": 1}
    return logs.append(ID, StatusChanged("active"), *events, **worker)


BLOCKED = (Progressed("blocker", "no key"), StatusChanged("blocked", blocker="no key"))


class TestNew:
    @pytest.mark.rule("F-02")
    def test_a_contract_is_dispatched(self, cantrip, dispatched):
        record = dispatched().read(ID)
        assert (record.status, record.entries[0].by, record.entries[0].author) == ("queued", "human", "ann")
        assert cantrip("dispatch", "ls").out.splitlines()[1].startswith(f"{ID}  queued     high        0/1  Mend")

    @pytest.mark.rule("F-47")
    def test_the_columns_of_short_ids_stand_below_their_titles(self, cantrip, dispatched):
        dispatched(dispatch_id="a")
        title, row = cantrip("dispatch", "ls").out.splitlines()
        assert title.split() == ["DISPATCH", "STATUS", "PRIORITY", "MET", "TITLE"]
        assert title.index("STATUS") == row.index("queued")

    @pytest.mark.rule("F-03")
    def test_a_contract_is_dispatched_only_once(self, cantrip, dispatched):
        logs = dispatched()
        before = logs.path(ID).read_bytes()
        said = cantrip("dispatch", "new", "contract.json")
        assert said.code == 1
        assert "supersedes" in said.err
        assert logs.path(ID).read_bytes() == before

    @pytest.mark.rule("F-01")
    def test_every_mistake_is_shown_and_nothing_is_dispatched(self, cantrip, place):
        (place / "bad.yaml").write_text("title: x\nrepo: ./x\nneeds_approval: perhaps\n")
        said = cantrip("dispatch", "new", "bad.yaml")
        assert said.code == 2
        assert "bad.yaml:2: repo:" in said.err
        assert "bad.yaml:3: needs_approval:" in said.err
        assert "bad.yaml: objective: is missing" in said.err
        assert not (place / ".cantrip/dispatches").exists()
        as_json = cantrip("dispatch", "new", "bad.yaml", "--json").json
        assert {
            "line": 2,
            "message": "repo: expected a place that is the same everywhere, got './x': write it in full",
        } in (as_json["error"]["mistakes"])

    def test_the_template_becomes_a_contract(self, cantrip, place):
        page = cantrip("dispatch", "new", "--template").out
        assert page == contract_template()
        words = {"{DATE}": "2026-02-26", "{REPO}": "/srv/x", "{SOURCE_FILE}": "/srv/x/y.py"}
        page = re.sub(r"\{[A-Z_]+\}", lambda found: words.get(found[0], "some words on it"), page)
        assert not isinstance(from_markdown(page), tuple)
        (place / "filled.md").write_text(page)
        said = cantrip("dispatch", "new", "filled.md", "--json")
        assert said.json["status"] == "queued"

    @pytest.mark.parametrize("arguments", [[], ["contract.json", "--template"]])
    def test_new_requires_either_a_file_or_the_template(self, cantrip, arguments):
        assert cantrip("dispatch", "new", *arguments).code == 2

    def test_dispatches_are_kept_in_the_folder_that_dir_names(self, cantrip, place, dispatched):
        dispatched()
        assert cantrip("dispatch", "new", "contract.json", "--dir", "else").code == 0
        assert Dispatches(place / "else").ids() == (ID,)
        assert cantrip("dispatch", "ls", "--dir", "nowhere").err == "no dispatches in nowhere\n"


class TestViews:
    def test_ls_shows_why_a_dispatch_waits(self, cantrip, dispatched):
        dispatched(**GATED)
        (row,) = cantrip("dispatch", "ls", "--json").json
        assert row["waits_for"] == "approval: May the index be built anew?"
        assert "waits for approval" in cantrip("dispatch", "ls").out

    @pytest.mark.rule("F-17")
    def test_ls_by_status_accepts_aliases_and_rejects_an_unknown_status(self, cantrip, dispatched):
        begin(dispatched())
        assert len(cantrip("dispatch", "ls", "--status", "in-progress", "--json").json) == 1
        assert cantrip("dispatch", "ls", "--status", "queued", "--json").json == []
        assert cantrip("dispatch", "ls", "--status", "banana").code == 2

    @pytest.mark.rule("F-40")
    def test_show_renders_the_view_and_ignores_edits_to_its_file(self, cantrip, place, dispatched):
        begin(dispatched(), *BLOCKED)
        page = cantrip("dispatch", "show", "mend", "--markdown").out
        assert "| Blocker | no key |" in page
        (place / f".cantrip/dispatches/{ID}.md").write_text(page.replace("blocked", "completed"))
        assert cantrip("dispatch", "show", ID, "--markdown").out == page
        assert "It is blocked: no key" in cantrip("dispatch", "show", "search").out

    def test_show_in_json_has_contract_and_entries(self, cantrip, dispatched):
        dispatched()
        said = cantrip("dispatch", "show", "mend", "--json").json
        assert said["contract"]["objective"] == CONTRACT["objective"]
        assert said["entries"][0]["contract_hash"] == said["contract_hash"]

    def test_log_shows_every_entry(self, cantrip, dispatched):
        begin(dispatched(), *BLOCKED)
        lines = cantrip("dispatch", "log", "mend").out.splitlines()
        assert [line.split()[0] for line in lines] == ["1", "2", "3", "4"]
        assert lines[3].endswith("blocked by worker w: blocker: no key")
        assert [entry["kind"] for entry in cantrip("dispatch", "log", "mend", "--json").json] == [
            "contract",
            "status",
            "progress",
            "status",
        ]

    def test_an_unknown_or_ambiguous_id_is_a_mistake(self, cantrip, place, dispatched):
        dispatched()
        dispatched(dispatch_id="mend-more")
        assert cantrip("dispatch", "show", "mend-more").code == 0
        said = cantrip("dispatch", "show", "mend")
        assert said.code == 2
        assert "could be any of" in said.err
        assert cantrip("dispatch", "show", "nothing").code == 2

    @pytest.mark.rule("F-04")
    @pytest.mark.parametrize("command", ["show", "log", "approve"])
    def test_a_log_that_was_edited_is_refused(self, cantrip, dispatched, command):
        path = dispatched(**GATED).path(ID)
        path.write_bytes(path.read_bytes().replace(b"user interface", b"whole program."))
        said = cantrip("dispatch", command, "mend")
        assert said.code == 1
        assert "line 1 is not to be trusted" in said.err

    @pytest.mark.rule("F-04")
    def test_ls_lists_the_others_and_fails_when_a_log_was_edited(self, cantrip, dispatched):
        path = dispatched().path(ID)
        dispatched(dispatch_id="sound")
        path.write_bytes(path.read_bytes().replace(b"user interface", b"whole program."))
        said = cantrip("dispatch", "ls")
        assert said.code == 1
        assert "sound" in said.out
        assert ID not in said.out
        assert "line 1 is not to be trusted" in said.err
        assert [row["id"] for row in cantrip("dispatch", "ls", "--json").json] == ["sound"]

    @pytest.mark.rule("X-22")
    def test_a_name_in_the_log_begins_no_line(self, cantrip, place, dispatched):
        dispatched(**GATED)
        assert cantrip("dispatch", "approve", "mend", "--by", "eve\n   9 \x1b[2Know approved by grace").code == 0
        _, second = cantrip("dispatch", "log", "mend").out.splitlines()
        assert "approved by human eve 9  [2Know approved by grace" in second


class TestDecisions:
    @pytest.mark.rule("F-16")
    def test_an_approved_dispatch_can_start_and_shows_who_approved_it_and_when(self, cantrip, dispatched):
        logs = dispatched(**GATED)
        assert cantrip("dispatch", "approve", "mend", "--by", "bob", "--note", "at night").code == 0
        entry = logs.read(ID).entries[-1]
        assert (entry.kind, entry.author, entry.by, entry.event.note) == ("approval", "bob", "human", "at night")
        assert entry.ts
        assert begin(logs).status == "active"

    @pytest.mark.rule("F-16", "F-13")
    def test_a_rejected_dispatch_stays_rejected(self, cantrip, dispatched):
        logs = dispatched(**GATED)
        assert cantrip("dispatch", "reject", "mend", "--reason", "not now", "--by", "bob").out == f"{ID}: rejected\n"
        before = logs.path(ID).read_bytes()
        for again in (["approve", "mend"], ["reject", "mend", "--reason", "x"], ["unblock", "mend", "--note", "x"]):
            said = cantrip("dispatch", *again)
            assert said.code == 1
            assert "the end" in said.err
        assert logs.path(ID).read_bytes() == before

    @pytest.mark.rule("F-13")
    def test_a_running_dispatch_cannot_be_rejected(self, cantrip, dispatched):
        begin(dispatched())
        said = cantrip("dispatch", "reject", "mend", "--reason", "x")
        assert said.code == 1
        assert "from active it may become" in said.err

    @pytest.mark.rule("F-13")
    @pytest.mark.parametrize("how", [["unblock", "--note", "here is the key"], ["approve"]])
    def test_a_blocked_dispatch_is_queued_again(self, cantrip, dispatched, how):
        logs = dispatched()
        begin(logs, *BLOCKED)
        command, *options = how
        assert cantrip("dispatch", command, "mend", *options, "--json").json["status"] == "queued"
        assert logs.read(ID).blocker == ""

    @pytest.mark.rule("F-36")
    def test_approving_a_stalled_phase_advances_it(self, cantrip, dispatched):
        logs = dispatched(depth="minimal", max_iterations=1)
        begin(logs, PhaseFailed("debug", ("no root cause",)))
        assert cantrip("dispatch", "unblock", "mend", "--note", "go on").code == 1
        assert cantrip("dispatch", "approve", "mend").code == 0
        record = logs.read(ID)
        assert (record.status, record.phases.phase) == ("queued", "tests")


WORKER = """\
crystal:
  scripted:
    - tool_calls: [{gate: progress, args: {kind: milestone, text: the tags are indexed}}]
    - tool_calls: [{gate: %s, args: %s}]
    - tool_calls: [{gate: set_status, args: %s}]
    - tool_calls: [{gate: done, args: {answer: ok}}]
circle: {gates: [done, echo], wards: [{max_turns: 9}]}
"""
PROOF = ("progress", "{kind: verification, text: 12 tests passed, item: 1}")


class TestRun:
    @pytest.mark.rule("F-13")
    def test_a_worker_completes_a_dispatch(self, cantrip, dispatched, place):
        logs = dispatched()
        (place / "worker.yaml").write_text(WORKER % (*PROOF, "{status: completed, result: tags are found}"))
        ran = cantrip("dispatch", "run", "mend", "worker.yaml")
        assert (ran.code, ran.out.strip()) == (0, f"{ID}: completed")
        assert logs.read(ID).result == "tags are found"

    @pytest.mark.rule("F-15")
    def test_a_blocked_dispatch_runs_again_after_it_is_unblocked(self, cantrip, dispatched, place):
        logs = dispatched()
        blocks = WORKER % ("echo", "{text: x}", "{status: blocked, blocker: no key}")
        (place / "worker.yaml").write_text(blocks)
        ran = cantrip("dispatch", "run", "mend", "worker.yaml", "--quiet", "--json")
        assert (ran.code, json.loads(ran.out)["status"]) == (3, "blocked")
        assert cantrip("dispatch", "unblock", "mend", "--note", "here it is").code == 0
        (place / "worker.yaml").write_text(WORKER % (*PROOF, "{status: completed, result: tags are found}"))
        assert cantrip("dispatch", "run", "mend", "worker.yaml", "--quiet").code == 0
        assert logs.read(ID).attempt == 1

    @pytest.mark.rule("F-16", "C-21")
    def test_a_person_at_the_terminal_approves_a_waiting_dispatch(self, terminal, dispatched, place):
        logs = dispatched(**GATED)
        (place / "worker.yaml").write_text(WORKER % (*PROOF, "{status: completed, result: x}"))
        arguments = ("dispatch", "run", "mend", "worker.yaml", "--wait")
        seen = terminal(*arguments, when="allow it?", do=lambda _, keyboard: os.write(keyboard, b"y go on\n"))
        assert seen.code == 0
        assert "objective: " in seen.text
        (approved,) = [entry for entry in logs.read(ID).entries if isinstance(entry.event, Approved)]
        assert (approved.event.note, approved.by) == ("go on", "human")

    @pytest.mark.rule("F-16")
    def test_a_dispatch_that_waits_for_approval_does_not_start(self, cantrip, dispatched, place):
        logs = dispatched(**GATED)
        (place / "worker.yaml").write_text(WORKER % (*PROOF, "{status: completed, result: x}"))
        assert cantrip("dispatch", "run", "mend", "worker.yaml").code == 3
        assert logs.read(ID).status == "queued"
