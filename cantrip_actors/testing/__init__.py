"""Tools for tests of agents: virtual time, crashes of the process at any point, models that no provider has, and people
who are a script.

    await run_with_crashes(program, [Crash(3), Crash(gate="pay", at="inside")])

`docs/testing.md` shows how to test an agent with them, and for every crash that Hypothesis thinks of.
"""

# Names are imported when they are first used: pytest imports the plugin in this package at each start, and only some of
# them need Hypothesis.

from typing import TYPE_CHECKING

from cantrip_actors.lazy_exports import export_lazily

if TYPE_CHECKING:
    from cantrip_actors.testing.crashes import Crash as Crash
    from cantrip_actors.testing.crashes import Crashed as Crashed
    from cantrip_actors.testing.crashes import Process as Process
    from cantrip_actors.testing.crashes import Survived as Survived
    from cantrip_actors.testing.crashes import every_crash_point as every_crash_point
    from cantrip_actors.testing.crashes import run_with_crashes as run_with_crashes
    from cantrip_actors.testing.entity_machine import EntityMachine as EntityMachine
    from cantrip_actors.testing.mediums import BrokenLaw as BrokenLaw
    from cantrip_actors.testing.mediums import MediumPrograms as MediumPrograms
    from cantrip_actors.testing.mediums import check_medium as check_medium
    from cantrip_actors.testing.models import RealQuery as RealQuery
    from cantrip_actors.testing.models import obedient as obedient
    from cantrip_actors.testing.models import refuse_real_queries as refuse_real_queries
    from cantrip_actors.testing.models import replace as replace
    from cantrip_actors.testing.models import wild as wild
    from cantrip_actors.testing.scripted_people import Declined as Declined
    from cantrip_actors.testing.scripted_people import people as people
    from cantrip_actors.testing.simulation import InjectedFault as InjectedFault
    from cantrip_actors.testing.simulation import NotSimulated as NotSimulated
    from cantrip_actors.testing.simulation import Simulated as Simulated
    from cantrip_actors.testing.simulation import SimulatedProcess as SimulatedProcess
    from cantrip_actors.testing.simulation import SimulationFailed as SimulationFailed
    from cantrip_actors.testing.simulation import simulate as simulate
    from cantrip_actors.testing.simulation import unruly as unruly
    from supervisors.testing import Stuck as Stuck
    from supervisors.testing import virtual as virtual
else:
    __getattr__, __dir__ = export_lazily(__name__)
