"""Contracts: all refusals at once, the frozen fields, the fields that the hash covers."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.dispatch import Contract, InvalidContract, Rule, Source, draft
from cantrip_actors.terms.errors import ImmutableError
from tests.dispatch.contracts import contract, terms

BROKEN = [
    pytest.param({"objective": None}, Rule.SECTIONS, "objective", id="1 a section is missing"),
    pytest.param({"title": " "}, Rule.SECTIONS, "title", id="1 a section is empty"),
    pytest.param({"background": "as {PROJECT} needs it"}, Rule.VARIABLES, "background", id="2 a variable is left open"),
    pytest.param({"acceptance": []}, Rule.ACCEPTANCE, "acceptance", id="3 no criterion"),
    pytest.param({"acceptance": ["[x] it works"]}, Rule.ACCEPTANCE, "acceptance[1]", id="3 a ticked criterion"),
    pytest.param({"priority": None}, Rule.METADATA, "priority", id="4 a row is missing"),
    pytest.param({"dispatched_at": "today"}, Rule.METADATA, "dispatched_at", id="4 no date"),
    pytest.param({"repo": "../notes"}, Rule.REPO, "repo", id="5 a relative repo"),
    pytest.param({"repo": "~/notes"}, Rule.REPO, "repo", id="5 a repo at home"),
    pytest.param({"status": "active"}, Rule.STATUS, "status", id="6 not queued"),
    pytest.param({"needs_approval": "maybe"}, Rule.APPROVAL, "needs_approval", id="7 neither yes nor no"),
    pytest.param({"sources": []}, Rule.SOURCES, "sources", id="8 no source"),
    pytest.param(
        {"sources": [Source("search.py", "it")]}, Rule.SOURCES, "sources[1].path", id="8 a source's path is relative"
    ),
    pytest.param({"sources": ["/srv/x.py"]}, Rule.SOURCES, "sources[1]", id="8 a source says not why"),
    pytest.param({"tasks": []}, Rule.TASKS, "tasks", id="9 no task"),
    pytest.param({"verification": "tests"}, Rule.VERIFICATION, "verification", id="10 no verification to speak of"),
    pytest.param({"background": "old"}, Rule.BACKGROUND, "background", id="11 no background to speak of"),
    pytest.param({"technical_context": "py"}, Rule.TECHNICAL_CONTEXT, "technical_context", id="12 no context"),
    pytest.param({"needs_approval": "yes"}, Rule.DECISION, "decision_needed", id="13 approval of what"),
    pytest.param({"dispatch_id": "../escape"}, Rule.TERMS, "dispatch_id", id="an id that leaves the folder"),
    pytest.param({"outputs": ["../other/x.py"]}, Rule.TERMS, "outputs[1]", id="an output outside"),
    pytest.param({"max_iterations": 0}, Rule.TERMS, "max_iterations", id="a number out of range"),
    pytest.param({"role": "boss"}, Rule.TERMS, "role", id="an unknown role"),
    pytest.param({"tasks": [1]}, Rule.TYPE, "tasks[1]", id="a wrong type"),
    pytest.param({"titel": "x"}, Rule.TYPE, "titel", id="an unknown field"),
    pytest.param({"title": "half \ud800"}, Rule.TYPE, "title", id="text that is none"),
    pytest.param({"wards": [{"max_turns": 1 << 70}]}, Rule.TYPE, "wards[1]", id="a ward that JSON cannot say"),
]


@pytest.mark.rule("F-01")
class TestTheRules:
    @pytest.mark.parametrize(("changed", "rule", "field"), BROKEN)
    def test_a_violation_is_reported_with_its_field(self, changed, rule, field):
        found = draft(terms(**changed))
        assert isinstance(found, tuple)
        assert [(one.rule, one.field) for one in found] == [(rule, field)]
        assert found[0].text

    def test_a_field_whose_name_is_no_text_is_reported(self):
        (found,) = draft({**terms(), 5: "x"})
        assert (found.rule, found.field) == (Rule.TYPE, "5")

    def test_all_violations_are_reported_at_once(self):
        changed = {}
        for case in BROKEN:
            changed |= case.values[0]
        changed |= {"decision_needed": None, "needs_approval": "yes"}
        found = draft(terms(**changed))
        assert isinstance(found, tuple)
        assert len(found) >= 15

    def test_an_empty_contract_is_refused_field_by_field(self):
        found = draft({})
        assert isinstance(found, tuple)
        assert {one.field for one in found} == set(terms()) - {"decision_needed"}

    def test_a_contract_raises_all_violations_at_once(self):
        valid = {name: getattr(contract(), name) for name in terms()}
        with pytest.raises(InvalidContract) as raised:
            Contract(**(valid | {"repo": "./x", "tasks": ()}))
        assert {one.rule for one in raised.value.violations} == {Rule.REPO, Rule.TASKS}
        assert "2 rules are broken" in str(raised.value)
        assert "repo:" in str(raised.value)

    @pytest.mark.parametrize("text", ["yes", "Yes", True])
    def test_a_yes_may_be_written_in_several_ways(self, text):
        assert contract(needs_approval=text, decision_needed="which index to change").needs_approval is True


@pytest.mark.rule("F-02")
class TestTheHash:
    def test_a_decoded_contract_is_equal_with_the_same_hash(self):
        one = contract(wards=[{"max_turns": 5}, "require_done_tool"], steps=["a", {"purpose": "b", "inputs": "c"}])
        other = draft(one.as_json())
        assert other == one
        assert other.hash == one.hash
        assert pickle.loads(pickle.dumps(one)) == one

    @given(st.sampled_from(sorted(terms())), st.data())
    def test_every_field_is_in_the_hash(self, name, data):
        before = contract()
        old = getattr(before, name)
        if isinstance(old, bool):
            changed = {"needs_approval": True, "decision_needed": "may it be done at all?"}
        elif name == "sources":
            changed = {name: [*old, Source("/srv/more.py", "more")]}
        elif name == "dispatched_at":
            changed = {name: "2026-02-27", "dispatch_id": before.dispatch_id}
        elif isinstance(old, tuple):
            changed = {name: [*old, data.draw(st.text("abc ", min_size=1).filter(str.strip))]}
        else:
            changed = {name: old + data.draw(st.text("abc", min_size=1))}
        assert contract(**changed).hash != before.hash

    def test_the_hash_does_not_depend_on_the_order_and_spelling_of_fields(self):
        fields = terms(needs_approval=False)
        assert draft(dict(reversed(fields.items()))).hash == contract(max_iterations=5, role="worker").hash


@pytest.mark.rule("F-03", "F-05")
class TestFrozen:
    @pytest.mark.parametrize("name", ["acceptance", "scope", "needs_approval", "hash", "new"])
    def test_no_field_can_be_set_or_deleted(self, name):
        one = contract()
        before = one.canonical
        with pytest.raises(ImmutableError, match=f"cannot set {name}.*supersedes"):
            setattr(one, name, "else")
        with pytest.raises(ImmutableError, match=f"cannot delete {name}"):
            delattr(one, name)
        assert one.canonical == before

    @pytest.mark.rule("F-06")
    def test_the_intent_is_the_objective_unless_it_is_given(self):
        assert contract().intent == contract().objective
        assert contract(intent="find tags").intent == "find tags"

    def test_an_id_is_made_of_date_project_and_title(self):
        assert contract().dispatch_id == "2026-02-26-notes-mend-the-search"
        assert contract(title="Ünïcode & more!", project="日本").dispatch_id == "2026-02-26-n-code-more"
