"""What errors of providers mean: section 4.6 of the landscape."""

import pytest

from cantrip_actors.crystal.failures import find_retry_after, make_failure
from cantrip_actors.crystal.query import Query, ask
from cantrip_actors.crystal.scripted import scripted
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.messages import Invocation, Message
from cantrip_actors.terms.retry import Retry
from tests.crystal.streams import decode, fed

NOW = 1_760_000_000.0
ASKED = Query(Invocation([Message("user", "go")]))


def anthropic(kind, **details):
    error = {"type": kind, "message": "sorry", **({"details": details} if details else {})}
    return {"type": "error", "error": error, "request_id": "req_1"}


def openai(code, kind=None):
    return {"error": {"message": "sorry", "type": kind, "code": code, "param": None}}


def google(status, *details):
    return {"error": {"code": 429, "message": "sorry", "status": status, "details": list(details)}}


QUOTA = "type.googleapis.com/google.rpc.QuotaFailure"


@pytest.mark.parametrize(
    ("status", "body", "retryable"),
    [
        (429, anthropic("rate_limit_error"), True),
        (429, anthropic("rate_limit_error", error_code="enforced_spend_limit_reached"), False),
        (400, anthropic("invalid_request_error"), False),
        (400, {"error": {"type": "invalid_request_error", "message": "You have reached your spend limit"}}, False),
        (402, anthropic("billing_error"), False),
        (413, anthropic("request_too_large"), False),
        (408, anthropic("timeout_error"), True),
        (409, anthropic("api_error"), True),
        (500, anthropic("api_error"), True),
        (529, anthropic("overloaded_error"), True),
        (429, openai("rate_limit_exceeded"), True),
        (429, openai("insufficient_quota", "insufficient_quota"), False),
        (429, openai("credit_balance_exhausted"), False),
        (429, openai("billing_hard_limit_reached"), False),
        (401, openai("invalid_api_key"), False),
        (503, openai(None, "server_error"), True),
        (429, google("RESOURCE_EXHAUSTED"), True),
        (429, google("RESOURCE_EXHAUSTED", {"@type": QUOTA, "violations": [{"quotaId": "XPerDayPerProject"}]}), False),
        (429, google("RESOURCE_EXHAUSTED", {"@type": QUOTA, "violations": [{"quotaId": "XPerMinutePerY"}]}), True),
        (400, google("FAILED_PRECONDITION"), False),
        (504, [google("DEADLINE_EXCEEDED")], True),
        (402, {"error": {"code": 402, "message": "sorry"}}, False),
        (403, {"error": {"code": 403, "message": "sorry", "metadata": {"reasons": ["moderation"]}}}, False),
        (502, {"error": {"code": 502, "message": "sorry"}}, True),
        (503, "model loading, sorry", True),
        (404, "model not found, sorry", False),
        (501, "sorry", False),
        (500, {"detail": [{"msg": "sorry"}]}, True),
        (400, {"object": "error", "message": "sorry", "code": 400}, False),
    ],
)
def test_errors_are_classified_as_retryable(status, body, retryable):
    error = make_failure("provider", status, body)
    assert (error.status, error.retryable) == (status, retryable)
    assert "sorry" in str(error) or "spend limit" in str(error)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (anthropic("overloaded_error"), 529),
        (openai("server_error"), 500),
        (google("UNAVAILABLE"), 429),
        ({"error": {"message": "sorry", "code": "502"}}, 502),
        ({"error": {"message": "sorry", "type": "unheard_of"}}, 400),
        ({"error": {"message": "sorry", "code": None}}, 500),
        ({"error": "sorry"}, 400),
    ],
)
def test_errors_inside_an_answer_have_the_status_of_their_name(body, status):
    assert make_failure("provider", 200, body).status == status


@pytest.mark.parametrize("told", ["true", "false"])
def test_the_retry_header_of_a_server_decides(told):
    assert make_failure("p", 400, {}, {"x-should-retry": told}).retryable is (told == "true")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "9"}, 9),
        ({"retry-after": "Thu, 09 Oct 2025 08:53:30 GMT"}, 10),
        ({"retry-after": "soon", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m6s"}, 66),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "28ms"}, 0.028),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1h0m0.5s"}, 3600.5),
        ({"x-ratelimit-remaining-tokens": "7", "x-ratelimit-reset-tokens": "9s"}, None),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2025-10-09T08:54:20Z",
            },
            60,
        ),
        ({"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "later"}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "12"}, 12),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW * 1000 + 7000:.0f}"}, 7),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW + 7:.0f}"}, 7),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "7"}, 7),
        ({"x-ratelimit-remaining": "1", "x-ratelimit-reset": "7"}, None),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "Thu, 09 Oct 2025 08:00:00 GMT"}, 0),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_the_wait_is_read_from_headers(headers, seconds):
    found = find_retry_after(headers, NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_the_wait_is_read_from_a_body():
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.4s"}
    assert make_failure("google", 429, google("RESOURCE_EXHAUSTED", info)).retry_after == 34.4
    passed_on = {"error": {"code": 429, "message": "sorry", "metadata": {"headers": {"Retry-After": "7"}}}}
    assert make_failure("openrouter", 429, passed_on).retry_after == 7


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("Rate limit reached for gpt-5: Limit 30000, Used 29000. Please try again in 1.2s. See the docs.", 1.2),
        ("Please try again in 6m0s.", 360),
        ("Try again in 20ms.", 0.02),
        ("try again in a while", None),
        ("Please try again later.", None),
    ],
)
def test_the_wait_is_read_from_a_message(words, seconds):
    told = {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": words}}}
    with pytest.raises(ProviderError) as caught:
        fed("openai", told)
    assert caught.value.retry_after == (None if seconds is None else pytest.approx(seconds))


def test_a_long_message_is_cut():
    assert len(str(make_failure("p", 500, "x" * 10_000))) < 700


def test_errors_include_the_message_of_the_provider_behind_a_router():
    body = {"error": {"code": 502, "message": "Provider returned error", "metadata": {"raw": "boom"}}}
    assert "Provider returned error boom" in str(make_failure("openrouter", 502, body))


class TestQueries:
    """What the contract makes of it."""

    @pytest.mark.rule("D-006")
    async def test_an_errors_retryable_flag_overrides_its_status(self):
        asked = []

        def policy(_):
            asked.append(1)
            if len(asked) == 1:
                raise ProviderError("overloaded", status=529, retryable=True)
            if len(asked) == 2:
                raise ProviderError("no credit", status=429, retryable=False)
            return "never"

        with pytest.raises(ProviderError, match=r"after 2 attempts.*no credit; trying again would meet the same"):
            await ask(scripted(policy), ASKED, retry=Retry())
        assert len(asked) == 2


@pytest.mark.parametrize(
    ("family", "event", "status", "retryable"),
    [
        ("openai-chat", {"error": "Model is overloaded", "error_type": "overloaded"}, 503, True),
        ("openai-chat", {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}, 400, False),
        ("openai", {"type": "response.failed", "response": {"error": {"code": "vector_store_timeout"}}}, 504, True),
    ],
)
def test_errors_in_unusual_positions_are_found(family, event, status, retryable):
    with pytest.raises(ProviderError) as caught:
        fed(family, event)
    assert (caught.value.status, caught.value.retryable) == (status, retryable)


def test_an_event_named_error_is_an_error():
    with pytest.raises(ProviderError, match="out of memory"):
        decode("openai-chat", [b'event: error\ndata: {"message": "out of memory"}\n\n'])
