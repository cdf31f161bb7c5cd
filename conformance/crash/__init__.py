"""The torture bench: kill processes at every border and at any moment, and compare the loom with the recorded effects.

    python -m conformance crash [--kills N] [--store jsonl|sqlite|postgres|all] [--durability …] [--seed …] [--json]

A *life* is one process of the workload (`workload`, and how it runs: `life`). It keeps a ledger of its own beside the
loom (`ledger`): each payment of a crystal, each effect of a gate, each record that the loom acknowledged. A *history*
is a loom's lives, all but the last of them killed (`history`), at a point that the process itself counts to (`fate`,
`borders`) or from outside at any moment. When everything has ended the ledger and the loom are compared (`compare`)
with each other and with an undisturbed run. `places` has the locations of looms, `campaign` the histories to run.

Beside the kills stand the failures that a process survives (`faults`: a full disk, a bad one, a lost connection) and
two processes that want the same entities (`rivals`).
"""
