"""The batch interfaces of providers: submit many requests, poll, and fetch the answers.

Each provider keeps a batch for a day or more and answers at half price. After a crash, the provider's list of batches
tells whether a batch was submitted: OpenAI shows the contents of each batch, the others once a batch has ended.
"""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import takewhile
from typing import Any, ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import quote

from cantrip_actors.crystal.access import run_in_thread
from cantrip_actors.crystal.answer_bytes import LARGEST_FILE
from cantrip_actors.crystal.client import ProviderRequest
from cantrip_actors.crystal.failures import make_failure
from cantrip_actors.crystal.provider import ProviderCrystal
from cantrip_actors.crystal.shapes import mapping, objects
from cantrip_actors.crystal.sse import check_values
from cantrip_actors.terms.errors import ProviderError
from cantrip_actors.terms.exact_json import dump_exactly, parse_exactly

BatchAnswers = Mapping[str, bytes | ProviderError | None]
"""The answers of a batch by the ids of the requests: a body, an error, None for a request that was never worked on.

`WHOLE` has the error of a batch that failed as a whole. A request without an answer was never worked on.
"""

WHOLE: Final = ""

MARK: Final = "cantrip-actors"
"""The name of the batches of this project, at providers where a batch has a name."""

PAGES: Final = 20
"""The most pages of a provider's list of batches that are read."""

LONG: Final = 1_000_000
"""Bytes of JSON from which on a thread parses it."""

T = TypeVar("T")


class ListedBatch(NamedTuple):
    """A batch in a provider's list. `ids` are those of its requests; None until they can be known."""

    batch: str
    created: float
    """Seconds since the epoch."""
    ids: frozenset[str] | None


class BatchEndpoint(ABC):
    """A provider's batch interface, for one model."""

    most: ClassVar[int]
    """The most requests of a batch."""
    largest: ClassVar[int]
    """The most bytes of a batch."""

    def __init__(self, crystal: ProviderCrystal) -> None:
        self.crystal = crystal
        self.provider = crystal.family.provider

    def make_id(self, key: str, attempt: int) -> str:
        """Return the id of an attempt at a query in its batch: the same after a crash."""
        return f"{hashlib.sha256(key.encode()).hexdigest()[:40]}-{attempt}"

    @abstractmethod
    async def submit(self, requests: Mapping[str, bytes], headers: Mapping[str, str]) -> str:
        """Submit requests by their ids, and return the id of the batch. Raises ProviderError."""

    @abstractmethod
    async def has_ended(self, batch: str) -> bool:
        """Return whether a batch has all the answers that it will have. Raises ProviderError."""

    @abstractmethod
    async def fetch_answers(self, batch: str) -> BatchAnswers:
        """Return the answers of a batch that has ended. Raises ProviderError."""

    @abstractmethod
    async def list_batches(self, since: float) -> list[ListedBatch]:
        """Return the batches that were made after `since`, in seconds since the epoch. Raises ProviderError."""

    def make_body(self, request: ProviderRequest) -> bytes:
        """Return the body of a request in a batch, whose answer is not a stream."""
        fields: dict[str, Any] = parse_exactly(request.body)
        for name in ("stream", "stream_options"):
            fields.pop(name, None)
        return dump_exactly(fields)

    async def _get(self, path: str) -> dict[str, Any]:
        body = await self.crystal.fetch("GET", path)
        if len(body) < LONG:
            return self._parse_object(body)
        return await run_in_thread(lambda: self._parse_object(body))

    async def _list(
        self,
        path: str,
        items: str,
        follow: Callable[[Mapping[str, Any]], str],
        is_wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    ) -> list[dict[str, Any]]:
        """Return the `items` of a list of the provider, up to the first one that is not wanted, from at most `PAGES`.

        `follow` returns what to append to the path for the page after this one, "" after the last page.
        """
        wanted_items: list[dict[str, Any]] = []
        more = ""
        for _ in range(PAGES):
            page = await self._get(f"{path}{more}")
            page_items = objects(page.get(items))
            wanted = list(takewhile(is_wanted, page_items))
            wanted_items += wanted
            more = follow(page)
            if not more or len(wanted) < len(page_items):
                break
        return wanted_items

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        return self._parse_object(await self.crystal.fetch("POST", path, body, headers))

    def _parse_object(self, body: bytes) -> dict[str, Any]:
        check_values(body)
        try:
            value = parse_exactly(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ProviderError(f"{self.provider}: expected a JSON object about a batch, got {body[:80]!r}")
        return value

    async def _read_lines(self, body: bytes, read: Callable[[dict[str, Any]], T]) -> list[T]:
        """Return what `read` makes of each line of a file, in a thread: the file of a batch may have a gigabyte."""

        def read_all() -> list[T]:
            return [read(self._parse_object(line)) for line in body.splitlines() if line.strip()]

        return await run_in_thread(read_all)

    def _make_failure(self, status: int | None, body: object) -> ProviderError:
        return make_failure(self.provider, status, body)

    def _make_cancelled(self) -> ProviderError:
        return ProviderError(f"{self.provider}: the batch was cancelled", retryable=False)


def follow_token(page: Mapping[str, Any], field: str = "nextPageToken", name: str = "pageToken") -> str:
    """Return the query that asks for the page after this one, by the token in `field`; "" after the last page."""
    token = page.get(field)
    return f"&{name}={quote(str(token), safe='')}" if token else ""


def parse_time(text: object) -> float:
    """Return a time in ISO 8601 in seconds since the epoch."""
    return datetime.fromisoformat(str(text)).timestamp()


class AnthropicBatches(BatchEndpoint):
    """Anthropic's Message Batches. The contents of a batch are known once it has ended."""

    most = 100_000
    largest = 250_000_000

    async def submit(self, requests: Mapping[str, bytes], headers: Mapping[str, str]) -> str:
        """Submit requests in one body."""
        items = (b'{"custom_id":%b,"params":%b}' % (dump_exactly(own), body) for own, body in requests.items())
        batch = await self._post("/v1/messages/batches", b'{"requests":[%b]}' % b",".join(items), headers)
        return str(batch["id"])

    async def has_ended(self, batch: str) -> bool:
        """Return whether its status is `ended`."""
        return (await self._get(f"/v1/messages/batches/{batch}")).get("processing_status") == "ended"

    async def fetch_answers(self, batch: str) -> BatchAnswers:
        """Return the answers in its file of results."""
        body = await self.crystal.fetch("GET", f"/v1/messages/batches/{batch}/results", largest=LARGEST_FILE)
        return dict(
            await self._read_lines(
                body, lambda line: (str(line["custom_id"]), self._parse_answer(mapping(line.get("result"))))
            )
        )

    def _parse_answer(self, result: Mapping[str, Any]) -> bytes | ProviderError | None:
        match result.get("type"):
            case "succeeded":
                return dump_exactly(result["message"])
            case "errored":
                return self._make_failure(None, mapping(result.get("error")))
            case "canceled":
                return self._make_cancelled()
            case _:
                return None

    async def list_batches(self, since: float) -> list[ListedBatch]:
        """Return the batches of the workspace, including those of other programs."""
        batches: list[ListedBatch] = []
        for batch in await self._list(
            "/v1/messages/batches?limit=1000",
            "data",
            lambda page: f"&after_id={page.get('last_id')}" if page.get("has_more") else "",
            lambda batch: parse_time(batch["created_at"]) >= since,
        ):
            over = batch.get("processing_status") == "ended" and batch.get("results_url")
            ids = frozenset(await self.fetch_answers(str(batch["id"]))) if over else None
            batches.append(ListedBatch(str(batch["id"]), parse_time(batch["created_at"]), ids))
        return batches


class OpenAIBatches(BatchEndpoint):
    """OpenAI's batches: a file with the requests, and files with the answers and the errors."""

    most = 50_000
    largest = 200_000_000

    async def submit(self, requests: Mapping[str, bytes], headers: Mapping[str, str]) -> str:  # noqa: ARG002  # none here
        """Upload a file, and start a batch with it. A file without a batch costs nothing."""
        url = f"/v1{self.crystal.family.path}"
        lines = (
            b'{"custom_id":%b,"method":"POST","url":%b,"body":%b}' % (dump_exactly(own), dump_exactly(url), body)
            for own, body in requests.items()
        )
        boundary = secrets.token_hex(16)
        parts = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="batch.jsonl"\r\n'
            "content-type: application/jsonl\r\n\r\n"
        )
        form = b"%b%b\n\r\n--%b--\r\n" % (parts.encode(), b"\n".join(lines), boundary.encode())
        file = await self._post("/files", form, {"content-type": f"multipart/form-data; boundary={boundary}"})
        wanted = {
            "input_file_id": file["id"],
            "endpoint": url,
            "completion_window": "24h",
            "metadata": {"made_by": MARK},
        }
        return str((await self._post("/batches", dump_exactly(wanted)))["id"])

    async def has_ended(self, batch: str) -> bool:
        """Return whether the batch has ended, in whatever state."""
        status = (await self._get(f"/batches/{batch}")).get("status")
        return status in ("completed", "failed", "expired", "cancelled")

    async def fetch_answers(self, batch: str) -> BatchAnswers:
        """Return the answers in its two files."""
        batch_facts = await self._get(f"/batches/{batch}")
        if batch_facts.get("status") == "failed":
            problems = objects(mapping(batch_facts.get("errors")).get("data"))
            problem = problems[0] if problems else {"message": "the batch failed"}
            return {WHOLE: self._make_failure(400, {"error": problem})}
        answers: dict[str, bytes | ProviderError | None] = {}
        for name in ("output_file_id", "error_file_id"):
            if batch_facts.get(name):
                body = await self.crystal.fetch("GET", f"/files/{batch_facts[name]}/content", largest=LARGEST_FILE)
                answers |= await self._read_lines(body, lambda line: (str(line["custom_id"]), self._parse_answer(line)))
        return answers

    def _parse_answer(self, line: Mapping[str, Any]) -> bytes | ProviderError | None:
        response, error = mapping(line.get("response")), mapping(line.get("error"))
        status = response.get("status_code")
        if status == 200:
            return dump_exactly(response.get("body"))
        if status is not None:
            return self._make_failure(int(status), response.get("body"))
        if error.get("code") == "batch_expired":
            return None
        if error.get("code") == "batch_cancelled":
            return self._make_cancelled()
        return self._make_failure(None, {"error": error})

    async def _fetch_ids(self, batch_facts: Mapping[str, Any]) -> list[str]:
        body = await self.crystal.fetch("GET", f"/files/{batch_facts['input_file_id']}/content", largest=LARGEST_FILE)
        return await self._read_lines(body, lambda line: str(line["custom_id"]))

    async def list_batches(self, since: float) -> list[ListedBatch]:
        """Return the batches that were made by this project."""

        def follow(page: Mapping[str, Any]) -> str:
            batches = objects(page.get("data"))
            return f"&after={batches[-1]['id']}" if page.get("has_more") and batches else ""

        listed = await self._list(
            "/batches?limit=100",
            "data",
            follow,
            lambda batch: batch["created_at"] >= since - 1,  # whole seconds
        )
        ours = [batch for batch in listed if mapping(batch.get("metadata")).get("made_by") == MARK]
        return [
            ListedBatch(str(batch["id"]), batch["created_at"], frozenset(await self._fetch_ids(batch)))
            for batch in ours
        ]


class GoogleBatches(BatchEndpoint):
    """Gemini's batches, with the requests in one body. The contents of a batch are known once it has ended."""

    most = 100_000
    largest = 19_000_000

    async def submit(self, requests: Mapping[str, bytes], headers: Mapping[str, str]) -> str:  # noqa: ARG002  # none here
        """Submit requests, with their ids as metadata."""
        items = b",".join(
            b'{"request":%b,"metadata":{"key":%b}}' % (body, dump_exactly(own)) for own, body in requests.items()
        )
        body = b'{"batch":{"displayName":%b,"inputConfig":{"requests":{"requests":[%b]}}}}' % (
            dump_exactly(MARK),
            items,
        )
        model = self.crystal.family.path.partition(":")[0]
        return str((await self._post(f"{model}:batchGenerateContent", body))["name"])

    async def has_ended(self, batch: str) -> bool:
        """Return whether the batch has ended, in whatever state."""
        return _is_over(await self._get(f"/{batch}"))

    async def fetch_answers(self, batch: str) -> BatchAnswers:
        """Return the answers that came with the batch."""
        operation = await self._get(f"/{batch}")
        if operation.get("error"):
            return {WHOLE: self._make_failure(None, {"error": operation["error"]})}
        output = mapping(operation.get("response")) or mapping(mapping(operation.get("metadata")).get("output"))
        inlined = mapping(output.get("inlinedResponses")).get("inlinedResponses")

        def read_all() -> BatchAnswers:
            return {
                str(mapping(response.get("metadata")).get("key")): self._parse_answer(response)
                for response in objects(inlined)
            }

        return await run_in_thread(read_all)

    def _parse_answer(self, item: Mapping[str, Any]) -> bytes | ProviderError | None:
        if item.get("error"):
            return self._make_failure(None, {"error": item["error"]})
        return dump_exactly(item["response"]) if item.get("response") else None

    async def list_batches(self, since: float) -> list[ListedBatch]:
        """Return the batches that were made by this project."""
        batches: list[ListedBatch] = []
        for operation in await self._list("/batches?pageSize=100", "operations", follow_token):
            metadata = mapping(operation.get("metadata"))
            created = parse_time(metadata["createTime"])
            if created >= since and metadata.get("displayName") == MARK and not operation.get("error"):
                ids = frozenset(await self.fetch_answers(str(operation["name"]))) if _is_over(operation) else None
                batches.append(ListedBatch(str(operation["name"]), created, ids))
        return batches


def _is_over(operation: Mapping[str, Any]) -> bool:
    state = str(mapping(operation.get("metadata")).get("state"))
    return bool(operation.get("done")) or state.endswith(("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"))
