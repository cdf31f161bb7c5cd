"""Starts the processes of a cluster: engines that start workers, and templates for other engines.

A worker is a plain process, `cantrip worker`, and the loom holds all that must be right. So an engine only starts
workers, starts them again, and counts them: Kubernetes, systemd or Compose with `manifests`, Ray with `ray`.
"""
