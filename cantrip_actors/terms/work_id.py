"""The id by which the work of an intent is found."""


def make_work_id(entity_id: str, key: str | None) -> str:
    """Return the id of the work of an intent; `key` is that of its mail, None if it began the entity."""
    return f"{entity_id}.{key}" if key else entity_id
