"""Events: what happened to an entity, as observers see it, and the payloads of an answer that they are made from."""
