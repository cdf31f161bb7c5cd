"""C-62, C-63: the tokens of failed attempts, and tokens that a crystal does not report."""

import pytest

from cantrip_actors import Cantrip, Circle, Retry, Runtime, scripted
from cantrip_actors.crystal import Query, ask, attempt_now
from cantrip_actors.crystal.constructors import openai
from cantrip_actors.crystal.policy.fallback import fallback
from cantrip_actors.crystal.policy.limited import limited
from cantrip_actors.crystal.prices import Prices
from cantrip_actors.crystal.testing import FaultyServer, Reply, events
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.messages import NO_USAGE, Invocation, Message, Response, ToolDefinition, Usage
from cantrip_actors.terms.ward import Wards
from cantrip_actors.wards import max_cost, max_tokens, max_turns, timeout

TOOLS = (ToolDefinition("done", "", {"type": "object"}),)
PAID = {"prompt_tokens": 100, "completion_tokens": 10, "cost": 0.5}
TWICE = {"tool_calls": [{"id": "1", "gate": "done", "args": {}}] * 2}
DONE = {"tool_calls": [{"gate": "done", "args": {"answer": "on"}}]}
NO_RETRY = Retry(max_retries=0)


def query(tool_choice=None, text="hi"):
    return Query(Invocation([Message("user", text)], TOOLS, tool_choice))


def paid(times):
    return Usage(100 * times, 10 * times, 0, 0.5 * times)


class Answers:
    """A crystal that has to be awaited, with the answers that it was given."""

    name = "answers"

    def __init__(self, *answers):
        self.answers = list(answers)

    async def invoke(self, messages):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


CRYSTALS = [Answers, lambda *answers: scripted(list(answers))]
"""One that has to be awaited, and one that answers at once."""


@pytest.mark.rule("C-62")
class TestBrokenContract:
    """The error has the tokens of all attempts; a later success includes them."""

    def test_an_error_without_usage_costs_nothing(self):
        assert CrystalError("x").usage is NO_USAGE
        assert ProviderError("x").usage is NO_USAGE

    @pytest.mark.parametrize("crystal", CRYSTALS)
    @pytest.mark.parametrize(
        "broken", [{}, {"content": ""}, {"content": "", "metadata": {"stop_reason": "length"}}, TWICE]
    )
    async def test_the_usage_of_an_answer_that_breaks_the_contract_counts(self, crystal, broken):
        with pytest.raises(CrystalError) as caught:
            await ask(crystal({**broken, "usage": PAID}), query(), retry=NO_RETRY)
        assert caught.value.usage == paid(1)

    async def test_the_usage_of_an_answer_with_wrong_fields_counts(self):
        with pytest.raises(CrystalError, match="unknown field") as caught:
            await ask(Answers({"text": "x", "usage": PAID}), query(), retry=NO_RETRY)
        assert caught.value.usage == paid(1)

    def test_the_usage_of_an_answer_at_once_counts(self):
        with pytest.raises(CrystalError) as caught:
            attempt_now(scripted([{"content": "", "usage": PAID}]), query())
        assert caught.value.usage == paid(1)

    @pytest.mark.parametrize("crystal", CRYSTALS)
    async def test_a_required_call_that_is_never_made_costs_all_attempts(self, crystal):
        with pytest.raises(CrystalError, match="no tool call although tool_choice is required") as caught:
            await ask(crystal(*[{"content": "no", "usage": PAID}] * 4), query("required"), retry=NO_RETRY)
        assert caught.value.usage == paid(4)

    @pytest.mark.parametrize("crystal", CRYSTALS)
    async def test_a_later_broken_contract_includes_the_usage_of_earlier_answers(self, crystal):
        with pytest.raises(CrystalError, match="neither content") as caught:
            await ask(crystal({"content": "no", "usage": PAID}, {"usage": PAID}), query("required"), retry=NO_RETRY)
        assert caught.value.usage == paid(2)

    async def test_a_later_success_includes_the_usage_of_failed_attempts(self):
        failed = ProviderError("cut off", usage=paid(1))
        response = await ask(Answers(failed, {**DONE, "usage": PAID}), query(), retry=Retry(base_delay=0, max_delay=0))
        assert response.usage == paid(2)

    async def test_the_error_of_a_provider_has_the_usage_of_all_attempts(self):
        failures = [ProviderError("cut off", usage=paid(1)) for _ in range(3)]
        with pytest.raises(ProviderError, match="gave up after 3 attempts") as caught:
            await ask(Answers(*failures), query(), retry=Retry(max_retries=2, base_delay=0, max_delay=0))
        assert caught.value.usage == paid(3)

    async def test_a_fallback_includes_the_usage_of_the_crystals_before(self):
        first = Answers(ProviderError("down", usage=paid(2)))
        crystal = fallback(first, Answers({**DONE, "usage": PAID}), when=lambda _: True)
        assert (await ask(crystal, query(), retry=NO_RETRY)).usage.prompt_tokens >= 300

    async def test_the_error_of_all_crystals_has_the_usage_of_each(self):
        crystal = fallback(*[Answers(CrystalError("no", usage=paid(1))) for _ in range(2)], when=lambda _: True)
        with pytest.raises(CrystalError) as caught:
            await ask(crystal, query(), retry=NO_RETRY)
        assert caught.value.usage == paid(2)

    @pytest.mark.real_time
    async def test_the_usage_of_an_empty_answer_that_reached_max_tokens_counts(self):
        said = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        counted = {"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 7}}
        async with FaultyServer([Reply(events(said, counted, done=True))] * 2) as server:
            prices = Prices({"m": {"input": 1.0, "output": 2.0}})
            crystal = openai("m", chat=True, base_url=server.url, api_key="test", prices=prices)
            with pytest.raises(CrystalError, match="'length'") as caught:
                await ask(crystal, query(), retry=NO_RETRY)
        assert caught.value.usage == Usage(90, 7, 0, 104 / 1e6)


@pytest.mark.rule("C-63")
class TestEstimates:
    """A crystal that reports no tokens is counted by estimate, and the usage says so."""

    async def test_the_tokens_of_an_answer_without_usage_are_estimated(self):
        usage = (await ask(Answers({"content": "x" * 100}), query(text="y" * 1000), retry=NO_RETRY)).usage
        assert 250 < usage.prompt_tokens < 500
        assert 20 < usage.completion_tokens < 50
        assert usage.estimated_tokens == usage.total_tokens

    async def test_the_usage_of_an_answer_that_breaks_the_contract_is_estimated(self):
        with pytest.raises(CrystalError) as caught:
            await ask(Answers({"content": ""}), query(text="y" * 1000), retry=NO_RETRY)
        assert caught.value.usage.prompt_tokens > 250

    @pytest.mark.parametrize("usage", [PAID, {"prompt_tokens": 0}])
    async def test_reported_usage_is_not_estimated(self, usage):
        assert (await ask(Answers({"content": "x", "usage": usage}), query(), retry=NO_RETRY)).usage == Usage.of(usage)

    def test_a_script_uses_no_tokens(self):
        response = attempt_now(scripted(["hi"]), query())
        assert response is not None
        assert response.usage is NO_USAGE

    def test_a_sum_of_usage_counts_its_estimated_tokens(self):
        assert Usage(10, 5) + Usage(3, 2, estimated_tokens=5) == Usage(13, 7, estimated_tokens=5)

    @pytest.mark.real_time
    async def test_a_provider_that_reports_no_usage_is_estimated_and_priced(self):
        said = {"choices": [{"index": 0, "delta": {"content": "on"}, "finish_reason": "stop"}]}
        async with FaultyServer([Reply(events(said, done=True))]) as server:
            prices = Prices({"m": {"input": 1.0, "output": 1.0}})
            crystal = openai("m", chat=True, base_url=server.url, api_key="test", prices=prices)
            usage = (await ask(crystal, query(text="y" * 1000), retry=NO_RETRY)).usage
        assert usage.estimated_tokens == usage.total_tokens > 250
        assert usage.cost == pytest.approx(usage.total_tokens / 1e6)


@pytest.mark.rule("C-63", "LOOP-2", "CIRCLE-2")
class TestBudgets:
    """A budget that nothing would use up ends the entity all the same, or is refused."""

    async def test_max_tokens_alone_ends_a_crystal_that_reports_no_tokens(self):
        crystal = Answers({"tool_calls": [{"gate": "echo", "args": {"text": "x" * 100}}]})
        async with Runtime.open("memory:") as runtime:
            circle = Circle(["done", "echo"], [max_tokens(2000)])
            episode = await runtime.cast(Cantrip(crystal, circle=circle), "go")
        assert (episode.truncated, episode.ward) == (True, "max_tokens")
        assert 2000 <= episode.usage.estimated_tokens == episode.usage.total_tokens < 4000

    async def test_max_cost_alone_ends_a_crystal_without_prices_at_its_first_answer(self):
        crystal = Answers(
            {**DONE, "tool_calls": [{"gate": "echo", "args": {"text": "x"}}], "usage": {"prompt_tokens": 5}}
        )
        async with Runtime.open("memory:") as runtime:
            circle = Circle(["done", "echo"], [max_cost(1.0)])
            episode = await runtime.cast(Cantrip(crystal, circle=circle), "go")
        assert (episode.truncated, episode.ward, len(episode.thread)) == (True, "max_cost", 1)

    @pytest.mark.parametrize("ward", [max_turns(3), timeout(60), max_tokens(100)])
    async def test_max_cost_beside_another_bound_needs_no_prices(self, ward):
        crystal = openai("nobody-knows-this-model", api_key="test")
        assert Cantrip(crystal, circle=Circle(["done"], [max_cost(1.0), ward]))

    @pytest.mark.parametrize(
        "where", [lambda c: {"crystal": c}, lambda c: {"child_crystal": c}, lambda c: {"crystals": {"small": c}}]
    )
    @pytest.mark.parametrize(
        "around", [lambda c: c, lambda c: limited(c, concurrency=1), lambda c: fallback(c, scripted(["x"]))]
    )
    def test_max_cost_alone_is_refused_for_a_model_without_known_prices(self, where, around):
        crystal = around(openai("nobody-knows-this-model", api_key="test"))
        parts = {"crystal": scripted(["x"]), **where(crystal)}
        with pytest.raises(
            InvalidCantrip, match=r"has no known prices: give the crystal prices=Prices\(\{…\}\), or add"
        ):
            Cantrip(circle=Circle(["done"], [max_cost(1.0)]), **parts)

    def test_max_cost_alone_is_refused_when_the_crystal_is_exchanged(self):
        made = Cantrip(scripted(["x"]), circle=Circle(["done"], [max_cost(1.0)]))
        with pytest.raises(InvalidCantrip, match="no known prices"):
            made.with_crystal(openai("nobody-knows-this-model", api_key="test"))

    def test_max_cost_alone_is_accepted_where_prices_are_known(self):
        crystal = openai("m", api_key="test", prices=Prices({"m": {"input": 1.0, "output": 2.0}}))
        assert Cantrip(crystal, circle=Circle(["done"], [max_cost(1.0)]))

    @pytest.mark.parametrize(
        ("wards", "usage", "problem"),
        [
            ([max_cost(1.0)], Usage(5, 5), "max_cost cannot be measured"),
            ([max_tokens(9)], Usage(), "max_tokens cannot be measured"),
            ([max_tokens(9), max_cost(1.0)], Usage(), "max_tokens cannot be measured"),
            ([max_tokens(9), max_cost(1.0)], Usage(5), None),
            ([max_tokens(9), max_cost(1.0)], Usage(0, 0, 0, 0.1), None),
            ([max_cost(1.0), max_turns(3)], Usage(5, 5), None),
            ([max_tokens(9), timeout(3)], Usage(), None),
            ([], Usage(), None),
        ],
    )
    def test_unmeasured_names_the_ward_that_an_answer_without_usage_escapes(self, wards, usage, problem):
        found = Wards.of(wards).explain_unmeasured(usage)
        assert found is None if problem is None else problem in found


@pytest.mark.rule("C-64")
@pytest.mark.parametrize("count", [1.5, "5", -1, True, float("nan"), float("inf")])
@pytest.mark.parametrize("shape", [lambda n: {"prompt_tokens": n}, Usage, lambda n: Usage(0, n)])
async def test_a_token_count_that_is_not_a_whole_number_is_refused(shape, count):
    for answer in ({"content": "x", "usage": shape(count)}, Response("x", usage=shape(count))):
        async with Runtime.open("memory:") as runtime:
            with pytest.raises(CrystalError, match="crystal reported usage"):
                await runtime.cast(Cantrip(Answers(answer), circle=Circle(["done"], [max_turns(3)])), "go")


@pytest.mark.rule("C-64")
@pytest.mark.parametrize("crystal", CRYSTALS)
class TestToolChoiceNone:
    """`tool_choice="none"`: a call that comes all the same is not carried out, and the crystal is asked for words."""

    async def cast(self, crystal):
        from cantrip_actors import Call

        ran = []

        def pay() -> str:
            ran.append(1)
            return "paid"

        async with Runtime.open("memory:") as runtime:
            circle = Circle(["done", pay], [max_turns(5)])
            episode = await runtime.cast(Cantrip(crystal, Call(tool_choice="none"), circle), "go")
        assert not ran
        return episode

    PAY = {"tool_calls": [{"gate": "pay", "args": {}}], "usage": PAID}  # noqa: RUF012

    async def test_no_gate_runs_under_tool_choice_none_and_a_text_ends_the_entity(self, crystal):
        episode = await self.cast(crystal(self.PAY, {"content": "on", "usage": PAID}))
        assert (episode.result, episode.usage) == ("on", paid(2))

    async def test_a_crystal_that_keeps_calling_under_tool_choice_none_breaks_the_contract(self, crystal):
        with pytest.raises(CrystalError, match=r"a tool call \(pay\) although tool_choice is none") as caught:
            await self.cast(crystal(*[self.PAY] * 4))
        assert caught.value.usage == paid(4)
