"""The round loop, a generator: progress bars, checkpoints and early stopping are ordinary `for` bodies."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from umbel import tree
from umbel.algorithms.base import Algorithm, State
from umbel.errors import UmbelError
from umbel.federation import ledger
from umbel.federation.belief import all_true
from umbel.federation.door import Cohort, Federation, NobodyAnswered
from umbel.federation.phases import ADMIT, TRAIN
from umbel.federation.uplink import parse
from umbel.nets.objective import Metric
from umbel.runs import evaluate
from umbel.runs.checkpoint import Saved, state_tree
from umbel.runs.options import RunOptions
from umbel.seeds import key

BY_CLUSTER = ("models", "slots")  # of a state: rows are of one cluster alone
LOST_IN_A_ROW = 3  # rounds that came to nothing, after which a run ends; a shorter run ends when all of its have


@dataclass(frozen=True)
class Round:
    """One round, done. `index` -1 is what happens before the first: a method's `init`."""

    index: int
    state: State
    record: dict[str, Any]  # its line in rounds.jsonl

    @property
    def metric(self) -> Metric:
        """What the run is judged by."""
        return Metric.of(self.record["metric"])

    @property
    def score(self) -> float | None:
        """By the metric, on clients' test rows, where this round was tested: their mean, or over all rows together."""
        return self.record["score"]["value"] if self.record.get("score") else None

    @property
    def accuracy(self) -> float | None:
        """The score of a run that is judged by accuracy."""
        self.metric.must_be_accuracy()
        return self.score

    def __repr__(self) -> str:
        score = "" if self.score is None else f", {self.metric.name} {self.metric.said(self.score)}"
        return f"<round {self.index}: {self.record['clusters']} clusters{score}>"


def rounds(algorithm: Algorithm, fed: Federation, *, saved: Saved | None = None, **options: Any) -> Iterator[Round]:
    """Run a method, round by round. `options` are those of RunOptions (rounds=20, fraction=1.0, eval_every=1 ...).

    `saved` goes on where a run folder stopped, to the same end. `umbel.finish` makes a result of what was yielded.
    """
    chosen = RunOptions(**options)
    chosen.check_for(algorithm)
    truth = getattr(algorithm, "truth", ())
    if algorithm.needs_truth and len(truth) != len(fed.names):
        raise UmbelError(f"The method '{algorithm.name}', as it is set, must be told the true group of each of the"
                         f" {len(fed.names)} clients, as in truth=(0, 0, 1, 1). Got {len(truth)} of them.")
    algorithm = algorithm.for_run(algorithm.pretrain + chosen.rounds)
    return _rounds(algorithm, fed, chosen, saved)  # a wrong option is refused here, not when the first round is asked


def _rounds(algorithm: Algorithm, fed: Federation, options: RunOptions, saved: Saved | None) -> Iterator[Round]:
    total = algorithm.pretrain + options.rounds
    fed.uplinks, fed.bound = parse(options.uplink), options.bound
    if fed.attackers and (hides := [uplink.name for uplink in fed.uplinks if uplink.hides_model]):
        raise UmbelError("Simulated attackers alter models as tasks send them, and behind the uplink"
                         f" '{hides[0]}' there are none: leave out one of the two.")
    waiting: dict[str, list[int]] = {}  # newcomers that could not be placed: name -> failures, round of the next try
    lost_in_a_row = 0
    if saved is None:
        fed.remember({}, {})  # what an earlier run of this federation left at the clients is not this run's
        with Stopwatch(fed) as watch:
            for line in fed.provenance.prepared:  # sent before there was a run; this is its first page
                fed.ledger.bill(line)
            fed.arrive(0)
            try:
                state = _sound(algorithm.init(fed, fed.seed), fed)
            except NobodyAnswered as error:
                raise UmbelError(f"The run cannot begin: {error}.{_usual(algorithm, error)}") from error
        yield Round(-1, state, _record(-1, fed, state, watch) | {"options": asdict(options)})
    else:
        fed.remember(saved.memory, saved.memory_rounds)
        state, waiting = saved.on(fed.device), dict(saved.records[-1].get("waiting", {}))
        lost_in_a_row = saved.records[-1].get("lost_in_a_row", 0)
    for index in range(0 if saved is None else saved.round + 1, total):
        with Stopwatch(fed) as watch:
            fed.arrive(index)
            before = state.labels
            state = _admit(algorithm, fed, _grown(state, fed), index, waiting)
            cohort = sample(fed, state, index, options.fraction)
            try:
                state = _sound(algorithm.round(fed, state, cohort), fed, cohort, state)
                lost_in_a_row = 0
            except NobodyAnswered as error:
                lost_in_a_row += 1
                if lost_in_a_row == min(LOST_IN_A_ROW, total):
                    many = f"{lost_in_a_row} rounds in a row were lost, the last because"
                    raise UmbelError(f"{many if total > 1 else 'The only round was lost, because'} {error}."
                                     f"{_usual(algorithm, error)}") from error
            scores = _scores(algorithm, fed, state, index, options, last=index == total - 1)
        record = _record(index, fed, state, watch) | scores | {
            "asked": len(cohort.ids), "moved": _moved(before, state.labels), "waiting": dict(waiting),
            "lost_in_a_row": lost_in_a_row,
        }
        yield Round(index, state, record)


def _scores(algorithm: Algorithm, fed: Federation, state: State, index: int, options: RunOptions,
            last: bool) -> dict[str, Any]:
    """What a record says of the score: in the last round, all three scores of every client."""
    scores: dict[str, Any] = {}
    clients: evaluate.Scores | None = None
    total = algorithm.pretrain + options.rounds
    if last and options.keep == "last":
        scores["final"] = three_scores(algorithm, fed, state, index, options)
        clients = evaluate.current_of(scores["final"], algorithm)
    if last or (index + 1) % options.eval_every == 0 or index >= total - options.average_last:
        if clients is None:
            clients = evaluate.current(fed, algorithm, state, index + 1)
        scores["score"] = evaluate.summary(clients, fed.net.objective)
        if options.keep == "best" or (last and algorithm.local.rows == "fit"):
            chosen_by = by_validation(algorithm, fed, state, index, options)
            scores["validation"] = evaluate.summary(chosen_by, fed.net.objective)
    return scores


def by_validation(algorithm: Algorithm, fed: Federation, state: State, index: int,
                   options: RunOptions) -> evaluate.Scores:
    """The score that the method is judged by, on rows that its training left out."""
    if algorithm.headline != "fine_tuned":
        return evaluate.current(fed, algorithm, state, index + 1, rows="validation")
    epochs = algorithm.local.epochs if options.fine_tune is None else options.fine_tune
    become = (*algorithm.uses(fed.net), "fine_tune")
    return evaluate.scores(fed, algorithm, state, index + 1, become, epochs, rows="validation")


def three_scores(algorithm: Algorithm, fed: Federation, state: State, index: int, options: RunOptions,
                 remembered: bool = True) -> dict[str, evaluate.Scores | None]:
    """The three scores of every client after round `index`."""
    epochs = algorithm.local.epochs if options.fine_tune is None else options.fine_tune
    return evaluate.final(fed, algorithm, state, index + 1, epochs, remembered)


def better(record: dict[str, Any], best: dict[str, Any] | None) -> bool:
    """Whether a round's validation score beats the best one so far; of equal ones the first counts."""
    if not record.get("validation"):
        return False
    metric = Metric.of(record["metric"])
    return best is None or metric.better(record["validation"]["value"], best["validation"]["value"])


def best_of(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The round with the best validation score, the first of equal ones; None where none was scored so."""
    best = None
    for record in records:
        best = record if better(record, best) else best
    return best


def _sound(state: State, fed: Federation, cohort: Cohort | None = None, before: State | None = None) -> State:
    """The state, unless it is unusable: answers that are finite can have a mean that is not, or has no length.

    A cluster whose new model is keeps the one of `before`, and its members who were asked are among the lost. Where
    that is all of them, or more than models cannot be used, the round came to nothing.
    """
    good = _usable(state)
    rest = _finite({name: leaf for name, leaf in state_tree(state).items() if name not in BY_CLUSTER})
    if rest and bool(good.all()):
        return state
    ids = torch.arange(len(fed.names)) if cohort is None else cohort.ids
    label = state.labels[ids]
    spoilt = ids[(label >= 0) & ~good[label.clamp(min=0)]] if rest else ids
    lost = {fed.names[i]: "finite, but not what they make together" for i in spoilt.tolist()}
    same = before is not None and len(_usable(before)) == len(good) and bool(before.slots) == bool(state.slots)
    fed.note(lost)
    if before is None or not same or len(spoilt) == len(ids):
        raise NobodyAnswered(lost)

    def where_good(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        return torch.where(good.to(new.device).view(-1, *[1] * (new.dim() - 1)), new, old)

    return replace(state, models=tree.each(where_good, state.models, before.models),
                   slots=tree.each(where_good, state.slots, before.slots))


def _usable(state: State) -> torch.Tensor:
    """(k,) whether each cluster's model has a length, and all that the server's rule remembers of it."""
    leaves = [*tree.named(state.models).values(), *tree.named(state.slots).values()]
    lengths = [torch.linalg.vector_norm(leaf.reshape(len(leaf), -1), dim=1) for leaf in leaves]
    return torch.stack(lengths).isfinite().all(0).cpu() if lengths else torch.zeros(0, dtype=torch.bool)


def _finite(values: tree.Tree) -> bool:
    leaves = [leaf for leaf in tree.named(values).values() if leaf.is_floating_point()]
    return all_true([leaf.isfinite().all() for leaf in leaves])


def _usual(algorithm: Algorithm, error: NobodyAnswered) -> str:
    """What to look at, unless sites refused, and said why."""
    if any(reason.startswith("refused") for reason in error.lost.values()):
        return ""
    return f" The usual cause is a learning rate that is too large (lr {algorithm.local.lr:g})."


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
    unplaced = (fed.online & (state.labels < 0)).nonzero().flatten().tolist()
    due = [i for i in unplaced if waiting.get(fed.names[i], [0, index])[1] <= index]
    if not due:
        return state
    with suppress(NobodyAnswered):  # then they stay -1 and are asked again
        state = algorithm.admit(fed, state, Cohort(torch.tensor(due), index, ADMIT))
    for i in due:
        if state.labels[i] >= 0:
            waiting.pop(fed.names[i], None)
        else:
            failures = waiting.get(fed.names[i], [0, 0])[0]
            waiting[fed.names[i]] = [failures + 1, index + 2 ** min(failures, 30)]
    return state


def _moved(before: torch.Tensor, after: torch.Tensor) -> int:
    """How many clients changed from one cluster to another."""
    old = torch.cat([before, torch.full((len(after) - len(before),), -1)])
    return int(((old >= 0) & (old != after)).sum())


class Stopwatch:
    """The cost of what happens inside: wall time, time by phase, and the ledger's page."""

    def __init__(self, fed: Federation) -> None:
        self.fed = fed

    def __enter__(self) -> "Stopwatch":
        self.fed.seconds.clear()
        self.fed.lost.clear()
        self.fed.steps = 0
        self.fed.ledger.drain()
        self.started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self.started

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time, and what of it each phase took."""
        return {"wall": self.wall, **self.fed.seconds}


def _record(index: int, fed: Federation, state: State, watch: Stopwatch) -> dict[str, Any]:
    lines = fed.ledger.drain()
    trained = {name for line in lines if line.phase == TRAIN and line.direction == "up" for name in line.clients}
    placed = state.labels[state.labels >= 0]
    return {
        "round": index,
        "metric": fed.net.objective.metric._asdict(),
        "clusters": len(set(placed.tolist())),
        "unplaced": len(state.labels) - len(placed),
        "ari": _ari(index, fed, state),
        "trained": [i for i, name in enumerate(fed.names) if name in trained],
        "bytes": ledger.totals(lines),
        "steps": fed.steps,
        "seconds": watch.seconds,
        "lost": {name: list(reasons) for name, reasons in fed.lost.items()},
    }


def _ari(index: int, fed: Federation, state: State) -> float | None:
    """How far the clusters of those who are here, and honest, agree with their true groups in this round."""
    truth = fed.provenance.truth_at(max(0, index))
    here = (fed.online & fed.honest & (state.labels >= 0)).nonzero().flatten().tolist()
    return evaluate.ari(state.labels[here].tolist(), [truth[i] for i in here]) if truth and here else None
