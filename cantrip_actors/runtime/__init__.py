"""The actors of a runtime and their supervision tree. They carry out what `machine/` decides.

`tree.py` draws the supervision tree. Each room holds one concept:

    face      what users call: Runtime, Entity, Episode, Work
    entity    one entity while it is loaded: its driver, its children, its beginning and its removal
    mail      inboxes, and the actor that loads the entities for which mail waits
    time      schedules, timers, queues
    people    requests that wait for people
    crystals  an actor for each crystal, and queries
    circles   the actors of gates and programs, snapshots, servers of tools
    nodes     membership in a cluster
    loom      the loom's writer, leases, redaction, retention
    events    events for subscribers, and the instrument of telemetry
"""
