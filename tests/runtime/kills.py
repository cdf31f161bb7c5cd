"""What tests with crashed processes share."""

from typing import Any

from cantrip_actors import CantripError, Runtime
from cantrip_actors.records.records import IntentGiven


async def attempt(work: Any) -> Any:
    """Return what `work` returns, or the error of a process that was killed."""
    try:
        return await work
    except CantripError as error:
        return error


def intents(runtime: Runtime, entity_id: str) -> list[str]:
    """Return the intents that an entity has taken, in order."""
    return [record.intent for record in runtime.loom.records(entity_id) if isinstance(record, IntentGiven)]
