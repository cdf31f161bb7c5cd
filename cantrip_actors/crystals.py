"""Crystals of providers, replayed recordings, and facts about models."""

from cantrip_actors.crystal import Query, ask, resolve, testing
from cantrip_actors.crystal.cache_points import CachePoints
from cantrip_actors.crystal.client import Timeouts
from cantrip_actors.crystal.clouds import azure, bedrock, vertex
from cantrip_actors.crystal.constructors import (
    anthropic,
    cohere,
    google,
    local,
    mistral,
    ollama,
    openai,
    openrouter,
    xai,
)
from cantrip_actors.crystal.families.openai import replayed
from cantrip_actors.crystal.policy.background import Background, background
from cantrip_actors.crystal.policy.batched import Batched, batched
from cantrip_actors.crystal.policy.breaker import Breaker, CircuitOpen
from cantrip_actors.crystal.policy.fallback import Fallback, fallback, worth_another
from cantrip_actors.crystal.policy.limited import Hedge, Limited, limited
from cantrip_actors.crystal.policy.limits import Limits
from cantrip_actors.crystal.policy.traffic import CrystalStatus
from cantrip_actors.crystal.prices import Model, Prices
from cantrip_actors.crystal.provider import ProviderCrystal
from cantrip_actors.crystal.query import Look, PostingCrystal
from cantrip_actors.crystal.replay import Outcome, Recording, faults, recordings, replay

__all__ = [
    "Background",
    "Batched",
    "Breaker",
    "CachePoints",
    "CircuitOpen",
    "CrystalStatus",
    "Fallback",
    "Hedge",
    "Limited",
    "Limits",
    "Look",
    "Model",
    "Outcome",
    "PostingCrystal",
    "Prices",
    "ProviderCrystal",
    "Query",
    "Recording",
    "Timeouts",
    "anthropic",
    "ask",
    "azure",
    "background",
    "batched",
    "bedrock",
    "cohere",
    "fallback",
    "faults",
    "google",
    "limited",
    "local",
    "mistral",
    "ollama",
    "openai",
    "openrouter",
    "recordings",
    "replay",
    "replayed",
    "resolve",
    "testing",
    "vertex",
    "worth_another",
    "xai",
]
