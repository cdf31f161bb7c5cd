"""docs/families.md, and a table of docs/crystals.md: each request there has the shape that its provider publishes."""

import pytest

from cantrip_actors.terms.server_tools import TAKEN
from tests.published import fault
from tools.families import SETTINGS, TOOLS, Sample, additions, clouds, describe_setting, families, main, request

FAMILIES = {family.name: family for family in (*families(), *clouds())}
UNJUDGED = {("xai", "code_execution")}
"""xAI's own shape, of which the types of OpenAI know nothing."""
OFFERED = [
    (name, tool)
    for name, one in FAMILIES.items()
    for tool in TOOLS
    if tool in TAKEN.get(one.crystal.family.serves, {}) and (name, tool) not in UNJUDGED
]


@pytest.mark.rule("R-26", "R-30")
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("sample", SETTINGS, ids=lambda sample: sample.written)
def test_settings_on_a_page_fit_the_providers_schema(name, sample):
    family = FAMILIES[name]
    made = request(family, sample)
    assert fault(family.crystal.family.provider, made.path, made.body) is None
    assert bool(made.left_out) == ("left out" in describe_setting(family, sample))
    assert bool(made.adjusted) == ("adjusted" in describe_setting(family, sample))


@pytest.mark.rule("R-21", "R-30")
@pytest.mark.parametrize(("name", "tool"), OFFERED)
def test_server_tools_on_a_page_fit_the_providers_schema(name, tool):
    family = FAMILIES[name]
    made = request(family, Sample("", {"server_tools": (TOOLS[tool],)}))
    assert fault(family.crystal.family.provider, made.path, made.body) is None


def test_only_the_additions_of_a_setting_are_shown():
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}
    assert additions(before, {"a": 1, "b": {"c": 1, "d": 3}, "e": [1, 2], "f": 0}) == {"b": {"d": 3}, "e": [2], "f": 0}


def test_the_pages_of_the_families_are_up_to_date(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out
