"""The examples of docs/http.md that need a running service: its curl lines, OpenAI's client, the page with a chat."""

import doctest
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.browser import browser, chromium
from tests.http.serving import Process, process
from tests.test_docs import blocks

pytestmark = [pytest.mark.real_time, pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on PATH")]

PAGE = (Path(__file__).parent.parent.parent / "docs" / "http.md").read_text(encoding="utf-8")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Process]:
    """The service of the page's first example, with dispatches, in a folder with the files of the page."""
    for block in blocks(PAGE):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    with process(tmp_path, "asyncio", "--dir", ".cantrip/dispatches", serves="echo.yaml") as on:
        yield on


def curls() -> Iterator[tuple[str, str]]:
    """Yield each curl line of the page with the output below it."""
    for block in blocks(PAGE):
        if block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE):
                command, _, output = re.sub(r"\\\n\s*", "", part).partition("\n")
                if command.startswith("curl"):
                    yield command, output.strip()


@pytest.mark.rule("HTTP-01", "HTTP-03")
def test_the_curl_lines_print_what_the_page_shows(service: Process, tmp_path: Path) -> None:
    examples = list(curls())
    assert len(examples) == 6
    environment = {**os.environ, "TOKEN": service.token, "API": f"{service.url}/api/v1"}
    for command, output in examples:
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path
        )
        shown = re.sub("…+", "...", output)
        same = doctest.OutputChecker().check_output(f"{shown}\n", f"{done.stdout.strip()}\n", doctest.ELLIPSIS)
        assert same, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.rule("WIRE-01", "WIRE-02")
def test_openais_client_works_as_the_page_says(service: Process) -> None:
    (example,) = [block.text for block in blocks(PAGE) if "from openai import OpenAI" in block.text]
    names: dict[str, object] = {}
    program = example.replace("http://127.0.0.1:8000", service.url).replace("ct_…", service.token)
    exec(compile(program, "docs/http.md", "exec"), names)  # an example of our own page
    assert names["second"].output_text == "It is 5."  # type: ignore[attr-defined]  # a response
    names["client"].close()  # type: ignore[attr-defined]  # a client


@pytest.mark.skipif(chromium() is None, reason="no chromium on PATH")
def test_the_chat_of_the_page_works_in_a_browser(service: Process) -> None:
    (html,) = [block.text for block in blocks(PAGE) if block.language == "html"]
    assert len(html.splitlines()) <= 60
    with browser() as started:
        page = started.new_page()
        page.goto(f"{service.url}/#token={service.token}")
        page.wait_for_function("!location.hash.includes('token')")
        page.route("**/chat", lambda route: route.fulfill(body=f"<!doctype html>{html}", content_type="text/html"))
        page.goto(f"{service.url}/chat")
        for text, answer in (("How many?", "It is 3."), ("And now?", "It is 4.")):
            page.fill("#intent", text)
            page.click("button")
            page.wait_for_selector(f"li:has-text('{answer}')")
        assert page.locator("li").all_inner_texts() == ["How many?", "It is 3.", "And now?", "It is 4."]
