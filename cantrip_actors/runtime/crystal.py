"""The crystal actor: everything that goes to one crystal goes through here.

Retries stay inside (D-006): whoever asks gets one answer, a Response or the CrystalError that the attempts came to,
as a value. A crystal that answers at once is answered at once; for one that waits, each query is a task of this
actor, and ends with it. A caller that is gone (cancelled, past its deadline) takes its query along: the connection
closes at once.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import anyio

from cantrip_actors.crystal.contract import Query, ask, attempt_now
from cantrip_actors.model.cantrip import Crystal, Retry
from cantrip_actors.model.errors import CrystalError, ProviderError
from cantrip_actors.model.messages import Response
from supervisors import NO_REPLY, Actor, Caller

__all__ = ["Asked", "CrystalActor"]


class Asked(NamedTuple):
    """A query for the crystal that this actor stands for. `crystal` is that one, as bound for the asking entity."""

    crystal: Crystal
    query: Query
    retry: Retry


class CrystalActor(Actor):
    """One for each crystal that is in use, shared by all its entities."""

    has_tasks: ClassVar[bool] = True

    async def handle_call(self, message: Asked, caller: Caller) -> Any:
        """A Response or a CrystalError for an `Asked`."""
        failed: ProviderError | None = None
        try:
            response = attempt_now(message.crystal, message.query)
        except ProviderError as error:
            failed = error
        except CrystalError as error:
            return error
        else:
            if response is not None:
                return response
        self.tasks.start_soon(self._wait_for, message, failed, caller)
        return NO_REPLY

    async def _wait_for(self, message: Asked, failed: ProviderError | None, caller: Caller) -> None:
        with anyio.CancelScope() as scope:
            caller.on_abandoned(scope.cancel)
            caller.reply(await _answer(message, failed))


async def _answer(message: Asked, failed: ProviderError | None) -> Response | CrystalError:
    try:
        return await ask(message.crystal, message.query, retry=message.retry, failed=failed)
    except CrystalError as error:
        return error
