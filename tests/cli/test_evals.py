"""`cantrip eval`: its report, its exit codes, and what it refuses."""

import json

import pytest

pytestmark = [pytest.mark.real_time, pytest.mark.rule("Y-50")]


@pytest.fixture
def write(place):
    """Write an evaluation whose cantrip answers `answer`, and in which that many of the two cases expect it."""

    def write(answer="five", right=1, **options):
        script = f"{{tool_calls: [{{gate: done, args: {{answer: {answer}}}}}]}}"
        (place / "speller.yaml").write_text(
            f"name: speller\nsystem: Say {answer}.\nmax_turns: 2\ncrystal:\n  scripted: [{script}, {script}]\n"
            "  usage: {prompt_tokens: 10, completion_tokens: 2, cost: 0.01}\n"
        )
        cases = [{"id": str(n), "intent": f"case {n}", "expected": "five" if n < right else "other"} for n in range(2)]
        value = {"cantrip": "speller.yaml", "cases": cases, "scorers": ["exact"], **options}
        (place / "eval.yaml").write_text(json.dumps(value))

    return write


def test_a_report_is_a_table_json_and_a_page(cantrip, place, write):
    write()
    table = cantrip("eval", "eval.yaml", "-q", "--html", "report.html")
    assert table.code == 0
    assert "exact  0.500  [0.000, 1.000]" in table.out
    assert "<h2>Trials</h2>" in (place / "report.html").read_text()
    again = cantrip("eval", "eval.yaml", "--json")  # the script has no third answer: nothing is asked again
    assert again.json["scores"]["exact"]["mean"] == 0.5
    assert [trial["answer"] for trial in again.json["trials"]] == ["five", "five"]


@pytest.mark.parametrize("source", ["first", "first.json"])
def test_a_score_that_is_worse_than_in_an_earlier_run_exits_with_1(cantrip, place, write, source):
    write(right=2)
    (place / "first.json").write_text(cantrip("eval", "eval.yaml", "--json", "--name", "first").out)
    write(answer="seven", right=2)
    worse = cantrip("eval", "eval.yaml", "-q", "--name", "second", "--compare", source)
    assert worse.code == 1
    assert "exact  1.000   0.000  -1.000 [-1.000, -1.000]  worse" in worse.out
    better = cantrip("eval", "eval.yaml", "--json", "--name", "second", "--compare", "second")
    assert (better.code, better.json["comparison"]["changes"][0]["same"]) == (0, 2)


def test_a_used_up_budget_exits_with_3_and_a_larger_one_continues(cantrip, write):
    write(budget=0.005, at_once=1)
    assert cantrip("eval", "eval.yaml", "-q").code == 3
    write(budget=1)
    whole = cantrip("eval", "eval.yaml", "--json")
    assert (whole.code, len(whole.json["trials"]), whole.json["left"]) == (0, 2, 0)


def test_a_crystal_that_failed_or_a_score_that_is_missing_exits_with_1(cantrip, place, write):
    write()
    (place / "empty.yaml").write_text("name: empty\nmax_turns: 2\ncrystal: {scripted: []}\n")
    assert cantrip("eval", "eval.yaml", "-q", "--name", "first").code == 0
    write(cantrip="empty.yaml")
    failed = cantrip("eval", "eval.yaml", "-q", "--name", "second")
    assert failed.code == 1
    assert "no response left" in failed.out
    (place / "checks.py").write_text("def broken(case, episode):\n    raise ValueError('no')\n")
    write(scorers=["python:checks:broken"])
    unscored = cantrip("eval", "eval.yaml", "-q", "--name", "third")
    assert unscored.code == 1
    assert "broken: raised ValueError: no (2)" in unscored.out


def test_mistakes_of_the_file_are_printed_with_their_lines(cantrip, place):
    (place / "eval.yaml").write_text("cantrip: recipe.yaml\ncases: cases.csv\nscorers: [exacct]\nrepet: 3\n")
    (place / "cases.csv").write_text("id,intent\na,x\n")
    refused = cantrip("eval", "eval.yaml")
    assert refused.code == 2
    assert "eval.yaml:3: a scorer: expected exact" in refused.err
    assert 'eval.yaml:4: unknown key "repet"' in refused.err


@pytest.mark.parametrize(
    ("source", "message"), [("none", "no evaluation"), ("none.json", "not a report"), ("", "name: expected a text")]
)
def test_an_unknown_run_to_compare_with_is_refused(cantrip, write, source, message):
    write()
    refused = cantrip("eval", "eval.yaml", "-q", "--compare", source)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err
