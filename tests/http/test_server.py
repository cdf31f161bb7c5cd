"""`cantrip serve` as a process: killed, drained, blocked; its tokens and its health."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest
from anyio import to_thread
from structlog.testing import capture_logs
from typer.testing import CliRunner

from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.cli.app import COMMANDS, app
from cantrip_actors.http import CannotServe, InvalidTokens, ServiceSettings, Tokens, add_token
from cantrip_actors.http.addresses import parse_origin
from cantrip_actors.http.closing import bound_closing
from cantrip_actors.http.health import Pulse, health_server
from cantrip_actors.http.server import _tokens
from cantrip_actors.wards import max_turns
from tests.http.serving import Process, process

pytestmark = [pytest.mark.real_time]

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def client_of(on: Process) -> httpx.Client:
    return httpx.Client(base_url=f"{on.url}/api/v1", headers=on.headers, timeout=20)


def read_events(client: httpx.Client, path: str, last: str, count: int = 1000) -> list[tuple[str, str]]:
    """Read so many durable events, or all up to the end of the stream."""
    found: list[tuple[str, str]] = []
    with client.stream("GET", path, headers={"last-event-id": last}) as answered:
        if answered.status_code == 204:
            return found
        id = ""
        for line in answered.iter_lines():
            if line.startswith("id: "):
                id = line[4:]
            elif line.startswith("event: ") and id:
                found.append((id, line[7:]))
                id = ""
                if len(found) == count:
                    break
    return found


def is_served(on: Process) -> bool:
    """Return whether the service accepts connections."""
    try:
        httpx.get(f"{on.health}/health/live")
    except httpx.TransportError:
        return False
    return True


def wait_until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@BACKENDS
@pytest.mark.rule("HTTP-03", "HTTP-08")
def test_streams_and_keys_survive_kill_9(tmp_path: Path, backend: str) -> None:
    body = {"cantrip": "echo", "intent": "turns 6 0.15"}
    key = {"idempotency-key": "order-17"}
    with process(tmp_path, backend) as one, client_of(one) as client:
        entity = client.post("/casts", json=body, headers=key).json()["entity_id"]
        before = read_events(client, f"/entities/{entity}/events", "0", 3)
        one.kill()
    with process(tmp_path, backend) as two, client_of(two) as client:
        again = client.post("/casts", json={**body, "wait": 20}, headers=key)
        assert again.headers["idempotency-replayed"] == "true"
        assert (again.json()["entity_id"], again.json()["terminated"]) == (entity, True)
        assert client.post("/casts", json={**body, "intent": "other"}, headers=key).status_code == 422
        rest = read_events(client, f"/entities/{entity}/events", before[-1][0])
        assert before + rest == read_events(client, f"/entities/{entity}/events", "0")
        assert [kind for _, kind in before + rest] == ["entity", *["turn"] * 7, "end"]
        assert len(client.get("/entities").json()["items"]) == 1


@BACKENDS
@pytest.mark.rule("Z-03", "HTTP-16")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_the_work_with_an_idempotency_key(tmp_path: Path, backend: str, number: int) -> None:
    body = {"cantrip": "echo", "intent": "turns 6 0.5"}
    key = {"idempotency-key": "order-17"}
    with process(tmp_path, backend, "--grace", "0.2") as one, client_of(one) as client:
        entity = client.post("/casts", json=body, headers=key).json()["entity_id"]
        wait_until(lambda: client.get(f"/entities/{entity}/turns").json()["items"])
        code, logged = one.end(number)
        assert code == 0, logged
    with process(tmp_path, backend) as two, client_of(two) as client:
        again = client.post("/casts", json={**body, "wait": 20}, headers=key).json()
        assert (again["entity_id"], again["terminated"]) == (entity, True)


@BACKENDS
@pytest.mark.rule("HTTP-16")
def test_a_drain_ends_streams_and_casts_and_exits_with_0(tmp_path: Path, backend: str) -> None:
    with process(tmp_path, backend, "--grace", "10") as on, client_of(on) as client:
        idle = client.post("/entities", json={"cantrip": "echo", "intent": "hi", "name": "bob"}).json()["entity_id"]
        kinds: list[str] = []
        states: list[Any] = []
        is_open = threading.Event()

        def follow() -> None:
            with client.stream("GET", f"/entities/{idle}/events") as answered:
                is_open.set()
                kinds.extend(line[7:] for line in answered.iter_lines() if line.startswith("event: "))

        def wait() -> None:
            answered = client.post("/casts", json={"cantrip": "echo", "intent": "nap 1.5", "wait": 20})
            states.append(answered.json()["terminated"])

        threads = [threading.Thread(target=work) for work in (follow, wait)]
        for thread in threads:
            thread.start()
        assert is_open.wait(10)
        wait_until(lambda: client.get("/entities?state=active").json()["items"])
        on.child.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{on.health}/health/ready").status_code == 503)
        assert httpx.get(f"{on.health}/health/ready").json()["checks"]["draining"] is True
        assert httpx.get(f"{on.health}/health/live").status_code == 200
        refused = client.post("/casts", json={"cantrip": "echo", "intent": "hi"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        for thread in threads:
            thread.join()
        _, logged = on.child.communicate(timeout=10)
        assert (kinds[-1], states) == ("drain", [True])
        assert on.child.returncode == 0, logged
        assert "Traceback" not in logged, logged


@BACKENDS
@pytest.mark.rule("HTTP-16")
def test_an_answer_that_is_not_ready_at_the_end_of_a_drain_says_so_and_is_had_from_the_next_process(
    tmp_path: Path, backend: str
) -> None:
    chat = {"model": "echo", "messages": [{"role": "user", "content": "turns 10 0.5"}]}
    bodies: dict[str, dict[str, Any]] = {
        "/api/v1/casts": {"cantrip": "echo", "intent": "turns 10 0.5", "wait": 60},
        "/v1/chat/completions": chat,
        "/v1/messages": {**chat, "max_tokens": 9, "stream": True},
        "/v1/responses": {"model": "echo", "input": "turns 10 0.5", "stream": True},
    }
    answers: dict[str, httpx.Response] = {}
    with process(tmp_path, backend, "--grace", "0.1") as on, client_of(on) as client:

        def ask(path: str, body: dict[str, Any]) -> None:
            key = {"idempotency-key": path[4:].replace("/", "-")}
            answers[path] = client.post(f"{on.url}{path}", json=body, headers=key)

        threads = [threading.Thread(target=ask, args=item) for item in bodies.items()]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(client.get("/entities?state=active").json()["items"]) == len(bodies))
        code, logged = on.end(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert code == 0, logged
        assert "Traceback" not in logged, logged
        for path, body in bodies.items():
            answer = answers[path]
            assert "the service shuts down" in answer.text
            assert answer.status_code == (200 if "stream" in body else 503)
            assert "stream" in body or answer.headers["retry-after"] == "1"
    with process(tmp_path, backend) as on, client_of(on) as client:
        for path, body in bodies.items():
            ask(path, body)
            assert answers[path].status_code == 200
            assert "it said" in answers[path].text


@BACKENDS
@pytest.mark.rule("HTTP-16")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_service_exits_with_0_at_either_signal(tmp_path: Path, backend: str, number: int) -> None:
    with process(tmp_path, backend) as on, client_of(on) as client:
        client.post("/entities", json={"cantrip": "echo", "intent": "hi", "name": "bob"})
        with client.stream("GET", "/events") as events:
            assert events.status_code == 200
            began = time.monotonic()
            code, logged = on.end(number)
            assert (code, "Traceback" in logged) == (0, False), logged
            assert time.monotonic() - began < 5, "the open stream does not delay it"


@BACKENDS
@pytest.mark.rule("HTTP-11")
def test_the_tokens_are_read_again_at_sighup(tmp_path: Path, backend: str) -> None:
    file = tmp_path / "tokens.toml"
    old = add_token(file, "old", ["read"])
    with process(tmp_path, backend, "--tokens", str(file)) as on:

        def status(text: str) -> int:
            return httpx.get(f"{on.url}/api/v1/cantrips", headers={"authorization": f"Bearer {text}"}).status_code

        assert (status(old), status("ct_x")) == (200, 401)
        file.unlink()
        new = add_token(file, "new", ["read"])
        assert status(new) == 401
        on.child.send_signal(signal.SIGHUP)
        wait_until(lambda: status(new) == 200)
        assert status(old) == 401
        file.write_text("[[token", encoding="utf-8")
        on.child.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert status(new) == 200, "a broken file changes nothing"
        code, logged = on.end()
        assert code == 0
        assert "the tokens stay as they were" in logged
        assert old not in logged


@BACKENDS
@pytest.mark.rule("HTTP-19")
def test_an_approval_survives_kill_9_before_and_after_its_decision(tmp_path: Path, backend: str) -> None:
    def requests() -> Any:
        return client.get("/requests").json()["items"]

    with process(tmp_path, backend) as on, client_of(on) as client:
        body = {"cantrip": "echo", "intent": "pay 3", "name": "bob"}
        client.post("/entities", json=body)
        wait_until(requests)
        (request,) = requests()
        on.kill()
    said, key = {"decision": "allow", "args": {"amount": 2}}, {"idempotency-key": "once"}
    with process(tmp_path, backend) as on, client_of(on) as client:
        assert requests() == [request]
        assert client.post(f"/requests/{request['id']}", json=said, headers=key).status_code == 200
        on.kill()
    with process(tmp_path, backend) as on, client_of(on) as client:
        again = client.post(f"/requests/{request['id']}", json=said, headers=key)
        assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
        assert client.post(f"/requests/{request['id']}", json={"decision": "deny"}).status_code == 409
        wait_until(lambda: client.get("/entities/bob").json()["state"] == "idle")
        assert client.get("/entities/bob").json()["episode"]["result"] == "it said: paid 2"


@BACKENDS
@pytest.mark.rule("WIRE-02")
def test_a_response_is_continued_and_forked_after_kill_9(tmp_path: Path, backend: str) -> None:
    def respond(text: str, previous: str | None = None) -> str:
        with openai.OpenAI(base_url=f"{on.url}/v1", api_key=on.token, max_retries=0) as client:
            told = client.responses.create(model="echo", input=text, previous_response_id=previous)
        assert told.output_text == f"you said: {text}"
        return told.id

    with process(tmp_path, backend) as on:
        first = respond("one")
        second = respond("two", first)
        on.kill()
    with process(tmp_path, backend) as on, client_of(on) as client:
        respond("three", second)
        respond("other", first)
        entities = client.get("/entities").json()["items"]
        assert [(one["forked"], one["turns"]) for one in entities] == [(True, 1), (False, 3)]


@BACKENDS
@pytest.mark.rule("HTTP-16")
def test_a_second_signal_exits_at_once(tmp_path: Path, backend: str) -> None:
    with process(tmp_path, backend, "--grace", "60") as on, client_of(on) as client:
        client.post("/casts", json={"cantrip": "echo", "intent": "nap 60"})
        on.child.send_signal(signal.SIGINT)
        wait_until(lambda: httpx.get(f"{on.health}/health/ready").status_code == 503)
        code, _ = on.end(signal.SIGTERM)
        assert code == 128 + signal.SIGTERM


@BACKENDS
@pytest.mark.rule("Z-12", "HTTP-16")
def test_a_second_signal_ends_a_service_that_closes_while_a_gate_refuses_to_end(tmp_path: Path, backend: str) -> None:
    with process(tmp_path, backend, "--grace", "0") as on, client_of(on) as client:
        client.post("/casts", json={"cantrip": "echo", "intent": "shield 60"}, headers={"idempotency-key": "k"})
        wait_until(lambda: client.get("/entities?state=active").json()["items"])
        on.child.send_signal(signal.SIGINT)
        wait_until(lambda: not is_served(on))
        on.child.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert on.child.poll() is None, "SIGHUP ends no service"
        code, _ = on.end(signal.SIGINT)
        assert code == 128 + signal.SIGINT


@pytest.mark.rule("Z-12")
def test_a_service_whose_closing_takes_too_long_says_so_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))
    before = signal.getsignal(signal.SIGTERM)
    with capture_logs() as logs, bound_closing(0.01):
        assert ended.wait(10)
    assert codes == [1]
    assert "does not" in logs[0]["event"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.rule("HTTP-17")
def test_health_answers_by_a_thread_of_its_own_while_the_loop_is_blocked() -> None:
    now = 100.0
    pulse = Pulse(stall=60, ready=5, clock=lambda: now)
    with health_server(pulse, "127.0.0.1:0") as url:

        def look(what: str) -> int:
            return httpx.get(f"{url}/health/{what}").status_code

        assert (look("live"), look("ready"), look("other")) == (200, 200, 404)
        now += 6  # a gate that blocks the loop: nobody ticks
        assert (look("live"), look("ready")) == (200, 503)
        now += 60
        assert (look("live"), look("ready")) == (503, 503)


@pytest.mark.rule("HTTP-17")
def test_health_is_answered_at_an_address_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[tuple[int, tuple[str, int]]] = []

    def bind(server: ThreadingHTTPServer) -> None:  # the machine may have no IPv6
        bound.append((server.address_family, server.server_address[:2]))
        raise OSError(errno.EADDRNOTAVAIL, "no such address")

    monkeypatch.setattr(ThreadingHTTPServer, "server_bind", bind)
    with pytest.raises(CannotServe, match="no such address"), health_server(Pulse(), "[::1]:8001"):
        pass
    assert bound == [(socket.AF_INET6, ("::1", 8001))]


@pytest.mark.rule("HTTP-17")
async def test_a_gate_that_blocks_the_loop_makes_the_service_unready() -> None:
    @gate
    async def block(seconds: float) -> str:
        """Block the event loop."""
        time.sleep(seconds)  # noqa: ASYNC251  # as a gate does that was written without care
        return "blocked"

    answers = scripted([{"tool_calls": [{"gate": "block", "args": {"seconds": 1.0}}]}, "done"])
    cantrip = Cantrip(answers, circle=Circle(["done", block], [max_turns(3)]))
    pulse = Pulse(stall=60, ready=0.3)
    seen: list[int] = []

    def watch(url: str) -> None:
        deadline = time.monotonic() + 15
        while 503 not in seen and time.monotonic() < deadline:
            seen.append(httpx.get(f"{url}/health/ready").status_code)

    with health_server(pulse, "127.0.0.1:0") as url:
        async with Runtime.open() as runtime, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(pulse.beat, runtime, every=0.02))
            await anyio.sleep(0.1)
            watcher = threading.Thread(target=watch, args=(url,))
            watcher.start()
            await runtime.cast(cantrip, "go")
            await to_thread.run_sync(watcher.join)
            with anyio.fail_after(5):
                while not pulse.ready()[0]:
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
    assert 503 in seen


@pytest.mark.rule("HTTP-10")
def test_without_tokens_only_loopback_is_served(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cantrip_actors.cli.main", "serve", "tests.http.serving:ECHO"]
    command += ["--bind", "0.0.0.0:0", "--loom", f"sqlite:{tmp_path / 'loom.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "can be reached from other machines: give --tokens FILE" in done.stderr
    for bind in ("192.168.0.1:1", "example.org:1", "[::]:1"):
        for no_auth in (True, False):
            with pytest.raises(CannotServe):
                _tokens(ServiceSettings("memory:", bind=bind, no_auth=no_auth))
    for bind in ("127.0.0.1:1", "[::1]:1", "localhost:1"):
        made, text = _tokens(ServiceSettings("memory:", bind=bind))
        assert made is not None
        assert text is not None
        assert made.find(text) is not None


def test_a_token_that_cannot_be_added_to_its_file_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "tokens.toml"
    made = CliRunner().invoke(app, ["serve", "token", "ci", "--scope", "read", "--tokens", str(place)])
    assert (made.exit_code, made.stdout) == (2, "")
    assert made.stderr == f"error: {place}: the token cannot be added: Not a directory\n"


def test_a_token_is_printed_once_and_its_hash_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "new" / "tokens.toml"
    scopes = ["--scope", "cast", "--scope", "read", "--tenant", "acme"]
    made = CliRunner().invoke(app, ["serve", "token", "ci", *scopes, "--tokens", str(file)])
    text = made.stdout.strip()
    assert made.exit_code == 0
    assert text.startswith("ct_")
    assert text not in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = Tokens.of_file(file).find(text)
    assert found is not None
    assert (found.name, found.tenant, found.scopes) == ("ci", "acme", {"cast", "read"})
    assert Tokens.of_file(file).find(text + "x") is None
    again = CliRunner().invoke(app, ["serve", "token", "ci", *scopes, "--tokens", str(file)])
    assert again.exit_code == 2
    known = Tokens.of_file(file)
    second = add_token(file, "ops", ["admin"])
    assert known.find(second) is None
    known.reload()
    assert known.find(second) is not None


TWO = f"""
[[token]]
name = "a"
sha256 = "{"0" * 64}"
scopes = ["read"]
tenant = "x"
[[token]]
name = "b"
sha256 = "{"1" * 64}"
scopes = ["read"]
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[token]]\nname = 'a'", r"token\.0\.sha256: required, but missing"),
        ("[[token", "expected TOML"),
        ("[token]\nname = 'a'", r"token: expected a table \[\[token\]\] for each, got \[token\]"),
        ("[[token]]\nname='a'\nsha256='my token'\nscopes=['read']", "64 digits 0-9 and a-f, got 8 characters"),
        (
            f"[[token]]\nname='a'\nsha256='{'0' * 64}'\nscopes='read'",
            r'scopes: expected an array, got "read"',
        ),
        (
            f"[[token]]\nname='a'\nsha256='{'0' * 64}'\nscopes=['read']\nexpire=2030-01-01",
            r'token\.0\.expire: nothing here has this name: did you mean "expires"',
        ),
        (f"[[token]]\nname='a'\nsha256='{'0' * 64}'\nscopes=['reed']", 'did you mean "read"'),
        (f"[[token]]\nname='a'\nsha256='{'0' * 64}'\nscopes=[]", "at least one scope"),
        (f"[[token]]\nname='a'\nsha256='{'0' * 64}'\nscopes=['admin']\ntenant='x'", "admin sees all tenants"),
        (TWO, "would see all tenants"),
        (f"[[token]]\nname='a'\nsha256='{'0' * 64}'\nscopes=['read']\n" * 2, 'two tokens are called "a"'),
    ],
)
def test_a_broken_file_of_tokens_says_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidTokens, match=why):
        Tokens.of_file(file)


@pytest.mark.parametrize(
    "origin", ["a.example", "https://a.example/chat", "https://a.example?x", "https://u@a.example", "*", "", "http://["]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(CannotServe, match="expected the origin of a page, without a path"):
        parse_origin(origin)


HEAVY = {
    *("acp", "anyio", "asyncio", "concurrent.futures", "httpx", "hypercorn", "jsonschema", "logging", "mcp", "msgspec"),
    *("openai", "opentelemetry", "orjson", "psycopg", "pydantic", "ray", "rich", "socket", "starlette", "structlog"),
    *("trio", "yaml", "cantrip_actors.http", "cantrip_actors.runtime", "cantrip_actors.terms"),
    *(
        "cantrip_actors.cli.command",
        "cantrip_demos",
        *(module if "." in module else f"cantrip_actors.cli.{module}" for module, _ in COMMANDS.values()),
    ),
}


def test_the_help_of_the_command_line_imports_nothing_that_takes_time() -> None:
    program = """
import sys
from cantrip_actors.cli.main import main
try:
    main(["--help"])
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "dispatch" in done.stdout
    assert not HEAVY & set(done.stderr.split())


STUCK = """
import time
from pathlib import Path

from cantrip_actors import Cantrip, Circle, gate, scripted
from cantrip_actors.wards import max_turns


@gate
async def block() -> str:
    "Block the event loop."
    Path("blocked").touch()
    time.sleep(60)
    return "x"


says = [{"tool_calls": [{"gate": "block", "args": {}}]}]
STUCK = Cantrip(scripted(says), circle=Circle(["done", block], [max_turns(2)]), name="stuck")
"""


@pytest.mark.rule("LOG-06")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_service_whose_loop_is_blocked_in_a_gate_dumps_at_the_signal(tmp_path: Path, backend: str) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    with process(tmp_path, backend, "--debug-dump", serves="stuck:STUCK") as on:
        body = {"cantrip": "stuck", "intent": "go"}
        httpx.post(f"{on.url}/api/v1/casts", json=body, headers=on.headers).raise_for_status()
        ends = time.monotonic() + 30
        while not (tmp_path / "blocked").exists() and time.monotonic() < ends:
            time.sleep(0.02)
        on.child.send_signal(signal.SIGUSR2)
        assert on.child.stderr is not None
        lines: list[str] = []
        while "time.sleep(60)" not in "".join(lines[-1:]):
            lines.append(on.child.stderr.readline())
            assert lines[-1], "".join(lines)
    dump = "".join(lines)
    for title in ("actors", "the oldest call in hand", "system", "tasks", "the event loop is at"):
        assert f"-- {title}\n" in dump
    assert "circle  GatesActor  up" in dump
    assert "in block" in dump
