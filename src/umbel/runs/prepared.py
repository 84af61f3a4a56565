"""What a run on a raw table does first: its clients are asked for sums, and scale their rows by what comes back."""

from torch import nn

from umbel.data.clients import Population
from umbel.data.prepare import Preparation, prepared
from umbel.engines.loop import LoopEngine
from umbel.errors import UmbelError
from umbel.federation.ledger import Line
from umbel.federation.preparing import ask
from umbel.nets.wrap import wrap


def prepare(people: Population, scaling: str, given: Preparation | None, seed: int, target: str = "",
            client: str = "") -> tuple[Population, Preparation | None, tuple[Line, ...]]:
    """The clients with inputs instead of raw rows, how that was done, and what it cost. `given` costs nothing."""
    if not people.columns:
        return people, None, ()
    if given is not None:
        names = tuple(column.name for column in given.columns)
        if names != people.columns:
            other = next(iter({*names} ^ {*people.columns}), "another order")
            raise UmbelError(f"The preparation must be of the same columns, in one order. They differ: {other}.")
        return prepared(people, given), given, ()
    columns, outputs = len(people.columns), people.objective.outputs
    net = wrap(lambda: nn.Linear(columns, outputs), (columns,), people.objective)  # nothing is learnt yet
    fed = LoopEngine(net, people, seed, "cpu")
    told = ask(fed, people.columns, people.levels, scaling)
    how = Preparation(told.columns, told.scaling, told.objective, target, client)
    return prepared(people, how), how, tuple(fed.ledger.drain())
