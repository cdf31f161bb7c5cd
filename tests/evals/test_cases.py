"""Files of cases and of evaluations: their keys, and every mistake with its line."""

from pathlib import Path

import pytest

from cantrip_actors import Cantrip, Runtime, scripted
from cantrip_actors.evals import Case, InvalidEvaluation, evaluate, load_cases, load_evaluation

pytestmark = pytest.mark.rule("Y-50")

CASES = [
    Case("1", "How many?", 5, {"text": "a"}, ("short", "count")),
    Case("b", "Which, then?", "none\nat all"),
]

YAML = """\
- id: 1
  intent: How many?
  expected: 5
  context: {text: a}
  tags: [short, count]
- {id: b, intent: "Which, then?", expected: "none\\nat all"}
"""
JSON_LINES = """\
{"id": 1, "intent": "How many?", "expected": 5, "context": {"text": "a"}, "tags": "short, count"}

{"id": "b", "intent": "Which, then?", "expected": "none\\nat all"}
"""
CSV = """\
id,intent,expected,tags
1,How many?,5,"short,count"
b,"Which, then?","none
at all",
"""

RECIPE = "crystal: {scripted: [five]}\ncircle: {gates: [done], wards: [{max_turns: 3}]}\nname: speller\n"


class TestCases:
    @pytest.mark.parametrize(("name", "text"), [("cases.yaml", YAML), ("cases.jsonl", JSON_LINES)])
    def test_cases_are_read_from_yaml_and_json_lines(self, tmp_path: Path, name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        assert load_cases(tmp_path / name) == CASES

    def test_cases_are_read_from_csv_as_texts(self, tmp_path: Path) -> None:
        (tmp_path / "cases.csv").write_text(CSV)
        assert load_cases(tmp_path / "cases.csv") == [Case("1", "How many?", "5", None, ("short", "count")), CASES[1]]

    @pytest.mark.parametrize(
        ("name", "text", "lines"),
        [
            (
                "cases.yaml",
                (
                    "- {id: a, intent: x}\n- id: a\n  intent: y\n"
                    "- intent: ''\n  tag: z\n  id:\n- 7\n- {id: b, intent: x, tags: 3}\n"
                ),
                [
                    '2: id: "a" is the id of an earlier case, too',
                    "4: intent: expected a text, got the text",
                    '5: unknown key "tag" of a case: did you mean "tags"?',
                    "6: id: expected a text of 1 to 200 characters, got nothing",
                    "7: a case: expected a mapping with id and intent, got the number 7",
                    "8: tags: expected a list of texts, got the number 3",
                ],
            ),
            (
                "cases.jsonl",
                '{"id": "a", "intent": "x"}\n{"id": \n\n{"intent": 3, "id": true}\n[1]\n',
                [
                    "2: not valid JSON",
                    "4: id: expected a text of 1 to 200 characters, got true",
                    "4: intent: expected a text, got the number 3",
                    "5: a case: expected a mapping with id and intent, got a list",
                ],
            ),
            (
                "cases.csv",
                'id,intent,expcted\na,"two\nlines",1\na,x,2\nb,x\nc,,3\n',
                [
                    '1: unknown column "expcted": did you mean "expected"?',
                    '4: id: "a" is the id of an earlier case, too',
                    "5: expected 3 columns, got 2",
                    "6: intent: expected a text, got nothing",
                ],
            ),
            (
                "cases.yaml",
                "- {id: a, intent: x, expected: 2026-11-29}\n- {id: b, intent: x, context: {n: .nan}}\n",
                ["1: expected: expected a JSON value, got a date", "2: context: expected a JSON value, got a mapping"],
            ),
            ("cases.csv", "id,intent,tags,tags\na,x,b,c\n", ['1: column "tags" stands here twice']),
            ("cases.csv", 'id,intent\na,"x\n', ["2: not valid CSV: unexpected end of data"]),
            ("cases.csv", "id,intent\n", [" expected at least one case"]),
            ("cases.yaml", "a: [b\n", ["2: not valid YAML"]),
            ("cases.yaml", "a: b\n", [" cases: expected a list of {id: …, intent: …}, got a mapping"]),
            ("cases.txt", "x", [" cases are in files that end in .jsonl, .csv, .yaml"]),
        ],
    )
    def test_every_mistake_of_a_file_is_reported_with_its_line(
        self, tmp_path: Path, name: str, text: str, lines: list[str]
    ) -> None:
        file = tmp_path / name
        file.write_text(text)
        with pytest.raises(InvalidEvaluation) as refused:
            load_cases(file)
        assert len(refused.value.lines) == len(lines)
        for line, expected in zip(refused.value.lines, lines, strict=True):
            assert line.startswith(f"{file}:{expected}")

    @pytest.mark.parametrize("content", [None, b"\xff\xfe"])
    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path, content: bytes | None) -> None:
        file = tmp_path / "cases.jsonl"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidEvaluation, match=r"cases\.jsonl: (cannot be read|expected text in UTF-8)"):
            load_cases(file)

    async def test_every_mistake_of_a_programs_cases_is_reported_with_its_number(self) -> None:
        cases = [{"id": "a", "intent": "x"}, Case("a", "y"), {"id": "b", "intnt": "x"}]
        async with Runtime.open("memory:") as runtime:
            with pytest.raises(InvalidEvaluation) as refused:
                await evaluate(runtime, Cantrip(scripted(["x"]), max_turns=1), cases)
        assert [mistake.text.partition(": did")[0] for mistake in refused.value.mistakes] == [
            'case 2: id: "a" is the id of an earlier case, too',
            'case 3: unknown key "intnt" of a case',
            "case 3: intent: expected a text, got nothing",
        ]


class TestEvaluationFile:
    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "recipe.yaml").write_text(RECIPE)
        (tmp_path / "cases.jsonl").write_text(JSON_LINES)
        (tmp_path / "eval_parts.py").write_text(
            "from cantrip_actors import Cantrip, scripted\n"
            "def short(case, episode): return len(episode.result) < 9\n"
            "speller = Cantrip(scripted(['five']), max_turns=2, name='from a module')\n"
            "number = 3\n"
        )
        return tmp_path

    def test_a_file_names_the_cantrip_the_cases_and_the_scorers(self, place: Path) -> None:
        (place / "eval.yaml").write_text(
            "cantrip: recipe.yaml\ncases: cases.jsonl\n"
            "scorers:\n- exact\n- contains\n- python:eval_parts:short\n"
            "- {judge: 'Is it short?', crystal: 'ollama:x', name: brief}\n"
            "repeat: 3\nat_once: 4\nbudget: 0.5\nname: first\n"
        )
        evaluation = load_evaluation(place / "eval.yaml")
        assert evaluation.cantrip.name == "speller"
        assert evaluation.cases == CASES
        assert [scorer.name for scorer in evaluation.scorers] == ["exact", "contains", "short", "brief"]
        assert evaluation.options == {"repeat": 3, "at_once": 4, "budget": 0.5, "name": "first"}

    def test_the_cantrip_may_be_that_of_a_module_and_the_cases_a_list(self, place: Path) -> None:
        (place / "eval.toml").write_text(
            'cantrip = "eval_parts:speller"\nscorers = ["exact"]\n[[cases]]\nid = "a"\nintent = "x"\n'
        )
        evaluation = load_evaluation(place / "eval.toml")
        assert evaluation.cantrip.name == "from a module"
        assert evaluation.cases == [Case("a", "x")]

    def test_every_mistake_is_reported_with_its_line(self, place: Path) -> None:
        (place / "eval.yaml").write_text(
            "cantrip: eval_parts:number\ncases:\n- {id: a, intent: x}\n- {id: a, intent: x}\nscorers:\n- exact\n"
            "- exacct\n- {judge: x}\n- {judge: '', crystal: 'ollama:x'}\n- python:eval_parts:long\n"
            "- python:eval_parts:number\nrepeat: 0\nbuget: 3\nbudget: -1\n"
        )
        with pytest.raises(InvalidEvaluation) as refused:
            load_evaluation(place / "eval.yaml")
        expected = [
            (1, "eval_parts:number: expected a cantrip, got the number 3"),
            (4, 'id: "a" is the id of an earlier case, too'),
            (7, "a scorer: expected exact, contains, python:module:function or {judge: rubric, crystal: …}, got"),
            (8, "a scorer: expected exact"),
            (9, "rubric: expected a text"),
            (10, 'eval_parts:long: eval_parts has no "long"'),
            (11, "python:eval_parts:number: expected a function, got the number 3"),
            (12, "repeat: expected a whole number from 1 on, got the number 0"),
            (13, 'unknown key "buget": did you mean "budget"?'),
            (14, "budget: expected US dollars above 0, got the number -1"),
        ]
        assert [mistake.line for mistake in refused.value.mistakes] == [line for line, _ in expected]
        for mistake, (_, text) in zip(refused.value.mistakes, expected, strict=True):
            assert mistake.text.startswith(text)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[1]", "1: expected a mapping with cantrip, cases and scorers, got a list"),
            ("scorers: [exact]", " cantrip is missing"),
            (
                "cantrip: recipe.yaml\ncases: cases.jsonl\nscorers: [exact, exact]",
                "3: scorers: expected a name of its own",
            ),
        ],
    )
    def test_a_file_without_its_parts_is_refused(self, place: Path, text: str, message: str) -> None:
        (place / "eval.yaml").write_text(text)
        with pytest.raises(InvalidEvaluation) as refused:
            load_evaluation(place / "eval.yaml")
        assert refused.value.lines[0].startswith(f"{place / 'eval.yaml'}:{message}")
