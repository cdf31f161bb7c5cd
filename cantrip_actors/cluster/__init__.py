"""Where the processes of a cluster come from: engines that start workers, and files to start from.

A worker is a plain process, `cantrip worker`, and the loom holds all that must be right. So an engine only starts
workers, starts them again, and counts them: Kubernetes, systemd or Compose with `manifests`, Ray with `ray`.
"""
