"""A campaign: clients of small federations send answers that were mutated, in all tasks of all methods.

    python tests/faults/answers.py --count 10000 --seed 0

Each answer of a run is, one time in five, changed in one place: a name, a shape, a type, a number. What no honest
client can send must be refused, with its sender's name; whatever else comes in, the run goes on or ends in a sentence,
its models can be used, and its records can be written. Fails where something else happens.
"""

import argparse
import itertools
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from helpers import ALL, LOCAL, SEED, TRUTH, tiny_model, tiny_population
from trials import Tally

from umbel import tree
from umbel.engines import LoopEngine
from umbel.errors import UmbelError
from umbel.federation.door import Answered, Call, Cohort, NobodyAnswered, Silent
from umbel.runs.kinds import hold
from umbel.runs.run import rounds
from umbel.runs.schema import RECORD
from umbel.tree import Tree

SHARE = 0.2  # of the answers that are mutated
HUGE = (1e30, -1e30, 3e38)
NO_NUMBERS = (np.nan, np.inf, -np.inf)
NO_COUNTS = (-1, -(2**62), 10**9, 2**62)
Mutation = Callable[[dict[str, Any], np.random.Generator], bool | None]  # changes in place; whether it must be refused


def _pick(leaves: dict[str, Any], rng: np.random.Generator, floats: bool | None = None) -> str | None:
    """The path of some leaf, by the kind of its numbers; None where there is none with numbers in it."""
    fit = [path for path, leaf in leaves.items()
           if leaf[0].numel() and (floats is None or leaf.is_floating_point() == floats)]
    return str(rng.choice(fit)) if fit else None


def _put(leaf: torch.Tensor, value: float, rng: np.random.Generator) -> torch.Tensor:
    changed = leaf.clone()
    flat = changed.view(-1)
    flat[int(rng.integers(len(flat)))] = value
    return changed


def _no_number(leaves: dict[str, Any], rng: np.random.Generator) -> bool | None:
    path = _pick(leaves, rng, floats=True)
    if path is None:
        return None
    leaves[path] = _put(leaves[path], float(rng.choice(NO_NUMBERS)), rng)
    return True


def _huge(leaves: dict[str, Any], rng: np.random.Generator) -> bool | None:
    """Of a model it must be refused; a signature is what it is."""
    path = _pick(leaves, rng, floats=True)
    if path is None:
        return None
    leaves[path] = _put(leaves[path], float(rng.choice(HUGE)) if leaves[path].dtype == torch.float32 else 1e200, rng)
    return (leaves[path].dtype == torch.float64 and path == "loss") or path.startswith(("model/", "control/", "basis"))


def _no_count(leaves: dict[str, Any], rng: np.random.Generator) -> bool | None:
    path = _pick(leaves, rng, floats=False)
    if path is None:
        return None
    leaves[path] = _put(leaves[path], int(rng.choice(NO_COUNTS)), rng)
    return True


def _more_hits(leaves: dict[str, Any], rng: np.random.Generator) -> bool | None:
    if "hits" not in leaves:
        return None
    leaves["hits"] = leaves["size"].double() + 1
    return True


def _scaled(leaves: dict[str, Any], rng: np.random.Generator) -> bool | None:
    """The whole model, a thousandfold, the other way."""
    names = [path for path in leaves if path.startswith("model/")]
    for path in names:
        leaves[path] = leaves[path] * -1000.0
    return True if names else None


def _retyped(leaves: dict[str, Any], rng: np.random.Generator) -> bool | None:
    path = str(rng.choice(list(leaves)))
    leaves[path] = leaves[path].half() if leaves[path].is_floating_point() else leaves[path].int()
    return True


def _reshaped(leaves: dict[str, Any], rng: np.random.Generator) -> bool | None:
    path = str(rng.choice(list(leaves)))
    leaves[path] = leaves[path][..., None]
    return True


def _renamed(leaves: dict[str, Any], rng: np.random.Generator) -> bool | None:
    path = str(rng.choice(list(leaves)))
    leaf = leaves.pop(path)
    if rng.random() < 0.5:
        leaves[f"{path}_"] = leaf
    return True


MUTATIONS: tuple[Mutation, ...] = (_no_number, _huge, _no_count, _more_hits, _scaled, _retyped, _reshaped, _renamed)


class Mutants(LoopEngine):
    """An engine that mutates its clients' answers, and notes which of them had to be refused and were not."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(tiny_model(), tiny_population(), SEED)
        self.rng, self.made, self.missed = rng, list[str](), list[str]()
        self.due: dict[str, str] = {}  # of the call that is going on: who must be refused, and for what

    def perform(self, call: Call) -> Iterator[Answered | Silent]:
        """Answers one by one, one of five mutated."""
        for chunk in super().perform(call):
            for p in range(len(chunk.positions) if isinstance(chunk, Answered) else 0):
                position = chunk.positions[p : p + 1]
                send = tree.take(chunk.send, slice(p, p + 1))
                if self.rng.random() < SHARE:
                    send = self.mutated(call, send, self.names[int(call.cohort.ids[position])])
                yield Answered(position, send)
            if isinstance(chunk, Silent):
                yield chunk

    def mutated(self, call: Call, send: Tree, name: str) -> Tree:
        """One answer with one thing changed; as it is where there is no such thing in it."""
        leaves = tree.named(send)
        mutation = MUTATIONS[int(self.rng.integers(len(MUTATIONS)))]
        must = mutation(leaves, self.rng)
        if must is None or not leaves:
            return send
        self.made.append(f"{call.task.name}, {call.cohort.phase}: {mutation.__name__}")
        if must:
            self.due[name] = self.made[-1]
        return tree.nested(leaves)

    def map(self, task: Any, cohort: Cohort, **rest: Any) -> Any:
        """As ever; who had to be refused must be among the lost."""
        self.due.clear()
        lost: Mapping[str, str] = {}
        try:
            heard = super().map(task, cohort, **rest)
            lost = heard.lost
        except NobodyAnswered as error:
            lost = error.lost
            raise
        finally:
            long = [name for name, what in self.due.items() if what.endswith("_scaled")]
            honest = len(cohort.ids) - len(set(lost) | set(long))
            if honest < max(3, len(long) + 1):  # no median can tell who is right
                self.due = {name: what for name, what in self.due.items() if name not in long}
            self.missed += [what for name, what in self.due.items() if name not in lost]
        return heard


def one_run(method: str, seed: int) -> tuple[list[str], str, str]:
    """A run of three rounds: which answers were mutated, how it ended, and what is wrong with it."""
    fed = Mutants(np.random.default_rng((seed, sorted(ALL).index(method))))
    verdict, said = "to its end", ""
    try:
        for done in rounds(ALL[method].make(LOCAL, TRUTH), fed, rounds=3, fraction=0.8):
            hold(json.loads(json.dumps(done.record)), RECORD, "a record")
            if not all(bool(leaf.isfinite().all()) for leaf in done.state.models.values()):
                verdict, said = "SPOILT", f"round {done.index}"
            if done.score is not None and not 0 <= done.score <= 1:
                verdict, said = "ABSURD", f"accuracy {done.score}"
    except UmbelError as error:
        expected = "lost" in str(error) or "cannot begin" in str(error)
        verdict, said = ("a sentence" if expected else "OTHER SENTENCE"), str(error)
    except Exception:
        verdict, said = "CRASHED", traceback.format_exc()
    if fed.missed:
        verdict, said = "ACCEPTED", "; ".join(sorted(set(fed.missed)))
    return fed.made, verdict, said


def campaign(count: int, seed: int) -> tuple[int, Tally]:
    """Runs of all methods in turn, until so many answers were mutated."""
    tally, made = Tally(), 0
    for turn in itertools.count(seed * 10**6):
        for method in sorted(ALL):
            more, verdict, said = one_run(method, turn)
            made += len(more)
            tally.add(f"{method}, seed {turn}", verdict, said)
            if made >= count:
                return made, tally
    raise AssertionError


def main() -> int:
    """Count, and tell of what is wrong."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--count", type=int, default=10_000)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    torch.set_num_threads(1)
    made, tally = campaign(given.count, given.seed)
    print(f"{made} answers mutated; of the runs, {tally.told()}")
    return bool(tally.wrong)


if __name__ == "__main__":
    sys.exit(main())
