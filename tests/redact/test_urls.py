"""No message, repr or output shows the password of a URL."""

import contextlib
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import LoomError
from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.fetch_request import parse_url
from cantrip_actors.cli.main import main
from cantrip_actors.crystal.client import Client
from cantrip_actors.crystal.constructors import local, openai
from cantrip_actors.loom.maintenance.backup import backup_loom
from cantrip_actors.loom.opening import open_store, repair_loom
from cantrip_actors.redact.urls import render_url
from cantrip_actors.terms.errors import InvalidCantrip

pytestmark = pytest.mark.rule("X-30")

SECRET = "hunTer2"
HOSTILE = [
    f"postgresql://me:{SECRET}@127.0.0.1:1/db?durability=wrong",
    f"postgresql://me:{SECRET}@127.0.0.1:1/db?migrate=wrong",
    f"POSTGRESQL://me:{SECRET}@127.0.0.1:1/db",
    f"Postgres://me:{SECRET}@127.0.0.1:1/db",
    f"mysql://me:{SECRET}@127.0.0.1/db",
    f"postgresql+psycopg://me:{SECRET}@127.0.0.1/db",
    f"postgresql://me:{SECRET}@a@127.0.0.1:1/db",
    f"postgresql://me:a@{SECRET}@127.0.0.1:1/db",
    f"postgresql://me:a/{SECRET}@127.0.0.1:1/db",
    f"postgresql://me:1/{SECRET}@127.0.0.1:1/db",
    f"postgresql://me:a?{SECRET}@127.0.0.1:1/db",
    f"postgresql://me:a#{SECRET}@127.0.0.1:1/db",
    f"postgresql://me:{SECRET}%ZZ@127.0.0.1:1/db",
    f"postgresql://me:{SECRET}%40x@127.0.0.1:1/db",
    f"postgresql://me%3A{SECRET}%40127.0.0.1:1/db",
    f"postgresql%3A%2F%2Fme%3A{SECRET}%40127.0.0.1/db",
    f"postgresql://127.0.0.1:1/db?user=me&password={SECRET}",
    f"postgresql://127.0.0.1:1/db?user=me&pass%77ord={SECRET}&nonsense=1",
    f"postgresql://:{SECRET}@127.0.0.1:1/db",
    f"postgresql:me:{SECRET}@127.0.0.1/db",
    f"me:{SECRET}@127.0.0.1/db",
    f"//me:{SECRET}@127.0.0.1/db",
    f"host=127.0.0.1 port=1 password={SECRET}",
    f"host=127.0.0.1 port=1 password = 'a {SECRET}'",
    f"sqlite://me:{SECRET}@host/x.db",
    f"sqlite:x.db?password={SECRET}",
    f"https://me:{SECRET}@example.org/x?api_key={SECRET}",
    f"http://example.org/v1?sig={SECRET}#token={SECRET}",
    f"ftp://me:{SECRET}@example.org/",
    f"http://me:{SECRET}@[::1/",
    f"socks5://me:{SECRET}@proxy:1080",
    f"ws://longtokenlongtoken{SECRET}@host/mcp",
]


@pytest.mark.parametrize("url", HOSTILE, ids=range(len(HOSTILE)))
def test_a_url_is_rendered_without_its_password(url):
    assert SECRET not in render_url(url)
    assert render_url(url) == render_url(render_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@db.example:5432/cantrip?sslmode=require",
        "sqlite:loom.db",
        "sqlite:///srv/me@work/loom.db?durability=power",
        "/srv/me@work/loom.db",
        "https://api.example.org:8443/v1?page=2",
        "memory:",
    ],
)
def test_a_url_without_a_password_is_not_changed(url):
    assert render_url(url) == url


@given(
    user=st.text("abc", max_size=5),
    password=st.text(max_size=30).map(lambda text: f"{SECRET}{text}{SECRET}"),
    scheme=st.sampled_from(["postgresql://", "HTTPS://", "//", ""]),
    rest=st.sampled_from(["", "/db", ":1/db?x=1", "/a?sslmode=require"]),
)
def test_no_character_in_a_password_makes_it_visible(user, password, scheme, rest):
    assert SECRET not in render_url(f"{scheme}{user}:{password}@host{rest}")


def _open(url, tmp_path):
    open_store(url)


def _repair(url, tmp_path):
    repair_loom(url)


def _back_up(url, tmp_path):
    backup_loom(url, tmp_path / "backup.db")


def _fetch(url, tmp_path):
    parse_url(url)


def _local(url, tmp_path):
    raise LoomError(repr(local(url, "model", api_key="none-at-all")))


def _client(url, tmp_path):
    key_header = ("authorization", "Bearer {}")
    client = Client("local", url, key=lambda: None, key_header=key_header, headers={}, access=None, connection={})
    raise LoomError(repr(client))


@pytest.mark.parametrize("use", [_open, _repair, _back_up, _fetch, _local, _client])
@pytest.mark.parametrize("url", HOSTILE, ids=range(len(HOSTILE)))
def test_no_error_or_repr_shows_the_password_of_a_url(url, use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        use(url, tmp_path)
    except (LoomError, GateError, InvalidCantrip) as error:
        said = [str(error), repr(error)]
        cause = error.__cause__
        while cause is not None:
            said += [str(cause), repr(cause)]
            cause = cause.__cause__
        if error.__context__ is not None and not error.__suppress_context__:
            said += traceback.format_exception_only(error.__context__)
        assert not [text for text in said if SECRET in text]


@pytest.mark.parametrize("command", [["loom", "verify"]], ids=" ".join)
@pytest.mark.parametrize("url", HOSTILE, ids=range(len(HOSTILE)))
def test_the_command_line_shows_no_password_of_a_url(url, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for option in ([], ["--json"]):
        with contextlib.suppress(SystemExit):
            main([*command, "--loom", url, *option])
        shown = capsys.readouterr()
        assert shown.out + shown.err
        assert SECRET not in shown.out + shown.err


@pytest.mark.parametrize("url", ["https://me:MARK/of-it@api.example/v1", "http://me:x@api.example:MARK/v1"])
def test_an_invalid_address_of_a_provider_is_refused_without_repeating_its_parts(url) -> None:
    with pytest.raises(InvalidCantrip, match="expected an address") as refused:
        openai("gpt-x", base_url=url, api_key="k")
    assert "MARK/of" not in str(refused.value)
    assert "Invalid port" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
