"""The parts of a runtime for observers: events, the instrument of telemetry, and the caller's context variables."""
