"""Trajectories: the format's own models accept them, and their content is right."""

import json

import pytest
from atif import Trajectory
from hypothesis import given

from cantrip_actors.loom.export.atif import atif_json, segments, trajectory
from tests.loom.histories import histories
from tests.loom.test_view import FAMILY, loom_of
from tests.loom.told import written_once


@pytest.fixture
def written():
    return written_once()


def checked(document):
    """The document as the format's own models read its bytes."""
    return Trajectory.model_validate(json.loads(atif_json(document)))


@pytest.mark.rule("LOOM-10")
def test_every_entity_of_a_loom_of_a_runtime_has_a_valid_trajectory(written):
    for entity in written.loom.entities():
        assert checked(trajectory(written.loom, entity)).trajectory_id == entity


@given(histories())
def test_every_entity_of_any_history_has_a_valid_trajectory(history):
    loom = loom_of(*history.batches)
    for entity in loom.entities():
        checked(trajectory(loom, entity))
        for document in segments(loom, entity):
            checked(document)


@pytest.mark.rule("LOOM-8", "LOOM-9", "COMP-5")
def test_a_trajectory_embeds_its_child(written):
    told = checked(trajectory(written.loom, written.root))
    assert told.schema_version == "ATIF-v1.8"
    assert [step.source for step in told.steps] == ["system", "user", "user", "agent", "agent", "agent"]
    step = told.steps[4]
    assert [call.function_name for call in step.tool_calls] == ["peek", "call_agent", "echo"]
    results = step.observation.results
    assert [result.source_call_id for result in results] == [call.tool_call_id for call in step.tool_calls]
    assert results[1].subagent_trajectory_ref[0].trajectory_id == written.child
    assert results[0].extra == {"ephemeral": True}
    assert len(step.extra["turns"]) == 2
    (child,) = told.subagent_trajectories
    assert child.trajectory_id == written.child
    assert child.session_id == told.session_id == written.root
    assert step.metrics.prompt_tokens == 100
    assert step.metrics.cost_usd == 0.01
    assert told.final_metrics.total_prompt_tokens == 300
    assert told.agent.model_name == "scripted"
    assert told.agent.tool_definitions[0]["function"]["name"] == "done"


def test_a_trajectory_has_errors_rewards_and_the_outcome(written):
    told = checked(trajectory(written.loom, written.root))
    assert told.steps[3].observation.results[1].extra == {"is_error": True}
    assert told.steps[-1].extra["reward"] == 0.5
    assert told.steps[-1].extra["ended"] == "terminated"
    assert told.extra["state"] == "terminated"


@pytest.mark.rule("LOOM-4")
def test_inherited_steps_of_a_fork_are_marked_as_copied(written):
    told = checked(trajectory(written.loom, written.forks[0]))
    assert [step.is_copied_context for step in told.steps] == [True, True, True, True, None, None]
    assert told.final_metrics.total_completion_tokens == 20
    assert told.extra["forked_from"] == written.loom.turns(written.root)[0].id


def test_copied_steps_refer_to_no_children():
    told = checked(trajectory(loom_of(*FAMILY), "c"))
    copied = [step for step in told.steps if step.is_copied_context and step.observation]
    assert all(result.subagent_trajectory_ref is None for step in copied for result in step.observation.results)
    assert told.subagent_trajectories is None


@pytest.mark.rule("LOOM-5", "LOOM-6")
class TestFolds:
    def test_a_trajectory_has_all_steps_and_marks_the_folds(self, written):
        told = checked(trajectory(written.loom, written.notes))
        assert [step.message for step in told.steps if step.source == "system"] == [
            "Be <terse>.",
            "[folded: turns 1-3]",
            "[folded: turns 1-6]",
        ]
        assert sum(step.source == "agent" for step in told.steps) == 9
        assert told.agent.name == "notes"

    def test_segments_show_the_context_as_the_crystal_saw_it(self, written):
        first, second, third = map(checked, segments(written.loom, written.notes))
        assert [first.continued_trajectory_ref, second.continued_trajectory_ref] == [
            second.trajectory_id,
            third.trajectory_id,
        ]
        assert third.continued_trajectory_ref is None
        assert [(step.source, step.is_copied_context, step.message) for step in second.steps] == [
            ("system", True, "Be <terse>."),
            ("user", True, "keep my notes"),
            ("system", True, "[folded: turns 1-3]"),
            ("agent", True, ""),
            ("agent", None, ""),
            ("agent", None, ""),
            ("agent", None, ""),
        ]
        own = [step for one in (first, second, third) for step in one.steps if step.is_copied_context is None]
        assert sum(step.source == "agent" for step in own) == 9
        assert [step.message for step in own if step.source == "user"] == ["keep my notes", "and another thing"]

    def test_a_child_is_in_one_segment(self, written):
        (only,) = segments(written.loom, written.root)
        assert only == trajectory(written.loom, written.root)


def test_a_trajectory_has_the_same_bytes_each_time(written):
    assert atif_json(trajectory(written.loom, written.root)) == atif_json(trajectory(written.loom, written.root))
