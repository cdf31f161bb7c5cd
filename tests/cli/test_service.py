"""The commands that ask a running service, at an address where no service runs."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import RECIPE

pytestmark = pytest.mark.real_time

COMMANDS = [["top", "--once"], ["system"], ["crashes"]]


class _OtherServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<h1>Welcome</h1>")

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def other_server() -> Iterator[str]:
    """The address of a web server that is not a service of cantrips."""
    with HTTPServer(("127.0.0.1", 0), _OtherServer) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("command", [["serve"], ["mcp", "--http"]])
def test_a_recipe_without_a_name_is_refused_by_its_path(cantrip: Any, place: Path, command: list[str]) -> None:
    (place / "named.yaml").write_text("name: desk\n" + RECIPE)
    said = cantrip(*command, "named.yaml", "recipe.yaml")
    assert said.code == 2
    assert "recipe.yaml: clients choose a cantrip by its name, and this one has none: add `name`" in said.err


@pytest.mark.parametrize("command", [["serve"], ["mcp", "--http"], ["worker"]])
def test_two_recipes_of_one_name_are_refused_by_their_paths(cantrip: Any, place: Path, command: list[str]) -> None:
    for name in ("one.yaml", "two.yaml"):
        (place / name).write_text("name: desk\n" + RECIPE)
    said = cantrip(*command, "one.yaml", "two.yaml")
    assert said.code == 2
    assert 'two.yaml: expected another name than "desk", which one.yaml has' in said.err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nowhere", "http://["])
def test_a_service_that_does_not_answer_is_an_error_with_2(cantrip: Any, command: list[str], url: str) -> None:
    said = cantrip(*command, "--url", url)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"error: {url} does not answer: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_error_of_a_service_is_json_for_programs(cantrip: Any, command: list[str]) -> None:
    said = cantrip(*command, "--url", "http://127.0.0.1:1", "--json")
    assert (said.code, said.json["error"]["type"]) == (2, "Unreachable")


@pytest.mark.parametrize("command", COMMANDS)
def test_another_server_at_the_address_is_told(cantrip: Any, command: list[str], other_server: str) -> None:
    said = cantrip(*command, "--url", other_server)
    assert said.code == 2
    assert f"{other_server} is not a cantrip service: expected JSON, got '<h1>Welcome</h1>'" in said.err
