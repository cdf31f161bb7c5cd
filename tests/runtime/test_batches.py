"""Entities whose crystals answer hours later: batches and the background, over restarts and kills (R-24)."""

import os
import signal

import anyio
import httpx
import orjson
import pytest
from botocore.credentials import Credentials

from cantrip_actors import Call, Cantrip, Circle, CrystalError, InvalidCantrip, InvalidIntent, Runtime, scripted
from cantrip_actors.crystal.testing import FaultyServer
from cantrip_actors.crystals import (
    Look,
    PostingCrystal,
    anthropic,
    background,
    batched,
    bedrock,
    fallback,
    google,
    limited,
    openai,
    vertex,
)
from cantrip_actors.records.records import QueryPosted, Utterance
from cantrip_actors.terms.messages import Message, Response
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_turns
from tests.crystal.batch_servers import (
    BUCKETS,
    SERVERS,
    AnthropicServer,
    BedrockServer,
    GoogleServer,
    OpenAIServer,
    VertexClaudeServer,
    VertexServer,
    text_in,
)
from tests.exhaustive import part
from tests.loom.processes import python
from tests.runtime.kills import attempt
from tests.runtime.test_waiting import tasks as tasks_alive

pytestmark = pytest.mark.rule("R-24")

WHILE = 200.0
"""Seconds. A batch is polled each minute; real hours would test the same with many more ticks of the clock."""
HOUR = 3600.0
MODELS = {
    AnthropicServer: "claude-sonnet-4-5",
    OpenAIServer: "gpt-5",
    GoogleServer: "gemini-2.5-flash",
    VertexServer: "gemini-2.5-flash",
    VertexClaudeServer: "claude-sonnet-4-5@20250929",
    BedrockServer: "eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
}
WITH_BUCKETS = (*SERVERS, *BUCKETS)


def vertex_at(model, *, base_url=None, **settings):
    return vertex(model, project="p", location="l", base_url=base_url, **settings)


def bedrock_at(model, *, api_key, base_url=None, **settings):
    for name in ("AWS_ENDPOINT_URL_BEDROCK", "AWS_ENDPOINT_URL_S3") if base_url else ():
        os.environ[name] = base_url
    crystal = bedrock(
        model, region="eu-north-1", credentials=Credentials("AKID", api_key), base_url=base_url, **settings
    )
    crystal.access._renew()  # a thread would take real time, for which a virtual clock does not wait
    return crystal


MAKES = {
    AnthropicServer: anthropic,
    OpenAIServer: openai,
    GoogleServer: google,
    VertexServer: vertex_at,
    VertexClaudeServer: vertex_at,
    BedrockServer: bedrock_at,
}


@pytest.fixture(autouse=True)
def buckets(monkeypatch):
    monkeypatch.setenv("VERTEX_BATCH_BUCKET", "gs://my-bucket/cases")
    monkeypatch.setenv("BEDROCK_BATCH_BUCKET", "s3://my-bucket/some cases/")
    monkeypatch.setenv("BEDROCK_BATCH_ROLE", "arn:aws:iam::123456789012:role/batch")


def crystal_at(server, **settings):
    client = httpx.AsyncClient(transport=server.transport)
    return MAKES[type(server)](MODELS[type(server)], api_key="secret-key", client=client, **settings)


def cantrip_of(crystal, **call):
    return Cantrip(crystal, Call(**call), Circle(gates=["done"], wards=[max_turns(3)]), name="case")


async def run_cases(runtime, cantrip, count=3):
    episodes = {}

    async def one(n):
        episodes[n] = await runtime.cast(cantrip, f"case {n}", key=f"k{n}")

    async with anyio.create_task_group() as tasks:
        for n in range(count):
            tasks.start_soon(one, n)
    return episodes


async def end_after(server, seconds, times=1):
    for _ in range(times):
        await anyio.sleep(seconds)
        server.end()


@pytest.mark.parametrize("kind", WITH_BUCKETS)
async def test_queries_of_many_entities_share_one_batch_and_each_gets_its_answer(kind):
    server = kind(lambda body: f"answer to {text_in(body)}")
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, 5 * HOUR)
        episodes = await run_cases(runtime, cantrip_of(batched(crystal_at(server))))
    assert {n: one.result for n, one in episodes.items()} == {n: f"answer to case {n}" for n in range(3)}
    assert (len(server.batches), len(server.paid)) == (1, 3)


@pytest.mark.parametrize("kind", WITH_BUCKETS)
async def test_an_answer_of_a_batch_costs_half(kind):
    server = kind()
    crystal = crystal_at(server)
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, HOUR)
        episode = await runtime.cast(cantrip_of(batched(crystal)), "case 1")
    whole = crystal.find_model(MODELS[kind])
    assert episode.usage.cost == pytest.approx((1000 * whole.input + 100 * whole.output) / 2e6)
    assert episode.usage.prompt_tokens == 1000


async def test_an_entity_that_waits_for_a_batch_has_only_the_tasks_of_its_tree_and_its_handle_is_recorded():
    server = AnthropicServer()
    async with Runtime.open("memory:") as runtime:
        cantrip = cantrip_of(batched(crystal_at(server)))
        before = tasks_alive()
        entities = [await runtime.start(cantrip, f"case {n}") for n in range(5)]
        await anyio.sleep(HOUR)
        handles = [
            record.handle
            for entity in entities
            for record in runtime.loom.records(entity.id)
            if isinstance(record, QueryPosted)
        ]
        assert [handle["batches"] for handle in handles] == [["msgbatch_0"]] * 5
        # a supervisor, a circle and an entity each; the crystal's actor, and the task that polls the batch for all
        assert tasks_alive() - before <= 5 * 3 + 3
        server.end()
        assert [(await entity.episode()).result for entity in entities] == ["fine"] * 5


async def test_batched_casts_each_return_an_episode_or_an_error_in_order():
    server = OpenAIServer(lambda body: 400 if text_in(body) == "case 1" else text_in(body))
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, HOUR)
        found = await runtime.batch(cantrip_of(crystal_at(server)), [f"case {n}" for n in range(3)], key="night")
        again = await runtime.batch(cantrip_of(crystal_at(server)), [f"case {n}" for n in range(3)], key="night")
    assert isinstance(found[1], CrystalError)
    assert [found[0].result, found[2].result] == ["case 0", "case 2"] == [again[0].result, again[2].result]
    assert len(server.paid) == 3


@pytest.mark.parametrize("key", [None, "", "a\0b"])
async def test_a_batch_without_a_key_is_refused(key):
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(InvalidIntent, match="key: expected a text that is not empty"), anyio.fail_after(60):
            await runtime.batch(cantrip_of(crystal_at(OpenAIServer())), ["case 0"], key=key)


async def test_a_full_group_is_submitted_at_once():
    server = OpenAIServer()
    async with Runtime.open("memory:") as runtime:
        cantrip = cantrip_of(batched(crystal_at(server), every=HOUR, at_most=2))
        for n in range(5):
            await runtime.start(cantrip, f"case {n}")
        await anyio.sleep(1)
        assert [len(batch["requests"]) for batch in server.batches.values()] == [2, 2]
        await anyio.sleep(HOUR)
        assert [len(batch["requests"]) for batch in server.batches.values()] == [2, 2, 1]


@pytest.mark.parametrize("kind", WITH_BUCKETS)
async def test_a_runtime_that_closes_while_a_batch_runs_collects_it_when_it_opens_again(kind, tmp_path):
    server = kind(text_in)
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        for n in range(3):
            await runtime.start(cantrip_of(batched(crystal_at(server))), f"case {n}", key=f"k{n}")
        await anyio.sleep(WHILE)
        assert await runtime.drain(1.0)
    server.end()
    async with Runtime.open(url, recover="resume") as runtime:
        episodes = await run_cases(runtime, cantrip_of(batched(crystal_at(server))))
    assert [episodes[n].result for n in range(3)] == ["case 0", "case 1", "case 2"]
    assert len(server.paid) == 3


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("at", part(range(1, 6), 2))
@pytest.mark.parametrize("kind", [AnthropicServer, OpenAIServer])
async def test_a_process_that_is_killed_at_any_write_pays_once(kind, at, durable, tmp_path):
    server = kind(text_in)
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        kill = Process(Crash(at, durable))
        kill.attach(runtime)
        with anyio.move_on_after(WHILE):
            await attempt(runtime.cast(cantrip_of(batched(crystal_at(server))), "case 7", key="k"))
        if not kill.has_crashed:
            server.end()
            await anyio.sleep(WHILE)
    async with Runtime.open(url, recover="resume") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, WHILE)
        episode = await runtime.cast(cantrip_of(batched(crystal_at(server))), "case 7", key="k")
    assert episode.result == "case 7"
    assert len(server.paid) == 1


PROGRAM = """
import sys, anyio
from cantrip_actors import Cantrip, Circle, Runtime
from cantrip_actors.crystals import batched
from cantrip_actors.wards import max_turns
from tests.runtime.test_batches import MAKES, MODELS
kind, url, base = sys.argv[1:]
server = next(one for one in MAKES if one.__name__ == kind)
crystal = batched(MAKES[server](MODELS[server], api_key="k", base_url=base), every=0)
async def main():
    async with Runtime.open(url) as runtime:
        cantrip = Cantrip(crystal, circle=Circle(gates=["done"], wards=[max_turns(3)]))
        print((await runtime.cast(cantrip, "case 7", key="k")).result)
anyio.run(main)
"""


@pytest.mark.real_time
@pytest.mark.parametrize("kind", [*SERVERS, BedrockServer])
async def test_a_process_that_is_killed_while_its_batch_is_accepted_pays_once(kind, tmp_path):
    server = kind(text_in)
    running = []

    def script(asked):
        reply = server.script(asked)
        if server.batches and len(running) == 1:
            os.kill(running[0].pid, signal.SIGKILL)
        return reply

    async with FaultyServer(script) as listening:
        for status in (-signal.SIGKILL, 0):
            url = f"sqlite:{tmp_path / 'loom.db'}"
            running.append(python(PROGRAM, kind.__name__, url, listening.url + kind.base))
            told, _ = await anyio.to_thread.run_sync(running[-1].communicate)
            assert running[-1].returncode == status
            server.end()
    assert (told.strip(), len(server.paid)) == ("case 7", 1)


@pytest.mark.parametrize("kind", WITH_BUCKETS)
async def test_a_batch_whose_acceptance_was_lost_is_found_in_the_providers_list(kind):
    server = kind()
    server.lose = lambda method, path: method == "POST" and len(server.batches) == 1
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, HOUR, 3)
        episodes = await run_cases(runtime, cantrip_of(batched(crystal_at(server))))
    assert {one.result for one in episodes.values()} == {"fine"}
    assert len(server.paid) == 3


@pytest.mark.parametrize("kind", [AnthropicServer, GoogleServer])
async def test_a_query_waits_for_a_batch_of_another_program_and_is_then_submitted(kind, monkeypatch):
    server = kind()
    server.take("batches/other" if kind is GoogleServer else "msgbatch_other", [("x", {})], title="cantrip-actors")
    server.fails = [503]
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, HOUR, 3)
        episode = await runtime.cast(cantrip_of(batched(crystal_at(server))), "case 1")
    assert episode.result == "fine"
    assert len(server.paid) == 2


@pytest.mark.parametrize("kind", WITH_BUCKETS)
@pytest.mark.parametrize("first", [None, 529])
async def test_a_query_that_the_provider_did_not_process_goes_into_another_batch(kind, first):
    answers = [first, "fine"]
    server = kind(lambda body: answers.pop(0))
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, HOUR, 3)
        episode = await runtime.cast(cantrip_of(batched(crystal_at(server))), "case 1")
    assert episode.result == "fine"
    assert len(set(server.paid)) == 2  # each attempt has an id of its own


@pytest.mark.parametrize("status", ["Failed", "Stopped"])
async def test_a_failed_bedrock_job_ends_its_casts_with_its_error(status):
    server = BedrockServer()
    server.line = lambda line, answer: None
    told = server.told
    server.told = lambda name: {**told(name), "status": status, "message": "fewer records (1) than the minimum of 100"}
    problem = "the batch was cancelled" if status == "Stopped" else "the minimum of 100"
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(CrystalError, match=problem):
            await runtime.cast(cantrip_of(batched(crystal_at(server))), "case 1")
    assert len(server.paid) == 1


@pytest.mark.parametrize("state", ["JOB_STATE_FAILED", "JOB_STATE_CANCELLED"])
async def test_a_failed_vertex_job_ends_its_casts_with_its_error(state):
    server = VertexServer(lambda body: None)
    told = server.told
    server.told = lambda name: {**told(name), "state": state, "error": {"code": 3, "message": "no such model"}}
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(CrystalError, match=r"no such model|was cancelled"):
            await runtime.cast(cantrip_of(batched(crystal_at(server))), "case 1")
    assert len(server.paid) == 1


async def test_a_query_that_no_batch_processes_fails_after_four_batches():
    server = AnthropicServer(lambda body: None)
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, HOUR, 5)
        with pytest.raises(CrystalError, match="it was tried 4 times"):
            await runtime.cast(cantrip_of(batched(crystal_at(server))), "case 1")
    assert len(server.paid) == 4


@pytest.mark.parametrize("kind", [AnthropicServer, OpenAIServer, VertexClaudeServer, BedrockServer])
async def test_a_refused_parameter_is_left_out_of_the_next_batch(kind):
    server = kind(lambda body: 400 if "temperature" in orjson.dumps(body).decode() else "fine")
    crystal = crystal_at(server)
    crystal.family.refused.discard("temperature")
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, HOUR, 3)
        episode = await runtime.cast(cantrip_of(batched(crystal), temperature=0.5), "case 1")
        records = runtime.loom.records(episode.entity_id)
    assert episode.result == "fine"
    assert len(server.paid) == 2
    assert "temperature" in next(one for one in records if isinstance(one, Utterance)).metadata["left_out"]


async def test_an_answer_that_misses_its_schema_is_requested_in_another_batch_and_both_count():
    answers = ["no JSON", '{"n": 1}']
    server = AnthropicServer(lambda body: answers.pop(0))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, HOUR, 3)
        cantrip = cantrip_of(batched(crystal_at(server)), options={"output_schema": schema})
        episode = await runtime.cast(cantrip, "case 1")
    assert orjson.loads(episode.result) == {"n": 1}
    assert episode.usage.prompt_tokens == 2000
    assert "does not fit the schema" in orjson.dumps(server.batches["msgbatch_1"]["requests"]).decode()


async def test_answers_that_never_follow_the_schema_end_the_cast_and_are_all_counted():
    server = AnthropicServer(lambda body: "no JSON")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, WHILE, 6)
        cantrip = cantrip_of(batched(crystal_at(server)), options={"output_schema": schema})
        with pytest.raises(CrystalError, match="4 answers followed neither") as caught:
            await runtime.cast(cantrip, "case 1")
    assert len(server.paid) == 4
    assert caught.value.usage.prompt_tokens == 4000


async def test_an_interrupted_entity_does_not_collect_the_old_answer_for_its_next_intent():
    server = AnthropicServer(text_in)
    async with Runtime.open("memory:") as runtime, anyio.create_task_group() as tasks:
        entity = await runtime.invoke(cantrip_of(batched(crystal_at(server))), "case 1")
        await anyio.sleep(HOUR)
        await entity.interrupt()
        tasks.start_soon(end_after, server, HOUR, 3)
        assert (await entity.send("case 2")).result == "case 2"


async def test_a_batch_that_cannot_be_polled_for_hours_is_not_lost():
    server = OpenAIServer()
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(cantrip_of(batched(crystal_at(server))), "case 1")
        await anyio.sleep(HOUR)
        server.end()
        server.fails = [500] * 200
        await anyio.sleep(2 * HOUR)
        server.fails = []
        assert (await entity.episode()).result == "fine"


async def test_a_batched_crystal_without_a_runtime_waits_for_its_answer():
    server = GoogleServer()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_after, server, HOUR)
        response = await batched(crystal_at(server)).invoke([Message("user", "case 1")])
    assert response.content == "fine"


def test_the_name_of_a_batched_crystal_resolves_to_it(monkeypatch):
    cantrip = Cantrip("batch:anthropic:claude-sonnet-4-5", circle=Circle(gates=["done"], wards=[max_turns(1)]))
    assert cantrip.crystal == "batch:anthropic:claude-sonnet-4-5"
    assert batched("openai-chat:gpt-5").name == "batch:openai-chat:gpt-5"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: batched("openrouter:some/model"), "batch: expected a crystal of anthropic"),
        (lambda: batched("batch:openai:gpt-5"), "batch: expected a crystal of anthropic"),
        (lambda: batched(scripted(["x"])), "batch: expected a crystal of anthropic"),
        (lambda: batched("openai:gpt-5", bucket="gs://b"), "bucket: expected none"),
        (lambda: batched("openai:gpt-5", role="arn:x"), "role: expected none"),
        (lambda: batched(vertex("gemini-2.5-pro", project="p"), bucket="s3://b"), 'expected bucket="gs://my-bucket'),
        (lambda: batched(bedrock("m", region="r"), bucket="s3://"), 'expected bucket="s3://my-bucket'),
        (lambda: batched(bedrock("m", region="r"), role="admin"), "expected role="),
        (lambda: batched("openai:gpt-5", every=-1), "every: expected seconds >= 0"),
        (lambda: batched("openai:gpt-5", at_most=0), "at_most: expected a number"),
        (lambda: limited("batch:openai:gpt-5", concurrency=2), "answers hours later"),
        (lambda: fallback("batch:openai:gpt-5", "openai:gpt-5"), "answer at once"),
        (lambda: background("anthropic:claude-sonnet-4-5"), "background: expected a crystal of openai"),
    ],
)
def test_a_crystal_that_cannot_be_batched_is_refused_when_it_is_made(make, problem):
    with pytest.raises(InvalidCantrip, match=problem):
        make()


class Broken(PostingCrystal):
    """A crystal of a user whose methods raise what they should not."""

    def __init__(self, broken):
        self.broken = broken

    async def post(self, query):
        if self.broken == "post":
            raise ZeroDivisionError("a bug")
        return "handle"

    async def look(self, handles):
        if self.broken == "look":
            self.broken = ""
            raise ZeroDivisionError("a bug")
        return Look([True] * len(handles), 1.0)

    async def collect(self, handle, query):
        return Response("fine")


async def test_a_bug_in_posting_a_query_ends_the_cast_with_an_error():
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(CrystalError, match="crystal raised ZeroDivisionError: a bug"):
            await runtime.cast(cantrip_of(Broken("post")), "case 1")


async def test_a_bug_in_polling_queries_only_delays_their_answers():
    async with Runtime.open("memory:") as runtime:
        assert (await runtime.cast(cantrip_of(Broken("look")), "case 1")).result == "fine"


@pytest.mark.parametrize("answer", [None, Look([], 1.0), Look([True], "soon")])
async def test_a_wrong_answer_to_a_poll_only_delays_the_answers_of_the_queries(answer, monkeypatch):
    crystal, looks = Broken(""), []

    async def look(handles):
        looks.append(handles)
        return answer if len(looks) < 150 else Look([True], 1.0)

    monkeypatch.setattr(crystal, "look", look)
    async with Runtime.open("memory:") as runtime:
        assert (await runtime.cast(cantrip_of(crystal), "case 1")).result == "fine"
    assert len(looks) == 150


class TestBackground:
    """Responses in the background."""

    class Server:
        def __init__(self, text="fine"):
            self.text = text
            self.made = []
            self.status = "queued"
            self.refuses = None
            self.cancelled = []
            self.answers_cancel = 200

        @property
        def transport(self):
            def handle(request):
                path = request.url.path
                if path.endswith("/cancel"):
                    self.cancelled.append(path.split("/")[-2])
                    return httpx.Response(self.answers_cancel, json={"status": "cancelled"})
                if request.method == "POST":
                    body = orjson.loads(request.content)
                    assert (body["background"], body["store"]) == (True, True)
                    if self.refuses in body:
                        refusal = {"error": {"message": f"Unsupported parameter: '{self.refuses}'"}}
                        return httpx.Response(400, json=refusal)
                    self.made.append(body)
                    return httpx.Response(200, json={"id": f"resp_{len(self.made)}", "status": "queued"})
                told = {"id": path.split("/")[-1], "object": "response", "status": self.status, "model": "gpt-5"}
                if self.status == "completed":
                    said = {"type": "output_text", "text": self.text, "annotations": []}
                    told["output"] = [{"type": "message", "id": "m", "role": "assistant", "content": [said]}]
                    told["usage"] = {"input_tokens": 1000, "output_tokens": 100}
                if self.status == "failed":
                    told["error"] = {"code": "server_error", "message": "sorry"}
                return httpx.Response(200, json=told)

            return httpx.MockTransport(handle)

        def crystal(self):
            return openai("gpt-5", api_key="k", client=httpx.AsyncClient(transport=self.transport))

    async def test_an_answer_in_the_background_survives_its_process(self, tmp_path):
        server = self.Server()
        url = f"sqlite:{tmp_path / 'loom.db'}"
        async with Runtime.open(url) as runtime:
            await runtime.start(cantrip_of(background(server.crystal())), "case 1", key="k")
            await anyio.sleep(WHILE)
        server.status = "completed"
        async with Runtime.open(url, recover="resume") as runtime:
            episode = await runtime.cast(cantrip_of(background(server.crystal())), "case 1", key="k")
        assert (episode.result, len(server.made), server.cancelled) == ("fine", 1, [])
        assert episode.usage.cost == pytest.approx((1000 * 1.25 + 100 * 10) / 1e6)

    @pytest.mark.parametrize("answers_cancel", [200, 500])
    async def test_a_response_of_an_interrupted_entity_is_cancelled_at_the_provider(self, answers_cancel):
        server = self.Server()
        server.answers_cancel = answers_cancel
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip_of(background(server.crystal())), "case 1")
            await anyio.sleep(WHILE)
            await entity.interrupt(now=True)
            await anyio.sleep(1)
            assert server.cancelled == ["resp_1"]
            server.status = "completed"
            assert (await entity.send("case 2")).result == "fine"
        assert (server.cancelled, len(server.made)) == (["resp_1"], 2)

    async def test_a_response_of_a_stopped_entity_is_cancelled_at_the_provider(self):
        server = self.Server()
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.start(cantrip_of(background(server.crystal())), "case 1")
            await anyio.sleep(WHILE)
            await entity.stop()
            await anyio.sleep(1)
            assert server.cancelled == ["resp_1"]

    async def test_a_response_that_is_awaited_without_a_runtime_is_cancelled_with_its_caller(self):
        server = self.Server()
        with anyio.move_on_after(WHILE):
            await background(server.crystal()).invoke([Message("user", "case 1")])
        assert server.cancelled == ["resp_1"]

    async def test_a_response_that_failed_at_the_provider_is_requested_again(self):
        server = self.Server()
        server.status = "failed"
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.start(cantrip_of(background(server.crystal())), "case 1")
            await anyio.sleep(3)
            server.status = "completed"
            assert (await entity.episode()).result == "fine"
        assert len(server.made) == 2

    async def test_a_refused_parameter_is_left_out_of_the_next_request(self):
        server = self.Server()
        server.status, server.refuses = "completed", "temperature"
        crystal = server.crystal()
        crystal.family.refused.discard("temperature")
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(cantrip_of(background(crystal), temperature=0.2), "case 1")
        assert episode.result == "fine"
        assert "temperature" not in server.made[0]

    async def test_a_provider_error_that_no_retry_can_fix_ends_the_cast(self):
        server = self.Server()
        server.refuses = "model"
        async with Runtime.open("memory:") as runtime:
            with pytest.raises(CrystalError, match="Unsupported parameter: 'model'"):
                await runtime.cast(cantrip_of(background(server.crystal())), "case 1")

    @pytest.mark.parametrize("durable", [True, False])
    @pytest.mark.parametrize("at", [1, 2, 3])
    async def test_a_killed_process_pays_for_one_query_twice_at_most(self, at, durable, tmp_path):
        server = self.Server()
        url = f"sqlite:{tmp_path / 'loom.db'}"
        async with Runtime.open(url) as runtime:
            Process(Crash(at, durable)).attach(runtime)
            with anyio.move_on_after(30):
                await attempt(runtime.cast(cantrip_of(background(server.crystal())), "case 1", key="k"))
        server.status = "completed"
        async with Runtime.open(url, recover="resume") as runtime:
            episode = await runtime.cast(cantrip_of(background(server.crystal())), "case 1", key="k")
        assert episode.result == "fine"
        assert len(server.made) <= 2
