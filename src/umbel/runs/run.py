"""The round loop, a generator: progress bars, checkpoints and early stopping are ordinary `for` bodies."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from umbel.federation import ledger
from umbel.runs import evaluate
from umbel.algorithms.base import Algorithm, State
from umbel.runs.checkpoint import RunFolder, Saved, write_json
from umbel.data.plans import Plan, save_plan
from umbel.errors import UmbelError
from umbel.runs.experiment import Experiment
from umbel.federation.door import Cohort, Federation, NobodyAnswered
from umbel.runs.result import Result, environment
from umbel.seeds import key

LOST_IN_A_ROW = 3  # rounds without one usable answer, after which a run ends


@dataclass(frozen=True)
class Round:
    """One round, done. `index` -1 is what happens before the first: a method's `init`."""

    index: int
    state: State
    record: dict[str, Any]  # its line in rounds.jsonl


def rounds(
    algorithm: Algorithm,
    fed: Federation,
    *,
    rounds: int,
    fraction: float = 1.0,
    eval_every: int = 1,
    average_last: int = 1,
    fine_tune: int | None = None,
    saved: Saved | None = None,
) -> Iterator[Round]:
    """Run a method, round by round; `saved` goes on where a run folder stopped, to the same end."""
    total = algorithm.pretrain + rounds
    waiting: dict[str, list[int]] = {}  # newcomers that could not be placed: name -> failures, round of the next try
    lost_in_a_row = 0
    if saved is None:
        with _Stopwatch(fed) as watch:
            fed.arrive(0)
            try:
                state = algorithm.init(fed, fed.seed)
            except NobodyAnswered as error:
                raise UmbelError(f"The run cannot begin: {error}. {_usual(algorithm)}") from error
        yield Round(-1, state, _record(-1, fed, state, watch))
    else:
        fed.remember(saved.memory, saved.memory_rounds)
        state, waiting = saved.on(fed.device), dict(saved.records[-1].get("waiting", {}))
        lost_in_a_row = saved.records[-1].get("lost_in_a_row", 0)
    for index in range(0 if saved is None else saved.round + 1, total):
        with _Stopwatch(fed) as watch:
            fed.arrive(index)
            before = state.labels
            state = _admit(algorithm, fed, _grown(state, fed), index, waiting)
            cohort = sample(fed, state, index, fraction)
            try:
                state = algorithm.round(fed, state, cohort)
                lost_in_a_row = 0
            except NobodyAnswered as error:
                lost_in_a_row += 1
                if lost_in_a_row == LOST_IN_A_ROW:
                    raise UmbelError(
                        f"{LOST_IN_A_ROW} rounds in a row were lost, the last because {error}."
                        f" {_usual(algorithm)}"
                    ) from error
            scores: dict[str, Any] = {}
            if (index + 1) % eval_every == 0 or index >= total - average_last:
                clients = evaluate.current(fed, algorithm, state, index + 1)
                scores["accuracy"] = evaluate.summary(clients)
            if index == total - 1:
                epochs = algorithm.local.epochs if fine_tune is None else fine_tune
                scores["final"] = evaluate.final(fed, algorithm, state, index + 1, epochs)
        record = _record(index, fed, state, watch) | scores | {
            "asked": len(cohort.ids), "moved": _moved(before, state.labels), "waiting": dict(waiting),
            "lost_in_a_row": lost_in_a_row,
        }
        yield Round(index, state, record)


def _usual(algorithm: Algorithm) -> str:
    return f"The usual cause is a learning rate that is too large (lr {algorithm.local.lr:g})."


def sample(fed: Federation, state: State, round: int, fraction: float) -> Cohort:
    """The share of placed, present clients whose keys come first: a draw without an order to depend on."""
    placed = (fed.online & (state.labels >= 0)).nonzero().flatten().tolist()
    count = max(1, int(fraction * len(placed) + 0.5))
    first = sorted(placed, key=lambda i: key(fed.seed, "cohort", round, fed.names[i]))[:count]
    return Cohort(torch.tensor(sorted(first), dtype=torch.long), round)


def _grown(state: State, fed: Federation) -> State:
    """Room for clients that a real federation had not met before."""
    extra = len(fed.names) - len(state.labels)
    return replace(state, labels=torch.cat([state.labels, torch.full((extra,), -1)])) if extra else state


def _admit(algorithm: Algorithm, fed: Federation, state: State, index: int, waiting: dict[str, list[int]]) -> State:
    """Place who is here without a cluster; who cannot be placed is asked again 1, 2, 4, 8 ... rounds later."""
    homeless = (fed.online & (state.labels < 0)).nonzero().flatten().tolist()
    due = [i for i in homeless if waiting.get(fed.names[i], [0, index])[1] <= index]
    if not due:
        return state
    with suppress(NobodyAnswered):  # then they stay -1 and are asked again
        state = algorithm.admit(fed, state, Cohort(torch.tensor(due), index, "admit"))
    for i in due:
        if state.labels[i] >= 0:
            waiting.pop(fed.names[i], None)
        else:
            failures = waiting.get(fed.names[i], [0, 0])[0]
            waiting[fed.names[i]] = [failures + 1, index + 2**failures]
    return state


def _moved(before: torch.Tensor, after: torch.Tensor) -> int:
    """How many clients changed from one cluster to another."""
    old = torch.cat([before, torch.full((len(after) - len(before),), -1)])
    return int(((old >= 0) & (old != after)).sum())


class _Stopwatch:
    """The cost of one round: wall time, time in `map` by phase, and the ledger's page."""

    def __init__(self, fed: Federation) -> None:
        self.fed = fed

    def __enter__(self) -> "_Stopwatch":
        self.fed.seconds.clear()
        self.fed.lost.clear()
        self.fed.ledger.drain()
        self.started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self.started


def _record(index: int, fed: Federation, state: State, watch: _Stopwatch) -> dict[str, Any]:
    lines = fed.ledger.drain()
    trained = {name for line in lines if line.phase == "train" and line.direction == "up" for name in line.clients}
    placed = state.labels[state.labels >= 0]
    return {
        "round": index,
        "clusters": len(set(placed.tolist())),
        "unplaced": len(state.labels) - len(placed),
        "trained": [i for i, name in enumerate(fed.names) if name in trained],
        "bytes": ledger.totals(lines),
        "seconds": {"wall": watch.wall, **fed.seconds},
        "lost": dict(fed.lost),
    }


_rounds = rounds  # the generator, where an argument has its name


def run(algorithm: Algorithm, fed: Federation, *, rounds: int, fraction: float = 1.0, eval_every: int = 1,
        average_last: int = 1, fine_tune: int | None = None) -> Result:
    """Run a method to its end and return what came of it; `result.save(folder)` keeps it."""
    choices = {"rounds": rounds, "fraction": fraction, "eval_every": eval_every, "average_last": average_last,
               "fine_tune": fine_tune}
    done = list(_rounds(algorithm, fed, **choices))  # type: ignore[arg-type]
    return Result.of(algorithm, fed, done[-1].state, [each.record for each in done], choices)


@dataclass
class Session:
    """A run in a folder: every round is durable when it is yielded."""

    experiment: Experiment  # resolved
    fed: Federation
    algorithm: Algorithm
    folder: RunFolder
    saved: Saved | None

    @classmethod
    def start(cls, experiment: Experiment, out: Path, data_dir: Path | None = None) -> "Session":
        """Begin in a new folder. Nothing is written before data, partition and model are known to be good."""
        experiment = experiment.resolved()
        plan, dataset = experiment.draw(data_dir)
        fed, algorithm = experiment.build(plan, dataset)
        folder = RunFolder.create(out, experiment.to_toml())
        _write_once(out, plan, fed)
        return cls(experiment, fed, algorithm, folder, None)

    @classmethod
    def resume(cls, out: Path, experiment: Experiment | None = None, data_dir: Path | None = None,
               rounds: int | None = None) -> "Session":
        """Go on in a folder; an experiment, when given, must be the one that the folder holds.

        `rounds` is another number of them than the recipe's, even of a finished run; the result is then made anew.
        """
        folder = RunFolder.open(out)
        try:
            held = same_recipe(out, experiment)
            recipe = held if rounds is None else replace(held, rounds=rounds)
            stored = out / "partition.npz"
            plan, dataset = replace(recipe, partition=str(stored) if stored.exists() else None).draw(data_dir)
            fed, algorithm = recipe.build(plan, dataset)
            saved = folder.load(algorithm.state)
            if recipe != held:
                done = saved.round + 1 - algorithm.pretrain if saved else 0
                if recipe.rounds <= done:
                    raise UmbelError(f"The run in {out} has done {done} rounds already: it can go on to more of them."
                                     f" Got {rounds} instead.")
                folder.change(recipe.to_toml())
        except BaseException:
            folder.close()
            raise
        _write_once(out, plan, fed)
        return cls(recipe, fed, algorithm, folder, saved)

    @property
    def total(self) -> int:
        """Rounds in all, pre-training included."""
        return self.algorithm.pretrain + self.experiment.rounds

    @property
    def _choices(self) -> dict[str, Any]:
        names = ("rounds", "fraction", "eval_every", "average_last", "fine_tune")
        return {name: getattr(self.experiment, name) for name in names}

    def rounds(self) -> Iterator[Round]:
        """The rounds still to do, each committed before it is handed out."""
        records = list(self.saved.records) if self.saved else []
        for done in rounds(self.algorithm, self.fed, saved=self.saved, **self._choices):
            self.folder.commit(done.index, done.state, *self.fed.memory(), done.record)
            records.append(done.record)
            self.saved = Saved(done.index, done.state, {}, {}, records)
            yield done

    def finish(self) -> Result:
        """Write the result from what the folder holds, and let go of it."""
        assert self.saved is not None
        result = Result.of(self.algorithm, self.fed, self.saved.state, self.saved.records, self._choices)
        self.folder.finish(result.info, result.clusters_table())
        self.folder.close()
        self.fed.close()
        return result


def _write_once(out: Path, plan: Plan, fed: Federation) -> None:
    if not (out / "partition.npz").exists():
        save_plan(out / "partition.npz", plan)
    if not (out / "env.json").exists():
        write_json(out / "env.json", environment(fed))


def same_recipe(out: Path, asked: Experiment | None, but: str = "") -> Experiment:
    """The experiment that a run folder holds, which must be the one asked for, if any is; one name may differ."""
    held = Experiment.from_toml(out / "recipe.toml")
    mine, theirs = _flat(held), _flat(asked.resolved() if asked else held)
    for name in [*mine, *theirs]:
        if name != but and mine.get(name) != theirs.get(name):
            raise UmbelError(
                f"The run folder {out} is from another recipe: its '{name}' is {mine.get(name)!r},"
                f" asked for is {theirs.get(name)!r}."
                " Leave the options out to go on with it, or choose another --out."
            )
    return held


def _flat(experiment: Experiment) -> dict[str, Any]:
    """All choices of an experiment by name, those of the method among them."""
    values = asdict(experiment)
    settings: dict[str, Any] = values.pop("settings")
    return values | settings
