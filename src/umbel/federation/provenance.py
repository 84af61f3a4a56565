"""Where a federation comes from: what a result says of it, and how to build it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from umbel.data.clients import Population, truth_at
from umbel.data.plans import Plan
from umbel.data.prepare import Preparation
from umbel.federation.ledger import Line


class Changed(NamedTuple):
    """What is known of a client from a round on."""

    round: int
    client: int
    group: int
    label_counts: tuple[int, ...]  # (classes,)


@dataclass(frozen=True)
class Provenance:
    """Written once, by whoever builds the federation; algorithms do not read it."""

    setup: Mapping[str, Any] = field(default_factory=dict)  # fields of an Experiment that build it again
    plan: Plan | None = None  # how the clients were drawn, where that is known
    data: str = "own"
    part: str = ""  # which rows of the data set, where it is not the whole
    test_mode: str | None = None
    partition_hash: str | None = None
    truth: tuple[int, ...] | None = None  # the true group of each client at the start, where there are groups
    label_counts: tuple[tuple[int, ...], ...] | None = None  # (n, classes) training rows at the start, in a simulation
    scenario: Mapping[str, Any] | None = None  # what the scenario really drew
    changes: tuple[Changed, ...] = ()  # by round
    preparation: Preparation | None = None  # how raw rows of a table became inputs
    prepared: tuple[Line, ...] = ()  # what was sent for that

    @classmethod
    def of(cls, people: Population, **rest: Any) -> "Provenance":
        """What a population tells of itself."""
        return cls(
            test_mode=people.facts.get("test_mode"), partition_hash=people.hash,
            truth=tuple(people.truth.tolist()) if people.facts.get("groups", 1) else None,
            label_counts=tuple(map(tuple, people.label_counts.tolist())) if people.objective.groups else None,
            scenario=dict(people.facts), **rest,
            changes=tuple(Changed(*change[:2], change.group, tuple(people.counted(change.train).tolist()))
                          for change in people.changes),
        )

    @property
    def truth_changes(self) -> tuple[tuple[int, int, int], ...]:
        """(round, client, group) by round: where clients truly belong from a round on, where that is known."""
        return tuple(change[:3] for change in self.changes) if self.truth else ()

    def truth_at(self, round: int) -> tuple[int, ...] | None:
        """The true group of each client in a round."""
        return truth_at(self.truth, self.truth_changes, round) if self.truth else None

    def label_counts_at(self, round: int) -> tuple[tuple[int, ...], ...] | None:
        """(n, classes) training rows of each client by label, in a round."""
        if self.label_counts is None:
            return None
        counts = list(self.label_counts)
        for change in self.changes:
            if change.round <= round:
                counts[change.client] = change.label_counts
        return tuple(counts)
