"""Mail between entities, callers and processes: inboxes, the actor that loads entities for mail, and questions."""
