"""From a crystal's name to the crystal."""

import json
import sys

import pytest

from cantrip_actors.crystal import Query, attempt_now, resolve, scripted
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.messages import Invocation, Message


def said(crystal):
    return attempt_now(crystal, Query(Invocation([Message("user", "hi")]))).content


def test_an_object_with_invoke_resolves_to_itself():
    crystal = scripted([])
    assert resolve(crystal) is crystal


class TestScriptedFiles:
    def test_a_scripted_file_may_be_a_yaml_list(self, tmp_path):
        (tmp_path / "script.yaml").write_text("- content: hello\n- tool_calls: [{gate: done, args: {answer: 1}}]\n")
        crystal = resolve(f"scripted:{tmp_path / 'script.yaml'}")
        assert said(crystal) == "hello"
        assert crystal.name == "scripted:script.yaml"

    def test_a_scripted_file_may_be_a_json_mapping(self, tmp_path):
        given = {"responses": ["hello"], "usage": {"prompt_tokens": 3}, "name": "mine", "context_window": 100}
        (tmp_path / "script.json").write_text(json.dumps(given))
        crystal = resolve(f"scripted:{tmp_path / 'script.json'}")
        assert (crystal.name, crystal.context_window) == ("mine", 100)
        assert attempt_now(crystal, Query(Invocation([]))).usage.prompt_tokens == 3

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("just text", "expected a list of responses"),
            ("usage: {}", "expected a list of responses"),
            ("- content: [", "neither YAML nor JSON"),
            ("- contents: x", 'scripted response 0: unknown field "contents"'),
            ("response: []", 'unknown key "response": did you mean "responses"'),
            ("responses: []\nusage: {prompt_tokens: -1}", "prompt_tokens"),
            ("- !!python/object/apply:os.getcwd []", "neither YAML nor JSON"),
            ("- !!bool maybe", "neither YAML nor JSON"),
            ("[" * 600, "neither YAML nor JSON: nested too deeply"),
        ],
    )
    def test_a_scripted_file_with_other_content_is_refused(self, tmp_path, text, told):
        (tmp_path / "script.yaml").write_text(text)
        with pytest.raises(InvalidCantrip) as caught:
            resolve(f"scripted:{tmp_path / 'script.yaml'}")
        assert told in str(caught.value)

    def test_a_missing_scripted_file_is_refused(self, tmp_path):
        with pytest.raises(InvalidCantrip, match="cannot read the file: No such file"):
            resolve(f"scripted:{tmp_path / 'gone.yaml'}")
        with pytest.raises(InvalidCantrip, match="cannot read the file"):
            resolve(f"scripted:{tmp_path}")


class TestPython:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path, monkeypatch):
        (tmp_path / "my_crystals.py").write_text(
            "class Mine:\n"
            "    async def invoke(self, messages, tools=None, tool_choice=None):\n"
            "        return 'x'\n"
            "    class Inner:\n"
            "        invoke = None\n"
            "instance = Mine()\n"
            "def policy(context):\n"
            "    return f'{len(context)} message'\n"
            "number = 7\n"
        )
        (tmp_path / "broken_crystals.py").write_text("import not_there\n")
        monkeypatch.syspath_prepend(tmp_path)
        yield
        sys.modules.pop("my_crystals", None)

    def test_a_python_name_may_be_an_object_a_class_or_a_function(self):
        import my_crystals

        assert resolve("python:my_crystals:instance") is my_crystals.instance
        assert isinstance(resolve("python:my_crystals:Mine"), my_crystals.Mine)
        assert said(resolve("python:my_crystals:policy")) == "1 message"
        assert resolve("python:my_crystals:policy").name == "python:my_crystals:policy"

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("python:my_crystals", 'expected "python:module:name"'),
            ("python:my_crystals:", 'expected "python:module:name"'),
            ("python::x", 'expected "python:module:name"'),
            ("python:not_there:x", "cannot import not_there"),
            ("python:broken_crystals:x", "cannot import broken_crystals"),
            ("python:my_crystals:polisy", 'has no "polisy": did you mean "policy"'),
            ("python:my_crystals:number", "expected an object with invoke"),
            ("python:my_crystals:Mine.Inner", "expected an object with invoke"),
        ],
    )
    def test_a_name_without_a_crystal_is_refused(self, name, told):
        with pytest.raises(InvalidCantrip) as caught:
            resolve(name)
        assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nobody:model", 'no crystal family "nobody" (in "nobody:model"): known: '),
        ("script:x", 'did you mean "scripted"'),
        ("scripted:", 'expected something after "scripted:"'),
        ("", 'no crystal family ""'),
    ],
)
def test_an_unknown_family_is_refused(name, told):
    with pytest.raises(InvalidCantrip) as caught:
        resolve(name)
    assert told in str(caught.value)
