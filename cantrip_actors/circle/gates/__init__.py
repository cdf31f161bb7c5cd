"""The standard gates: files, `fetch` and `echo`. Importing `cantrip_actors.circle` registers them by name."""
