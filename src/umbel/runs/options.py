"""How long a run is, whom it asks, and how it is tested."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from umbel.algorithms.base import Algorithm
from umbel.data.clients import EPOCHS
from umbel.errors import UmbelError
from umbel.federation.lengths import BOUND
from umbel.federation.uplink import parse, written
from umbel.fields import check, choice, number, refuse_unknown

LEAST_BOUND = 2.0


@dataclass(frozen=True)
class RunOptions:
    """The choices of a run that are neither the federation's nor the method's."""

    rounds: int = number(20, ge=1)  # after a method's own pre-training rounds
    fraction: float = number(1.0, gt=0, le=1)  # of the placed clients, asked in a round
    eval_every: int = number(1, ge=1)
    average_last: int = number(1, ge=1)  # rounds over which the cluster model's score is averaged
    fine_tune: int | None = number(None, ge=0, le=EPOCHS)  # epochs; as many as a round's unless given; 0 = leave it out
    keep: str = choice("last", "last", "best")  # which round's models are the result's; best = by validation rows
    uplink: str = ""  # what answers pass on their way out, as in "topk:0.1+quantise:8"; uplinks themselves will do, too
    bound: float = number(BOUND, ge=0)  # how many times as long as usual an update may be and count; 0 = any length

    def __new__(cls, *given: Any, **named: Any) -> Self:
        """A misspelt option is refused with the near spelling."""
        refuse_unknown(cls, named, "the run")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if isinstance(self.uplink, list | tuple):
            object.__setattr__(self, "uplink", written(self.uplink))
        check(self, "the run")
        if 0 < self.bound < LEAST_BOUND:
            raise UmbelError(f"The 'bound' of the run is at least {LEAST_BOUND:g} times the usual length, below which"
                             f" honest updates are left out, or 0 for none. Got {self.bound:g} instead.")
        object.__setattr__(self, "uplink", written(parse(self.uplink)))  # one chain is always written alike

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> Self:
        """What a recipe says of them; the rest of it is the federation's and the method's."""
        return cls(**{each.name: recipe[each.name] for each in fields(cls) if each.name in recipe})

    def check_for(self, algorithm: Algorithm) -> None:
        """Refuse what does not go with a method."""
        name = algorithm.name
        algorithm.for_run(algorithm.pretrain + self.rounds)  # refuses a schedule that ends before the run
        if self.fine_tune == 0 and algorithm.headline == "fine_tuned":
            raise UmbelError(f"The 'fine_tune' of {name}, judged by it, must be at least 1. Got 0 instead.")
        if self.keep == "best" and (algorithm.own or algorithm.local.norms == "private"):
            raise UmbelError(f"The 'keep' of {name}, whose clients keep models of their own, must be 'last'."
                             " Got 'best' instead.")
        if self.keep == "best" and algorithm.local.rows != "fit":
            raise UmbelError("The best round is chosen by validation rows, which training must leave out: set"
                             " rows=fit (--set rows=fit, Local(rows=\"fit\")). Got rows=train instead.")
