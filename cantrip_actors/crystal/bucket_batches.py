"""The batch interfaces of Vertex AI and Amazon Bedrock, whose requests and answers are files in a bucket.

A file of requests is uploaded to the bucket, and a job reads it and writes the answers next to it. The file shows the
requests of a job, so a job that was accepted just before a crash is found again in the list of jobs. The files stay in
the bucket; a lifecycle rule may delete them after some days.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from abc import abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from string import ascii_uppercase, digits
from typing import Any, ClassVar, Final
from urllib.parse import quote

import orjson

from cantrip_actors.crystal.answer_bytes import LARGEST_FILE
from cantrip_actors.crystal.batch_endpoints import (
    MARK,
    WHOLE,
    BatchAnswers,
    BatchEndpoint,
    ListedBatch,
    follow_token,
    parse_time,
)
from cantrip_actors.crystal.families.bedrock import SignedAccess
from cantrip_actors.crystal.families.vertex import VertexClaude
from cantrip_actors.crystal.provider import ProviderCrystal
from cantrip_actors.crystal.shapes import mapping
from cantrip_actors.terms.errors import InvalidCantrip, ProviderError
from cantrip_actors.terms.exact_json import dump_exactly

LABEL: Final = "cantrip-request"
"""The label of a request to Gemini that has its id: Vertex repeats requests in its answers, and has no other id."""

STORAGE: Final = "https://storage.googleapis.com"
ID: Final = digits + ascii_uppercase


class BucketBatches(BatchEndpoint):
    """A batch interface that reads a file of a bucket and writes others."""

    scheme: ClassVar[str]
    """The beginning of the address of a bucket."""
    variable: ClassVar[str]
    """The variable of the environment that may have the bucket."""

    def __init__(self, crystal: ProviderCrystal, bucket: str | None) -> None:
        super().__init__(crystal)
        address = bucket or os.environ.get(self.variable) or ""
        scheme, _, rest = address.partition("://")
        self.bucket, _, self._folder = rest.strip("/").partition("/")
        if scheme != self.scheme or not self.bucket:
            expected = f'bucket="{self.scheme}://my-bucket/folder", or {self.variable} in the environment'
            got = repr(address) if address else "none"
            raise InvalidCantrip(f"batch: {crystal.name}: expected {expected}, got {got}: it holds the requests")

    @abstractmethod
    async def read(self, name: str) -> bytes:
        """Return an object of the bucket. Raises ProviderError."""

    @abstractmethod
    async def write(self, name: str, data: bytes) -> None:
        """Put an object into the bucket. Raises ProviderError."""

    @abstractmethod
    def write_line(self, own: str, body: bytes) -> bytes:
        """Return a request as a line of the file."""

    @abstractmethod
    def read_id(self, line: Mapping[str, Any]) -> str:
        """Return the id of the request of a line."""

    @abstractmethod
    def _parse_answer(self, line: Mapping[str, Any]) -> bytes | ProviderError | None: ...

    def _read_answer(self, line: Mapping[str, Any]) -> tuple[str, bytes | ProviderError | None]:
        return self.read_id(line), self._parse_answer(line)

    def make_address(self, name: str) -> str:
        """Return the address of an object of the bucket."""
        return f"{self.scheme}://{self.bucket}/{name}"

    async def _upload(self, requests: Mapping[str, bytes]) -> str:
        """Put a file with the requests into the bucket, and return its name."""
        file = "/".join(part for part in (self._folder, f"{MARK}-{secrets.token_hex(12)}.jsonl") if part)
        await self.write(file, b"\n".join(self.write_line(own, body) for own, body in requests.items()))
        return file

    async def _read_ids(self, address: object) -> frozenset[str]:
        """Return the ids in a file of requests; none if the file is gone or in another bucket: then it is not ours."""
        mine, name = self.make_address(""), str(address)
        if not name.startswith(mine):
            return frozenset()
        try:
            return frozenset(await self._read_lines(await self.read(name.removeprefix(mine)), self.read_id))
        except ProviderError as error:
            if error.status == 404:
                return frozenset()
            raise


class VertexBatches(BucketBatches):
    """Vertex AI's batch prediction jobs, for Gemini and Claude, over Cloud Storage."""

    most = 100_000
    largest = 200_000_000
    scheme = "gs"
    variable = "VERTEX_BATCH_BUCKET"

    def __init__(self, crystal: ProviderCrystal, bucket: str | None) -> None:
        super().__init__(crystal, bucket)
        self._storage = os.environ.get("STORAGE_EMULATOR_HOST") or STORAGE
        self._is_claude = isinstance(crystal.family, VertexClaude)

    async def read(self, name: str) -> bytes:
        """Return an object of the bucket."""
        where = f"{self._storage}/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}?alt=media"
        return await self.crystal.fetch("GET", where, largest=LARGEST_FILE)

    async def write(self, name: str, data: bytes) -> None:
        """Put an object into the bucket."""
        where = f"{self._storage}/upload/storage/v1/b/{self.bucket}/o?uploadType=media&name={quote(name, safe='')}"
        await self.crystal.fetch("POST", where, data, {"content-type": "application/jsonl"})

    def write_line(self, own: str, body: bytes) -> bytes:
        """Claude's lines have an id, Gemini's a label."""
        if self._is_claude:
            return b'{"custom_id":%b,"request":%b}' % (dump_exactly(own), body)
        labels = b'"labels":{"%b":%b}' % (LABEL.encode(), dump_exactly(own))
        return b'{"request":{%b,%b}' % (labels, body[1:])

    def read_id(self, line: Mapping[str, Any]) -> str:
        """Return the id, or the id in the label."""
        return str(line.get("custom_id") or mapping(mapping(line.get("request")).get("labels")).get(LABEL))

    async def submit(self, requests: Mapping[str, bytes], headers: Mapping[str, str]) -> str:  # noqa: ARG002  # none here
        """Upload a file, and start a job with it. A file without a job costs nothing."""
        file = await self._upload(requests)
        output = self.make_address(file.removesuffix(".jsonl"))
        maker = "anthropic" if self._is_claude else "google"
        job = {
            "displayName": MARK,
            "model": f"publishers/{maker}/models/{self.crystal.family.model}",
            "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [self.make_address(file)]}},
            "outputConfig": {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": output}},
        }
        return str((await self._post("/batchPredictionJobs", dump_exactly(job)))["name"]).rpartition("/")[2]

    async def has_ended(self, batch: str) -> bool:
        """Return whether the job has ended, in whatever state."""
        state = str((await self._get(f"/batchPredictionJobs/{batch}")).get("state"))
        return state.endswith(("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"))

    async def fetch_answers(self, batch: str) -> BatchAnswers:
        """Return the answers in the files that the job wrote."""
        job = await self._get(f"/batchPredictionJobs/{batch}")
        answers: dict[str, bytes | ProviderError | None] = {}
        folder = str(mapping(job.get("outputInfo")).get("gcsOutputDirectory") or "").removeprefix(self.make_address(""))
        if folder:
            prefix = quote(f"{folder.rstrip('/')}/", safe="")
            where = f"{self._storage}/storage/v1/b/{self.bucket}/o?prefix={prefix}"
            for file in await self._list(where, "items", follow_token):
                name = str(file.get("name"))
                if name.endswith(".jsonl"):
                    answers |= await self._read_lines(await self.read(name), self._read_answer)
        state = str(job.get("state"))
        if state.endswith("CANCELLED"):
            answers[WHOLE] = self._make_cancelled()
        elif state.endswith("FAILED"):
            answers[WHOLE] = self._make_failure(None, {"error": job.get("error") or "the batch failed"})
        return answers

    def _parse_answer(self, line: Mapping[str, Any]) -> bytes | ProviderError | None:
        status, response = line.get("status"), line.get("response")
        if isinstance(status, str) and status:
            return self._make_failure(None, _parse_status(status))
        return dump_exactly(response) if response else None

    async def list_batches(self, since: float) -> list[ListedBatch]:
        """Return the jobs that were made by this project."""
        batches: list[ListedBatch] = []
        wanted = quote(f'displayName="{MARK}"', safe="")
        path = f"/batchPredictionJobs?filter={wanted}&pageSize=100"
        for job in await self._list(path, "batchPredictionJobs", follow_token):
            created = parse_time(job["createTime"])
            uris = mapping(mapping(job.get("inputConfig")).get("gcsSource")).get("uris") or [""]
            if created >= since and job.get("displayName") == MARK:
                batches.append(ListedBatch(str(job["name"]).rpartition("/")[2], created, await self._read_ids(uris[0])))
        return batches


class BedrockBatches(BucketBatches):
    """Amazon Bedrock's model invocation jobs, with the requests of Converse, over S3."""

    most = 50_000
    largest = 200_000_000
    scheme = "s3"
    variable = "BEDROCK_BATCH_BUCKET"

    def __init__(self, crystal: ProviderCrystal, bucket: str | None, role: str | None) -> None:
        super().__init__(crystal, bucket)
        self._role = role or os.environ.get("BEDROCK_BATCH_ROLE")
        if not self._role or not self._role.startswith("arn:"):
            expected = 'role="arn:aws:iam::…:role/…", or BEDROCK_BATCH_ROLE in the environment'
            raise InvalidCantrip(
                f"batch: {crystal.name}: expected {expected}, got {self._role!r}: the role that may use the bucket"
            )
        assert isinstance(crystal.access, SignedAccess), "a crystal of Bedrock signs"
        self._access = crystal.access

    def make_id(self, key: str, attempt: int) -> str:
        """Return the id: Bedrock's have eleven letters and digits."""
        number = int.from_bytes(hashlib.sha256(f"{key}-{attempt}".encode()).digest())
        return "".join(ID[number // len(ID) ** place % len(ID)] for place in range(11))

    def _build_object_url(self, name: str) -> str:
        return f"{self._access.s3}/{self.bucket}/{quote(name)}"

    async def read(self, name: str) -> bytes:
        """Return an object of the bucket."""
        return await self.crystal.fetch("GET", self._build_object_url(name), largest=LARGEST_FILE)

    async def write(self, name: str, data: bytes) -> None:
        """Put an object into the bucket."""
        await self.crystal.fetch("PUT", self._build_object_url(name), data)

    def write_line(self, own: str, body: bytes) -> bytes:
        """Return a record."""
        return b'{"recordId":%b,"modelInput":%b}' % (dump_exactly(own), body)

    def read_id(self, line: Mapping[str, Any]) -> str:
        """Return the id of a record."""
        return str(line.get("recordId"))

    async def submit(self, requests: Mapping[str, bytes], headers: Mapping[str, str]) -> str:  # noqa: ARG002  # none here
        """Upload a file, and start a job with it. A file without a job costs nothing."""
        file = await self._upload(requests)
        name = file.rpartition("/")[2].removesuffix(".jsonl")
        job = {
            "jobName": name,
            "clientRequestToken": name,
            "roleArn": self._role,
            "modelId": self.crystal.family.model,
            "modelInvocationType": "Converse",
            "inputDataConfig": {
                "s3InputDataConfig": {"s3InputFormat": "JSONL", "s3Uri": self.make_address(file)},
            },
            "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": self.make_address(f"{file.removesuffix('.jsonl')}/")}},
        }
        return str((await self._post(f"{self._access.control}/model-invocation-job", dump_exactly(job)))["jobArn"])

    async def _get_job(self, batch: str) -> dict[str, Any]:
        return await self._get(f"{self._access.control}/model-invocation-job/{quote(batch, safe='')}")

    async def has_ended(self, batch: str) -> bool:
        """Return whether the job has ended, in whatever state."""
        status = (await self._get_job(batch)).get("status")
        return status in ("Completed", "PartiallyCompleted", "Failed", "Stopped", "Expired")

    async def fetch_answers(self, batch: str) -> BatchAnswers:
        """Return the answers in the file that the job wrote; a job without a file has worked on no request."""
        job = await self._get_job(batch)
        status, message = job.get("status"), str(job.get("message") or "the batch failed")
        if status == "Failed":
            return {WHOLE: self._make_failure(400, {"error": {"message": message}})}
        file = _find_input_uri(job).rpartition("/")[2]
        output = str(mapping(mapping(job.get("outputDataConfig")).get("s3OutputDataConfig")).get("s3Uri"))
        folder = output.removeprefix(self.make_address("")).rstrip("/")
        answers: dict[str, bytes | ProviderError | None] = {}
        try:
            written = await self.read(f"{folder}/{batch.rpartition('/')[2]}/{file}.out")
        except ProviderError as error:
            if error.status != 404:
                raise
        else:
            answers |= await self._read_lines(written, self._read_answer)
        if status == "Stopped":
            answers[WHOLE] = self._make_cancelled()
        return answers

    def _parse_answer(self, line: Mapping[str, Any]) -> bytes | ProviderError | None:
        error, output = mapping(line.get("error")), line.get("modelOutput")
        if error.get("expired"):
            return None
        if error:
            status = error.get("errorCode")
            error_status = status if isinstance(status, int) and status >= 400 else None
            return self._make_failure(
                error_status, {"error": {"message": str(error.get("errorMessage") or "no message")}}
            )
        return dump_exactly(output) if output else None

    async def list_batches(self, since: float) -> list[ListedBatch]:
        """Return the jobs that were made by this project."""
        after = quote(datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), safe="")
        wanted = f"maxResults=100&nameContains={MARK}&submitTimeAfter={after}"
        listed = await self._list(
            f"{self._access.control}/model-invocation-jobs?{wanted}",
            "invocationJobSummaries",
            lambda page: follow_token(page, "nextToken", "nextToken"),
        )
        return [
            ListedBatch(str(job["jobArn"]), parse_time(job["submitTime"]), await self._read_ids(_find_input_uri(job)))
            for job in listed
        ]


def _find_input_uri(job: Mapping[str, Any]) -> str:
    return str(mapping(mapping(job.get("inputDataConfig")).get("s3InputDataConfig")).get("s3Uri") or "")


def _parse_status(status: str) -> Any:
    """Return the error in the status of a line of Vertex, which is a text that ends with an object."""
    words, brace, rest = status.partition("{")
    try:
        return orjson.loads(brace + rest) if brace else {"error": {"message": words}}
    except orjson.JSONDecodeError:
        return {"error": {"message": status}}
