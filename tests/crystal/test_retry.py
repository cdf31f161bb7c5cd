"""Retries inside one turn (SPEC 7.3, D-006), in virtual time."""

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal import Query, ask, scripted
from cantrip_actors.crystal.failures import find_retry_after
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.messages import Invocation, Message
from cantrip_actors.terms.retry import Retry
from tests.crystal.test_paid_failures import MAKERS
from tests.provider_rules import StrictProvider

QUERY = Query(Invocation([Message("user", "hi")]))


def failing(status, message="no", **more):
    return {"error": {"status": status, "message": message, **more}}


@pytest.mark.rule("PROD-2", "D-006")
async def test_a_retried_query_is_one_response():
    crystal = scripted([failing(429, "rate limited"), "ok"])
    response = await ask(crystal, QUERY, retry=Retry(max_retries=3, retryable_status_codes=(429,)))
    assert response.content == "ok"


@pytest.mark.rule("D-006")
async def test_failed_attempts_leave_nothing_in_the_context():
    crystal = scripted([failing(429), failing(500), "ok"])
    await ask(crystal, QUERY, retry=Retry())
    assert [list(one) for one in crystal.invocations] == [[Message("user", "hi")]] * 3


@pytest.mark.rule("D-006")
@pytest.mark.parametrize("max_retries", [0, 1, 5])
async def test_max_retries_counts_the_attempts_after_the_first(max_retries):
    crystal = scripted([failing(503)] * 10)
    with pytest.raises(ProviderError) as caught:
        await ask(crystal, QUERY, retry=Retry(max_retries=max_retries))
    assert len(crystal.invocations) == max_retries + 1
    assert caught.value.attempts == max_retries + 1


@pytest.mark.rule("D-006")
@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_client_errors_are_not_retried(status):
    crystal = scripted([failing(status), "ok"])
    began = anyio.current_time()
    with pytest.raises(ProviderError) as caught:
        await ask(crystal, QUERY, retry=Retry())
    assert anyio.current_time() == began
    assert len(crystal.invocations) == 1
    assert caught.value.status == status


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, None])
async def test_rate_limits_server_errors_and_lost_connections_are_retried_by_default(status):
    assert (await ask(scripted([failing(status), "ok"]), QUERY, retry=Retry())).content == "ok"


async def test_a_broken_contract_is_not_retried():
    crystal = scripted([{"content": None}, "ok"])
    with pytest.raises(CrystalError):
        await ask(crystal, QUERY, retry=Retry())
    assert len(crystal.invocations) == 1


async def test_delays_double_up_to_the_maximum():
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    with pytest.raises(ProviderError):
        await ask(scripted([failing(500)] * 9), QUERY, retry=Retry(max_retries=8), sleep=sleep, chance=lambda: 1.0)
    assert slept == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_retry_waits_for_its_delay():
    began = anyio.current_time()
    await ask(scripted([failing(500), failing(500), "ok"]), QUERY, retry=Retry(), chance=lambda: 0.0)
    assert anyio.current_time() - began == pytest.approx(0.5 + 1)


async def test_the_wait_that_the_provider_asks_for_takes_precedence():
    began = anyio.current_time()
    await ask(scripted([failing(429, retry_after=42), "ok"]), QUERY, retry=Retry(), chance=lambda: 0.0)
    assert anyio.current_time() - began == pytest.approx(42)


async def test_a_query_can_be_cancelled_while_it_waits_for_a_retry():
    crystal = scripted([failing(429, retry_after=42), "ok"])
    with anyio.move_on_after(1) as scope:
        await ask(crystal, QUERY, retry=Retry())
    assert scope.cancelled_caught
    assert len(crystal.invocations) == 1


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (429, ["6 attempts", "status 429", "try later", "max_retries=5"]),
        (None, ["6 attempts", "no answer", "network"]),
        (401, ["1 attempt ", "status 401", "API key"]),
        (402, ["credit"]),
        (404, ["model's name"]),
        (400, ["refused"]),
        (529, ["add 529 to Retry(retryable_status_codes"]),
    ],
)
async def test_the_last_error_says_what_happened_and_what_to_do(status, told):
    with pytest.raises(ProviderError) as caught:
        await ask(scripted([failing(status, "said the provider")] * 9), QUERY, retry=Retry())
    for part in ["said the provider", *told]:
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, ProviderError)


attempts = st.integers(1, 10_000)
chances = st.floats(0, 1)


@given(attempts, st.none() | st.floats(0, 1e9), chances, st.floats(0, 100), st.floats(0, 1000))
def test_no_delay_is_negative_or_longer_than_the_maximum(attempt, wanted, chance, base, more):
    retry = Retry(max_retries=10_000, base_delay=base, max_delay=base + more)
    delay = retry.delay(attempt, 429, wanted, chance)
    assert delay is not None
    assert 0 <= delay <= retry.max_delay
    if wanted is not None:
        assert delay >= min(wanted, retry.max_delay)


@given(attempts, chances)
def test_the_jitter_is_at_most_half(attempt, chance):
    retry = Retry(max_retries=10_000)
    whole = retry.delay(attempt, None, None, 1.0)
    assert whole == min(60.0, 2.0 ** min(attempt - 1, 62))
    assert whole / 2 <= retry.delay(attempt, None, None, chance) <= whole


@given(attempts, st.integers(100, 599), chances)
def test_no_retry_follows_the_last_one_or_a_status_that_is_not_retryable(attempt, status, chance):
    delay = Retry().delay(attempt, status, None, chance)
    assert (delay is None) == (attempt > 5 or status not in {429, 500, 502, 503, 504})


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_retries": -1},
        {"max_retries": True},
        {"max_retries": 1.5},
        {"base_delay": -1},
        {"base_delay": 10, "max_delay": 1},
        {"base_delay": float("nan")},
        {"base_delay": "1"},
        {"retryable_status_codes": 429},
        {"retryable_status_codes": ["429"]},
        {"retryable_status_codes": [[429]]},
        {"retryable_status_codes": [404]},
    ],
)
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(InvalidCantrip, match="retry: "):
        Retry(**wrong)


NOW = 1_767_225_600.0  # Thu, 01 Jan 2026 00:00:00 GMT


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT"}, 60.0),
        ({"retry-after": "Wed, 31 Dec 2025 00:01:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 99999999999 07:28:00 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
    ],
)
def test_the_wait_is_read_from_a_providers_headers(headers, seconds):
    assert find_retry_after(headers, NOW) == seconds


@given(st.text())
def test_any_header_can_be_read(value):
    wait = find_retry_after({"retry-after": value, "retry-after-ms": value}, NOW)
    assert wait is None or wait >= 0


@pytest.mark.rule("V-38")
@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize(
    ("codes", "status", "attempts"),
    [((429,), 503, 1), ((429,), 529, 1), ((418,), 418, 3), ((503,), 503, 3), ((429, 500, 502, 503, 504), 503, 3)],
)
async def test_every_family_retries_exactly_the_status_codes_that_were_set(family, codes, status, attempts):
    answer = httpx.Response(status, json={"error": {"message": "sorry"}})
    provider = StrictProvider(family, lambda _: answer)
    retry = Retry(max_retries=2, retryable_status_codes=codes, base_delay=0, max_delay=0)
    with pytest.raises(ProviderError, match="gave up"):
        await ask(MAKERS[family](provider.client), QUERY, retry=retry)
    assert len(provider.requests) == attempts


@pytest.mark.rule("V-38")
async def test_a_spent_quota_is_not_retried_whatever_the_codes():
    answer = httpx.Response(429, json={"error": {"message": "sorry", "code": "insufficient_quota"}})
    provider = StrictProvider("openai", lambda _: answer)
    with pytest.raises(ProviderError, match="gave up after 1 attempt"):
        await ask(MAKERS["openai"](provider.client), QUERY, retry=Retry(retryable_status_codes=(429,)))
