"""At most one process appends to a tree, whatever processes claim, renew, let expire, release and append (N-09).

A record says under which token it was appended. In the log these tokens only grow: whoever appends has the newest
claim, and never appends again when another one has claimed the entity since. That is tested in the model of a server,
statement by statement, and in the real stores, with threads that each have a store of their own.
"""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors.loom import Fenced, Held, Lease, Store
from cantrip_actors.records.records import IntentGiven
from tests.exhaustive import EXHAUSTIVE
from tests.loom.histories import AT, header, turn
from tests.loom.test_store import Place, anywhere
from tests.simulation.cluster import set_clocks
from tests.simulation.server import Server
from tests.simulation.store import SimStore, TokenNotChecked
from tests.simulation.world import Process, World

STEPS = ("claim", "append", "append", "release", "renew", "expire")


class Contender:
    """A process that does one step after another, and remembers what it was told."""

    def __init__(self, store: Store, owner: str, *, entity: str = "e") -> None:
        self.store, self.owner, self.entity = store, owner, entity
        self.lease: Lease | None = None
        self.accepted: list[str] = []

    def do(self, step: str) -> bool:
        """Return whether a step was not refused."""
        try:
            if step == "claim":
                self.lease = self.store.claim(self.entity, self.owner, 60, lift=True)
            elif step == "renew":
                self.store.renew(self.owner, 60)
            elif step == "expire":
                self.store.renew(self.owner, -1)
            elif step == "release" and self.lease is not None:
                self.store.release(self.lease)
            elif step == "append" and self.lease is not None:
                text = f"{self.lease.token}"
                self.store.append([IntentGiven(self.entity, text, AT)], {self.entity: self.lease.token})
                self.accepted.append(text)
        except (Held, Fenced):
            return False
        return True

    def contend(self, chance: Random, steps: int) -> None:
        """Do so many steps."""
        for _ in range(steps):
            self.do(chance.choice(STEPS))


def begin(store: Store) -> None:
    store.append(
        [header("e", lasting=True), IntentGiven("e", "go", AT), *turn("e", "t", None, terminated=True)],
    )


def check(store: Store, contenders: list[Contender]) -> None:
    """The log has what was accepted, each once, and its tokens only grow."""
    texts = [one.intent for one in store.records("e") if isinstance(one, IntentGiven)][1:]
    assert Counter(texts) == Counter(text for one in contenders for text in one.accepted)
    tokens = [int(text) for text in texts]
    assert tokens == sorted(tokens)
    owners = [(text, one.owner) for one in contenders for text in set(one.accepted)]
    assert len(owners) == len({text for text, _ in owners})


def simulate(seed: int, kind: type[SimStore]) -> None:
    world = World(seed)
    server = Server(world, world.chance.choice((1, 10)))
    contenders: list[Contender] = []

    def course(process: Process) -> None:
        begin(kind(process, server))
        for n in range(3):
            own = Process(world, f"p{n}")
            contenders.append(Contender(kind(own, server), f"p{n}#{seed}"))
            own.spawn(contenders[-1].contend, world.chance, 15)

    with set_clocks(world):
        process = Process(world, "tests")
        process.spawn(course, process)
        world.run(world.now + 600)
        if world.errors:
            raise world.errors[0]
        assert not server.deadlocks
        process.spawn(lambda: check(kind(process, server), contenders))
        world.run(world.now + 60)
        if world.errors:
            raise world.errors[0]
        world.close()


@pytest.mark.rule("N-09")
def test_an_entity_has_one_owner_in_the_model_of_a_server() -> None:
    for seed in range(2000 if EXHAUSTIVE else 40):
        simulate(seed, SimStore)


def test_two_owners_are_found_when_tokens_are_not_checked() -> None:
    def find() -> None:
        for seed in range(60):
            simulate(seed, TokenNotChecked)

    with pytest.raises(AssertionError):
        find()


@pytest.mark.rule("N-09")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_entity_has_one_owner_whatever_three_processes_do_at_once(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    stores = [place.open() for _ in range(3)]
    begin(stores[0])
    contenders = [Contender(store, f"p{n}") for n, store in enumerate(stores)]
    work: list[tuple[Callable[..., object], Any]] = [
        (one.contend, (Random(n), 3000 if EXHAUSTIVE else 60)) for n, one in enumerate(contenders)
    ]
    threads = [threading.Thread(target=target, args=values) for target, values in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(stores[0], contenders)
    for store in stores:
        store.close()
    place.clear()


class Owners:
    """Who may append, by the rules of leases."""

    def __init__(self) -> None:
        self.lease: tuple[int, int] | None = None
        self.expired: set[int] = set()
        self.newest = 0

    def allows(self, who: int, step: str, token: int | None) -> bool:
        """Return whether a step is not refused."""
        if step == "append":
            return token is None or self.lease == (who, token)
        return step != "claim" or self.lease is None or self.lease[0] in {who, *self.expired}

    def note(self, who: int, step: str, token: int | None) -> None:
        """Take note of a step that was not refused."""
        if step == "claim" and token is not None:
            assert token > self.newest
            self.lease, self.newest = (who, token), token
            self.expired.discard(who)
        elif step == "release" and self.lease == (who, token):
            self.lease = None
        elif step in ("renew", "expire"):
            (self.expired.add if step == "expire" else self.expired.discard)(who)


@pytest.mark.rule("N-09")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_entity_has_the_owner_that_claimed_it_last_in_every_order_of_steps(kind: str) -> None:
    with anywhere(kind) as place:
        stores = [place.open() for _ in range(2)]
        number = 0

        @settings(max_examples=500 if EXHAUSTIVE else 25)
        @given(st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from(STEPS)), min_size=4, max_size=20))
        def every_order(steps: list[tuple[int, str]]) -> None:
            nonlocal number
            number += 1
            entity = f"e{number}"
            stores[0].append([header(entity, lasting=True), IntentGiven(entity, "go", AT),
                              *turn(entity, f"t{number}", None, terminated=True)])  # fmt: skip
            contenders = [Contender(store, f"p{n}.{number}", entity=entity) for n, store in enumerate(stores)]
            owners = Owners()
            for who, step in steps:
                one = contenders[who]
                before = None if one.lease is None else one.lease.token
                is_allowed = owners.allows(who, step, before)
                assert one.do(step) == is_allowed, (who, step)
                if is_allowed:
                    owners.note(who, step, None if one.lease is None else one.lease.token)

        every_order()
        for store in stores:
            store.close()
