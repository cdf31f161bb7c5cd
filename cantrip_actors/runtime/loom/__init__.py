"""The loom of a runtime: the shared core, the actor that writes, leases, redaction, and retention."""
