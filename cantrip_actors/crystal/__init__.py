"""Crystals: the contract, retries, and the scripted crystal."""

from cantrip_actors.crystal.families.openai import normalise_chat, replayed
from cantrip_actors.crystal.query import Query, ask, attempt_now
from cantrip_actors.crystal.resolve import FAMILIES, resolve
from cantrip_actors.crystal.scripted import Policy, Scripted, scripted

__all__ = [
    "FAMILIES",
    "Policy",
    "Query",
    "Scripted",
    "ask",
    "attempt_now",
    "normalise_chat",
    "replayed",
    "resolve",
    "scripted",
]
