"""If one crystal gives up, the next one is queried in the same turn."""

import json

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, ProviderError, Retry, Runtime, scripted
from cantrip_actors.crystal.policy.breaker import CircuitOpen
from cantrip_actors.crystals import Breaker, Limits, anthropic, fallback, limited, openai, worth_another
from cantrip_actors.runtime.crystals.crystal_pool import IDLE
from cantrip_actors.stream.wire import AttemptFailed, ItemDelta, ItemStart, ResponseStart
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip
from cantrip_actors.terms.messages import Message
from cantrip_actors.wards import max_turns
from tests.crystal.asking import request

DONE = {"tool_calls": [{"gate": "done", "args": {"answer": "yes"}}]}
ECHO = {"tool_calls": [{"gate": "echo", "args": {"text": "x"}}]}
QUICK = Retry(max_retries=2)


def failing(status, **more):
    return {"error": {"status": status, "message": "no", **more}}


def caster(crystal, **parts):
    return Cantrip(crystal, circle=Circle(["done", "echo"], [max_turns(10)]), retry=QUICK, **parts)


async def cast(crystal):
    async with Runtime.open("memory:") as runtime:
        return await runtime.cast(caster(crystal), "go")


class TestChoice:
    @pytest.mark.rule("PROD-2", "D-006")
    async def test_the_next_crystal_is_queried_in_the_same_turn_when_retries_are_exhausted(self):
        first = scripted(lambda _: failing(503), name="first")
        second = scripted([ECHO, DONE], name="second")
        episode = await cast(fallback(first, second))
        assert episode.result == "yes"
        assert len(episode.thread) == 2
        assert len(first.invocations) == 2 * 3

    async def test_the_answer_names_the_crystal_that_gave_it_and_those_that_failed(self):
        crystal = fallback(
            scripted([failing(503)], name="first"), scripted(["hello"], name="second"), when=lambda _: True
        )
        response = await crystal.invoke([Message("user", "hi")])
        assert response.metadata["crystal"] == "second"
        (told,) = response.metadata["fell_back"]
        assert told["crystal"] == "first"

    async def test_only_the_first_crystal_is_queried_when_it_answers(self):
        second = scripted(["never"], name="second")
        response = await fallback(scripted(["hello"], name="first"), second).invoke([Message("user", "hi")])
        assert response.metadata == {"crystal": "first"}
        assert second.invocations == []

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
    async def test_a_query_that_cannot_succeed_is_not_sent_to_another_crystal(self, status):
        second = scripted([DONE], name="second")
        with pytest.raises(ProviderError) as caught:
            await cast(fallback(scripted([failing(status)], name="first"), second))
        assert caught.value.status == status
        assert second.invocations == []

    @pytest.mark.parametrize(
        ("error", "worth"),
        [
            (ProviderError("", status=429), True),
            (ProviderError("", status=500), True),
            (ProviderError("", status=529, retryable=True), True),
            (ProviderError("", status=None), True),
            (ProviderError("", status=408), True),
            (CircuitOpen("", retryable=False), True),
            (ProviderError("", status=429, retryable=False), False),
            (ProviderError("", status=400), False),
            (CrystalError("broke its contract"), False),
        ],
    )
    def test_only_availability_errors_move_on_to_the_next_crystal(self, error, worth):
        assert worth_another(error) is worth

    async def test_a_custom_predicate_decides_when_to_fall_back(self):
        spent = scripted([failing(402)], name="first")
        assert (await cast(fallback(spent, scripted([DONE]), when=lambda error: error.status == 402))).result == "yes"

    async def test_the_error_names_every_crystal_when_all_fail(self):
        crystals = [scripted(lambda _: failing(503), name=name) for name in ("one", "two", "three")]
        with pytest.raises(ProviderError, match=r"none of 3 crystals answered: one: .*; two: .*; three: ") as caught:
            await cast(fallback(*crystals))
        assert caught.value.attempts == 9
        assert caught.value.status == 503

    async def test_an_open_breaker_falls_back_at_once(self):
        down = scripted(lambda _: failing(500), name="down")
        first = limited(down, breaker=Breaker(failures=3, open_for=1000))
        second = scripted(lambda _: DONE, name="second")
        crystal = fallback(first, second)
        async with Runtime.open("memory:") as runtime:
            for _ in range(5):
                assert (await runtime.cast(caster(crystal), "go")).result == "yes"
        assert len(down.invocations) == 3
        assert len(second.invocations) == 5


class TestSharing:
    async def test_crystals_keep_their_shared_limits_behind_a_fallback(self):
        running = most = 0

        class Second:
            name = "second"
            limits = Limits(concurrency=2)

            async def invoke(self, messages):
                nonlocal running, most
                running += 1
                most = max(most, running)
                await anyio.sleep(1.0)
                running -= 1
                return DONE

        second = Second()
        both = fallback(scripted(lambda _: failing(500), name="first"), second)
        async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
            for crystal in (both, second, both, second, both):
                tasks.start_soon(runtime.cast, caster(crystal), "go")
        assert most == 2

    async def test_each_entity_has_the_first_scripts_answers_in_order(self):
        first = scripted([DONE, DONE], name="first")
        crystal = fallback(first, scripted([DONE]))
        async with Runtime.open("memory:") as runtime:
            for _ in range(2):
                await runtime.cast(caster(crystal), "go")
        assert len(first.invocations) == 2

    async def test_cancelling_ends_the_running_attempt(self):
        ended = []

        class Slow:
            async def invoke(self, messages):
                try:
                    await anyio.sleep(100)
                except anyio.get_cancelled_exc_class():
                    ended.append(anyio.current_time())
                    raise

        async with Runtime.open("memory:") as runtime:
            began = anyio.current_time()
            with anyio.move_on_after(30.0):
                await runtime.cast(caster(fallback(scripted([failing(None)] * 9), Slow())), "go")
        assert ended == [began + 30.0]

    def test_a_fallback_has_the_smallest_context_window_of_its_crystals(self):
        assert fallback(scripted([], context_window=9), scripted([], context_window=5)).context_window == 5
        assert fallback(scripted([], context_window=9), scripted([])).context_window == 9
        assert fallback(scripted([]), scripted([])).context_window is None


class Teller:
    """Streams two words, and then fails or answers."""

    def __init__(self, name, error=None):
        self.name, self.error = name, error

    async def invoke(self, messages, emit):
        emit(ResponseStart("r", self.name))
        emit(ItemStart("0", "message"))
        emit(ItemDelta("0", self.name))
        if self.error is not None:
            raise self.error
        return self.name


async def test_a_crystal_that_gave_up_is_reported_before_the_next_one_emits():
    seen = []
    down = ProviderError("down", status=418, retryable=None)
    crystal = fallback(Teller("first", down), Teller("second"), when=lambda _: True)
    response = await crystal.invoke([Message("user", "hi")], emit=seen.append)
    assert response.content == "second"
    one_item = [ItemStart, ItemDelta]
    assert [type(one) for one in seen] == [ResponseStart, *one_item, AttemptFailed, *one_item]


def test_reasoning_goes_back_only_to_the_crystal_it_came_from():
    crystal = fallback(anthropic("claude-x", api_key="k"), openai("gpt-x", api_key="k"))
    signed = {
        "provider": "anthropic",
        "model": "claude-x",
        "content": [
            {"type": "thinking", "thinking": "deep", "signature": "sealed"},
            {"type": "text", "text": "Hm."},
        ],
    }
    context = [
        Message("system", "Be terse."),
        Message("user", "hi"),
        Message("assistant", "Hm.", thinking="deep", blocks=(signed,)),
        Message("user", "go on"),
    ]
    first, second = crystal.crystals
    assert "sealed" in str(request(first, context))
    assert "sealed" not in str(request(second, context))
    assert "Hm." in str(request(second, context))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fallback("anthropic:x"), "at least two"),
        (lambda: fallback(fallback("anthropic:x", "openai:y"), "google:z"), "one fallback"),
        (lambda: fallback("anthropic:x", object()), "object with invoke"),
        (lambda: fallback("anthropic:x", "nofamily:y"), "no crystal family"),
        (lambda: limited(fallback("anthropic:x", "openai:y"), deadline=3), "one by one"),
    ],
)
def test_an_invalid_fallback_is_refused(make, said):
    with pytest.raises(InvalidCantrip, match=said):
        make()


def test_the_name_lists_the_crystals():
    crystal = fallback("anthropic:x", "openai:y")
    assert crystal.name == "fallback(anthropic:x, openai:y)"
    assert repr(crystal) == f"<{crystal.name}>"


def test_the_secrets_of_all_crystals_are_known_for_redaction():
    one = limited(openai("gpt-5", api_key="first-key"), concurrency=1)
    two = openai("gpt-4o", api_key="second-key", headers={"x-api-token": "token-123456"})
    assert dict(one.secrets) == {"OPENAI_API_KEY": "first-key"}
    found = fallback(one, two, scripted([])).secrets
    assert sorted(found.values()) == ["first-key", "second-key", "token-123456"]


async def test_the_loom_records_which_crystal_answered_and_why_others_did_not(tmp_path):
    crystal = fallback(scripted(lambda _: failing(503), name="first"), scripted([DONE], name="second"))
    async with Runtime.open(f"jsonl:{tmp_path / 'loom.jsonl'}") as runtime:
        assert (await runtime.cast(caster(crystal), "go")).result == "yes"
    records = [json.loads(line) for line in (tmp_path / "loom.jsonl").read_text().splitlines()]
    (told,) = [record["metadata"] for record in records if record.get("kind") == "utterance"]
    assert told["crystal"] == "second"
    assert [(one["crystal"], "status 503" in one["error"]) for one in told["fell_back"]] == [("first", True)]


@pytest.mark.rule("PROD-2")
async def test_the_limits_of_a_crystal_hold_for_its_fallbacks_when_many_others_were_used_meanwhile():
    running = most = 0

    async def answer(_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(1)
        running -= 1
        return "fine"

    member = limited(scripted(answer), concurrency=1)
    falling_back = fallback(member, scripted(["never"]))

    async with Runtime.open("memory:") as runtime:
        await runtime.cast(caster(falling_back), "go")
        for _ in range(IDLE - 1):  # enough to stop the actor of the member, and not that of the fallback
            await runtime.cast(caster(scripted(["fine"])), "go")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.cast, caster(member), "go")
            await anyio.sleep(0.1)
            tasks.start_soon(runtime.cast, caster(falling_back), "go")
    assert most == 1
