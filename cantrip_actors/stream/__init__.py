"""The canonical stream: what observers of an entity receive while it runs, as values and as JSON."""
