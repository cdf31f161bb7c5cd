"""Numbers about one entity's records. A `Tally` is a sum, and tallies add up.

Durations are counted in buckets, each a fifth wider than the last, so percentiles are off by a tenth at most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cantrip_actors.machine.project.entity import find_status
from cantrip_actors.machine.project.record import get_committed_turn, sum_usage
from cantrip_actors.machine.project.turns import collect_rewards
from cantrip_actors.records.records import Committed, Folded, GateFinished, Header, Record, Utterance
from cantrip_actors.terms.messages import NO_USAGE, Usage

_STEP = 1.2


@dataclass(slots=True)
class Durations:
    """Durations in milliseconds: count, total, maximum and percentiles."""

    count: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0
    steps: Counter[int] = field(default_factory=Counter)

    def take(self, duration_ms: float) -> None:
        """Add one duration."""
        self.count += 1
        self.total_ms += duration_ms
        self.max_ms = max(self.max_ms, duration_ms)
        self.steps[math.ceil(math.log(max(duration_ms, 1e-3), _STEP)) if duration_ms < math.inf else 2000] += 1

    def add(self, other: Durations) -> None:
        """Add all of `other`."""
        self.count += other.count
        self.total_ms += other.total_ms
        self.max_ms = max(self.max_ms, other.max_ms)
        self.steps.update(other.steps)

    @property
    def mean_ms(self) -> float:
        """The mean duration; 0 without durations."""
        return self.total_ms / self.count if self.count else 0.0

    def compute_percentile(self, share: float) -> float:
        """Return the milliseconds below which this share (0 to 1) of the durations lies; 0 without durations."""
        left = share * self.count
        for step in sorted(self.steps):
            left -= self.steps[step]
            if left <= 1e-9:
                return min(math.pow(_STEP, step - 0.5), self.max_ms)
        return self.max_ms

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as JSON data."""
        return {
            "count": self.count,
            "total_ms": self.total_ms,
            "mean_ms": self.mean_ms,
            "p50_ms": self.compute_percentile(0.5),
            "p95_ms": self.compute_percentile(0.95),
            "max_ms": self.max_ms,
        }


@dataclass(slots=True)
class GateTally:
    """The calls of one gate: errors and durations."""

    errors: int = 0
    durations: Durations = field(default_factory=Durations)

    @property
    def calls(self) -> int:
        """How often the gate was called and answered."""
        return self.durations.count

    @property
    def error_rate(self) -> float:
        """The share of calls that were errors; 0 without calls."""
        return self.errors / self.calls if self.calls else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as JSON data."""
        return {
            "calls": self.calls,
            "errors": self.errors,
            "error_rate": self.error_rate,
            "durations": self.durations.as_json(),
        }


@dataclass(slots=True)
class Tally:
    """Sums over some entities. `utterances` are the paid queries; a turn that continues an utterance costs nothing.

    `states` counts the states and ends of entities; `rewards` holds the latest reward of each rewarded turn.
    """

    entities: int = 0
    turns: int = 0
    utterances: int = 0
    usage: Usage = NO_USAGE
    folds: int = 0
    turn_durations: Durations = field(default_factory=Durations)
    crystal_durations: Durations = field(default_factory=Durations)
    gates: dict[str, GateTally] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    rewarded: int = 0
    reward_total: float = 0.0

    def add(self, other: Tally) -> None:
        """Add all of `other`."""
        self.entities += other.entities
        self.turns += other.turns
        self.utterances += other.utterances
        self.usage = self.usage + other.usage
        self.folds += other.folds
        self.turn_durations.add(other.turn_durations)
        self.crystal_durations.add(other.crystal_durations)
        for name, gate in other.gates.items():
            mine = self.gates.setdefault(name, GateTally())
            mine.errors += gate.errors
            mine.durations.add(gate.durations)
        self.states.update(other.states)
        self.rewarded += other.rewarded
        self.reward_total += other.reward_total

    @property
    def gate_calls(self) -> int:
        """Calls of all gates."""
        return sum(gate.calls for gate in self.gates.values())

    @property
    def errors(self) -> int:
        """Error observations of all gates."""
        return sum(gate.errors for gate in self.gates.values())

    @property
    def mean_reward(self) -> float | None:
        """The mean of the latest rewards; None if no turn has a reward."""
        return self.reward_total / self.rewarded if self.rewarded else None

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as JSON data."""
        usage = self.usage
        return {
            "entities": self.entities,
            "turns": self.turns,
            "utterances": self.utterances,
            "tokens_prompt": usage.prompt_tokens,
            "tokens_completion": usage.completion_tokens,
            "tokens_cached": usage.cached_tokens,
            "cost": usage.cost,
            "folds": self.folds,
            "turn_durations": self.turn_durations.as_json(),
            "crystal_durations": self.crystal_durations.as_json(),
            "gate_calls": self.gate_calls,
            "errors": self.errors,
            "gates": {name: self.gates[name].as_json() for name in sorted(self.gates)},
            "states": dict(sorted(self.states.items())),
            "rewarded": self.rewarded,
            "mean_reward": self.mean_reward,
        }


def tally(records: Sequence[Record]) -> Tally:
    """Return the sums of one entity, from its whole log (PROD-3, LOOM-9)."""
    status = find_status(records)
    sums = Tally(usage=sum_usage(records))
    if status == "forgotten":  # neither gates nor durations are known
        turns = sum(get_committed_turn(record) is not None for record in records)
        return Tally(entities=1, turns=turns, usage=sums.usage, states=Counter([status]))
    for record in records:
        match record:
            case Header():
                sums.entities += 1
            case Utterance():
                sums.utterances += 1
                sums.crystal_durations.take(record.duration_ms)
            case GateFinished():
                gate = sums.gates.setdefault(record.gate, GateTally())
                gate.errors += record.is_error
                gate.durations.take(record.duration_ms)
            case Committed():
                sums.turns += 1
                sums.turn_durations.take(record.duration_ms)
            case Folded():
                sums.folds += 1
            case _:
                pass
    sums.states[status] += 1
    rewards = [rewards_of_turn[-1].reward for rewards_of_turn in collect_rewards(records).values()]
    sums.rewarded, sums.reward_total = len(rewards), math.fsum(rewards)
    return sums
