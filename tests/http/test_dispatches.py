"""Dispatches over real sockets: the same rules as at the command line, by the token's name."""

import fcntl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from cantrip_actors.dispatch import Dispatches, Progressed, StatusChanged, contract_template
from cantrip_actors.dispatch.routes import make_extension
from tests.dispatch.contracts import contract, terms
from tests.http.serving import Served, process, served, token
from tests.http.test_server import BACKENDS

pytestmark = [pytest.mark.real_time]

KEY = {"idempotency-key": "order-17"}
ASKS = {"needs_approval": "yes", "decision_needed": "whether the search may change"}
WORKER: dict[str, Any] = {"by": "worker", "author": "e1", "token": 1}
BLOCKED = (
    StatusChanged("active"),
    Progressed("milestone", "The tags are read."),
    StatusChanged("blocked", blocker="The index is locked."),
)


@asynccontextmanager
async def served_dispatches(tmp_path: Path) -> AsyncIterator[tuple[Served, Dispatches]]:
    log = Dispatches(tmp_path / "dispatches")
    known = [
        *(token("ann", "approve"), token("bob", "dispatch"), token("eve", "read")),
        token("acme", "read", "approve", "dispatch", tenant="acme"),
    ]
    async with served(tokens=known, extensions=[make_extension(log)]) as on:
        yield on, log


def make(log: Dispatches, *events: Any, **changed: Any) -> str:
    """Dispatch a contract called `mend`, and have a worker write events."""
    log.create(contract(dispatch_id="mend", **changed), author="ada")
    if events:
        log.append("mend", *events, **WORKER)
    return "mend"


@pytest.mark.rule("HTTP-01")
async def test_a_contract_is_dispatched_listed_and_read(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        made = await on.ask("POST", "dispatches", 201, json={"contract": terms(**ASKS)})
        (listed,) = (await on.get("dispatches?status=queued"))["items"]
        assert made.json() == listed
        assert listed["waits_for"] == "approval: whether the search may change"
        assert (await on.get("dispatches?status=active"))["items"] == []
        read = await on.get(made.headers["location"])
        record = log.read(listed["id"])
        assert (read["contract"]["objective"], read["contract_hash"]) == (
            record.contract.objective,
            record.contract.hash,
        )
        assert [entry["kind"] for entry in read["entries"]] == ["contract"]
        assert len(read["unmet"]) == 2
        await on.ask("GET", "dispatches?status=asleep", 422)


@pytest.mark.rule("HTTP-18")
async def test_an_action_on_a_dispatch_is_in_its_log_with_the_token_and_the_time(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        ann, bob = on.as_token("ann"), on.as_token("bob")
        said = {"contract": terms(dispatch_id="mend", **ASKS)}
        await on.post("dispatches", said, 201, headers=bob)
        await on.post("dispatches/mend/approve", {"note": "at night"}, 200, headers=ann)
        log.append("mend", *BLOCKED, **WORKER)
        told = await on.post("dispatches/mend/unblock", {"note": "The lock is gone."}, 200, headers=bob)
        assert told["status"] == "queued"
        told = await on.post("dispatches/mend/reject", {"reason": "another one does it"}, 200, headers=ann)
        assert (told["status"], told["outcome"]) == ("rejected", "another one does it")
        found = [(one.kind, one.author, one.door) for one in log.read("mend").entries if one.by == "human" and one.ts]
        assert found == [
            ("contract", "bob", "token:bob"),
            ("approval", "ann", "token:ann"),
            ("unblock", "bob", "token:bob"),
            ("status", "bob", "token:bob"),
            ("status", "ann", "token:ann"),
        ]


@pytest.mark.rule("HTTP-01")
async def test_approving_a_blocked_dispatch_queues_it_again(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        make(log, *BLOCKED)
        assert (await on.post("dispatches/mend/approve", None, 200))["status"] == "queued"


@pytest.mark.rule("HTTP-14", "HTTP-15")
async def test_a_change_that_the_rules_of_dispatches_refuse_is_a_client_error_that_says_why(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        make(log)
        before = log.path("mend").read_bytes()
        for path, body, status, kind in (
            ("dispatches", {"contract": terms(dispatch_id="mend")}, 409, "dispatch-exists"),
            ("dispatches/mend/approve", {}, 409, "refused"),
            ("dispatches/mend/unblock", {"note": "gone"}, 409, "refused"),
            ("dispatches/mend/reject", {"reason": ""}, 422, "invalid"),
            ("dispatches/nobody/approve", {}, 404, "unknown-dispatch"),
            ("dispatches/..%2Fmend/approve", {}, 404, None),
        ):
            refused = await on.ask("POST", path, status, json=body)
            assert kind is None or refused.json()["type"] == f"urn:cantrip:{kind}"
            assert str(tmp_path) not in refused.text
        assert log.path("mend").read_bytes() == before
        await on.post("dispatches/mend/reject", {"reason": "no"}, 200)
        over = await on.post("dispatches/mend/reject", {"reason": "no"}, 409)
        assert (over["rule"], over["legal"]) == ("transition", [])


@pytest.mark.rule("HTTP-14")
async def test_every_mistake_of_a_contract_is_shown_and_nothing_is_dispatched(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        wrong = terms(repo="./notes", acceptance=[], budget=10**400)
        refused = await on.post("dispatches", {"contract": wrong}, 422)
        assert {one["path"] for one in refused["mistakes"]} == {"repo", "acceptance", "budget"}
        refused = await on.post("dispatches", {"contract": contract_template()}, 422)
        assert len(refused["mistakes"]) > 3
        assert any(one["line"] for one in refused["mistakes"])
        assert log.ids() == ()


@pytest.mark.rule("HTTP-01")
async def test_a_service_without_a_folder_of_dispatches_says_how_to_name_one() -> None:
    async with served() as on:
        for method, path, body in (
            ("GET", "dispatches", None),
            ("GET", "dispatches/mend", None),
            ("POST", "dispatches", {"contract": terms()}),
            ("POST", "dispatches/mend/approve", {}),
        ):
            told = (await on.ask(method, path, 404, json=body)).json()
            assert told["type"] == "urn:cantrip:no-dispatches"
            assert "--dir DIR" in told["detail"]


@pytest.mark.rule("HTTP-08")
async def test_a_repeated_post_to_dispatches_gets_the_first_answer_and_writes_nothing(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        new: tuple[str, Any, int] = ("dispatches", {"contract": terms(dispatch_id="mend")}, 201)
        unblock: tuple[str, Any, int] = ("dispatches/mend/unblock", {"note": "The lock is gone."}, 200)
        reject: tuple[str, Any, int] = ("dispatches/mend/reject", {"reason": "no"}, 200)
        first: list[Any] = []
        for name, (path, body, status) in (("new", new), ("unblock", unblock), ("reject", reject)):
            if name == "unblock":
                log.append("mend", *BLOCKED, **WORKER)
            answered = await on.ask("POST", path, status, json=body, headers={"idempotency-key": name})
            assert "idempotency-replayed" not in answered.headers
            first.append(answered.json())
        before = log.path("mend").read_bytes()
    async with served_dispatches(tmp_path) as (on, log):  # another process, later
        for name, (path, body, status), told in zip(
            ("new", "unblock", "reject"), (new, unblock, reject), first, strict=True
        ):
            again = await on.ask("POST", path, status, json=body, headers={"idempotency-key": name})
            assert (again.json(), again.headers["idempotency-replayed"]) == (told, "true")
        for path, body, headers in (
            ("dispatches", {"contract": terms(dispatch_id="other")}, {"idempotency-key": "new"}),
            ("dispatches/mend/unblock", {"note": "another"}, {"idempotency-key": "unblock"}),
            ("dispatches/mend/reject", {"reason": "no"}, {"idempotency-key": "reject"} | on.as_token("ann")),
        ):
            assert (await on.post(path, body, 422, headers=headers))["type"] == "urn:cantrip:idempotency-key-reused"
        assert log.path("mend").read_bytes() == before
        assert log.ids() == ("mend",)


@pytest.mark.rule("HTTP-08")
async def test_ten_posts_with_one_key_unblock_a_dispatch_once(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        make(log, *BLOCKED)
        answers: list[httpx.Response] = []

        async def post() -> None:
            answers.append(await on.ask("POST", "dispatches/mend/unblock", 200, json={"note": "gone"}, headers=KEY))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(post)
        assert len({one.text for one in answers}) == 1
        assert sum("idempotency-replayed" in one.headers for one in answers) == 9
        assert sum(one.kind == "unblock" for one in log.read("mend").entries) == 1


@pytest.mark.rule("HTTP-12")
async def test_a_token_with_a_tenant_sees_no_dispatch_and_makes_none(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        make(log, **ASKS)
        acme = on.as_token("acme")
        assert (await on.get("dispatches", headers=acme))["items"] == []
        assert (await on.get("requests", headers=acme))["items"] == []
        for method, path, body in (
            ("GET", "dispatches/mend", None),
            ("POST", "dispatches/mend/approve", {}),
            ("POST", "dispatches/mend/reject", {"reason": "no"}),
            ("POST", "dispatches/mend/unblock", {"note": "gone"}),
            ("POST", "requests/dispatch:mend", {"decision": "allow"}),
        ):
            unknown = await on.ask(method, path, 404, json=body, headers=acme)
            missing = await on.ask(method, path.replace("mend", "nobody"), 404, json=body, headers=acme)
            assert unknown.text.replace("mend", "nobody") == missing.text
        refused = await on.post("dispatches", {"contract": terms()}, 403, headers=acme)
        assert refused["type"] == "urn:cantrip:tenant"
        assert log.read("mend").seq == 1


@pytest.mark.rule("HTTP-19")
async def test_a_dispatch_that_waits_is_a_request_and_is_decided_once(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        make(log, **ASKS)
        (request,) = (await on.get("requests"))["items"]
        assert (request["id"], request["kind"]) == ("dispatch:mend", "dispatch")
        path, said = "requests/dispatch:mend", {"decision": "allow", "note": "at night"}
        await on.post(path, {"decision": "allow", "args": {}}, 422)
        first = await on.ask("POST", path, 200, json=said, headers=KEY | on.as_token("ann"))
        again = await on.ask("POST", path, 200, json=said, headers=KEY | on.as_token("ann"))
        assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
        for other, headers in ((said, {}), ({"decision": "deny"}, KEY | on.as_token("ann")), (said, KEY)):
            refused = await on.post(path, other, 409, headers=headers)
            assert (refused["decision"], refused["by"], refused["note"]) == ("allow", "ann", "at night")
        assert (await on.get("requests"))["items"] == []
        assert (log.read("mend").seq, log.read("mend").entries[-1].door) == (2, "token:ann")


@pytest.mark.rule("HTTP-15")
async def test_a_dispatch_whose_log_was_edited_is_not_listed_and_its_path_is_not_shown(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        make(log)
        log.create(contract(dispatch_id="other"), author="ada")
        path = log.path("mend")
        path.write_bytes(path.read_bytes().replace(b"Mend", b"Bend"))
        assert [one["id"] for one in (await on.get("dispatches"))["items"]] == ["other"]
        broken = await on.ask("GET", "dispatches/mend", 507)
        assert str(tmp_path) not in broken.text
        assert broken.json()["error_id"]


@pytest.mark.rule("HTTP-14")
async def test_a_log_that_another_process_holds_delays_no_other_request(tmp_path: Path) -> None:
    async with served_dispatches(tmp_path) as (on, log):
        make(log, **ASKS)
        with log.path("mend").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            rescue = threading.Timer(5, fcntl.flock, (held, fcntl.LOCK_UN))  # if the event loop waits for the lock
            rescue.start()
            answers: list[int] = []

            async def ask(method: str, path: str) -> None:
                answers.append((await on.ask(method, path)).status_code)

            async with anyio.create_task_group() as tasks:
                for method, path in (
                    ("GET", "dispatches"),
                    ("GET", "dispatches/mend"),
                    ("GET", "requests"),
                    ("POST", "dispatches/mend/approve"),
                ):
                    tasks.start_soon(ask, method, path)
                await anyio.sleep(0.2)
                with anyio.fail_after(2):
                    await on.get("cantrips")
                assert answers == []
                fcntl.flock(held, fcntl.LOCK_UN)
            rescue.cancel()
        assert answers == [200] * 4


@BACKENDS
@pytest.mark.rule("HTTP-01")
def test_cantrip_serve_serves_the_dispatches_of_dir(tmp_path: Path, backend: str) -> None:
    make(Dispatches(tmp_path / "work"))
    with process(tmp_path, backend, "--dir", "work") as on:
        listed = httpx.get(f"{on.url}/api/v1/dispatches", headers=on.headers).json()["items"]
    assert [one["id"] for one in listed] == ["mend"]
