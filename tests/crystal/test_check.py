"""`cantrip crystals check`: its probes pass at a correct provider, and report faults."""

import json

import pytest

from cantrip_actors.crystal import scripted
from cantrip_actors.crystal.check import PROBES, check
from cantrip_actors.crystal.constructors import anthropic, google, openai
from cantrip_actors.crystal.testing import FaultyServer, Reply, failing
from cantrip_actors.terms.errors import InvalidCantrip
from tests.crystal.streams import Said, framed

pytestmark = [pytest.mark.rule("R-31"), pytest.mark.real_time]

MAKERS = {"anthropic": anthropic, "openai": openai, "google": google}

WORDS = {
    "PONG": "PONG",
    "Count from 1": "\n".join(map(str, range(1, 41))),
    "two and two": "BLUE",
    "Which word": "OBELISK",
    "Repeat exactly": "žluťoučký 猫 🔑",
    "36 years": '{"name":"Ada","age":36}',
    "ages by name": '{"Ada":36,"Bob":7}',
    "17 * 23": "391",
    "20 + 3": "23",
    "1 2 3 4": "1 2 3 4 5 ",
    "Which colour": "Red.",
    "password": "HELIOTROPE",
}


def simulated(family: str, faults=()):
    """Simulate a provider that answers the probes, except the ones that should fail."""

    def reply(asked) -> Reply:
        body = asked.body.decode()
        if "-17" in body:
            return failing(400, {"error": {"message": "temperature: range: -1..1"}})
        told = json.loads(body)
        forced = any(word in body for word in ('"type":"any"', '"tool_choice":"required"', '"mode":"ANY"'))
        refused = any(word in body for word in ('"type":"none"', '"tool_choice":"none"', '"mode":"NONE"'))
        answered = any(word in body for word in ("tool_result", "function_call_output", "functionResponse"))
        what = Said("", "Yes.")
        if "tools" in told and not answered and not refused and ("tool" in faults) is False:
            if "read_file" in body and (forced or "Read the file" in body):
                what = Said("", "", (("read_file", {"path": "notes.txt"}),))
            elif '"add"' in body:
                what = Said("Hm.", "", (("add", {"a": 1, "b": 2}),))
        elif answered:
            word = next(
                (one for one in ("MARMALADE", "40", "23") if f"{one}" in body.rpartition("add")[2]), "MARMALADE"
            )
            what = Said("", "Red." if "one colour" in body else word if "no such file" not in body else "Not there.")
        else:
            for marker, text in WORDS.items():
                if marker in body or marker.encode("ascii", "backslashreplace").decode() in body:
                    what = Said("", "nonsense" if marker in faults else text)
        return Reply(framed(family, what))

    return reply


@pytest.mark.parametrize("family", MAKERS)
async def test_a_correct_provider_passes_the_check(family) -> None:
    async with FaultyServer(simulated(family)) as server:
        crystal = MAKERS[family]("model-x", base_url=server.url, api_key="k")
        found = {one.probe: one for one in await check(crystal)}
    assert list(found) == [probe.name for probe in PROBES]
    assert len(found) == 25
    failed = {name: one.why for name, one in found.items() if one.state == "failed"}
    assert failed == {"cache": "none of 10 tokens came from the cache"}
    assert all(one.usage.total_tokens for name, one in found.items() if name != "errors")


async def test_check_reports_a_providers_faults() -> None:
    async with FaultyServer(simulated("openai", faults=("36 years", "PONG", "tool"))) as server:
        crystal = openai("model-x", base_url=server.url, api_key="k")
        found = {one.probe: one for one in await check(crystal, ["text", "schema", "call", "memory"])}
    assert {name: one.state for name, one in found.items()} == {
        "text": "failed",
        "memory": "passed",
        "call": "failed",
        "schema": "failed",
    }
    assert "expected 'pong'" in found["text"].why
    assert "does not fit output_schema" in found["schema"].why
    assert "expected a call of read_file" in found["call"].why


async def test_a_provider_that_hangs_costs_only_the_time_of_a_probe() -> None:
    async with FaultyServer([Reply(framed("openai", Said("", "x")), delay=60)]) as server:
        crystal = openai("model-x", base_url=server.url, api_key="k")
        (found,) = await check(crystal, ["text"], timeout=0.2)
    assert (found.state, found.why) == ("failed", "nothing came within 0.2 s")


async def test_an_unknown_probe_is_refused() -> None:
    with pytest.raises(InvalidCantrip, match='did you mean "streaming"'):
        await check(openai("model-x", api_key="k"), ["steaming"])


async def test_a_crystal_that_writes_no_json_fails_the_probes_of_schemas_and_no_more() -> None:
    crystal = scripted(lambda context: {"content": "PONG, or Ada, who is 36"})
    results = await check(crystal, ["schema", "schema with a map", "text"])
    assert [(result.probe, result.state) for result in results] == [
        ("text", "passed"),
        ("schema", "failed"),
        ("schema with a map", "failed"),
    ]
    assert "got 'PONG, or Ada, who is 36'" in results[1].why
