"""Programs: the turns of a code circle (SPEC 4.2).

The utterance is a program. It runs in the circle's sandbox until it calls a gate, which is then treated as any call is
(`steps.proceed`), and goes on with the answer; what it prints, its last value or its error is what the crystal is shown
(CIRCLE-4, CIRCLE-5). After `done` it runs to its end with all gates closed, so that its variables are those that the
entity meant (D-003). This file decides that; running anything is the medium's (`circle/medium.py`).

A sandbox is what its programs made of it. Where it has to be made again, after a crash or for a fork, the newest image
of it that can be used is loaded (`State.images`), and the programs after that are run again and get the answers that
they got before (`State.programs`): nothing outside sees it.
"""

from __future__ import annotations

import re
from typing import Any

from cantrip_actors.model.gate import DONE
from cantrip_actors.model.image import named_in
from cantrip_actors.model.messages import ALIASES, Message, Response, ToolCall, as_text
from cantrip_actors.model.state import Answer, Called, Computed, Moment, Phase, Plan, Program, Spawn, State, Step
from cantrip_actors.model.steps import commit, commit_and_go_on, delegated, note, proceed, refusal, terminate
from cantrip_actors.model.turn import GateFinished, Observation, Record, Utterance

__all__ = ["called", "code_in", "computed", "ended", "program_of", "shown"]

PREVIEW = 8_000
"""Characters of output, or of a value, that the crystal is shown; the loom has the rest."""

END = 2_000
"""Those of them that come from its end, where a program says what became of it."""

CLOSED = "done was called before: no gate can be called any more"
UNKNOWN = "outcome unknown: the entity was restarted while this gate ran; find out whether it had its effect"

UNDONE = "what this program changed in its sandbox is undone, what it did through gates is not"

_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[A-Za-z0-9_+-]*)[^`\n]*\n"
    r"(?P<code>.*?)(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|(?P<unended>\Z))",
    re.MULTILINE | re.DOTALL,
)
"""A fenced block, as Markdown has it: in a list it is indented with its lines, and it may end with the text."""

_BEGINS = re.compile(r"\s*(?:`{3}|~{3})")
_LANGUAGES = {
    "python": ("python", "py", "python3", "tool_code", ""),
    "javascript": ("javascript", "js", "ecmascript", "node", "mjs", "typescript", "ts", ""),
    "shell": ("shell", "sh", "bash", "zsh", "shellscript", ""),
}


def code_in(response: Response, medium: str) -> str | None:
    """The program of an utterance: the crystal's `code`, else the fenced blocks in the circle's language."""
    if response.code is None and response.content is not None and medium != "tools" and not response.tool_calls:
        return _fenced(_lines(response.content), medium)
    if response.code is None or medium == "tools":
        return response.code
    code = _lines(response.code)
    return (_BEGINS.match(code) and _fenced(code, medium)) or code


def _lines(text: str) -> str:
    """A program's text as all of the media read it: with the one sign for a line's end, and none for its byte order."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _fenced(text: str, medium: str) -> str | None:
    """The blocks in the circle's language. One that does not end has to say that it is one."""
    blocks = []
    for block in _FENCE.finditer(text):
        language = block["language"].lower()
        if language in _LANGUAGES[medium] and (language or block["unended"] is None):
            indent = len(block["indent"])
            blocks.append(re.sub(rf"^[ \t]{{0,{indent}}}", "", block["code"], flags=re.MULTILINE))
    return "\n".join(blocks) or None


def program_of(plan: Plan, state: State, said: Utterance) -> Program | None:
    """The program that an utterance is, with the variables that it gets: the intent's context, once (SPEC 5.3)."""
    if said.code is None or said.tool_calls or plan.circle.medium == "tools":
        return None
    return Program(said.code, None if state.data is None else {"context": state.data})


def called(plan: Plan, state: State, moment: Moment, event: Called) -> tuple[State, Step]:
    """The program calls a gate."""
    state = state._replace(output=state.output + event.output, snapshot=event.snapshot)
    if state.finished is not None:
        return state, Step([], Answer(CLOSED, is_error=True, closed=True))
    if state.pending is not None:
        return _called_again(plan, state, moment)
    name = DONE.name if event.gate == "submit_answer" else ALIASES.get(event.gate, event.gate)
    call = ToolCall(f"call_{state.said}_{len(state.calls) + 1}", name, event.args)
    return proceed(plan, state._replace(calls=(*state.calls, call)), moment, [])


def _called_again(plan: Plan, state: State, moment: Moment) -> tuple[State, Step]:
    """After a crash the program stands again at the call that was under way."""
    pending, call = state.pending, state.calls[state.next_call]
    assert pending is not None
    state = state._replace(pending=None)
    records: list[Record] = []
    gate = plan.gates.get(call.gate)
    if gate is None:
        return proceed(plan, state, moment, records)
    if gate.kind == "delegate":
        children = delegated(plan, gate, call, state.pictures)
        known = pending.children
        if isinstance(children, tuple) and known is None:  # its start is recorded, and the seam is not
            spawning = state.turn_id
            return commit(plan, state, moment, records, Phase.WAITING), Step(records, Spawn(spawning, call, children))
        if isinstance(children, tuple) and known is not None:
            assert state.parent_id is not None
            waiting = state._replace(phase=Phase.WAITING)
            return waiting, Step(records, Spawn(state.parent_id, call, children, known))
    elif not gate.idempotent and gate.kind == "function":
        state = note(plan, state, moment, records, refusal(call, UNKNOWN))
    return proceed(plan, state, moment, records)


def ended(plan: Plan, state: State, moment: Moment, event: Computed) -> tuple[State, Step]:
    """The program has ended, and with it the turn."""
    records: list[Record] = []
    finished = state.finished
    state = computed(plan, state, moment, records, event)
    if finished is not None:
        return terminate(plan, state, moment, records, finished.result)
    return commit_and_go_on(plan, state, moment, records)


def computed(plan: Plan, state: State, moment: Moment, records: list[Record], event: Computed) -> State:
    """The state after a program: what came of it is recorded and shown, and what it was is kept."""
    output = state.output + event.output
    result = {
        name: value
        for name, value in (
            ("output", output or None),
            ("value", event.value),
            ("error", event.error),
            ("limit", event.limit),
        )
        if value is not None
    }
    images = named_in(shown(result), state.pictures)  # it printed or returned their handles
    failed = event.error is not None or event.limit is not None
    seen = Observation(plan.circle.medium, None, result, failed, images=images)
    records.append(GateFinished(plan.entity_id, state.turn_id, seen, moment.since(state.mark)))
    return after(state, seen, undone=event.limit is not None)._replace(mark=moment.now, snapshot=event.snapshot)


def after(state: State, seen: Observation, *, undone: bool) -> State:
    """The state once a program's end has been observed. One that is undone leaves what it was given to the next."""
    assert state.program is not None
    given = state.program.variables if undone else None
    return state._replace(
        data=state.data if given is None else given["context"],
        context=state.context.append(Message("user", shown(seen.result), images=seen.images)),
        programs=state.programs.append(state.program._replace(undone=undone)),
        program=None,
        finished=None,
        pending=None,
        output="",
        calls=(),
        next_call=0,
    )


def shown(result: Any) -> str:
    """What the crystal reads of a program's end: output, value, error; of long ones their size, beginning and end."""
    parts = []
    if "output" in result:
        parts.append(_preview(result["output"].rstrip("\n"), "output"))
    if "value" in result:
        parts.append("=> " + _preview(as_text(result["value"]), "value"))
    if "error" in result:
        parts.append("error: " + _preview(result["error"], "error"))
    if "limit" in result:
        parts.append(f"limit exceeded: {result['limit']}; {UNDONE}")
    return "\n".join(parts) or "[no output]"


def _preview(text: str, what: str) -> str:
    if len(text) <= PREVIEW:
        return text
    left = len(text) - PREVIEW
    seen = (
        f"{left} of the {len(text)} characters of this {what} are left out here; keep it in a variable, look at parts"
    )
    return f"{text[: PREVIEW - END]}\n[{seen}]\n{text[-END:]}"
