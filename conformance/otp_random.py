"""Random scenarios, and the comparison of two traces.

`scenarios()` makes trees up to depth three with every strategy, restart type, failing and ignoring starts, stubborn and
significant children, dynamic supervisors, and steps of every kind with a certain outcome. Left out, because the
referee's own answer is uncertain or differs from the specification:

- a stubborn worker with `infinity` or five seconds: the run would hang, or take as long;
- `stop` of a nested supervisor: Erlang ignores an exit signal that is not from the parent, after a wait of five
  seconds;
- a dynamic child whose restart says `ignore`: OTP 25 counts it as active for ever;
- short periods: Erlang's window has whole seconds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Node = dict[str, Any]

RESTARTS = ("permanent", "transient", "temporary")
STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")


@st.composite
def scenarios(draw: st.DrawFn) -> Node:
    """Draw one scenario."""
    names = (f"c{n}" for n in itertools.count())
    tree = draw(_supervisors(names, 3, dynamic=True))
    steps = []
    known_tree = _Known(tree)
    for _ in range(draw(st.integers(3, 12))):
        step = draw(_steps(names, known_tree))
        steps.append(step)
        if step["op"] == "start_child":
            known_tree.add(step["child"], step["supervisor"])
    return {"tree": tree, "steps": steps}


class _Known:
    """The supervisors and children that steps can refer to."""

    def __init__(self, tree: Node) -> None:
        self.supervisors: dict[str, Node] = {"root": tree}
        self.children: list[tuple[str, Node]] = []  # with their supervisor's id
        self._walk("root", tree)

    def _walk(self, id: str, node: Node) -> None:
        for child in node.get("children", []):
            self.add(child, id)

    def add(self, child: Node, supervisor: str) -> None:
        if child not in [other for _, other in self.children]:
            self.children.append((supervisor, child))
        if child.get("type") == "supervisor":
            self.supervisors[child["id"]] = child
            self._walk(child["id"], child)


@st.composite
def _workers(draw: st.DrawFn, id: str, *, significant: bool, dynamic: bool = False) -> Node:
    node: Node = {"id": id}
    if not dynamic:
        node |= draw(_restart(significant=significant))
    # A child that fails to start with the tree ends everything, so that is rare. Hypothesis prefers zero.
    match draw(st.integers(0, 12)):
        case 1 | 2 | 3:
            node["starts"] = ["ok", *draw(st.lists(st.sampled_from(("ok", "error")), min_size=1, max_size=4)), "ok"]
        case 4:
            node["starts"] = ["ok", "error"]
        case 5:
            last = draw(st.sampled_from(("ok", "ignore", "error")))
            node["starts"] = ["ok", "ok"] if dynamic else ["ok", "ignore", last]
        case 6:
            node["starts"] = ["ignore"] if dynamic else ["ignore", "ok"]
        case 11:
            node["starts"] = ["error", "ok"]
        case _:
            pass
    if not dynamic:
        node |= draw(_shutdown())
    return node


@st.composite
def _restart(draw: st.DrawFn, *, significant: bool) -> Node:
    restart = draw(st.sampled_from(RESTARTS))
    node: Node = {} if restart == "permanent" and draw(st.booleans()) else {"restart": restart}
    # sometimes a flag that does not fit, which must be refused
    fits = significant and restart != "permanent"
    if draw(st.integers(0, 1 if fits else 60)) == (1 if fits else 43):
        node["significant"] = True
    return node


@st.composite
def _shutdown(draw: st.DrawFn) -> Node:
    match draw(st.integers(0, 5)):
        case 0:
            return {"shutdown": draw(st.integers(5, 15)), "on_stop": "ignore"}
        case 1:
            return {"shutdown": "brutal_kill", "on_stop": draw(st.sampled_from(("ignore", "prompt")))}
        case 2:
            return {"shutdown": "infinity"}
        case _:
            return {}


@st.composite
def _supervisors(
    draw: st.DrawFn, names: Any, depth: int, *, dynamic: bool, id: str | None = None, nested: Node | None = None
) -> Node:
    node: Node = {} if id is None else {"id": id, "type": "supervisor", **(nested or {})}
    if draw(st.booleans()):
        node |= {"max_restarts": draw(st.integers(0, 4)), "period": 3600}
    else:
        node |= {"period": 3600}
    if dynamic and draw(st.integers(0, 4)) == 0:
        template: Node = {"restart": draw(st.sampled_from(RESTARTS))}
        if draw(st.booleans()):
            template["shutdown"] = draw(st.sampled_from((10, "brutal_kill")))
        return node | {"strategy": "dynamic", "template": template}
    node["strategy"] = draw(st.sampled_from(STRATEGIES))
    auto = draw(st.sampled_from(("never", "never", "any_significant", "all_significant")))
    if auto != "never":
        node["auto_shutdown"] = auto
    node["children"] = [
        draw(_children(names, depth - 1, significant=auto != "never", dynamic=dynamic))
        for _ in range(draw(st.integers(0 if depth < 3 else 2, 4)))
    ]
    return node


@st.composite
def _children(draw: st.DrawFn, names: Any, depth: int, *, significant: bool, dynamic: bool) -> Node:
    id = next(names)
    if depth > 0 and draw(st.integers(0, 2)) == 0:
        nested = draw(_restart(significant=significant))
        return draw(_supervisors(names, depth, dynamic=dynamic, id=id, nested=nested))
    return draw(_workers(id, significant=significant))


@st.composite
def _steps(draw: st.DrawFn, names: Any, known_tree: _Known) -> Node:
    workers = [child["id"] for _, child in known_tree.children if child.get("type") != "supervisor"]
    kind = draw(st.integers(0, 9))
    if kind < 4 and workers:
        reason = draw(st.sampled_from(("normal", "shutdown", "crash", "crash", "kill")))
        return {"op": "exit", "id": draw(st.sampled_from(workers)), "reason": reason}
    if kind < 7 and known_tree.children:
        supervisor, child = draw(st.sampled_from(known_tree.children))
        op = draw(st.sampled_from(("terminate_child", "terminate_child", "restart_child", "delete_child")))
        if draw(st.integers(0, 20)) == 13:
            child = {"id": "nobody"}
        return {"op": op, "id": child["id"], "supervisor": supervisor}
    supervisor, node = draw(st.sampled_from(sorted(known_tree.supervisors.items(), key=lambda item: item[0])))
    if kind < 9:
        return {
            "op": "start_child",
            "supervisor": supervisor,
            "child": draw(_new_child(names, supervisor, node, known_tree)),
        }
    op = draw(st.sampled_from(("which_children", "count_children", "count_children", "stop", "sleep")))
    if op == "sleep":
        return {"op": "sleep", "ms": draw(st.integers(1, 20))}
    return {"op": op, "supervisor": "root" if op == "stop" else supervisor}


@st.composite
def _new_child(draw: st.DrawFn, names: Any, supervisor: str, node: Node, known_tree: _Known) -> Node:
    if node.get("strategy") == "dynamic":
        child = draw(_workers(next(names), significant=False, dynamic=True))
        if "shutdown" in node["template"] and draw(st.booleans()):
            child["on_stop"] = "ignore"
        return child
    own = [child for owner, child in known_tree.children if owner == supervisor and child.get("type") != "supervisor"]
    if own and draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(own))
    significant = node.get("auto_shutdown", "never") != "never"
    return draw(_children(names, draw(st.integers(0, 1)), significant=significant, dynamic=False))


# --- comparing
# ------------------------------------------------------------------------------------------------------------


def difference(scenario: Node, ours: list[Node], theirs: list[Node]) -> str | None:
    """Return where the traces differ, as text for a person; `None` if they agree."""
    same = _normaliser(scenario)
    for mine, reference in zip(ours, theirs, strict=False):  # ours may stop before a step without a certain outcome
        if same(mine) != same(reference):
            step = scenario["steps"][mine["step"] - 1] if mine["step"] else "start"
            return (
                f"step {mine['step']}: {json.dumps(step)}\n  supervisors: {json.dumps(mine)}\n  erlang:      "
                f"{json.dumps(reference)}\nscenario: {json.dumps(scenario)}"
            )
    return None


def _normaliser(scenario: Node) -> Callable[[Node], Node]:
    """Return a function that orders the simultaneous stops of a dynamic supervisor's children and below."""
    known_tree = _Known(scenario["tree"])
    dynamic = {id for id, node in known_tree.supervisors.items() if node.get("strategy") == "dynamic"}
    owner = {
        step["child"]["id"]: step["supervisor"]
        for step in scenario["steps"]
        if step["op"] == "start_child" and step["supervisor"] in dynamic
    }

    def normal(row: Node) -> Node:
        events: list[Any] = []
        for _, group in itertools.groupby(row["events"], lambda event: event[0] == "stop" and owner.get(event[1])):
            run = list(group)
            events += sorted(run) if run[0][0] == "stop" and run[0][1] in owner else run
        result = row["result"]
        if isinstance(result, list) and result and result[0][0] == "undefined":
            result = sorted(result)
        return {**row, "events": events, "result": result}

    return normal
