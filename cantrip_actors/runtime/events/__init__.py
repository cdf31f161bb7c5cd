"""What others see of a runtime: events, the instrument of telemetry, and the caller's context variables."""
