"""Crystals of providers, replayed recordings, and what is known of models."""

from cantrip_actors.crystal import testing
from cantrip_actors.crystal.client import Timeouts
from cantrip_actors.crystal.families import anthropic, google, local, openai, openrouter
from cantrip_actors.crystal.openai import replayed
from cantrip_actors.crystal.prices import Model, Prices
from cantrip_actors.crystal.provider import ProviderCrystal
from cantrip_actors.crystal.replay import Outcome, Recording, faults, recordings, replay

__all__ = [
    "Model",
    "Outcome",
    "Prices",
    "ProviderCrystal",
    "Recording",
    "Timeouts",
    "anthropic",
    "faults",
    "google",
    "local",
    "openai",
    "openrouter",
    "recordings",
    "replay",
    "replayed",
    "testing",
]
