"""Fake batch interfaces of providers: they answer a batch when the test says so.

`Provider.handle` answers one request; `transport` and `script` give it to an httpx client or to a `FaultyServer`.
What a real server refuses is refused here: an id that is taken or has the wrong form, a stream, results before the end.
"""

import re
import time
from datetime import UTC, datetime
from email.parser import BytesParser
from email.policy import HTTP
from urllib.parse import unquote

import httpx
import orjson

from cantrip_actors.crystal.testing import ReceivedRequest, Reply


class Refused(Exception):
    """A request that is refused."""

    def __init__(self, status, message):
        self.status, self.message = status, message


def when(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class Provider:
    """What the three servers share. `answer` makes an answer's text of a request's body; `batches` are those taken.

    An answer may be an int (the status of an error), None (never worked on), or a text.
    """

    def __init__(self, answer=lambda body: "fine", *, clock=time.time):
        self.answer = answer
        self.clock = clock
        self.batches = {}
        self.files = {}
        self.requests = []
        self.paid = []
        """The ids of all requests that were taken."""
        self.lose = lambda method, path: False
        """Whether the connection is lost after a request was carried out."""
        self.fails = []
        """Statuses with which the next requests are answered."""

    def handle(self, method, path, headers, body):
        self.requests.append((method, path))
        path, _, query = path.partition("?")
        options = dict(part.split("=") for part in query.split("&") if part)
        try:
            if self.fails:
                raise Refused(self.fails.pop(0), "not now")
            return 200, self.route(method, path, options, headers, body)
        except Refused as refused:
            return refused.status, orjson.dumps({"error": {"message": refused.message}})

    def take(self, name, requests, **more):
        if len({own for own, _ in requests}) < len(requests):
            raise Refused(400, "custom_id: must be unique")
        batch = {"requests": requests, "created": self.clock(), "over": False, **more}
        self.batches[name] = batch
        self.paid += [own for own, _ in requests]
        return name

    def end(self):
        """End all batches."""
        for batch in self.batches.values():
            if not batch["over"]:
                batch["over"] = True
                batch["answers"] = [(own, self.answer(body)) for own, body in batch["requests"]]

    def batch(self, name):
        if name not in self.batches:
            raise Refused(404, f"no batch {name}")
        return self.batches[name]

    @property
    def transport(self):
        def handle(request):
            status, body = self.handle(request.method, request.url.raw_path.decode(), request.headers, request.content)
            if self.lose(request.method, request.url.path):
                raise httpx.ReadError("connection lost", request=request)
            return httpx.Response(status, content=body)

        return httpx.MockTransport(handle)

    def script(self, asked: ReceivedRequest) -> Reply:
        status, body = self.handle(asked.method, asked.path, asked.headers, asked.body)
        return Reply(body, status, content_type="application/json")


class AnthropicServer(Provider):
    name = "anthropic"
    base = ""

    def route(self, method, path, options, headers, body):
        assert headers["x-api-key"]
        if method == "POST" and path == "/v1/messages/batches":
            requests = [(one["custom_id"], one["params"]) for one in orjson.loads(body)["requests"]]
            for own, params in requests:
                if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", own) or "stream" in params:
                    raise Refused(400, "requests: malformed")
            return orjson.dumps(self.told(self.take(f"msgbatch_{len(self.batches)}", requests)))
        if path == "/v1/messages/batches":
            names = sorted(self.batches, key=lambda name: -self.batches[name]["created"])
            if after := options.get("after_id"):
                names = names[names.index(after) + 1 :]
            page = names[: int(options["limit"])]
            listed = {"data": [self.told(name) for name in page], "has_more": page != names}
            return orjson.dumps({**listed, "last_id": page[-1] if page else None})
        name = path.split("/")[4]
        if path.endswith("/results"):
            if not self.batch(name)["over"]:
                raise Refused(404, "results are not available yet")
            return b"\n".join(orjson.dumps(self.result(*one)) for one in self.batch(name)["answers"]) + b"\n"
        return orjson.dumps(self.told(name))

    def told(self, name):
        batch = self.batch(name)
        status = "ended" if batch["over"] else "in_progress"
        url = f"https://api.anthropic.com/v1/messages/batches/{name}/results" if batch["over"] else None
        return {
            "id": name,
            "type": "message_batch",
            "processing_status": status,
            "created_at": when(batch["created"]),
            "results_url": url,
        }

    def result(self, own, answer):
        if answer is None:
            return {"custom_id": own, "result": {"type": "expired"}}
        if isinstance(answer, int):
            kind = {400: "invalid_request_error", 529: "overloaded_error"}[answer]
            error = {"type": "error", "error": {"type": kind, "message": "temperature is not supported"}}
            return {"custom_id": own, "result": {"type": "errored", "error": error}}
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5-20250929",
            "content": [{"type": "text", "text": answer}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1000, "output_tokens": 100},
        }
        return {"custom_id": own, "result": {"type": "succeeded", "message": message}}


class OpenAIServer(Provider):
    name = "openai"
    base = "/v1"

    def route(self, method, path, options, headers, body):
        assert headers["authorization"].startswith("Bearer ")
        if method == "POST" and path == "/v1/files":
            head = f"content-type: {headers['content-type']}\r\n\r\n".encode()
            parts = BytesParser(policy=HTTP).parsebytes(head + body).iter_parts()
            fields = {part.get_param("name", header="content-disposition"): part.get_content() for part in parts}
            if fields["purpose"].strip() != "batch":
                raise Refused(400, "purpose")
            content = fields["file"]
            name = f"file-{len(self.files)}"
            self.files[name] = content if isinstance(content, bytes) else content.encode()
            return orjson.dumps({"id": name, "object": "file"})
        if method == "POST" and path == "/v1/batches":
            wanted = orjson.loads(body)
            lines = [orjson.loads(line) for line in self.files[wanted["input_file_id"]].splitlines() if line.strip()]
            for line in lines:
                if line["url"] != wanted["endpoint"] or line["method"] != "POST" or "stream" in line["body"]:
                    raise Refused(400, "a line is malformed")
            requests = [(line["custom_id"], line["body"]) for line in lines]
            return orjson.dumps(self.told(self.take(f"batch_{len(self.batches)}", requests, wanted=wanted)))
        if path == "/v1/batches":
            names = sorted(self.batches, key=lambda name: -self.batches[name]["created"])
            return orjson.dumps({"data": [self.told(name) for name in names], "has_more": False})
        if path.startswith("/v1/files/"):
            return self.files[path.split("/")[3]]
        return orjson.dumps(self.told(path.split("/")[3]))

    def told(self, name):
        batch = self.batch(name)
        told = {
            "id": name,
            "object": "batch",
            "status": "completed" if batch["over"] else "in_progress",
            "created_at": int(batch["created"]),
            "input_file_id": batch["wanted"]["input_file_id"],
            "metadata": batch["wanted"]["metadata"],
        }
        if batch["over"]:
            lines = [(self.line(own, answer), isinstance(answer, str)) for own, answer in batch["answers"]]
            for kind, good in (("output_file_id", True), ("error_file_id", False)):
                told[kind] = f"{name}-{kind}"
                self.files[told[kind]] = b"\n".join(orjson.dumps(line) for line, is_good in lines if is_good == good)
        return told

    def line(self, own, answer):
        if answer is None:
            error = {"code": "batch_expired", "message": "not executed in time"}
            return {"custom_id": own, "response": None, "error": error}
        if isinstance(answer, int):
            error = {"error": {"message": "temperature is not supported", "code": None}}
            return {"custom_id": own, "response": {"status_code": answer, "body": error}, "error": None}
        said = {"type": "output_text", "text": answer, "annotations": []}
        output = [{"type": "message", "id": "msg", "role": "assistant", "content": [said]}]
        body = {
            "id": "resp",
            "object": "response",
            "status": "completed",
            "model": "gpt-5-2025-08-07",
            "output": output,
            "usage": {"input_tokens": 1000, "output_tokens": 100},
        }
        return {"custom_id": own, "response": {"status_code": 200, "body": body}, "error": None}


class GoogleServer(Provider):
    name = "google"
    base = "/v1beta"

    def route(self, method, path, options, headers, body):
        assert headers["x-goog-api-key"]
        if method == "POST":
            assert path.endswith(":batchGenerateContent")
            made = orjson.loads(body)["batch"]
            given = made["inputConfig"]["requests"]["requests"]
            requests = [(one["metadata"]["key"], one["request"]) for one in given]
            name = self.take(f"batches/{len(self.batches)}", requests, title=made["displayName"])
            return orjson.dumps(self.told(name))
        if path == "/v1beta/batches":
            return orjson.dumps({"operations": [self.told(name) for name in self.batches]})
        return orjson.dumps(self.told(path.removeprefix("/v1beta/")))

    def told(self, name):
        batch = self.batch(name)
        state = "BATCH_STATE_SUCCEEDED" if batch["over"] else "BATCH_STATE_RUNNING"
        told = {
            "name": name,
            "metadata": {"state": state, "createTime": when(batch["created"]), "displayName": batch["title"]},
        }
        if batch["over"]:
            told["done"] = True
            answers = [self.line(*one) for one in batch["answers"]]
            told["response"] = {"inlinedResponses": {"inlinedResponses": answers}}
        return told

    def line(self, own, answer):
        if answer is None:
            return {"metadata": {"key": own}}
        if isinstance(answer, int):
            status = {400: "INVALID_ARGUMENT", 529: "UNAVAILABLE"}[answer]
            code = {400: 400, 529: 503}[answer]
            error = {"code": code, "message": "temperature is not supported", "status": status}
            return {"metadata": {"key": own}, "error": error}
        content = {"role": "model", "parts": [{"text": answer}]}
        response = {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "modelVersion": "gemini-2.5-flash",
            "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 100},
        }
        return {"metadata": {"key": own}, "response": response}


class VertexServer(Provider):
    """Vertex AI, with a bucket. A job writes its answers into a folder of its own."""

    name = "vertex"
    base = "/v1/projects/p/locations/l"
    maker = "google"

    def route(self, method, path, options, headers, body):
        assert headers["authorization"] == "Bearer secret-key"
        if path.startswith("/upload/storage/v1/b/my-bucket/o"):
            self.files[unquote(options["name"])] = body
            return b"{}"
        if path == "/storage/v1/b/my-bucket/o":
            prefix = unquote(options["prefix"])
            return orjson.dumps({"items": [{"name": name} for name in self.files if name.startswith(prefix)]})
        if path.startswith("/storage/v1/b/my-bucket/o/"):
            return self.object(unquote(path.removeprefix("/storage/v1/b/my-bucket/o/")))
        if method == "POST" and path.endswith("/batchPredictionJobs"):
            job = orjson.loads(body)
            if not job["model"].startswith(f"publishers/{self.maker}/models/"):
                raise Refused(404, f"no model {job['model']}")
            (uri,) = job["inputConfig"]["gcsSource"]["uris"]
            lines = [orjson.loads(line) for line in self.object(uri.removeprefix("gs://my-bucket/")).splitlines()]
            name = f"projects/7/locations/l/batchPredictionJobs/{len(self.batches)}"
            return orjson.dumps(self.told(self.take(name, list(map(self.asked, lines)), job=job, lines=lines)))
        if path.endswith("/batchPredictionJobs"):
            assert unquote(options["filter"]) == 'displayName="cantrip-actors"'
            return orjson.dumps({"batchPredictionJobs": [self.told(name) for name in self.batches]})
        return orjson.dumps(self.told(f"projects/7/locations/l/batchPredictionJobs/{path.rpartition('/')[2]}"))

    def object(self, name):
        if name not in self.files:
            raise Refused(404, f"no object {name}")
        return self.files[name]

    def asked(self, line):
        if "stream" in line["request"] or "model" in line["request"]:
            raise Refused(400, "a line is malformed")
        return line["request"]["labels"]["cantrip-request"], line["request"]

    def told(self, name):
        batch = self.batch(name)
        told = {**batch["job"], "name": name, "createTime": when(batch["created"]), "state": "JOB_STATE_RUNNING"}
        if batch["over"]:
            prefix = batch["job"]["outputConfig"]["gcsDestination"]["outputUriPrefix"]
            folder = f"{prefix}/prediction-model-2026"
            told |= {"state": "JOB_STATE_SUCCEEDED", "outputInfo": {"gcsOutputDirectory": folder}}
            answers = dict(batch["answers"])
            lines = [self.line(line, answers[self.asked(line)[0]]) for line in reversed(batch["lines"])]
            file = f"{folder.removeprefix('gs://my-bucket/')}/predictions.jsonl"
            self.files[file] = b"\n".join(orjson.dumps(line) for line in lines if line is not None)
        return told

    def line(self, line, answer):
        if answer is None:
            return None
        if isinstance(answer, int):
            error = {"code": answer, "message": "temperature is not supported"}
            words = {400: "Bad Request", 529: "Service Unavailable"}[answer]
            return {**line, "status": f"{words}: {orjson.dumps({'error': error}).decode()}", "response": {}}
        return {**line, "status": "", "response": self.response(answer), "processed_time": "2026-11-25T08:00:00Z"}

    def response(self, answer):
        return GoogleServer().line("", answer)["response"]


class VertexClaudeServer(VertexServer):
    maker = "anthropic"

    def asked(self, line):
        if "stream" in line["request"] or "model" in line["request"] or "anthropic_version" not in line["request"]:
            raise Refused(400, "a line is malformed")
        return line["custom_id"], line["request"]

    def response(self, answer):
        return AnthropicServer().result("", answer)["result"]["message"]


class BedrockServer(VertexServer):
    """Bedrock, with S3."""

    name = "bedrock"
    base = ""

    def route(self, method, path, options, headers, body):
        service = "s3" if path.startswith("/my-bucket/") else "bedrock"
        assert f"/{service}/aws4_request" in headers["authorization"]
        assert ("x-amz-content-sha256" in headers) == (service == "s3")
        if service == "s3":
            name = unquote(path.removeprefix("/my-bucket/"))
            if method == "PUT":
                self.files[name] = body
                return b""
            return self.object(name)
        if method == "POST":
            job = orjson.loads(body)
            uri = job["inputDataConfig"]["s3InputDataConfig"]["s3Uri"]
            lines = [orjson.loads(line) for line in self.object(uri.removeprefix("s3://my-bucket/")).splitlines()]
            arn = f"arn:aws:bedrock:eu-north-1:123456789012:model-invocation-job/job{len(self.batches)}"
            self.take(arn, list(map(self.asked, lines)), job=job, lines=lines)
            return orjson.dumps({"jobArn": arn})
        if path == "/model-invocation-jobs":
            datetime.fromisoformat(unquote(options["submitTimeAfter"]))
            return orjson.dumps({"invocationJobSummaries": [self.told(name) for name in self.batches]})
        return orjson.dumps(self.told(unquote(path.removeprefix("/model-invocation-job/"))))

    def asked(self, line):
        if not re.fullmatch(r"[A-Za-z0-9]{11}", line["recordId"]):
            raise Refused(400, "recordId: malformed")
        return line["recordId"], line["modelInput"]

    def told(self, name):
        batch = self.batch(name)
        told = {**batch["job"], "jobArn": name, "submitTime": when(batch["created"]), "status": "InProgress"}
        if batch["over"]:
            told["status"] = "Completed"
            folder = batch["job"]["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"].removeprefix("s3://my-bucket/")
            file = batch["job"]["inputDataConfig"]["s3InputDataConfig"]["s3Uri"].rpartition("/")[2]
            answers = dict(batch["answers"])
            lines = [self.line(line, answers[line["recordId"]]) for line in reversed(batch["lines"])]
            written = b"\n".join(orjson.dumps(line) for line in lines if line is not None)
            self.files[f"{folder}{name.rpartition('/')[2]}/{file}.out"] = written
        return told

    def line(self, line, answer):
        if answer is None:
            return None
        if isinstance(answer, int):
            return {**line, "error": {"errorCode": answer, "errorMessage": "temperature is not supported"}}
        message = {"role": "assistant", "content": [{"text": answer}]}
        usage = {"inputTokens": 1000, "outputTokens": 100, "totalTokens": 1100}
        return {**line, "modelOutput": {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}}


BUCKETS = (VertexServer, VertexClaudeServer, BedrockServer)
"""Those whose requests and answers are files in a bucket."""

SERVERS = (AnthropicServer, OpenAIServer, GoogleServer)


def text_in(body):
    """The user's text in the body of a request of any of them."""
    return re.findall(r"case \d+", orjson.dumps(body).decode())[-1]
