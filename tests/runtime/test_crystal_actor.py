"""The crystal's actor: one queue for all entities, one pause, one breaker, deadlines and second attempts (PROD-2)."""

import json
import time

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, ProviderError, Retry, Runtime, RuntimeClosed
from cantrip_actors.crystal.policy.limited import NO_TERMS, read_terms
from cantrip_actors.crystal.query import Query
from cantrip_actors.crystal.scripted import scripted
from cantrip_actors.crystal.testing import FaultyServer, Reply, events, rate_limited
from cantrip_actors.crystals import Breaker, CircuitOpen, Hedge, Limits, limited, local
from cantrip_actors.runtime.crystals.crystal_actor import CrystalActor, CrystalRequest
from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart, ResponseStart
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip
from cantrip_actors.terms.messages import Invocation, Message, Response, Usage
from cantrip_actors.wards import max_turns
from supervisors import ActorRef, ActorSystem, ChildSpec
from supervisors.ref import identify

QUERY = Query(Invocation([Message("user", "go")]))
ONCE = Retry(max_retries=0)
DONE = {"tool_calls": [{"gate": "done", "args": {"answer": "yes"}}]}


class Model:
    """A crystal that takes `seconds` for each answer, and records when it was asked and how often at once."""

    name = "model"

    def __init__(self, seconds=1.0, says=None, **terms):
        self.seconds = seconds
        self.says = says or (lambda number: "ok")
        self.asked = []
        self.running = self.most = self.cancelled = 0
        self.__dict__.update(terms)

    async def invoke(self, messages):
        self.asked.append(anyio.current_time())
        self.running += 1
        self.most = max(self.most, self.running)
        number = len(self.asked)
        try:
            await anyio.sleep(self.seconds)
            said = self.says(number)
            if isinstance(said, Exception):
                raise said
            return said
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


class Stand:
    """A crystal's actor outside of a runtime."""

    def __init__(self, crystal, ref, actors):
        self.crystal, self.ref, self.actors = crystal, ref, actors
        bind = getattr(crystal, "bind", None)
        self.bound = crystal if bind is None else bind()

    async def ask(self, retry=ONCE, query=QUERY):
        return await self.ref.call(CrystalRequest(self.bound, query, retry))

    async def all(self, count, **more):
        replies = [None] * count

        async def one(number):
            replies[number] = await self.ask(**more)

        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, number)
        return replies

    async def status(self):
        return self.actors[-1].get_status(anyio.current_time())


@pytest.fixture
async def stand():
    async with ActorSystem() as system:

        async def put_up(crystal):
            ref, actors = ActorRef(), []

            def make_actor():
                actors.append(CrystalActor("model", read_terms(crystal)))
                return actors[-1]

            spec = ChildSpec(len(made), make_actor, ref=ref)
            await system.start(spec)
            made.append(ref)
            return Stand(crystal, ref, actors)

        made = []
        yield put_up


class TestLimits:
    async def test_concurrency_is_limited_over_all_entities(self, stand):
        model = Model(limits=Limits(concurrency=3))
        one = await stand(model)
        began = anyio.current_time()
        replies = await one.all(10)
        assert all(isinstance(reply, Response) for reply in replies)
        assert model.most == 3
        assert anyio.current_time() - began == pytest.approx(4.0, abs=0.01)

    async def test_requests_per_minute_are_limited(self, stand):
        model = Model(0.0, limits=Limits(requests_per_minute=60))
        one = await stand(model)
        began = anyio.current_time()
        await one.all(65)
        assert [round(at - began) for at in model.asked[-6:]] == [0, 1, 2, 3, 4, 5]

    async def test_tokens_a_minute_are_reserved_and_settled(self, stand):
        model = Model(0.0, lambda _: Response("ok", usage=Usage(900, 100)), limits=Limits(tokens_per_minute=6000))
        one = await stand(model)
        began = anyio.current_time()
        for _ in range(7):
            await one.ask()
        # the first six take the bucket; the seventh reserves what it is known to take, about 1000 at 100 a second
        assert round(model.asked[5] - began) <= 1
        assert 0 < model.asked[6] - began <= 10
        began = anyio.current_time()
        for _ in range(6):
            await one.ask()
        assert anyio.current_time() - began == pytest.approx(60, rel=0.1)

    async def test_limited_adds_limits_to_any_crystal(self, stand):
        script = scripted([{"content": "a", "delay": 1.0}, {"content": "b", "delay": 1.0}])
        one = await stand(limited(script, concurrency=1))
        began = anyio.current_time()
        replies = await one.all(2)
        assert sorted(reply.content for reply in replies) == ["a", "b"]
        assert anyio.current_time() - began == pytest.approx(2.0, abs=0.01)

    async def test_a_crystal_that_answers_at_once_keeps_to_its_limits(self, stand):
        one = await stand(limited(scripted(lambda _: "ok"), requests_per_minute=2))
        began = anyio.current_time()
        await one.all(3)
        assert anyio.current_time() - began == pytest.approx(30.0, abs=0.01)

    async def test_a_cancelled_waiting_query_leaves_the_queue_at_once(self, stand):
        model = Model(limits=Limits(concurrency=1))
        one = await stand(model)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.ask)
            await anyio.sleep(0.1)
            with anyio.move_on_after(0.3):
                await one.ask()
            await anyio.wait_all_tasks_blocked()  # the actor hears of the cancellation by a message
            assert (await one.status()).waiting == 0
            assert (await one.status()).running == 1
        assert len(model.asked) == 1

    async def test_a_cancelled_running_query_frees_its_place_at_once(self, stand):
        model = Model(limits=Limits(concurrency=1))
        one = await stand(model)
        began = anyio.current_time()
        with anyio.move_on_after(0.3):
            await one.ask()
        await one.ask()
        assert anyio.current_time() - began == pytest.approx(1.3, abs=0.01)
        assert model.cancelled == 1

    async def test_the_status_shows_running_and_waiting_queries(self, stand):
        one = await stand(Model(limits=Limits(concurrency=2)))
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(one.ask)
            await anyio.sleep(0.5)
            status = await one.status()
        assert (status.name, status.running, status.waiting) == ("model", 2, 3)

    async def test_a_crash_of_the_actor_forgets_running_queries_and_keeps_the_accounts(self, stand):
        class Broken(Model):
            async def invoke(self, messages):
                if self.asked:
                    raise KeyboardInterrupt
                return await super().invoke(messages)

        one = await stand(Model(0.0, limits=Limits(requests_per_minute=2)))
        await one.ask()
        actor = identify(one.ref).incarnation.actor
        books = actor.snapshot()
        other = CrystalActor("model", read_terms(one.crystal))
        other.restore(books)
        assert other.snapshot().queue.requests.left == books.queue.requests.left == 1
        assert other.snapshot().queue.running == 0


@pytest.mark.rule("D-006", "PROD-2")
class TestPauses:
    async def test_a_wait_hint_pauses_the_whole_crystal(self, stand):
        def says(number):
            return ProviderError("slow down", status=429, retry_after=20) if number == 1 else "ok"

        model = Model(0.1, says)
        one = await stand(model)
        began = anyio.current_time()

        async def later():
            await anyio.sleep(5)
            await one.ask()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.ask, Retry())
            tasks.start_soon(later)
            await anyio.sleep(10)
            status = await one.status()
            assert status.waiting == 1
            assert status.paused_for == pytest.approx(10.1)
            assert status.window == 1
        assert [round(at - began, 1) for at in model.asked] == [0.0, 20.1, 20.2]

    async def test_every_query_is_answered_after_a_storm_of_refusals(self, stand):
        """100 queries at once; the provider accepts 5 in each 10 s."""
        heard = []

        def says(number):
            now = anyio.current_time()
            heard[:] = [at for at in heard if at > now - 10]
            if len(heard) >= 5:
                return ProviderError("slow down", status=429, retry_after=heard[0] + 10 - now)
            heard.append(now)
            return "ok"

        model = Model(0.1, says)
        one = await stand(model)
        replies = await one.all(100, retry=Retry())
        assert all(isinstance(reply, Response) for reply in replies)
        # 95 refusals at once, before anything is known, and then a few in each of the 20 periods
        assert len(model.asked) < 100 + 95 + 20 * 8

    async def test_queries_do_not_wait_without_limits_and_refusals(self, stand):
        model = Model()
        one = await stand(model)
        began = anyio.current_time()
        await one.all(200)
        assert model.most == 200
        assert anyio.current_time() - began == pytest.approx(1.0, abs=0.01)

    async def test_a_spent_quota_pauses_no_query(self, stand):
        one = await stand(Model(0.0, lambda _: ProviderError("spent", status=429, retryable=False)))
        assert isinstance(await one.ask(Retry()), ProviderError)
        assert (await one.status()).window is None


class TestBreaker:
    async def test_an_open_breaker_fails_queries_at_once_and_says_until_when(self, stand):
        model = Model(0.0, lambda _: ProviderError("down", status=500), breaker=Breaker(failures=2, open_for=30))
        one = await stand(model)
        await one.ask()
        await one.ask()
        began = anyio.current_time()
        error = await one.ask(Retry())
        assert isinstance(error, CircuitOpen)
        assert "for 30 s more" in str(error)
        assert "down" in str(error)
        assert error.retry_after == pytest.approx(30)
        assert anyio.current_time() == began
        assert len(model.asked) == 2
        assert (await one.status()).breaker == "open"

    async def test_a_breaker_opens_between_retries(self, stand):
        model = Model(0.0, lambda _: ProviderError("down", status=500), breaker=Breaker(failures=3))
        error = await (await stand(model)).ask(Retry(max_retries=10))
        assert isinstance(error, CircuitOpen)
        assert len(model.asked) == 3

    async def test_waiting_queries_fail_at_once_when_the_breaker_opens(self, stand):
        model = Model(
            1.0, lambda _: ProviderError("down", status=500), breaker=Breaker(failures=1), limits=Limits(concurrency=1)
        )
        one = await stand(model)
        began = anyio.current_time()
        replies = await one.all(5)
        assert anyio.current_time() - began == pytest.approx(1.0, abs=0.01)
        assert sorted(isinstance(reply, CircuitOpen) for reply in replies) == [False, True, True, True, True]
        assert (await one.status()).waiting == 0

    async def test_an_answered_probe_closes_the_breaker(self, stand):
        model = Model(
            0.5,
            lambda number: ProviderError("down", status=500) if number == 1 else "ok",
            breaker=Breaker(failures=1, open_for=30),
        )
        one = await stand(model)
        await one.ask()
        await anyio.sleep(30)
        replies = await one.all(3)  # one probes; the others need not find out the same
        assert sorted(isinstance(reply, Response) for reply in replies) == [False, False, True]
        assert all(isinstance(reply, Response) for reply in await one.all(3))

    async def test_a_storm_of_refusals_does_not_open_the_breaker(self, stand):
        model = Model(
            0.0,
            lambda number: ProviderError("slow", status=429, retry_after=1) if number < 8 else "ok",
            breaker=Breaker(failures=2),
        )
        assert isinstance(await (await stand(model)).ask(Retry(max_retries=10)), Response)


class TestDeadline:
    async def test_a_deadline_includes_waiting_and_retries(self, stand):
        model = Model(1.0, lambda _: ProviderError("down", status=500), deadline=5.0)
        one = await stand(model)
        began = anyio.current_time()
        error = await one.ask(Retry(max_retries=50))
        assert anyio.current_time() - began == pytest.approx(5.0)
        assert "no answer within 5 s" in str(error)
        assert error.retryable is None

    async def test_a_deadline_ends_the_wait_in_the_queue(self, stand):
        model = Model(10.0, limits=Limits(concurrency=1), deadline=12.0)
        one = await stand(model)
        replies = await one.all(2)
        assert sorted(isinstance(reply, Response) for reply in replies) == [False, True]
        assert (await one.status()).running == 0


class Speaker(Model):
    """A crystal that streams: its first word comes after `seconds`, the rest a second later."""

    async def invoke(self, messages, emit):
        number = len(self.asked) + 1
        self.asked.append(anyio.current_time())
        emit(ResponseStart(f"r{number}", "model"))
        try:
            await anyio.sleep(self.seconds(number))
            emit(ItemStart("0", "message"))
            emit(ItemDelta("0", f"word {number}"))
            await anyio.sleep(1.0)
            emit(ItemDone("0", FinalMessage(f"word {number}", "agent")))
            return f"word {number}"
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise


class TestHedge:
    async def test_a_slow_query_is_hedged_and_the_first_answer_wins(self, stand):
        model = Speaker(lambda number: 100.0 if number == 1 else 1.0, hedge=Hedge(after=2.0))
        one = await stand(model)
        seen = []
        began = anyio.current_time()
        response = await one.ask(query=QUERY._replace(emit=seen.append))
        assert response.content == "word 2"
        assert response.metadata["hedged"] == 2
        assert anyio.current_time() - began == pytest.approx(4.0)
        assert model.cancelled == 1
        assert [type(one) for one in seen] == [ResponseStart, ItemStart, ItemDelta, ItemDone]
        assert (await one.status()).running == 0

    async def test_a_query_that_has_started_to_answer_is_not_hedged(self, stand):
        model = Speaker(lambda _: 1.9, hedge=Hedge(after=2.0))
        response = await (await stand(model)).ask()
        assert len(model.asked) == 1
        assert "hedged" not in response.metadata

    async def test_the_first_attempt_can_win_after_the_hedge_started(self, stand):
        model = Speaker(lambda number: 3.0 if number == 1 else 9.0, hedge=Hedge(after=2.0))
        response = await (await stand(model)).ask()
        assert (response.content, response.metadata["hedged"]) == ("word 1", 1)

    async def test_a_hedged_query_succeeds_when_one_attempt_fails(self, stand):
        def says(number):
            return ProviderError("down", status=500) if number == 1 else "ok"

        model = Model(3.0, says, hedge=Hedge(after=2.0))
        response = await (await stand(model)).ask()
        assert response.content == "ok"

    async def test_a_hedged_query_counts_as_one_failed_attempt_when_both_fail(self, stand):
        model = Model(3.0, lambda _: ProviderError("down", status=500), hedge=Hedge(after=2.0))
        error = await (await stand(model)).ask()
        assert (error.attempts, error.status, len(model.asked)) == (1, 500, 2)

    async def test_a_hedge_waits_for_a_free_place(self, stand):
        model = Model(3.0, hedge=Hedge(after=1.0), limits=Limits(concurrency=1))
        response = await (await stand(model)).ask()
        assert response.content == "ok"
        assert len(model.asked) == 1

    async def test_the_hedge_delay_is_learnt_from_earlier_answers(self, stand):
        model = Model(1.0, hedge=Hedge())
        one = await stand(model)
        await one.all(30)
        model.seconds = 60.0
        began = len(model.asked)
        with anyio.move_on_after(1.5):
            await one.ask()
        assert len(model.asked) - began == 2

    async def test_a_hedged_query_fails_with_circuit_open_when_the_breaker_opens(self, stand):
        model = Model(1.0, lambda _: ProviderError("down", status=500), hedge=Hedge(0.5), breaker=Breaker(failures=1))
        one = await stand(model)
        await one.ask()
        assert isinstance(await one.ask(), CircuitOpen)


class TestSettings:
    def test_attributes_of_other_types_are_ignored(self):
        class Mock:
            limits = breaker = deadline = hedge = "whatever"

            def invoke(self):
                """Nothing."""

        assert read_terms(Mock()) is NO_TERMS
        assert read_terms(scripted([])) is NO_TERMS

    def test_the_functions_of_the_families_accept_limits(self):
        limits, breaker = Limits(concurrency=3), Breaker()
        crystal = local("http://localhost:1/v1", "m", limits=limits, breaker=breaker)
        assert read_terms(crystal) == (limits, breaker, None, None)
        with pytest.raises(InvalidCantrip, match=r"limits: expected Limits\("):
            local("http://localhost:1/v1", "m", limits=3)

    async def test_a_limited_crystal_without_a_runtime_is_the_crystal_itself(self):
        crystal = limited(scripted(["hi"]), concurrency=1)
        assert (await crystal.invoke([Message("user", "x")])).content == "hi"
        assert crystal.name == "scripted"
        assert "concurrency=1" in repr(crystal)

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda: limited(limited(scripted([]), concurrency=1), deadline=3), "has terms already"),
            (lambda: limited(scripted([]), Limits(), concurrency=1), "not both"),
            (lambda: limited(scripted([]), deadline=0), "deadline"),
            (lambda: limited(scripted([]), breaker=Limits()), "expected a Breaker"),
            (lambda: limited(object()), "object with invoke"),
            (lambda: limited("nofamily:x"), "no crystal family"),
            (lambda: Hedge(after=-1), "hedge: after"),
            (lambda: Hedge(quantile=1), "hedge: quantile"),
        ],
    )
    def test_impossible_limits_are_refused(self, make, said):
        with pytest.raises(InvalidCantrip, match=said):
            make()


def caster(crystal, **parts):
    return Cantrip(crystal, circle=Circle(["done", "echo"], [max_turns(10)]), **parts)


async def casts(runtime, cantrip, count):
    episodes = [None] * count

    async def one(number):
        episodes[number] = await runtime.cast(cantrip, "go")

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)
    return episodes


@pytest.mark.rule("D-006", "PROD-2")
async def test_a_storm_of_refusals_adds_no_turns():
    """Every third request is refused, each with a hint; each entity needs two answers, and makes two turns."""

    class Stormy(Model):
        async def invoke(self, messages):
            await super().invoke(messages)
            return DONE if any(one.role == "tool" for one in messages) else echo

    echo = {"tool_calls": [{"gate": "echo", "args": {"text": "x"}}]}
    refuse = ProviderError("slow down", status=429, retry_after=2)
    model = Stormy(0.5, lambda number: refuse if number % 3 == 0 else "ok", limits=Limits(concurrency=10))
    async with Runtime.open("memory:") as runtime:
        episodes = await casts(runtime, caster(model, retry=Retry(max_retries=20)), 60)
        assert {len(episode.thread) for episode in episodes} == {2}
        assert all(episode.terminated for episode in episodes)
    assert model.most <= 10


async def test_cancelling_a_cast_takes_it_out_of_the_queue():
    model = Model(5.0, lambda _: DONE, limits=Limits(concurrency=1))
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.cast, caster(model), "first")
        await anyio.sleep(0.1)
        with anyio.move_on_after(1.0):
            await runtime.cast(caster(model), "second")
        (status,) = await runtime.crystals()
        assert (status.running, status.waiting) == (1, 0)
    assert len(model.asked) == 1


def chat(*deltas):
    chunks = [{"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": usage}
    return events(*chunks, last, done=True)


ANSWER = chat(
    {"content": "I "},
    {"content": "am done."},
    {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "done", "arguments": json.dumps({"answer": "yes"})}}]},
)


@pytest.mark.real_time
class TestOverSockets:
    async def test_500_streams_through_one_actor_under_a_limit_of_50(self):
        began = time.monotonic()
        async with FaultyServer([Reply(ANSWER)]) as server:
            async with local(server.url, "m") as model:
                crystal = limited(model, concurrency=50)
                async with Runtime.open("memory:") as runtime:
                    episodes = await casts(runtime, caster(crystal), 500)
            assert all(episode.result == "yes" and len(episode.thread) == 1 for episode in episodes)
            assert len(server.requests) == 500
            assert server.connections <= 50
        assert time.monotonic() - began < 60

    async def test_a_storm_of_429s_adds_no_turns(self):
        """The provider refuses the first 40 requests, then every fifth."""
        count = 0

        def script(asked):
            nonlocal count
            count += 1
            return rate_limited(retry_after=0.05) if count <= 40 or count % 5 == 0 else Reply(ANSWER)

        async with FaultyServer(script) as server, local(server.url, "m") as model:
            retry = Retry(max_retries=50, base_delay=0.001, max_delay=0.05)
            crystal = limited(model, Limits(concurrency=50, longest_pause=0.05))
            async with Runtime.open("memory:") as runtime:
                episodes = await casts(runtime, caster(crystal, retry=retry), 200)
        assert {len(episode.thread) for episode in episodes} == {1}
        assert all(episode.terminated for episode in episodes)


class TestAsk:
    """`Runtime.ask`: a query without an entity, on the same terms."""

    async def test_a_query_is_answered_without_a_loom_record(self):
        async with Runtime.open() as runtime:
            response = await runtime.ask(scripted([{"content": "yes"}]), QUERY)
            assert response.content == "yes"
            assert runtime.loom.entities() == []

    async def test_entities_and_queries_share_the_limits(self):
        model = Model(1.0)
        crystal = limited(model, concurrency=1)
        cantrip = Cantrip(crystal, circle=Circle(["done"], [max_turns(1)]))
        async with Runtime.open() as runtime, anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(runtime.ask, crystal, QUERY)
                group.start_soon(runtime.cast, cantrip, "go")
        assert len(model.asked) == 6
        assert model.most == 1

    async def test_a_query_uses_the_retries_of_its_argument(self):
        busy = {"error": {"status": 429}}
        async with Runtime.open() as runtime:
            assert (await runtime.ask(scripted([busy, {"content": "yes"}]), QUERY)).content == "yes"
            with pytest.raises(ProviderError):
                await runtime.ask(scripted([busy, {"content": "yes"}]), QUERY, ONCE)

    async def test_a_cancelled_query_frees_its_place(self):
        model = Model(3600.0)
        crystal = limited(model, concurrency=1)
        async with Runtime.open() as runtime:
            with anyio.move_on_after(1):
                await runtime.ask(crystal, QUERY)
            (status,) = await runtime.crystals()
            assert status.running == 0

    async def test_an_unknown_crystal_name_and_a_closed_runtime_are_refused(self):
        runtime = Runtime.open()
        with pytest.raises(RuntimeClosed):
            await runtime.ask("a:b", QUERY)
        async with runtime:
            with pytest.raises(InvalidCantrip, match="no crystal family"):
                await runtime.ask("a:b", QUERY)


async def test_a_broken_contract_frees_the_place(stand):
    one = await stand(Model(0.0, lambda _: {"nonsense": 1}, limits=Limits(concurrency=1)))
    assert isinstance(await one.ask(), CrystalError)
    assert (await one.status()).running == 0
