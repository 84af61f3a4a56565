"""Where a federation comes from: what a result says of it, and how to build it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from umbel.data.clients import Population
from umbel.data.plans import Plan


@dataclass(frozen=True)
class Provenance:
    """Written once, by whoever builds the federation; algorithms do not read it."""

    setup: Mapping[str, Any] = field(default_factory=dict)  # fields of an Experiment that build it again
    plan: Plan | None = None  # how the clients were drawn, where that is known
    data: str = "own"
    part: str = ""  # which rows of the data set, where it is not the whole
    test_mode: str | None = None
    partition_hash: str | None = None
    truth: tuple[int, ...] | None = None  # the true group of each client, where there are groups
    label_counts: tuple[tuple[int, ...], ...] | None = None  # (n, classes) training rows; only a simulation knows
    scenario: Mapping[str, Any] | None = None  # what the scenario really drew

    @classmethod
    def of(cls, people: Population, **rest: Any) -> "Provenance":
        """What a population tells of itself."""
        return cls(
            test_mode=people.facts.get("test_mode"), partition_hash=people.hash,
            truth=tuple(people.truth.tolist()) if people.facts.get("groups", 1) else None,
            label_counts=tuple(map(tuple, people.label_counts.tolist())) if people.objective.groups else None,
            scenario=dict(people.facts), **rest,
        )
