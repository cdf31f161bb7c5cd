"""Mediums, standard gates, and how gates run. Importing this package registers mediums and gates by name."""

from cantrip_actors.circle.gate_call import GateError, run_gate
from cantrip_actors.circle.gates.echo import echo
from cantrip_actors.circle.gates.fetch import fetch
from cantrip_actors.circle.gates.files import list_files, read, search, write
from cantrip_actors.circle.gates.skills import make_skill_gate
from cantrip_actors.circle.medium import read_medium_argument
from cantrip_actors.terms.gate import provide
from cantrip_actors.terms.languages import provide_mediums
from cantrip_actors.terms.skill import provide_skills

__all__ = ["GateError", "echo", "fetch", "list_files", "read", "run_gate", "search", "write"]

provide(echo, fetch, list_files, read, search, write)
provide_skills(make_skill_gate)
provide_mediums(read_medium_argument)
