"""A crash at any write to the loom, and at any wait of the gate or the model, pays each bill once."""

from hypothesis import settings

from cantrip_actors import Runtime
from cantrip_actors.testing import Crash, EntityMachine, Process, every_crash_point, run_with_crashes
from payments_desk.agent import make_desk
from payments_desk.bank import Account
from slow_bank import SlowBank


async def test_each_crash_pays_once():
    bank = SlowBank()

    async def program(process: Process) -> str:
        desk = make_desk(Account(bank, "otto"))
        async with process.attach(Runtime.open("memory:", cantrips=[desk], recover="resume")) as runtime:
            entity = await runtime.ensure("desk-otto", desk)
            return (await entity.send("Pay 20 to Anna.", key="bill 7")).result

    crashes = await every_crash_point(program)
    assert Crash(gate="pay", at="inside") in crashes
    for crash in crashes:
        bank = SlowBank()
        assert (await run_with_crashes(program, [crash])).value == "Paid 20 to Anna.", crash
        assert bank.transfers == {("otto", "Anna", 20): 1}, crash


class DeskMachine(EntityMachine):
    """Intents, decisions, interruptions and crashes in any order: the laws of entities hold for this agent."""

    def __init__(self) -> None:
        self.bank = SlowBank()
        super().__init__()

    def make_cantrip(self):
        return make_desk(Account(self.bank, "otto"))


TestDesk = DeskMachine.TestCase
TestDesk.settings = settings(max_examples=5, stateful_step_count=10, deadline=None)
