"""The lethal trifecta: what gates declare, and when a circle is warned about (X-43)."""

import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, InvalidCantrip, LethalTrifecta, Runtime, ask_first, gate, scripted
from cantrip_actors.gates import Gate, fetch, list_files, post, read, search, standard
from cantrip_actors.recipes import load_recipe
from cantrip_actors.terms.circle import MediumName
from cantrip_actors.wards import max_turns, remove_gate

pytestmark = pytest.mark.rule("X-43")

FILES = read.with_(root="/")


@gate(risks=["private_data"])
async def customers() -> list[str]:
    """List the customers."""
    return []


@gate(risks=["untrusted_content"])
async def mail() -> str:
    """Read the newest mail."""
    return ""


@gate(risks=["way_out"])
async def publish(text: str) -> None:
    """Publish a text."""


def warned(*gates: Any, **more: Any) -> bool:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = Circle(["done", *gates], **more)
    found = [one for one in seen if issubclass(one.category, LethalTrifecta)]
    assert made.has_lethal_trifecta == bool(found)
    return bool(found)


def test_a_circle_with_all_three_is_warned_about_when_it_is_made() -> None:
    with pytest.warns(LethalTrifecta, match="private data \\(customers\\), untrusted content \\(mail\\)") as seen:
        circle = Circle(["done", customers, mail, publish])
    (found,) = seen
    assert found.message.risks == circle.risks
    assert dict(circle.risks) == {
        "private_data": ("customers",),
        "untrusted_content": ("mail",),
        "way_out": ("publish",),
    }
    assert Path(found.filename) == Path(__file__)  # the line that made the circle


@pytest.mark.parametrize("left_out", [customers, mail, publish])
def test_a_circle_with_two_of_the_three_is_not_warned_about(left_out: Gate) -> None:
    assert not warned(*(one for one in (customers, mail, publish) if one is not left_out))


@pytest.mark.parametrize("files", [FILES, list_files.with_(root="/"), search.with_(root="/")], ids=lambda one: one.name)
def test_fetch_and_a_gate_that_reads_files_are_warned_about(files: Gate) -> None:
    assert warned(fetch, files)


@pytest.mark.parametrize("medium", get_args(MediumName))
def test_a_medium_does_not_change_the_risks(medium: MediumName) -> None:
    assert warned(fetch, FILES, medium=medium)
    assert not warned(fetch, medium=medium)


def test_message_gates_count_only_with_recipients() -> None:
    assert not warned(post, FILES, mail)
    assert warned(post.with_(to=["archive"]), FILES, mail)
    ask = standard("ask")
    assert not warned(ask, FILES)
    assert warned(ask.with_(to=["archive"]), FILES)  # its answer is untrusted as well


def test_a_gate_with_approval_is_not_a_way_out() -> None:
    assert not warned(ask_first(publish), customers, mail)
    assert warned(ask_first(publish, when=lambda args: len(args["text"]) > 100), customers, mail)
    assert warned(publish, ask_first(customers), mail)


def test_a_gate_that_a_ward_removes_does_not_count() -> None:
    assert not warned(customers, mail, publish, wards=[remove_gate("publish")])


def test_with_risks_replaces_the_declaration_of_a_gate() -> None:
    assert not warned(fetch.with_(risks=["untrusted_content"]), FILES)  # its client reaches one host only
    assert warned(fetch.with_(risks=["way_out"]), read.with_(root="/", risks=["private_data", "untrusted_content"]))


def test_a_gate_with_a_given_schema_declares_as_well() -> None:
    far = Gate.of(None, name="far", risks=["untrusted_content", "way_out"])
    assert warned(far, customers)


@pytest.mark.parametrize("given", [["wayout"], "way_out", 3, [3]])
def test_an_unknown_risk_is_refused(given: Any) -> None:
    with pytest.raises(InvalidCantrip, match="risk"):
        gate(risks=given)(customers.function)
    with pytest.raises(InvalidCantrip, match="risk"):
        customers.with_(risks=given)


def test_no_content_id_and_no_header_depends_on_a_declaration() -> None:
    made = [Cantrip(scripted([]), circle=Circle(["done", one], [max_turns(3)])) for one in (mail, mail.with_(risks=[]))]
    assert made[0].id == made[1].id
    assert made[0].circle.as_json() == made[1].circle.as_json()
    assert made[0].circle == made[1].circle


async def test_a_runtime_logs_a_cantrip_with_all_three_once() -> None:
    with pytest.warns(LethalTrifecta):
        circle = Circle(["done", customers, mail, publish], [max_turns(3)])
    cantrip = Cantrip(scripted([{"content": "hi"}] * 2), circle=circle, name="clerk")
    with capture_logs() as logs:
        async with Runtime.open("memory:") as runtime:
            await runtime.cast(cantrip, "one")
            await runtime.cast(cantrip, "two")
    (line,) = (one for one in logs if "trifecta" in one["event"])
    assert (line["name"], line["log_level"], line["way_out"]) == ("clerk", "warning", ["publish"])


@pytest.mark.parametrize(("risks", "is_warned"), [("[private_data]", True), ("[]", False)])
def test_a_recipe_may_declare_risks_of_its_gates(tmp_path: Path, risks: str, is_warned: bool) -> None:
    gates = f"[done, fetch, {{name: read, root: ., risks: {risks}}}]"
    text = f"crystal: {{scripted: []}}\ncircle: {{gates: {gates}, wards: [max_turns: 3]}}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LethalTrifecta)
        assert load_recipe(tmp_path / "recipe.yaml").circle.has_lethal_trifecta == is_warned
