"""The tree of tasks is the supervision tree, and no task outlives the block that started it."""

from __future__ import annotations

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisors import Actor, ActorSystem, ChildSpec, DynamicSupervisor, Supervisor
from supervisors.inspect import build_tree
from supervisors.testing import Recorder, Script, virtual


class Notes(dict):
    """The id of the task of each actor, by its path."""

    def note(self, actor):
        self[actor.ref.path] = anyio.get_current_task().id


class Worker(Actor):
    def __init__(self, notes):
        self.notes = notes

    async def init(self):
        self.notes.note(self)


class Host(Worker):
    has_children = True

    def __init__(self, notes, children):
        self.notes = notes
        self.specs = children

    async def init(self):
        await super().init()
        for spec in self.specs:
            await self.children.start(spec)


class Static(Supervisor):
    def __init__(self, notes, children):
        super().__init__(children, max_restarts=99)
        self.notes = notes

    async def init(self):
        self.notes.note(self)
        await super().init()


class Dynamic(DynamicSupervisor):
    def __init__(self, notes, children):
        super().__init__(max_restarts=99)
        self.notes = notes
        self.specs = children

    async def init(self):
        self.notes.note(self)
        for spec in self.specs:
            await self.ref.start_child(spec)


KINDS = {"host": Host, "static": Static, "dynamic": Dynamic}
TREES = st.recursive(
    st.just(("worker", [])),
    lambda trees: st.tuples(st.sampled_from(sorted(KINDS)), st.lists(trees, max_size=3)),
    max_leaves=12,
)


def make_spec(tree, notes, id="top"):
    kind, children = tree
    if kind == "worker":
        return ChildSpec(id, lambda: Worker(notes))
    return ChildSpec(
        id, lambda: KINDS[kind](notes, [make_spec(child, notes, f"{at}") for at, child in enumerate(children)])
    )


def list_parents(system):
    """Return the path of each actor and that of its parent, as `inspect` shows them."""
    parents = {}

    def walk(node):
        for child in node.children:
            parents[child.path] = node.path
            walk(child)

    walk(build_tree(system))
    return parents


def list_parent_tasks(notes):
    """Return the path of each actor, and that of the actor in whose task group its task is."""
    paths = {id: path for path, id in notes.items()}
    tasks = {task.id: task.parent_id for task in anyio.get_running_tasks()}
    return {path: paths.get(tasks[id]) for path, id in notes.items()}


def list_nursery_tasks(notes):
    """The same by walking trio's nurseries from its root task."""
    paths = {id: path for path, id in notes.items()}
    found = {}

    def walk(task):
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                if id(child) in paths:
                    found[paths[id(child)]] = paths.get(id(task))
                walk(child)

    walk(trio.lowlevel.current_root_task())
    return found


async def compare(tree, backend, kills):
    notes = Notes()
    async with ActorSystem(reports=None, max_restarts=99) as system:
        await system.start(make_spec(tree, notes))
        for kill in range(kills + 1):
            expected = {path: parent for path, parent in list_parents(system).items() if path in notes}
            expected["root/top"] = None  # the top supervisor takes no notes
            assert list_parent_tasks(notes) == expected
            if backend == "trio":
                assert list_nursery_tasks(notes) == expected
            path = sorted(notes)[kill % len(notes)]
            find(system, path).kill()
            await anyio.sleep(1)
            notes_of_living = {known: notes[known] for known in list_parents(system)}
            notes.clear()
            notes.update(notes_of_living)


def find(system, path):
    """Return the ref of an actor."""
    record = system.top
    for id in path.split("/")[1:]:
        record = next(child for child in record.incarnation.children.records.values() if str(child.spec.id) == id)
    return record.ref


@pytest.mark.rule("K-01")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_parents_of_tasks_are_the_parents_of_actors(backend):
    @settings(max_examples=50, deadline=None)
    @given(TREES, st.integers(0, 3))
    def run(tree, kills):
        name, options = virtual(backend)
        anyio.run(compare, tree, name, kills, backend=name, backend_options=options)

    run()


@pytest.mark.rule("K-01", "K-02")
async def test_the_top_supervisor_is_a_task_of_the_task_that_entered_the_system(new_system):
    async with new_system() as system:
        task = next(task for task in anyio.get_running_tasks() if task.name == "root")
        assert task.parent_id == anyio.get_current_task().id
        assert system.root.alive


def plant(log):
    """Return a tree of supervisors and hosts, whose leaves take a second to end."""

    def leaf(name):
        return Script(name, stop_takes=1).spec()

    class Family(Actor):
        has_children = True

        def __init__(self, *names):
            self.names = names

        async def init(self):
            for name in self.names:
                await self.children.start(leaf(name))

        async def terminate(self, reason):
            log.append((self.ref.id, len(self.children)))

    inner = ChildSpec("inner", lambda: Family("c", "d"))
    return [leaf("a"), ChildSpec("s", lambda: Supervisor([leaf("b"), inner])), ChildSpec("outer", lambda: Family("e"))]


ORDER = ["-e", "-outer", "-d", "-c", "-inner", "-b", "-s", "-a"]


@pytest.mark.rule("K-02", "S-34")
@pytest.mark.parametrize("how", ["scope", "error", "return"])
async def test_leaving_the_block_ends_everything_in_order_and_leaves_no_task(how):
    before, log, recorder = len(anyio.get_running_tasks()), [], Recorder()
    with anyio.CancelScope() as scope:
        try:
            async with ActorSystem(reports=None) as system:
                system.sinks.append(recorder)
                for spec in plant(log):
                    await system.start(spec)
                recorder.take()
                began = anyio.current_time()
                if how == "scope":
                    scope.cancel()
                    await anyio.sleep_forever()
                elif how == "error":
                    raise ValueError
        except ValueError:
            assert how == "error"
    assert scope.cancelled_caught is (how == "scope")
    assert [line.split()[0] for line in recorder.take()] == ORDER
    assert log == [("outer", 1), ("inner", 2)]
    assert anyio.current_time() - began == 5
    assert len(anyio.get_running_tasks()) == before


@pytest.mark.rule("K-02")
async def test_a_cancellation_of_the_task_that_entered_the_system_while_it_ends_changes_nothing(recorder):
    log = []
    async with anyio.create_task_group() as group:

        async def live():
            async with ActorSystem(reports=None) as system:
                system.sinks.append(recorder)
                for spec in plant(log):
                    await system.start(spec)
                recorder.take()

        group.start_soon(live)
        await anyio.sleep(2.5)
        group.cancel_scope.cancel()
    assert [line.split()[0] for line in recorder.take()] == ORDER


@pytest.mark.rule("K-02")
async def test_a_zombie_holds_the_block_until_its_task_has_ended(new_system):
    script = Script("z", immortal=True)
    before = len(anyio.get_running_tasks())
    async with anyio.create_task_group() as group:
        async with new_system(kill_grace=1) as system:
            ref = await system.start(script.spec(shutdown=1))
            ref.cast("hang")
            await anyio.sleep(1)

            async def release():
                await anyio.sleep(10)
                script.release()

            group.start_soon(release)
            began = anyio.current_time()
        assert anyio.current_time() - began == pytest.approx(10, abs=0.1)
    assert len(anyio.get_running_tasks()) == before
