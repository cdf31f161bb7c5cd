"""Recipes: the cantrips that they become, and the message for each mistake."""

from pathlib import Path
from textwrap import dedent

import pytest

from cantrip_actors import Cantrip
from cantrip_actors.recipes import InvalidRecipe, load_recipe

GOOD = """\
crystal: {scripted: [{content: five}]}
circle:
  gates: [done]
  wards: [{max_turns: 10}]
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Writes a recipe and loads it, from another folder than its own."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    def load(text: str, name: str = "recipe.yaml") -> Cantrip:
        (tmp_path / name).write_text(dedent(text), encoding="utf-8")
        return load_recipe(tmp_path / name)

    return load


@pytest.fixture
def mistakes(recipe, tmp_path):
    """Write a wrong recipe and return its mistakes, as (line, text)."""

    def load(text: str, name: str = "recipe.yaml") -> list[tuple[int | None, str]]:
        with pytest.raises(InvalidRecipe) as refused:
            recipe(text, name)
        assert str(tmp_path / name) in str(refused.value)
        return [(mistake.line, mistake.text) for mistake in refused.value.mistakes]

    return load


class TestLoading:
    @pytest.mark.rule("Y-10", "Y-11")
    def test_a_recipe_has_the_short_forms_of_a_cantrip(self, recipe, tmp_path):
        (tmp_path / "bills.py").write_text(
            "from typing_extensions import TypedDict\n\nclass Bill(TypedDict):\n    total: int\n"
        )
        short = recipe(
            """\
            crystal: anthropic:claude-sonnet-4-5
            system: Be terse.
            gates: [echo, {name: fetch, timeout: 5}]
            answer: python:bills:Bill
            max_turns: 8
            """
        )
        long = recipe(
            """\
            crystal: anthropic:claude-sonnet-4-5
            call: {system_prompt: Be terse.}
            circle: {gates: [done, echo, {name: fetch, timeout: 5}], wards: [{max_turns: 8}]}
            answer: python:bills:Bill
            """,
            "long.yaml",
        )
        assert short.id == long.id
        assert short.circle == long.circle
        assert short.read_answer({"total": "3"}) == {"total": 3}

    @pytest.mark.rule("Y-10")
    @pytest.mark.parametrize(
        ("text", "line", "expected"),
        [
            ("crystal: python:json:loads\nsystem: 7\nmax_turns: 8\n", 2, "system: expected text"),
            ("crystal: python:json:loads\ngates: [echo, saerch]\nmax_turns: 8\n", 2, 'did you mean "search"'),
            ("crystal: python:json:loads\ngates: echo\nmax_turns: 8\n", 2, "gates: expected a list"),
            ("crystal: python:json:loads\ngates: [echo]\n", 2, "at least one truncation ward"),
            ("crystal: python:json:loads\nmax_turns: 0\n", 2, "max_turns"),
            (
                "crystal: python:json:loads\nanswer: integer\nmax_turns: 8\n",
                2,
                "answer: expected str, int, float, bool or python:",
            ),
            ("crystal: python:json:loads\nanswer: python:json\nmax_turns: 8\n", 2, '"module:Type"'),
            ("crystal: python:json:loads\nsystem: x\n", None, "cantrip requires a circle"),
            (
                "crystal: python:json:loads\ncircle: {gates: [done], wards: [{max_turns: 3}]}\nmax_turns: 8\n",
                3,
                "max_turns is short",
            ),
            ("crystal: python:json:loads\ncall: {temperature: 0}\nsystem: x\nmax_turns: 8\n", 3, "system is short for"),
        ],
    )
    def test_mistakes_in_short_forms_have_their_lines(self, mistakes, text, line, expected):
        (mistake,) = mistakes(text)
        assert (mistake[0], expected in mistake[1]) == (line, True), mistake

    def test_a_recipe_with_every_key_is_loaded(self, recipe, tmp_path):
        (tmp_path / "notes").mkdir()
        cantrip = recipe(
            """\
            name: keeper
            root: notes
            crystal: {scripted: [{content: five}], name: parrot, usage: {prompt_tokens: 3}}
            call: {system_prompt: Be terse., temperature: 0, stop: END, tool_choice: required, require_done_tool: true}
            circle:
              gates:
                - done
                - {name: read, ephemeral: true, timeout: 5}
                - search
                - call_agent
              wards:
                - max_turns: 10
                - {max_depth: 2, remove_gate: search}
                - require_done_tool
            child_crystal: {scripted: []}
            crystals: {small: {scripted: []}, 2: {scripted: []}}
            folding: {trigger_after_turns: 5, summary: {scripted: [], name: scribe}}
            retry: {max_retries: 1, retryable_status_codes: [429]}
            """
        )
        assert cantrip.name == "keeper"
        assert cantrip.crystal.name == "parrot"
        assert cantrip.call.temperature == 0
        assert cantrip.call.stop == ("END",)
        assert cantrip.call.tool_choice == "required"
        read = cantrip.circle.gate("read")
        assert read is not None
        assert (read.ephemeral, read.timeout, dict(read.dependencies)) == (True, 5, {"root": tmp_path / "notes"})
        assert list(cantrip.circle.open_gates) == ["done", "read", "call_agent"]
        wards = cantrip.circle.resolved
        assert (wards.max_turns, wards.max_depth, wards.require_done_tool) == (10, 2, True)
        assert set(cantrip.crystals) == {"small", 2}
        assert (cantrip.folding.trigger_after_turns, cantrip.folding.summary.name) == (5, "scribe")
        assert (cantrip.retry.max_retries, cantrip.retry.retryable_status_codes) == (1, (429,))

    def test_values_that_are_right_only_together_are_accepted(self, recipe):
        assert recipe(GOOD + "retry: {base_delay: 100, max_delay: 200}\n").retry.max_delay == 200

    def test_a_toml_recipe_equals_the_yaml_recipe(self, recipe):
        yaml = recipe(GOOD)
        toml = recipe(
            """\
            [crystal]
            scripted = [{content = "five"}]
            [circle]
            gates = ["done"]
            wards = {max_turns = 10}
            """,
            "recipe.toml",
        )
        assert toml.circle == yaml.circle
        assert toml.id == yaml.id

    def test_a_recipe_uses_python_gates_and_crystals(self, recipe, tmp_path):
        (tmp_path / "own_spells.py").write_text(
            "from cantrip_actors import gate\n"
            "def shout(text: str) -> str:\n    'Say it louder.'\n    return text.upper()\n"
            "@gate(name='soft')\ndef whisper(text: str) -> str:\n    return text.lower()\n"
            "def model(context):\n    return {'content': 'hello'}\n"
        )
        cantrip = recipe(
            """\
            crystal: python:own_spells:model
            circle:
              gates: [done, {python: "own_spells:shout", name: louder}, "python:own_spells:whisper"]
              wards: {max_turns: 1}
            """
        )
        assert list(cantrip.circle.open_gates) == ["done", "louder", "soft"]
        assert cantrip.circle.open_gates["louder"](text="hey") == "HEY"

    def test_a_recipe_reads_a_script_from_a_file_beside_it(self, recipe, tmp_path):
        (tmp_path / "script.yaml").write_text("- content: hello\n")
        assert recipe(GOOD.replace("{scripted: [{content: five}]}", "scripted:script.yaml")).crystal

    def test_a_gate_may_have_a_folder_of_its_own(self, recipe, tmp_path):
        cantrip = recipe(GOOD.replace("[done]", "[done, {name: read, root: .}]"))
        assert cantrip.circle.gate("read").dependencies["root"] == tmp_path

    def test_on_and_off_as_keys_stay_texts(self, recipe):
        assert recipe(GOOD + "crystals: {on: {scripted: []}, off: {scripted: []}}\n").crystals.keys() == {"on", "off"}

    def test_yaml_anchors_work(self, recipe):
        cantrip = recipe(
            """\
            crystal: &one {scripted: [{content: five}]}
            child_crystal: *one
            circle: {gates: [done], wards: [{max_turns: 10}]}
            """
        )
        assert cantrip.child_crystal is not None


class TestMistakes:
    """Each mistake is reported with its line and the right form."""

    @pytest.mark.parametrize(
        ("text", "line", "said"),
        [
            pytest.param(GOOD + "calls: {}\n", 5, 'unknown key "calls": did you mean "call"?', id="key"),
            pytest.param(GOOD + "call: {temprature: 1}\n", 5, 'did you mean "temperature"?', id="key of the call"),
            pytest.param(GOOD.replace("[done]", "[done, serch]"), 3, 'did you mean "search"?', id="gate"),
            pytest.param(GOOD.replace("max_turns", "max_turn"), 4, 'did you mean "max_turns"?', id="ward"),
            pytest.param(GOOD + "  medium: pyton\n", 5, 'did you mean "python"?', id="medium"),
            pytest.param(GOOD.replace("[done]", "[echo]"), 3, "circle must have a done gate", id="no done"),
            pytest.param(GOOD.replace("[done]", "[]"), 3, "circle must have a done gate", id="no gates"),
            pytest.param(GOOD.replace("  gates: [done]\n", ""), 2, "circle must have a done gate", id="gates left out"),
            pytest.param(
                GOOD.replace("  wards: [{max_turns: 10}]\n", ""), 2, "at least one truncation ward", id="no wards"
            ),
            pytest.param(GOOD.replace("max_turns", "max_depth"), 4, "at least one truncation ward", id="no end"),
            pytest.param(GOOD.replace("10", "many"), 4, "expected a whole number >= 1, got 'many'", id="ward's value"),
            pytest.param(GOOD.replace("10", "0"), 4, "expected a whole number >= 1, got 0", id="ward's range"),
            pytest.param(
                GOOD.replace("{max_turns: 10}", "max_turns"), 4, "a name and a value", id="ward without value"
            ),
            pytest.param(
                GOOD.replace("{max_turns: 10}", "{max_turns: 10}, {max_memory: 64}"), 4, ">= 1048576", id="ward's unit"
            ),
            pytest.param(
                GOOD.replace("{max_turns: 10}", "{max_turns: 10}, {max_output: 64}"),
                2,
                "it bounds programs",
                id="idle ward",
            ),
            pytest.param(GOOD.replace("[{max_turns: 10}]", "12"), 4, "wards: expected a list", id="wards"),
            pytest.param(GOOD.replace("[done]", "done"), 3, "circle.gates: expected a list", id="gates no list"),
            pytest.param(GOOD.replace("[done]", "[done, 3]"), 3, "a gate: expected a name", id="gate's type"),
            pytest.param(GOOD.replace("[done]", "[done, {nam: read}]"), 3, 'did you mean "name"?', id="gate's key"),
            pytest.param(
                GOOD.replace("[done]", "[done, {name: read, rot: .}]"), 3, 'did you mean "root"?', id="gate's setting"
            ),
            pytest.param(
                GOOD.replace("[done]", "[done, {name: echo, ephemeral: often}]"), 3, "true or false", id="gate's flag"
            ),
            pytest.param(
                GOOD.replace("[done]", "[done, {name: echo, timeout: 0}]"), 3, "seconds > 0", id="gate's time"
            ),
            pytest.param(GOOD.replace("[done]", "[done, done]"), 2, 'two gates are called "done"', id="gate twice"),
            pytest.param(GOOD.replace("[done]", "[done, read]"), 3, "needs a folder: add `root: .`", id="no root"),
            pytest.param(GOOD + f"root: {'x' * 5000}\n", 5, "File name too long", id="root that no file system takes"),
            pytest.param(GOOD + "root: ~nobody-here/x\n", 5, "home directory", id="root of an unknown user"),
            pytest.param(GOOD + "root: nowhere\n", 5, '"nowhere" does not exist', id="root that is not there"),
            pytest.param(GOOD + "root: recipe.yaml\n", 5, "is no folder", id="root that is a file"),
            pytest.param(GOOD + "root: 3\n", 5, "root: expected text, got the number 3", id="root's type"),
            pytest.param(GOOD + "call: {temperature: hot}\n", 5, "a number from 0 to 2, got 'hot'", id="type"),
            pytest.param(GOOD + "call:\n  top_p: 1\n  temperature: 9\n", 7, "a number from 0 to 2", id="range"),
            pytest.param(
                GOOD + "call: {max_tokens: true}\n", 5, "a whole number >= 1, or None, got True", id="truth for number"
            ),
            pytest.param(GOOD + "call: terse\n", 5, "call: expected a mapping", id="part's type"),
            pytest.param(GOOD + "call: {tool_choice: always}\n", 5, '"auto", "required" or "none"', id="choice"),
            pytest.param(GOOD + "folding: {trigger_at: 3}\n", 5, "a share from 0 to 1", id="folding"),
            pytest.param(GOOD + "folding:\n  summary: gpt\n", 6, "no crystal family", id="summary"),
            pytest.param(GOOD + "retry: {max_retries: -1}\n", 5, "a whole number >= 0", id="retry"),
            pytest.param(GOOD + "retry:\n  max_delay: 0.5\n", 6, "base_delay <= max_delay", id="one of two"),
            pytest.param(GOOD + "folding: {keep_turns: 0, trigger_at: 1}\n", 5, "keep_turns", id="folding's turns"),
            pytest.param(GOOD.replace("crystal:", "#"), None, "cantrip requires a crystal", id="no crystal"),
            pytest.param("crystal: {scripted: []}\n", None, "cantrip requires a circle", id="no circle"),
            pytest.param(GOOD.replace("{scripted: [{content: five}]}", "gpt"), 1, "no crystal family", id="no family"),
            pytest.param(GOOD.replace("{scripted: [{content: five}]}", "sripted:x"), 1, '"scripted"?', id="family"),
            pytest.param(GOOD.replace("{scripted: [{content: five}]}", "[]"), 1, 'expected "family:model"', id="list"),
            pytest.param(GOOD.replace("content", "contents"), 1, 'did you mean "content"?', id="scripted response"),
            pytest.param(GOOD.replace("[{content: five}]", "five"), 1, "expected a list of responses", id="no script"),
            pytest.param(
                GOOD.replace("five}]", "five}], usage: 3"), 1, "usage: expected a mapping", id="scripted usage"
            ),
            pytest.param(
                GOOD.replace("[done]", "[done, {python: 'no_such_module:x'}]"), 3, "cannot import", id="no module"
            ),
            pytest.param(
                GOOD.replace("[done]", "[done, {python: 'string:capword'}]"), 3, 'mean "capwords"', id="no function"
            ),
            pytest.param(GOOD.replace("[done]", "[done, {python: string}]"), 3, '"module:function"', id="no colon"),
            pytest.param(GOOD.replace("[done]", "[done, {python: 'string:digits'}]"), 3, "annotated", id="no gate"),
            pytest.param(GOOD + "call: {}\ncall: {}\n", 6, '"call" stands here twice, first in line 5', id="twice"),
            pytest.param(GOOD.replace("  gates", "\tgates"), 3, "a tab", id="tab"),
            pytest.param(GOOD.replace("[done]", "[done"), 4, "not valid YAML", id="bracket"),
            pytest.param(GOOD + "call: a: b\n", 5, "a colon where YAML expects none", id="colon"),
            pytest.param(GOOD + "---\n" + GOOD, 5, "a second document", id="two documents"),
            pytest.param(GOOD + "call: !!python/object:os.system {}\n", 5, "a tag", id="tag"),
            pytest.param("", None, "the recipe is empty", id="empty"),
            pytest.param("# nothing yet\n", None, "the recipe is empty", id="comments only"),
            pytest.param("- done\n", 1, "a recipe is a mapping of keys, not a list", id="list of things"),
            pytest.param("just words\n", 1, "a recipe is a mapping of keys", id="words"),
            pytest.param(GOOD + "call: &a {options: *a}\n", 5, "contains itself", id="alias"),
            pytest.param(GOOD + "name: 2024-13-45\n", None, "a value that YAML cannot read", id="no date"),
            pytest.param(GOOD + "name: !!bool maybe\n", None, "a value that YAML cannot read", id="no truth"),
            pytest.param(GOOD + "name: !!timestamp x\n", None, "a value that YAML cannot read", id="no time"),
            pytest.param(GOOD + "name: !!int ''\n", None, "a value that YAML cannot read", id="no number"),
            pytest.param(GOOD + "name: !!float ''\n", None, "a value that YAML cannot read", id="no float"),
            pytest.param(
                GOOD.replace("[done]", "[done, {python: '.gates:x'}]"), 3, '"module:name"', id="relative module"
            ),
            pytest.param(GOOD.replace("[done]", "[done, {python: 'math:pi.x'}]"), 3, 'has no "x"', id="part of a part"),
        ],
    )
    def test_mistakes_of_a_yaml_recipe_are_reported(self, mistakes, text, line, said):
        ((where, told),) = mistakes(text)
        assert said in told
        assert where == line

    @pytest.mark.parametrize(
        ("text", "line", "said"),
        [
            pytest.param("[call]\ntop = 1\n", 2, 'unknown key "top"', id="key"),
            pytest.param("[call]\ntop_p = 7\n", 2, "top_p: expected a number from 0 to 1", id="value"),
            pytest.param("[[circle.wards]]\nmax_turns = 0\n", 2, "max_turns", id="array of tables"),
            pytest.param("a = \n", 1, "not valid TOML", id="syntax"),
            pytest.param(f"a = {'9' * 5_000}\n", None, "not valid TOML", id="digits"),
            pytest.param("a = 1\na = 2\n", 2, "not valid TOML: cannot overwrite", id="twice"),
        ],
    )
    def test_mistakes_of_a_toml_recipe_are_reported(self, mistakes, text, line, said):
        assert any(where == line and said.lower() in told.lower() for where, told in mistakes(text, "recipe.toml"))

    def test_all_mistakes_are_reported_at_once_in_order(self, mistakes):
        told = mistakes(
            """\
            crystal: nobody:x
            call: {temprature: 1, top_p: much}
            circle:
              gates: [raed]
              wards:
                - max_turn: 3
                - max_depth: -1
            root: nowhere
            """
        )
        lines = [line for line, _ in told]
        assert lines == sorted(lines)
        assert set(lines) == {1, 2, 4, 6, 7, 8}
        assert len(told) == 8

    def test_a_file_that_is_not_there_names_its_neighbours(self, tmp_path):
        (tmp_path / "right.yaml").write_text(GOOD)
        with pytest.raises(InvalidRecipe, match=r"no such file; beside it: right\.yaml"):
            load_recipe(tmp_path / "wrong.yaml")

    def test_a_missing_root_is_reported(self, tmp_path):
        with pytest.raises(InvalidRecipe, match="no such file; nor is there a folder"):
            load_recipe(tmp_path / "nowhere" / "wrong.yaml")

    def test_a_folder_is_refused_as_a_recipe(self, tmp_path):
        (tmp_path / "recipes.yaml").mkdir()
        with pytest.raises(InvalidRecipe, match="this is a folder"):
            load_recipe(tmp_path / "recipes.yaml")

    def test_a_file_with_an_unknown_ending_is_refused(self, tmp_path):
        with pytest.raises(InvalidRecipe, match=r"ends in \.yaml, \.yml, \.json, \.toml"):
            load_recipe(tmp_path / "recipe.txt")

    @pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n\x00\xff", b"crystal: a\n\x00\x01", b"crystal: \x01\n"])
    def test_a_binary_file_is_refused(self, tmp_path, data):
        (tmp_path / "recipe.yaml").write_bytes(data)
        with pytest.raises(InvalidRecipe, match="binary"):
            load_recipe(tmp_path / "recipe.yaml")

    def test_a_huge_file_is_refused(self, tmp_path):
        (tmp_path / "recipe.yaml").write_text("#" * 2_000_000)
        with pytest.raises(InvalidRecipe, match="too large"):
            load_recipe(tmp_path / "recipe.yaml")

    def test_an_unreadable_file_is_refused(self, tmp_path, monkeypatch):
        (tmp_path / "recipe.yaml").write_text(GOOD)

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(InvalidRecipe, match="cannot be read: permission denied"):
            load_recipe(tmp_path / "recipe.yaml")

    @pytest.mark.rule("Z-15")
    @pytest.mark.parametrize(
        "level",
        ["&a{n} [{nine}]", "&a{n} {{x: [{nine}]}}", "&a{n} {{<<: [{nine}], y{n}: [{nine}]}}"],
        ids=["lists", "mappings", "merges"],
    )
    def test_an_explosion_of_aliases_is_refused_at_its_line(self, mistakes, level):
        levels = "".join(f"  a{n}: {level.format(n=n, nine=', '.join([f'*a{n - 1}'] * 9))}\n" for n in range(1, 20))
        (line, text), *_ = mistakes(f"{GOOD}call:\n  a0: &a0 {{x: 1}}\n{levels}")
        assert "aliases (*…) repeat more than 100,000 values" in text
        assert 5 <= line - GOOD.count("\n") <= 9

    @pytest.mark.parametrize(
        "text",
        [
            GOOD.replace("{scripted: [{content: five}]}", "sk-ant-abc123SECRETdef456"),
            GOOD.replace("{scripted: [{content: five}]}", "{api_key: sk-ant-abc123SECRETdef456}"),
            GOOD.replace("{scripted: [{content: five}]}", "openapi:sk-ant-abc123SECRETdef456"),
            GOOD + "api_key: sk-ant-abc123SECRETdef456\n",
            GOOD + "sk-ant-abc123SECRETdef456: 1\n",
            GOOD + "call: {temperature: sk-ant-abc123SECRETdef456}\n",
            GOOD.replace("max_turns: 10", "max_turns: sk-ant-abc123SECRETdef456"),
            GOOD.replace("[done]", "[done, sk-ant-abc123SECRETdef456]"),
        ],
    )
    def test_no_mistake_shows_a_key(self, mistakes, text):
        for _, told in mistakes(text):
            assert "SECRET" not in told


@pytest.mark.rule("B-01", "B-05")
class TestBrowser:
    def test_a_recipe_gives_an_entity_a_browser_with_secrets_of_the_environment(self, recipe, monkeypatch):
        monkeypatch.setenv("SHOP_PASSWORD", "correct horse")
        settings = "{allow: [docs.python.org], tabs: 2, secrets: {shop: SHOP_PASSWORD}}"
        cantrip = recipe(GOOD.replace("[done]", f"[done, {{browser: {settings}}}]"))
        names = [gate.name for gate in cantrip.circle.gates]
        assert names == ["done", "goto", "look", "click", "fill", "press", "select", "back", "tabs", "screenshot"]
        goto = cantrip.circle.gate("goto")
        assert goto.dependencies["secrets"] == {"shop": "correct horse"}
        assert goto.dependencies["browser"].settings.tabs == 2
        assert recipe(GOOD.replace("[done]", "[done, {browser: [docs.python.org]}]")).circle.gate("goto")
        saving = recipe(GOOD.replace("[done]", "[done, {browser: {allow: [docs.python.org], downloads: .}}]"))
        assert Path(saving.circle.gate("download").dependencies["root"]).is_dir()

    @pytest.mark.parametrize(
        ("settings", "problem"),
        [
            ("{allow: docs.python.org}", "expected a list"),
            ("{secrets: {}}", "browser: expected hosts"),
            ("{allow: [docs.python.org], downloads: nowhere}", 'downloads: "nowhere" does not exist'),
            ("{allow: [docs.python.org], tab: 2}", 'did you mean "tabs"'),
            ("{allow: ['http://docs.python.org']}", "browser: allow"),
            ("{allow: [a.org], secrets: {shop: NO_SUCH_VARIABLE}}", "the name of an environment variable"),
        ],
    )
    def test_a_wrong_browser_is_a_mistake_with_its_line(self, settings, problem, mistakes):
        ((line, text), *_) = mistakes(GOOD.replace("[done]", f"[done, {{browser: {settings}}}]"))
        assert line == 3
        assert problem in text
