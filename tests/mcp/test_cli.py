"""`cantrip mcp ls`, `call` and `check`, and servers in recipes."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors.cli.main import main
from cantrip_actors.mcp import HttpServer, StdioServer
from cantrip_actors.recipes import InvalidRecipe, load_recipe

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parent.parent.parent
NAME = re.sub(r"\W", "_", Path(sys.executable).name)
TARGET = f"{sys.executable} {ROOT / 'tests' / 'mcp' / 'plain.py'} review"
WITH_SDK = f"{sys.executable} {ROOT / 'tests' / 'mcp' / 'tools.py'}"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["mcp", *words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.mark.rule("MCP-01", "MCP-08")
def test_ls_shows_the_tools_as_gates_and_the_digest_to_pin(capsys: Any) -> None:
    code, out, _ = run(capsys, "ls", TARGET)
    assert code == 0
    assert f"{NAME}__add(a: integer, b: integer)\n    Add two numbers.\n" in out
    pin = out.splitlines()[-1]
    assert pin.startswith('pin="sha256:')
    code, out, _ = run(capsys, "ls", TARGET, "--json")
    told = json.loads(out)
    assert pin == f'pin="{told["digest"]}"'
    assert told["tools"][0]["name"] == "add"


@pytest.mark.rule("MCP-01")
def test_prompts_lists_the_prompts_of_a_server_with_their_arguments(capsys: Any) -> None:
    assert run(capsys, "prompts", TARGET)[:2] == (0, "review file [style]\n    Review a file.\n")
    (told,) = json.loads(run(capsys, "prompts", TARGET, "--json")[1])["prompts"]
    assert (told["name"], list(told["arguments"]), told["required"]) == ("review", ["file", "style"], ["file"])


@pytest.mark.rule("MCP-01")
def test_call_prints_the_result_and_exits_with_1_for_an_error(capsys: Any) -> None:
    code, out, _ = run(capsys, "call", WITH_SDK, "add", '{"a": 1, "b": 2}')
    assert (code, json.loads(out)) == (0, {"result": 3})
    code, out, err = run(capsys, "call", TARGET, "fail", '{"why": "closed"}')
    assert (code, out) == (1, "")
    assert "no: closed" in err
    code, _, err = run(capsys, "call", TARGET, "ad")
    assert code == 1
    assert "it has no tool 'ad': did you mean \"add\"?" in err


@pytest.mark.rule("MCP-02")
def test_check_says_what_is_wrong_with_a_server(capsys: Any) -> None:
    assert run(capsys, "check", TARGET)[:2] == (0, "connection: ok\ntools: 6, ok\n")
    code, _, err = run(capsys, "check", "/no/such/program")
    assert code == 1
    assert "it did not start: No such file or directory: /no/such/program" in err
    code, _, err = run(capsys, "check", "files '/data")
    assert code != 0
    assert 'expected a command with its arguments, got "files \'/data": No closing quotation' in err


def recipe(folder: Path, gate: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(f"crystal: openai:gpt-4o\ncircle: {{gates: [done, {gate}], wards: [{{max_turns: 3}}]}}\n")
    return path


@pytest.mark.rule("MCP-01", "MCP-11")
def test_a_recipe_lists_a_server_among_its_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "a secret")
    gate = "{mcp: {name: files, command: [server, /data], only: [read], env: [GIVEN], ask: all}}"
    (server,) = load_recipe(recipe(tmp_path, gate)).circle.servers
    assert isinstance(server, StdioServer)
    assert (server.command, server.args, server.only, server.ask) == ("server", ("/data",), ("read",), "all")
    assert dict(server.env) == {"GIVEN": "a secret"}
    assert server.cwd == str(tmp_path)
    assert "a secret" not in repr(server)
    (without,) = load_recipe(
        recipe(tmp_path, "{mcp: {name: files, command: server, cwd: null, env: null}}")
    ).circle.servers
    assert without.cwd == str(tmp_path)
    gate = "{mcp: {name: tickets, url: 'https://example.org/mcp', token_env: GIVEN}}"
    (server,) = load_recipe(recipe(tmp_path, gate)).circle.servers
    assert isinstance(server, HttpServer)
    assert server.auth == "a secret"


@pytest.mark.rule("MCP-10", "MCP-21")
def test_a_recipe_names_the_roots_of_a_server_and_the_model_that_answers_it(tmp_path: Path) -> None:
    gate = "{mcp: {name: files, command: server, roots: [data, /srv], sampling: 'openai:gpt-4o-mini'}}"
    (server,) = load_recipe(recipe(tmp_path, gate)).circle.servers
    assert server.told_roots == (str(tmp_path / "data"), "/srv")
    assert server.sampling == "openai:gpt-4o-mini"


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        ("{mcp: files}", "mcp: expected name and command, or name and url"),
        ("{mcp: {name: files}}", "either a command or a url"),
        ("{mcp: {name: files, comand: x}}", 'unknown key "comand": did you mean "command"'),
        ("{mcp: {name: files, command: x, env: [MISSING_HERE]}}", "the environment has no variable 'MISSING_HERE'"),
        ("{mcp: {name: files, command: x, pin: abc}}", 'pin: expected "sha256:"'),
        ("{mcp: {name: files, command: x, pin: 5}}", 'pin: expected "sha256:"'),
        ("{mcp: {name: files, command: x, only: 5}}", "only: expected a list of names of tools, got 5"),
        ("{mcp: {name: files, command: x, cwd: '~nobody-here'}}", "home directory"),
        ("{mcp: {name: files, command: x, roots: ['~nobody-here']}}", "home directory"),
        ("{mcp: {name: files, url: 'http://['}}", "expected an http or https URL"),
        ("{mcp: {name: files, url: 'http://a', token_env: \"\\uD800\"}}", "the environment has no variable"),
        ("{mcp: {name: files, command: x, roots: data}}", "roots: expected a list of folders"),
        ("{mcp: {name: files, command: x, sampling: gpt}}", "server files: sampling: expected 'family:model'"),
    ],
)
def test_an_invalid_server_is_an_error_of_the_recipe(tmp_path: Path, gate: str, told: str) -> None:
    with pytest.raises(InvalidRecipe, match=told):
        load_recipe(recipe(tmp_path, gate))
