"""Packages add routes, logins, requests and commands; what is their own behaves as what comes with the service."""

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, BaseUser, SimpleUser
from starlette.requests import HTTPConnection
from typer.testing import CliRunner

from cantrip_actors import CantripError, InvalidCantrip, Request, Runtime
from cantrip_actors.cli.app import app
from cantrip_actors.cli.extensions import open_service_extensions
from cantrip_actors.http import (
    ApiRoute,
    HttpCall,
    InvalidTokens,
    JsonAnswer,
    Problem,
    Service,
    ServiceExtension,
    Token,
    Tokens,
    add_token,
    list_scopes,
)
from cantrip_actors.http.models import RewardBody
from tests.http.serving import Served, echo, in_process, served, token
from tests.slowness import measure_slowness

pytestmark = [pytest.mark.rule("W-03")]


class Refused(CantripError):
    """An error of an extension."""


async def tell_name(call: HttpCall) -> JsonAnswer:
    """Tell the name of the token."""
    return JsonAnswer({"name": call.token.name, "tenant": call.token.tenant})


async def refuse(call: HttpCall) -> JsonAnswer:
    """Refuse."""
    raise Refused(call.path["why"])


def describe_error(error: CantripError) -> Problem | None:
    return Problem(409, "own", f"no: {error}") if str(error) == "known" else None


NAMES = ServiceExtension(
    "names",
    (
        ApiRoute("GET", "/name", "reward", tell_name, {200: "application/json"}),
        ApiRoute("POST", "/name", "reward", tell_name, {200: "application/json"}, RewardBody),
        ApiRoute("GET", "/refusals/{why}", "read", refuse, {200: "application/json"}),
    ),
    describe_error,
)


def make_order_extension(scope: str = "shop:order", *scopes: str) -> ServiceExtension:
    routes = (ApiRoute("GET", "/orders", scope, tell_name, {200: "application/json"}),)
    return ServiceExtension("shop", routes, scopes=scopes)


async def test_a_route_of_an_extension_may_have_a_scope_of_its_own() -> None:
    shop = make_order_extension("shop:order", "shop:order")
    known = [token("ann", "read", "shop:order"), token("bob", "read")]
    async with in_process([echo()], *known, extensions=[shop]) as on:
        await on.ask("GET", "orders", 200, headers=on.as_token("ann"))
        await on.ask("GET", "orders", 403, headers=on.as_token("bob"))
        await on.ask("GET", "orders", 200)  # admin allows everything
        session = await on.get("/session", headers=on.as_token("ann"))
        assert session["scopes"] == ["read", "shop:order"]
        supported = await on.get("/.well-known/oauth-protected-resource")
        assert "shop:order" in supported["scopes_supported"]


class Files:
    """Requests that are read from files: each of them takes the thread in which it is read."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.decided: list[str] = []

    def has(self, request_id: str) -> bool:
        self.threads.add(threading.get_ident())
        return request_id == "order:1"

    def open(self) -> list[Request]:
        self.threads.add(threading.get_ident())
        return [Request("order:1", "order", None, None, None, "order", {}, "?", None, "2026-03-02T09:00:00Z", None)]

    async def decide(self, request_id: str, decision: str, **_who: str) -> None:
        self.decided.append(f"{request_id} {decision}")


async def test_the_requests_of_an_extension_are_not_read_on_the_event_loop() -> None:
    files = Files()
    limited = token("limited", "read", "approve", cantrips=frozenset({"echo"}))
    async with in_process([echo()], limited, extensions=[ServiceExtension("shop", requests=files)]) as on:
        assert len((await on.get("requests"))["items"]) == 1
        assert (await on.get("requests", headers=on.as_token("limited")))["items"] == []
        allow = {"decision": "allow"}
        await on.ask("POST", "requests/order:1", 404, json=allow, headers=on.as_token("limited"))
        begun = await on.post("casts", {"cantrip": "echo", "intent": "pay 3"}, 201)
        (asked,) = await until_asked(on, begun["entity_id"])
        await on.ask("POST", f"requests/{asked['id']}", 200, json=allow, headers=on.as_token("limited"))
        await on.ask("POST", "requests/order:1", 200, json=allow)
    assert files.decided == ["order:1 allow"]
    assert threading.get_ident() not in files.threads


async def until_asked(on: Served, entity_id: str) -> list[dict[str, Any]]:
    while not (items := (await on.get(f"requests?entity={entity_id}"))["items"]):
        await anyio.sleep(0.1)
    return list(items)


def test_a_scope_that_no_extension_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='the route /orders has the scope "shop:order"'):
        list_scopes([make_order_extension()])
    for wrong in ("read", "Shop", "shop order", ""):
        with pytest.raises(ValueError, match="expected names such as"):
            make_order_extension("read", wrong)
    path = tmp_path / "tokens.toml"
    with pytest.raises(InvalidTokens, match='unknown scope "shop:order"'):
        add_token(path, "ann", ["shop:order"])


def test_a_file_of_tokens_has_scopes_of_extensions(tmp_path: Path) -> None:
    scopes = list_scopes([make_order_extension("shop:order", "shop:order")])
    text = add_token(tmp_path / "tokens.toml", "ann", ["shop:order"], known=scopes)
    tokens = Tokens.of_file(tmp_path / "tokens.toml", scopes)
    tokens.reload()
    found = tokens.find(text)
    assert found is not None
    assert found.allows("shop:order")
    with pytest.raises(InvalidTokens, match='unknown scope "shop:order"'):
        Tokens.of_file(tmp_path / "tokens.toml")


@pytest.mark.real_time
async def test_a_route_of_an_extension_has_the_steps_of_the_services_own() -> None:
    known = [token("ann", "reward"), token("bob", "read")]
    async with served(tokens=known, extensions=[NAMES]) as on:
        assert await on.get("name", headers=on.as_token("ann")) == {"name": "ann", "tenant": None}
        await on.ask("GET", "name", 401, headers={"authorization": "Bearer nobody"})
        await on.ask("GET", "name", 403, headers=on.as_token("bob"))
        await on.ask("GET", "name?more=1", 422)
        wrong = await on.post("name", {"reward": "much"}, 422)
        assert "reward" in wrong["detail"]
        described = await on.get("openapi.json")
        assert described["paths"]["/api/v1/name"]["get"]["security"] == [{"bearer": ["reward"]}]


@pytest.mark.real_time
async def test_an_error_of_an_extension_is_described_by_it_or_is_a_bug_without_its_text() -> None:
    async with served(extensions=[NAMES]) as on:
        assert (await on.get("refusals/known", 409))["detail"] == "no: known"
        unknown = await on.get("refusals/a-secret", 500)
        assert "a-secret" not in unknown["detail"]


class Login(AuthenticationBackend):
    """Lets in who is in `people`, with these scopes."""

    def __init__(self, **people: Token | str) -> None:
        self.people: dict[str, Any] = people
        self.is_broken = False

    async def authenticate(self, conn: HTTPConnection) -> Any:
        if self.is_broken:
            raise ConnectionError("the database of people is away")
        name = conn.headers.get("who", "")
        if name == "banned":
            raise AuthenticationError("this account is closed")
        if name not in self.people:
            return None
        user = self.people[name]
        return AuthCredentials(["read", "cast", "reward"]), SimpleUser(user) if isinstance(user, str) else user


async def logged_in(on: Served, who: str, path: str = "name", expect: int = 200) -> Any:
    return await on.get(path, expect, headers={"authorization": "", "who": who})


@pytest.mark.real_time
async def test_a_backend_of_starlette_decides_who_may_do_what() -> None:
    login = Login(ann="Ann", acme=Token("acme", tenant="acme", cantrips=frozenset({"other"})))
    cantrips = [echo(), echo("other")]
    async with served(cantrips, extensions=[NAMES], authentication=login) as on:
        assert await logged_in(on, "ann") == {"name": "Ann", "tenant": None}
        assert await logged_in(on, "acme") == {"name": "acme", "tenant": "acme"}
        assert [one["name"] for one in (await logged_in(on, "acme", "cantrips"))["items"]] == ["other"]
        await logged_in(on, "acme", "system", 403)
        await logged_in(on, "", expect=401)
        assert (await logged_in(on, "banned", expect=401))["detail"] == "this account is closed"
        login.is_broken = True
        broken = await logged_in(on, "ann", expect=500)
        assert "database" not in broken["detail"]


@pytest.mark.real_time
@pytest.mark.rule("W-30")
@pytest.mark.parametrize("how", ["logged out", "fewer rights", "the backend fails", "a user without a name"])
async def test_the_streams_of_a_person_who_loses_a_right_end(how: str) -> None:
    login = Login(ann=Token("ann"))
    async with served(authentication=login) as on, anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def read(*, task_status: Any) -> None:
            async with on.stream("events", headers={"authorization": "", "who": "ann"}) as reader:
                assert reader.status == 200
                task_status.started()
                while await reader.next() is not None:
                    pass
            ended.set()

        await tasks.start(read)
        if how == "logged out":
            del login.people["ann"]
        elif how == "fewer rights":
            login.people["ann"] = Token("ann", cantrips=frozenset({"other"}))
        elif how == "a user without a name":
            login.people["ann"] = BaseUser()
        else:
            login.is_broken = True
        with anyio.fail_after(2 * measure_slowness()):
            await ended.wait()


@pytest.mark.real_time
async def test_a_request_with_a_cookie_of_a_login_has_to_come_from_the_services_own_page() -> None:
    async with served(extensions=[NAMES], authentication=Login(ann="Ann")) as on:
        ann = {"authorization": "", "who": "ann"}
        body, cookie = {"reward": 1}, {"cookie": "session=1"}
        await on.ask("POST", "name", 403, json=body, headers=ann | cookie)
        await on.ask("POST", "name", 403, json=body, headers=ann | cookie | {"sec-fetch-site": "cross-site"})
        await on.ask("POST", "name", 200, json=body, headers=ann | cookie | {"sec-fetch-site": "same-origin"})
        await on.ask("POST", "name", 200, json=body, headers=ann)  # no browser: nothing is sent by itself
        await on.ask("GET", "name", 200, headers=ann | cookie)


async def test_a_service_has_tokens_or_a_backend() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(ValueError, match="tokens or an authentication backend"):
            Service(runtime, tokens=Tokens([]), authentication=Login())


# Packages


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a module `acme_shop`; returns its file of entry points."""
    info = tmp_path / "acme_shop-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-shop\nVersion: 1\n")
    (tmp_path / "acme_shop.py").write_text(
        "import typer\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def stock() -> None:\n"
        "    'Print the stock.'\n"
        "    print('seven apples')\n"
        "@app.command()\n"
        "def other() -> None: ...\n"
        "nothing = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return info / "entry_points.txt"


def test_a_package_adds_a_command(package: Path) -> None:
    package.write_text("[cantrip_actors.commands]\nstock = acme_shop:app\n")
    done = CliRunner().invoke(app, ["stock"])
    assert (done.exit_code, done.output) == (0, "seven apples\n")
    assert "Print the stock." in CliRunner().invoke(app, ["stock", "--help"]).output


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("acme_shop:absent", "cannot be loaded"),
        ("acme_nowhere:app", "cannot be loaded"),
        ("acme_shop:nothing", "expected a typer.Typer, got int"),
        ("acme_shop:app", "has no command of this name"),
    ],
)
def test_a_broken_command_of_a_package_is_an_error_that_names_it(package: Path, value: str, why: str) -> None:
    package.write_text(f"[cantrip_actors.commands]\nbroken = {value}\n")
    done = CliRunner().invoke(app, ["broken"])
    shown = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2
    assert why in shown
    assert value in shown


def test_broken_routes_of_a_package_are_an_error_that_names_it(package: Path) -> None:
    package.write_text("[cantrip_actors.routes]\nshop = acme_shop:absent\n")
    with pytest.raises(InvalidCantrip, match=r'entry point "shop" \(acme_shop:absent\) of acme-shop cannot be loaded'):
        open_service_extensions(None, None)


def test_the_command_line_and_the_service_import_nothing_of_the_packages_on_top() -> None:
    folder = Path(__file__).parents[2] / "cantrip_actors"
    imports = [
        f"{file.name}: {line}"
        for door in ("cli", "http")
        for file in (folder / door).rglob("*.py")
        for line in file.read_text().splitlines()
        if "import" in line and ("cantrip_actors.dispatch" in line or "cantrip_actors.agentic" in line)
    ]
    assert imports == []
