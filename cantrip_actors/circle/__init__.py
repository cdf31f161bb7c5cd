"""Mediums, standard gates, and how gates run. Importing this package registers mediums and gates by name."""

from collections.abc import Iterable
from pathlib import PurePath

from cantrip_actors.circle.gate_call import GateError, run_gate
from cantrip_actors.circle.medium import read_medium_argument
from cantrip_actors.terms.gate import Gate, provide_from
from cantrip_actors.terms.languages import provide_mediums
from cantrip_actors.terms.skill import provide_skills

__all__ = ["GateError", "run_gate"]


def _make_skill_gate(folder: str | PurePath, roots: Iterable[str | PurePath] = ()) -> Gate:
    from cantrip_actors.circle.gates.skills import make_skill_gate  # reads YAML, which few circles need

    return make_skill_gate(folder, roots)


provide_from("cantrip_actors.circle.gates.echo", "echo")
provide_from("cantrip_actors.circle.gates.fetch", "fetch")
provide_from("cantrip_actors.circle.gates.files", "list", "read", "search", "write")
provide_skills(_make_skill_gate)
provide_mediums(read_medium_argument)
