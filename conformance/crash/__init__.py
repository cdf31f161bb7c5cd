"""The torture bench: kill processes at every border and at any moment, and compare the loom with the recorded effects.

    python -m conformance crash [--kills N] [--store jsonl|sqlite|postgres|all] [--durability …] [--seed …] [--json]

A *life* is one process of the workload (`workload`; `life` runs it). It keeps a ledger of its own next to the loom
(`ledger`): each payment of a crystal, each effect of a gate, each record that the loom acknowledged. A *history* is a
loom's lives, all but the last of them killed (`history`), at a point that the process itself counts to (`fate`,
`borders`) or from outside at any moment. When all entities have ended, the ledger and the loom are compared (`compare`)
with each other and with an undisturbed run. `places` has the locations of looms, `campaign` the histories to run.

Besides the kills it tests failures that a process survives (`faults`: a full disk, a bad one, a lost connection) and
two processes that want the same entities (`rivals`).
"""
