"""Settings of a wrong kind are refused where they are given, by errors that say which kind was expected."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import (
    Call,
    Cantrip,
    Circle,
    InvalidCantrip,
    LoomError,
    Node,
    Runtime,
    gate,
    replayed,
    scripted,
    wrap,
)
from cantrip_actors.agentic import FunctionAgent
from cantrip_actors.crystals import CachePoints, Prices, azure, bedrock, local, openai
from cantrip_actors.dispatch import Dispatcher, InvalidContract, draft, from_markdown, from_yaml, load_contract
from cantrip_actors.dispatch.parse import status_of
from cantrip_actors.gates import standard
from cantrip_actors.looms import (
    Wanted,
    compact_loom,
    copy_loom,
    decode,
    encode,
    forget_entities,
    open_store,
    prune_loom,
    verify_loom,
)
from cantrip_actors.mcp import http, inproc, oauth, stdio
from cantrip_actors.observe import Batching, Telemetry
from cantrip_actors.wards import Ward, max_turns, remove_gate

URL = "https://weather.example/mcp"
WARDS = [max_turns(3)]
HUGE = 10**400
NOT_SECONDS: list[Any] = [math.nan, -1, HUGE, "1", True, b"1", object()]


@pytest.mark.parametrize("timeout", [*NOT_SECONDS, math.inf, 0])
def test_a_timeout_of_a_gate_that_is_not_a_number_of_seconds_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidCantrip, match=r"gate nap: timeout: expected seconds > 0, or None for no limit, got "):

        @gate(timeout=timeout)
        async def nap() -> None:
            """Sleep."""


@pytest.mark.parametrize("stop", [[""], "", ["a", ""], [3], 3, b"a", {"a": 1}])
def test_stop_texts_that_end_nothing_are_refused(stop: Any) -> None:
    with pytest.raises(InvalidCantrip, match="stop: expected texts that are not empty, got "):
        Call(stop=stop)


@pytest.mark.parametrize("name", ["", " "])
def test_labels_without_a_name_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Node: labels: expected texts by name"):
        Node("a", labels={name: "nfs1"})
    with pytest.raises(InvalidCantrip, match="needs: expected names of labels"):
        Cantrip(scripted([]), circle=Circle(["done"], WARDS), needs={name: "nfs1"})


def test_a_ward_that_removes_a_misspelt_gate_is_refused() -> None:
    with pytest.raises(InvalidCantrip, match=r'remove_gate\("typo"\): expected the name of a gate of this circle'):
        Circle(["done"], [*WARDS, remove_gate("typo")])


@pytest.mark.parametrize("servers", [None, 3, ["weather"], "weather", {"a": 1}])
def test_servers_that_are_not_a_list_of_servers_are_refused(servers: Any) -> None:
    with pytest.raises(InvalidCantrip, match=r"circle: servers: expected (servers of tools|a list)"):
        Circle(["done"], WARDS, servers=servers)


@pytest.mark.parametrize(
    ("what", "given"),
    [
        *(("only", one) for one in (3, "search", [3], [""])),
        *(("ask", one) for one in (3, "search", [3])),
        *(("roots", one) for one in (3, "/tmp", [3])),
        *(("pin", one) for one in (3, "sha256:x")),
        *(("timeout", one) for one in (*NOT_SECONDS, math.inf, 0)),
    ],
)
def test_settings_of_a_server_of_the_wrong_kind_are_refused(what: str, given: Any) -> None:
    with pytest.raises(InvalidCantrip, match=f"server weather: {what}: expected "):
        http("weather", URL, **{what: given})


@pytest.mark.parametrize(("what", "given"), [("issuer", 3), ("issuer", b"https://x"), ("scopes", 3), ("scopes", [""])])
def test_settings_of_a_login_of_the_wrong_kind_are_refused(what: str, given: Any) -> None:
    with pytest.raises(InvalidCantrip, match=f"oauth: {what}: expected "):
        oauth(**{what: given})


@pytest.mark.parametrize("what", ["timeout", "max_latency", "max_wait"])
@pytest.mark.parametrize("seconds", NOT_SECONDS)
def test_times_of_a_batching_that_are_not_seconds_are_refused(what: str, seconds: Any) -> None:
    with pytest.raises(ValueError, match=f"{what}: expected seconds, as a number >= 0, got "):
        Batching(**{what: seconds})


def test_a_gradient_that_is_not_a_list_is_refused() -> None:
    given: Any = 3
    with pytest.raises(ValueError, match="gradient: expected whole numbers"):
        Batching(gradient=given)


@pytest.mark.parametrize("given", [3, b"crashes", object()])
def test_a_folder_for_crash_reports_that_is_not_a_path_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="crash_dir: expected the path of a folder, got "):
        Telemetry(crash_dir=given)


@pytest.mark.parametrize("given", [3, b"loom.db", None])
def test_a_url_that_is_not_a_text_is_refused(given: Any) -> None:
    with pytest.raises(LoomError, match="url: expected the URL of a loom"):
        open_store(given)


@pytest.mark.parametrize("given", [3, object(), ["k" * 16]])
def test_a_seal_key_that_is_not_one_is_refused(given: Any) -> None:
    with pytest.raises(LoomError, match="seal_key: expected secret bytes"):
        open_store("memory:", seal_key=given)


def test_settings_of_crystals_of_the_wrong_kind_are_refused() -> None:
    given: Any = 3
    with pytest.raises(InvalidCantrip, match="local: base_url: expected a URL"):
        local(given, "m")
    with pytest.raises(InvalidCantrip, match="prices: expected a table by model"):
        Prices(given)
    with pytest.raises(InvalidCantrip, match="cache: system: expected True or False"):
        CachePoints(system=given)


@pytest.mark.parametrize("what", ["profile", "region"])
@pytest.mark.parametrize("given", ["", " ", 3])
def test_a_name_of_amazons_that_is_blank_or_not_a_text_is_refused(what: str, given: Any) -> None:
    with pytest.raises(InvalidCantrip, match=f"bedrock: {what}: expected a name, got "):
        bedrock("anthropic.claude", **{what: given})


@pytest.mark.parametrize("given", [5, "KEY=one-secret", [("KEY", "one-secret")], {"KEY": 5}, {5: "one-secret"}])
def test_the_environment_or_headers_of_a_server_of_the_wrong_kind_are_refused_without_their_values(given: Any) -> None:
    for what, make in (("env", lambda: stdio("a", "x", env=given)), ("headers", lambda: http("a", URL, headers=given))):
        with pytest.raises(
            InvalidCantrip, match=f"server a: {what}: expected a mapping from names to texts"
        ) as refused:
            make()
        assert "one-secret" not in str(refused.value)


@pytest.mark.parametrize("read", [from_yaml, from_markdown, status_of])
@pytest.mark.parametrize("given", [None, 3, b"goal: x", ["goal: x"]])
def test_a_text_about_dispatches_of_the_wrong_kind_is_refused(read: Any, given: Any) -> None:
    with pytest.raises(ValueError, match=f"{read.__name__}: expected a .*text, got "):
        read(given)


@pytest.mark.parametrize("given", [None, 3, "{}", {}])
def test_a_line_of_a_loom_that_is_not_bytes_is_refused(given: Any) -> None:
    with pytest.raises(LoomError, match="decode: expected a line of a loom as bytes, got "):
        decode(given)


@pytest.mark.parametrize("given", [10**5_000, "x" * 10_000, [[]] * 1_000], ids=["number", "text", "list"])
def test_a_huge_argument_is_shortened_in_the_error(given: Any) -> None:
    with pytest.raises(InvalidCantrip, match="temperature: expected a number from 0 to 2, got ") as refused:
        Call(temperature=given)
    assert len(str(refused.value)) < 200


NONSENSE: list[Any] = [math.nan, -1, True, object(), b"x", [3], {"a": 3}]


@pytest.mark.parametrize("given", NONSENSE)
@pytest.mark.parametrize(
    ("make", "what"),
    [
        *(
            (partial(lambda name, one: openai("gpt-5", **{name: one}), name), f'crystal "gpt-5": {name}')
            for name in ("base_url", "headers", "name", "prices", "record", "timeouts", "api_key", "context_window")
        ),
        (lambda one: azure("d", endpoint=one), "azure: endpoint"),
        (lambda one: Prices(alone=one) if one is not True else openai("gpt-5", chat=1), "(prices: alone|openai: chat)"),
        (lambda one: scripted([], name=one), "scripted crystal: name"),
        (lambda one: scripted([], context_window=one), "scripted crystal: context_window"),
        (lambda one: stdio("a", "x", cwd=one), "server a: cwd"),
        (lambda one: stdio("a", "x", elicit=one), "elicit"),
        (lambda one: inproc("a", object(), era=one), "server a: era"),
        (lambda one: oauth(client_id=one), "oauth: client_id"),
        (lambda one: oauth(folder=one), "oauth: folder"),
        (lambda one: wrap("done", pre=[str], name=one), "wrap: name"),
        (lambda one: gate(description=one)(lambda: None), "gate"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused_where_it_is_given(make: Any, what: str, given: Any) -> None:
    with pytest.raises(InvalidCantrip, match=f"{what}.*expected "):
        make(given)


@pytest.mark.parametrize("given", [None, 3, math.nan, object()])
def test_a_name_that_is_not_a_text_is_unknown(given: Any) -> None:
    for find in (standard, lambda one: replayed(one, {}), lambda one: Ward(one, 3)):
        with pytest.raises(InvalidCantrip, match=r"(unknown|no recordings)"):
            find(given)
    with pytest.raises(InvalidCantrip, match="unknown ward"):
        Ward([], 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["turn_spans", "usage_on_agent", "legacy", "tenant_metrics", "otel"])
def test_a_switch_of_telemetry_that_is_not_a_bool_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=f"{what}: expected True or False, got str"):
        Telemetry(**{what: "no"})


@pytest.mark.parametrize("given", [None, "memory:", 3, object()])
def test_a_store_that_is_not_one_is_refused(given: Any) -> None:
    wanted, store = Wanted(["e"], "", ""), open_store("memory:")
    for use in (
        lambda: verify_loom(given),
        lambda: compact_loom(given),
        lambda: forget_entities(given, wanted),
        lambda: prune_loom(given, "1d", now=0.0),
        lambda: copy_loom(given, store),
        lambda: copy_loom(store, given),
    ):
        with pytest.raises(LoomError, match="expected a store, as of open_store"):
            use()
    with pytest.raises(LoomError, match="encode: expected a record of a loom, got "):
        encode(given)


def test_a_dry_run_that_is_not_a_bool_is_refused_before_anything_is_forgotten() -> None:
    given: Any = "yes"
    with pytest.raises(ValueError, match="dry_run: expected True or False, got str"):
        prune_loom(open_store("memory:"), "1d", now=0.0, dry_run=given)


def test_a_contract_is_loaded_from_a_path_that_is_a_text(tmp_path: Path) -> None:
    given: Any
    for given in (None, 3, b"x.md"):
        with pytest.raises(ValueError, match="load_contract: expected the path of a file, got "):
            load_contract(given)
    with pytest.raises(InvalidContract, match="no such file"):
        load_contract(str(tmp_path / "none.md"))


@pytest.mark.parametrize("given", [None, 3, "x", []])
def test_fields_of_a_contract_that_are_not_a_mapping_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="contract: expected a mapping of fields, got "):
        draft(given)
    with pytest.raises(ValueError, match="runtime: expected a Runtime, as of "):
        Dispatcher(given, "dispatches")
    with pytest.raises(TypeError, match="agent: expected a function of its typed input, got "):
        FunctionAgent(given)


async def test_a_fork_from_a_turn_in_place_of_its_id_says_which_text_is_expected() -> None:
    async with Runtime.open() as runtime:
        turn: Any = (await runtime.cast(Cantrip(scripted(["hi"]), gates=[], max_turns=2), "go")).thread[0]
        with pytest.raises(LoomError, match=r"turn: expected the id of a turn, such as turn\.id, got Turn"):
            await runtime.fork(turn, intent="again")
