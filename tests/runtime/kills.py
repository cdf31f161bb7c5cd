"""Kill a process at a write, to test how the next process resumes from the loom.

After the kill the process writes nothing more, as with `kill -9`. The write at which it is killed either does not
happen, or happens and its caller gets no reply.
"""

from collections.abc import Callable
from typing import Any

from cantrip_actors import CantripError, LoomError, Runtime
from cantrip_actors.records.records import IntentGiven

WRITES = ("append", "post", "replace_timer", "release", "release_if_empty", "keep_checkpoint")
"""The methods of a store that a killed process no longer calls."""

COUNTED = ("append", "post", "replace_timer")


class Kill:
    """Kills a runtime at its `at`-th append or post from now on; `durable` says whether that one is still written."""

    def __init__(self, runtime: Runtime, at: int, *, durable: bool) -> None:
        self.is_dead = False
        self._left = at
        self._durable = durable
        store = runtime._tree.store
        for name in WRITES:
            setattr(store, name, self._dying(getattr(store, name), counts=name in COUNTED))

    def _dying(self, write: Callable[..., Any], *, counts: bool) -> Callable[..., Any]:
        def dying(*args: Any, **named: Any) -> Any:
            if self.is_dead:
                raise LoomError("killed")
            if counts:
                self._left -= 1
                if self._left == 0:
                    self.is_dead = True
                    if self._durable:
                        write(*args, **named)
                    raise LoomError("killed")
            return write(*args, **named)

        return dying


async def attempt(work: Any) -> Any:
    """Return what `work` returns, or the error of a process that was killed."""
    try:
        return await work
    except CantripError as error:
        return error


def intents(runtime: Runtime, entity_id: str) -> list[str]:
    """Return the intents that an entity has taken, in order."""
    return [record.intent for record in runtime.loom.records(entity_id) if isinstance(record, IntentGiven)]
