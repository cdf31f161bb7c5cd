"""The keys of `expect`, each with its check: tables, without rule ids.

A key that no table has is a failure (`match.Facts`). The tables follow the subjects of a case: the action as a whole, a
thread, a turn, an observation, an entity of the loom, the queries that a crystal received, a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from conformance.match import Check, Facts, Scope, check_items, contains, fact, mismatches, render, symbol
from conformance.story import Run, Story, Untold

__all__ = ["check_expectations", "knows"]


# ------------------------------------------------------------------------------------------------ messages and queries


def _call_facts(call: Any) -> Facts[Any]:
    return Facts(call, {"id": fact(lambda c: c.id), "gate": fact(lambda c: c.gate), "args": fact(_plain_args)})


def _plain_args(call: Any) -> Any:
    return None if call.args is None else dict(call.args)


def _calls(message: Any, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    yield from check_items([_call_facts(call) for call in message.tool_calls], expected, where, scope)


_MESSAGE: Mapping[str, Check[Any]] = {
    "role": fact(lambda m: m.role),
    "content": fact(lambda m: m.content),
    "content_contains": contains(lambda m: m.content),
    "tool_calls": _calls,
    "tool_call_id": fact(lambda m: m.tool_call_id),
    "gate": fact(lambda m: m.gate),
    "is_error": fact(lambda m: m.is_error),
}


def _messages(invocation: Any, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    yield from check_items([Facts(m, _MESSAGE) for m in invocation.messages], expected, where, scope)


def _message_at(index: int) -> Check[Any]:
    def check(invocation: Any, expected: Any, where: str, scope: Scope) -> Iterator[str]:
        if len(invocation.messages) == 0:
            yield f"{where}: expected a message, the crystal received none"
        else:
            yield from Facts(invocation.messages[index], _MESSAGE).compare(expected, where, scope)

    return check


def _include(invocation: Any, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check that some message contains a text: in its content, not in the arguments of the crystal's own calls."""
    del scope
    for text in expected if isinstance(expected, list) else [expected]:
        if not isinstance(text, str) or not text:
            yield f"{where}: expected {render(text)}, which is no text to look for"
        elif not any(text in (m.content or "") for m in invocation.messages):
            yield f"{where}: expected a message with {render(text)} in it, got {_contents(invocation)}"


def _exclude(invocation: Any, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check that no message contains a text anywhere: content, arguments, reasoning."""
    del scope
    for text in expected if isinstance(expected, list) else [expected]:
        if not isinstance(text, str) or not text:
            yield f"{where}: expected {render(text)}, which is no text to look for"
        elif any(text in part for m in invocation.messages for part in _parts(m)):
            yield f"{where}: expected no message with {render(text)} in it, got {_contents(invocation)}"


def _parts(message: Any) -> Iterator[str]:
    yield message.content or ""
    yield message.thinking or ""
    for call in message.tool_calls:
        yield f"{call.gate} {call.arguments}"


def _contents(invocation: Any) -> str:
    return render([m.content for m in invocation.messages])


def _tools(invocation: Any, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check for exactly these gates, in this order: as names, or as mappings with more of each definition."""
    if not isinstance(expected, list):
        yield f"{where}: expected {render(expected)}, which is no list of gates"
        return
    stated = [{"name": gate} if isinstance(gate, str) else gate for gate in expected]
    yield from check_items([Facts(tool, _TOOL) for tool in invocation.tools], stated, where, scope)


_TOOL: Mapping[str, Check[Any]] = {
    "name": fact(lambda t: t.name),
    "description": fact(lambda t: t.description),
    "parameters": fact(lambda t: dict(t.parameters)),
}

_INVOCATION: Mapping[str, Check[Any]] = {
    "messages": _messages,
    "message_count": fact(lambda i: len(i.messages)),
    "first_message": _message_at(0),
    "last_message": _message_at(-1),
    "messages_include": _include,
    "messages_exclude": _exclude,
    "message_count_includes": _include,
    "message_count_excludes": _exclude,
    "roles": fact(lambda i: [m.role for m in i.messages]),
    "tools": _tools,
    "tool_choice": fact(lambda i: i.tool_choice),
}


def _invocations(invocations: Sequence[Any], expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check queries. A number: their count. A list: the first ones. A mapping: `count`, `each`, `first`, `last`, …"""
    facts = [Facts(invocation, _INVOCATION) for invocation in invocations]
    if isinstance(expected, list):
        yield from check_items(facts, expected, where, scope, whole=False)
    elif isinstance(expected, Mapping):
        yield from Facts(invocations, _QUERIES).compare(expected, where, scope)
    else:
        yield from mismatches(expected, len(invocations), where, scope)


def _each(invocations: Sequence[Any], expected: Any, where: str, scope: Scope) -> Iterator[str]:
    if not invocations:
        yield f"{where}: the crystal was never asked"
    for n, invocation in enumerate(invocations):
        yield from Facts(invocation, _INVOCATION).compare(expected, f"{where}[{n}]", scope)


def _query_at(index: int) -> Check[Sequence[Any]]:
    def check(invocations: Sequence[Any], expected: Any, where: str, scope: Scope) -> Iterator[str]:
        if not invocations:
            yield f"{where}: the crystal was never asked"
        else:
            yield from Facts(invocations[index], _INVOCATION).compare(expected, where, scope)

    return check


def _grows(invocations: Sequence[Any], expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check whether each query begins with everything in the previous one."""
    yield from mismatches(expected, full_contexts(invocations), where, scope)


def full_contexts(invocations: Sequence[Any]) -> bool:
    """Return whether every query has the whole context: the previous one's, and more (CRYSTAL-1, LOOP-5)."""
    return all(
        len(later.messages) > len(earlier.messages)
        and list(later.messages[: len(earlier.messages)]) == list(earlier.messages)
        for earlier, later in pairwise(invocations)
    )


_QUERIES: Mapping[str, Check[Any]] = {
    "count": fact(len),
    "list": lambda queries, expected, where, scope: check_items(
        [Facts(query, _INVOCATION) for query in queries], expected, where, scope
    ),
    "each": _each,
    "first": _query_at(0),
    "last": _query_at(-1),
    "context_grows": _grows,
}


# ----------------------------------------------------------------------------------------- turns and what they observed


def _content_of(seen: Any) -> Any:
    return seen.result if isinstance(seen.result, str) else seen.content


_OBSERVATION: Mapping[str, Check[Any]] = {
    "gate": fact(lambda o: o.gate),
    "args": fact(_plain_args),
    "result": fact(lambda o: o.result),
    "content": fact(_content_of),
    "content_contains": contains(_content_of),
    "is_error": fact(lambda o: o.is_error),
    "tool_call_id": fact(lambda o: o.tool_call_id),
}


def _observations(turn: Any, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    yield from check_items([Facts(o, _OBSERVATION) for o in turn.gate_calls], expected, where, scope)


_SEEN: Mapping[str, Check[Any]] = {
    # a turn's observations as one: their text, and whether anything in it failed
    "content": fact(lambda t: t.observation),
    "content_contains": contains(lambda t: t.observation),
    "is_error": fact(lambda t: any(o.is_error for o in t.gate_calls)),
}

_METADATA: Mapping[str, Check[Any]] = {
    "tokens_prompt": fact(lambda m: m.tokens_prompt),
    "tokens_completion": fact(lambda m: m.tokens_completion),
    "tokens_cached": fact(lambda m: m.tokens_cached),
    "duration_ms": fact(lambda m: m.duration_ms),
    "timestamp": fact(lambda m: m.timestamp),
}


def _metadata(turn: Any, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    yield from Facts(turn.metadata, _METADATA).compare(expected, where, scope)


def _utterance_calls(turn: Any, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    yield from check_items([_call_facts(call) for call in turn.tool_calls], expected, where, scope)


_TURN: Mapping[str, Check[Any]] = {
    "id": fact(lambda t: t.id),
    "parent_id": fact(lambda t: t.parent_id),
    "cantrip_id": symbol(lambda t: t.cantrip_id),
    "entity_id": symbol(lambda t: t.entity_id),
    "sequence": fact(lambda t: t.sequence),
    "utterance": fact(lambda t: t.utterance),
    "utterance_contains": contains(lambda t: t.utterance),
    "content": fact(lambda t: t.content),
    "thinking": fact(lambda t: t.thinking),
    "tool_calls": _utterance_calls,
    "observation": fact(lambda t: t.observation),
    "observation_contains": contains(lambda t: t.observation),
    "observations": _observations,
    "gate_calls": fact(lambda t: [o.gate for o in t.gate_calls]),
    "metadata": _metadata,
    "reward": fact(lambda t: t.reward),
    "terminated": fact(lambda t: t.terminated),
    "truncated": fact(lambda t: t.truncated),
    "continues": fact(lambda t: t.continues),
    "ward": fact(lambda t: t.ward),
}


def _turn_list(turns: Sequence[Any], expected: Any, where: str, scope: Scope, *, whole: bool) -> Iterator[str]:
    inner = Scope(turns, scope.symbols)
    yield from check_items([Facts(turn, _TURN) for turn in turns], expected, where, inner, whole=whole)


def _roles(turns: Sequence[Any]) -> list[str]:
    """Return the speakers of the turns: the entity for an utterance, the circle if every call has its result.

    A continuation has the utterance of the turn before. An empty observation answers text alone (D-004).
    """
    roles = []
    for turn in turns:
        if turn.utterance and not turn.continues:
            roles.append("entity")
        if turn.gate_calls or (not turn.tool_calls and turn.observation == ""):
            roles.append("circle")
    return roles


# -------------------------------------------------------------------------------------------------------------- threads


class _Thread:
    """A thread and, if it is an entity's, the run that it belongs to."""

    def __init__(self, turns: Sequence[Any], run: Run | None = None) -> None:
        self.turns = turns
        self.run = run

    def episode(self) -> Any:
        """The end of the run."""
        if self.run is None:
            raise Untold("this thread belongs to no run of the action")
        return self.run.episode


def _thread_turns(thread: _Thread, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    if isinstance(expected, list):
        yield from _turn_list(thread.turns, expected, where, scope, whole=True)
    else:
        yield from mismatches(expected, len(thread.turns), where, scope)


def _last_turn(thread: _Thread, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    if not thread.turns:
        yield f"{where}: expected a turn, the thread has none"
    else:
        yield from Facts(thread.turns[-1], _TURN).compare(expected, where, Scope(thread.turns, scope.symbols))


_THREAD: Mapping[str, Check[_Thread]] = {
    "length": fact(lambda t: len(t.turns)),
    "turns": _thread_turns,
    "last_turn": _last_turn,
    "result": fact(lambda t: t.episode().result),
    "result_contains": contains(lambda t: t.episode().result),
    "terminated": fact(lambda t: t.episode().terminated),
    "truncated": fact(lambda t: t.episode().truncated),
    "gate_calls": fact(lambda t: [o.gate for turn in t.turns for o in turn.gate_calls]),
}


def _thread(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check the extracted thread, else that of the only entity. A list states the alternation of roles."""
    turns = story.extracted if story.extracted is not None else story.thread_of(story.only)
    if isinstance(expected, list):
        stated = [
            turn.get("role") if isinstance(turn, Mapping) and set(turn) == {"role"} else turn for turn in expected
        ]
        yield from mismatches(stated, _roles(turns), where, scope)
    else:
        run = story.runs[0] if len(story.runs) == 1 else None
        yield from Facts(_Thread(turns, run), _THREAD).compare(expected, where, scope)


def _thread_n(story: Story, index: int, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    if index >= len(story.runs):
        yield f"{where}: the action made {len(story.runs)} entities"
        return
    run = story.runs[index]
    yield from Facts(_Thread(story.thread_of(run), run), _THREAD).compare(expected, where, scope)


def _alike(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check whether all threads have the same utterances and observations, except for ids and times."""
    threads = [
        [(t.utterance, t.observation, t.sequence, t.terminated, t.truncated) for t in story.thread_of(run)]
        for run in story.runs
    ]
    yield from mismatches(expected, len(threads) > 1 and all(thread == threads[0] for thread in threads), where, scope)


# ------------------------------------------------------------------------------------------------------------- the loom


class _Entity:
    def __init__(self, story: Story, entity_id: str) -> None:
        self.id = entity_id
        self.header = story.read.header(entity_id)
        self.turns = story.read.turns(entity_id)
        self.state = story.read.state(entity_id)


def _call(entity: _Entity, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check the stated parts of the call that the loom keeps (CALL-4)."""
    if not isinstance(expected, Mapping):
        yield f"{where}: expected {render(expected)}, which is no mapping"
        return
    for key, value in expected.items():
        yield from mismatches(value, entity.header.call.get(key), f"{where}.{key}", scope)


_ENTITY: Mapping[str, Check[_Entity]] = {
    "entity_id": symbol(lambda e: e.id),
    "parent_entity": symbol(lambda e: e.header.parent_entity),
    "cantrip_id": symbol(lambda e: e.header.cantrip_id),
    "call": _call,
    "crystal": fact(lambda e: e.header.crystal),
    "gates": fact(lambda e: [gate["name"] for gate in e.header.circle["gates"]]),
    "wards": fact(lambda e: dict(e.header.circle["wards"])),
    "depth": fact(lambda e: e.header.depth),
    "forked": fact(lambda e: e.header.forked),
    "state": fact(lambda e: e.state),
    "turn_count": fact(lambda e: len(e.turns)),
}


def _entities(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    entities = story.read.entities()
    if isinstance(expected, list):
        yield from check_items(
            [Facts(_Entity(story, entity_id), _ENTITY) for entity_id in entities], expected, where, scope
        )
    else:
        yield from mismatches(expected, len(entities), where, scope)


_LOOM: Mapping[str, Check[Story]] = {
    "turn_count": fact(lambda s: len(s.turns)),
    "turns": lambda s, expected, where, scope: _turn_list(s.turns, expected, where, scope, whole=False),
    "entities": _entities,
    "threads": fact(lambda s: len(s.leaves)),
}


# -------------------------------------------------------------------------------------------------- the action at large

_USAGE: Mapping[str, Check[Any]] = {
    "prompt_tokens": fact(lambda u: u.prompt_tokens),
    "completion_tokens": fact(lambda u: u.completion_tokens),
    "cached_tokens": fact(lambda u: u.cached_tokens),
    "total_tokens": fact(lambda u: u.total_tokens),
}


def _usage(read: Callable[[Any], Any]) -> Check[Story]:
    def check(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
        yield from Facts(read(story.only.episode), _USAGE).compare(expected, where, scope)

    return check


def _error(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    del scope
    error = story.error
    if not isinstance(expected, str) or not expected:
        yield f"{where}: expected {render(expected)}, which is no text to look for"
    elif error is None:
        yield f"{where}: expected an error with {render(expected)} in it, there was none"
    elif expected not in str(error):
        yield f"{where}: expected an error with {render(expected)} in it, got {type(error).__name__}: {error}"
    elif not story.error_is_last:
        yield f"{where}: expected the error in the last step of the action, an earlier step raised it {error}"


def _gates_run(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check the gates that ran, in order: by the loom, and by the runner's own gates."""
    turns = story.turns_of(story.only)
    yield from mismatches(expected, [o.gate for turn in turns for o in turn.gate_calls], where, scope)
    if isinstance(expected, list):
        own = [name for name in expected if name in story.own_gates]
        if own != story.executed:
            yield f"{where}: expected the functions of {render(own)} to run, those of {render(story.executed)} did"


def _turn_n(story: Story, number: int, plural: bool, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    turns = story.turns_of(story.only)
    if not 1 <= number <= len(turns):
        yield f"{where}: the entity has {len(turns)} turns"
    elif plural:
        yield from _observations(turns[number - 1], expected, where, scope)
    else:
        yield from Facts(turns[number - 1], _SEEN).compare(expected, where, scope)


def _check_received(of: Check[Any]) -> Check[Story]:
    """Return a check on every query that the crystal of the setup received."""

    def check(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
        invocations = _crystal(story, "crystal").invocations
        if not invocations:
            yield f"{where}: the crystal was never asked"
        for invocation in invocations:
            yield from of(invocation, expected, where, scope)

    return check


def _crystal(story: Story, name: str) -> Any:
    crystal = story.crystals.get(name)
    if crystal is None:
        raise Untold(f'the setup has no scripted crystal "{name}"')
    return crystal


def _turn_total(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    yield from mismatches(expected, len(story.turns_of(story.only)), where, scope)


def _unique(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    ids = [run.entity_id for run in story.runs]
    unique = len(ids) > 1 and None not in ids and len(set(ids)) == len(ids)
    yield from mismatches(expected, unique, where, scope)


def _own_call(story: Story, expected: Any, where: str, scope: Scope) -> Iterator[str]:
    """Check the cantrip's call at the end of the action."""
    if story.cantrip is None or not isinstance(expected, Mapping):
        yield f"{where}: expected a mapping, and a cantrip to compare it with"
        return
    call = story.cantrip.call.as_json()
    for key, value in expected.items():
        yield from mismatches(value, call.get(key), f"{where}.{key}", scope)


_STORY: Mapping[str, Check[Story]] = {
    "error": _error,
    "result": fact(lambda s: s.only.episode.result),
    "result_contains": contains(lambda s: s.only.episode.result),
    "results": fact(lambda s: [episode.result for episode in s.outcomes]),
    "terminated": fact(lambda s: s.only.episode.terminated),
    "truncated": fact(lambda s: s.only.episode.truncated),
    "ward": fact(lambda s: s.only.episode.ward),
    "summary_contains": contains(lambda s: s.only.episode.summary),
    "turns": _turn_total,
    "entities": _entities,
    "entity_ids_unique": _unique,
    "threads": fact(lambda s: len(s.leaves)),
    "threads_alike": _alike,
    "thread": _thread,
    "gate_calls_executed": _gates_run,
    "gate_call_order": _gates_run,
    "gate_results": fact(
        lambda s: [o.result for turn in s.turns_of(s.only) for o in turn.gate_calls],
    ),
    "usage": _usage(lambda episode: episode.usage),
    "cumulative_usage": _usage(lambda episode: episode.usage),
    "subtree_usage": _usage(lambda episode: episode.subtree_usage),
    "crystal_received_tools": _check_received(_tools),
    "crystal_received_tool_choice": _check_received(fact(lambda i: i.tool_choice)),
    "call": _own_call,
    "elapsed_ms": fact(lambda s: s.elapsed * 1e3),
    "loom": lambda s, expected, where, scope: Facts(s, _LOOM).compare(expected, where, scope),
}

_THREAD_N = re.compile(r"^thread_(\d+)$")
_TURN_N = re.compile(r"^turn_(\d+)_observation(s?)$")
_INVOCATIONS = re.compile(r"^(\w*crystal\w*)_invocations$")


def knows(key: object) -> bool:
    """Return whether this runner knows a key of `expect`."""
    text = str(key)
    return text in _STORY or any(pattern.match(text) for pattern in (_THREAD_N, _TURN_N, _INVOCATIONS))


def check_expectations(story: Story, expect: Mapping[str, Any]) -> list[str]:
    """Return the expectations that do not hold, a line each."""
    scope = Scope()
    problems: list[str] = []
    for key, expected in expect.items():
        try:
            problems += _check(story, str(key), expected, scope)
        except Untold as reason:
            problems.append(f"{key}: expected {render(expected)}, but {reason}")
    return problems


def _check(story: Story, key: str, expected: Any, scope: Scope) -> list[str]:
    if key in _STORY:
        return list(_STORY[key](story, expected, key, scope))
    if match := _THREAD_N.match(key):
        return list(_thread_n(story, int(match[1]), expected, key, scope))
    if match := _TURN_N.match(key):
        return list(_turn_n(story, int(match[1]), match[2] == "s", expected, key, scope))
    if match := _INVOCATIONS.match(key):
        return list(_invocations(_crystal(story, match[1]).invocations, expected, key, scope))
    return [f"{key}: the runner knows no such key"]
