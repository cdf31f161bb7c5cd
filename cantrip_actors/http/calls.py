"""One request to a door: its token, its validated input, and whether the client is still connected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import Response

from cantrip_actors import CantripError, Loom, Runtime, Work
from cantrip_actors.http.prefix import add_prefix
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.sse import until_disconnect
from cantrip_actors.http.token import Token
from cantrip_actors.records.codec import dump_json

if TYPE_CHECKING:
    from cantrip_actors.http.service import Service

BASE: Final = "/api/v1"
"""The path below which the service's own routes are."""

REPLAYED: Final = {"idempotency-replayed": "true"}
"""The header of an answer to a request that repeats an earlier one."""

T = TypeVar("T")


@dataclass(slots=True)
class JsonAnswer:
    """An answer in JSON; a `value` of None has no body."""

    value: Any = None
    status: int = 200
    headers: Mapping[str, str] | None = None

    def response(self) -> Response:
        """Return the answer as a response."""
        if self.value is None:
            return Response(status_code=self.status, headers=self.headers)
        return json_response(self.value, self.status, self.headers)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response. Numbers that orjson cannot write are written by the standard library."""
    return Response(dump_json(value, mark=False), status, headers, media_type="application/json")


@dataclass(slots=True)
class HttpCall:
    """The input of a handler: the runtime as the token's tenant sees it, and the validated request."""

    service: Service
    token: Token
    runtime: Runtime
    request: Request
    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    key: str | None = None
    """The Idempotency-Key."""

    @property
    def loom(self) -> Loom:
        """The loom as this token may see it: without secrets, unless it has the scope for them."""
        return self.runtime.loom if self.token.allows("secrets") else self.runtime.shown_loom

    def redact_for_token(self, value: Any) -> Any:
        """Return a JSON value as this token may see it."""
        return value if self.token.allows("secrets") else self.runtime.redact(value)

    def locate(self, path: str) -> str:
        """Return the path of one of the service's own routes as the client has to send it."""
        return add_prefix(self.request, BASE + path)

    async def read(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which reads all data from the loom that a handler needs.

        It runs in a thread if the loom is on a server. The methods below read, so they are called in `work`.
        """
        return await self.runtime.read(work)

    def sees(self, entity_id: str) -> bool:
        """Return whether the token may use an entity: one of a tree whose cantrip it may use. Reads the loom."""
        if self.token.cantrips is None:
            return True
        loom = self.runtime.loom
        return loom.has(entity_id) and self.token.may_cast(loom.header(loom.ancestry(entity_id)[-1]).cantrip_name or "")

    def check_sees_all(self) -> None:
        """Raise Problem 403 for a token that is limited to some cantrips."""
        if self.token.cantrips is not None:
            detail = "this token is limited to some cantrips, and this request is about all cantrips"
            raise Problem(403, "cantrips", detail)

    async def find_entity_id(self, name: str) -> str:
        """Return the id of the entity with this id or name. Raises Problem 404."""
        return await self.read(lambda: self.entity_id(name))

    def entity_id(self, name: str) -> str:
        """Return the id of the entity with this id or name. Raises Problem 404."""
        loom = self.runtime.loom
        entity_id = name if loom.has(name) else loom.named(name)
        if entity_id is None or not self.sees(entity_id):
            raise Problem(404, "unknown-entity", "no entity has this id or name")
        return entity_id

    def find_receipt(self, entity_id: str, key: str) -> Work | None:
        """Return the intent that was sent to an entity with a key; None if none was. Reads the loom."""
        return self.runtime.work(f"{entity_id}.{key}")

    def turn_id(self, turn_id: str) -> str:
        """Return the id of an existing turn. Raises Problem 404."""
        if turn_id not in self.runtime.loom or not self.sees(self.runtime.loom.owner(turn_id)):
            raise Problem(404, "unknown-turn", "no turn has this id")
        return turn_id

    def whole_turn_id(self) -> str:
        """Return the id of the turn in the path, which has its content. Raises Problem 404, and 409 for a forgotten
        turn.
        """
        loom, turn_id = self.runtime.loom, self.turn_id(self.path["id"])
        if loom.is_forgotten(loom.owner(turn_id)):
            raise Problem(409, "forgotten", "the content of this turn was erased: it takes neither forks nor rewards")
        return turn_id

    async def wait_for(
        self,
        episode: Callable[[], Awaitable[T]],
        cancel: Callable[[], Awaitable[object]],
        seconds: float | None = None,
    ) -> T | None:
        """Return the result of `episode`, typically an episode; None if the timeout passes first.

        If the client hangs up first, `cancel` is called.

        A server does not cancel a handler when the client hangs up, so this listens for it. Raises the error that ended
        the episode; Problem 401 if the token is revoked, and 503 if the service ends, which count as hanging up.
        """
        ended: T | CantripError | None = None
        has_gone = False

        async def watch() -> None:
            nonlocal has_gone
            await until_disconnect(self.request.receive)
            has_gone = True
            tasks.cancel_scope.cancel()

        with self.service.answering(self.token) as valid:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                with anyio.move_on_after(seconds):
                    try:
                        ended = await episode()
                    except CantripError as error:
                        ended = error
                tasks.cancel_scope.cancel()
        if isinstance(ended, CantripError):
            raise ended
        if ended is None and (valid.cancel_called or has_gone):
            with anyio.CancelScope(shield=True):
                await cancel()
            if valid.cancel_called:
                raise self.service.explain_cut()
        return ended
