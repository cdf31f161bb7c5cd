"""The standard gates: files, skills, `fetch` and `echo`. Importing `cantrip_actors.circle` registers them by name."""
