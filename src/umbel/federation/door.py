"""The contract of all engines: one verb, `map`, the only door to the clients.

Cost, seeds, time and bad answers are handled here, once. An engine says only how the work is done: it implements
`perform`.
"""

import copy
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from umbel import tree
from umbel.data.clients import Work
from umbel.errors import UmbelError
from umbel.federation.attackers import Attackers
from umbel.federation.belief import Known, doubts, is_ragged, misfit
from umbel.federation.ledger import Ledger, Line
from umbel.federation.lengths import BOUND, Lengths
from umbel.federation.phases import TRAIN
from umbel.federation.provenance import Provenance
from umbel.federation.tasks import ROWS, STEPS, Plain, Task, refuse_unknown_options
from umbel.federation.uplink import Uplink, arrive, promises
from umbel.nets.model import Model
from umbel.tree import Held, Ragged, Tree


class Cohort(NamedTuple):
    """Who is asked, when and what for (federation/phases.py)."""

    ids: Tensor  # (m,) positions in `fed.names`
    round: int
    phase: str = TRAIN


class Call(NamedTuple):
    """All of one `map`, as an engine gets it."""

    task: Task
    cohort: Cohort
    work: Work
    shared: Tree  # everybody receives this
    each: Tree  # position p receives row p of this; values may be `Held`
    options: dict[str, Any]  # static: part of what the task is
    uplinks: tuple[Uplink, ...] = ()  # what answers pass on their way out
    now: int = 0  # the round whose rows clients hold; `cohort.round` is what their draws follow

    def inputs(self, positions: Tensor) -> Tree:
        """The rows of `each` for some positions, stacked."""
        return {
            name: value.rows(positions) if isinstance(value, Held)
            else tree.take(value, positions) if isinstance(value, dict) else value[positions]
            for name, value in self.each.items()
        }

    def received(self, positions: Tensor) -> Tree:
        """The model that some positions were sent, stacked, or nothing: what uplinks measure an answer against."""
        if "model" in self.each:
            return self._replace(each={"model": self.each["model"]}).inputs(positions)
        model = {"model": self.shared["model"]} if "model" in self.shared else {}
        return tree.each(lambda leaf: leaf.expand(len(positions), *leaf.shape), model)


class Answered(NamedTuple):
    """What some positions of a cohort sent, stacked."""

    positions: Tensor
    send: Tree


class Silent(NamedTuple):
    """A position that did not answer, and why."""

    position: int
    reason: str


@dataclass(frozen=True)
class Heard:
    """Who answered and what, stacked in the cohort's order. Missing answers are normal."""

    ids: Tensor  # (m',) who
    answers: Tree  # name -> stack, tensor or `Ragged`
    lost: Mapping[str, str]  # name of a client -> why its answer is not here


class NobodyAnswered(RuntimeError):
    """Every answer of a call was lost."""

    def __init__(self, lost: Mapping[str, str]) -> None:
        self.lost = lost
        super().__init__(f"none of {len(lost)} clients gave a usable answer ({'; '.join(sorted(set(lost.values())))})")


Watch: TypeAlias = Callable[[str, int, int], None]  # phase, clients done, clients asked


class Federation(ABC):
    """Clients that can be asked to do a task. Algorithms see nothing else of the world."""

    memory_is_here: ClassVar[bool] = True  # sites keep two rounds of theirs: no more than the last may be done again

    def __init__(self, net: Model, names: list[str], seed: int, device: torch.device) -> None:
        self.net = net
        self.names = names
        self.seed = seed
        self.device = device  # where answers live; ids, labels and counts live on the CPU
        self.online = torch.ones(len(names), dtype=torch.bool)  # who can be asked now
        self.now = 0  # the round that `arrive` was last told of: clients hold the rows of this one
        self.ledger = Ledger()
        self.lost: dict[str, list[str]] = {}  # whose answers were lost since the round began, and why each was
        self.provenance = Provenance()  # where it comes from; set by whoever builds it
        self.seconds: dict[str, float] = defaultdict(float)  # spent in `map`, by phase
        self.steps = 0  # batches that clients trained on, as far as that is known; scoring is left out
        self.workers = 1  # processes that an engine may share the work with
        self.uplinks: tuple[Uplink, ...] = ()  # what every answer passes on its way out of a client
        self.bound = BOUND  # how many times as long as usual an update may be (federation/lengths.py); 0 = any
        self.attackers: Attackers | None = None  # of a simulation: clients that lie
        self._watch: Watch = lambda phase, done, asked: None
        self._allowed = {"train", "fit", "validation"}

    @abstractmethod
    def perform(self, call: Call) -> Iterator[Answered | Silent]:
        """Do the work, in chunks of any size and order."""

    @abstractmethod
    def arrive(self, round: int) -> None:
        """Find out who can be asked in this round: `online`, and new `names` behind the old ones."""
        self.now = round

    @abstractmethod
    def memory(self) -> tuple[Tree, dict[str, int]]:
        """What clients keep, as far as the server has it in hand: pages by name, and the rounds they are from."""

    @abstractmethod
    def remember(self, pages: Tree, rounds: dict[str, int]) -> None:
        """Give clients back what `memory` returned."""

    @property
    def honest(self) -> Tensor:
        """(n,) who is no attacker: of whom scores are."""
        return torch.ones(len(self.names), dtype=torch.bool) if self.attackers is None else ~self.attackers.who

    def steps_of(self, call: Call) -> int:
        """Batches that clients train on in a call; sites of a real federation do not say."""
        return 0

    def rows_told(self, call: Call) -> Tensor | None:
        """(m,) how many rows of the kind that is asked for the clients of a call have at most; None = not known."""
        return None

    def note(self, lost: Mapping[str, str]) -> None:
        """Write down whose answers to one call were lost, and why."""
        for name, reason in lost.items():
            self.lost.setdefault(name, []).append(reason)

    def close(self) -> None:  # noqa: B027 (most engines hold nothing)
        """Let go of what an engine holds outside this process."""

    def __repr__(self) -> str:
        about = self.provenance
        return (f"<{type(self).__name__} of {len(self.names)} clients: {about.data}"
                f"{', ' + str(about.setup['scenario']) if 'scenario' in about.setup else ''}; model {self.net.name},"
                f" {self.net.parameters:,} parameters, on {self.device}>")

    def _repr_html_(self) -> str:
        """Who is there and how unequal they are, for notebooks."""
        about = self.provenance
        rows = [sum(counts) for counts in about.label_counts or ()]
        cells = {"clients": len(self.names), "true groups": len(set(about.truth)) if about.truth else "not known",
                 "training rows of a client": f"{min(rows)} to {max(rows)}" if rows else "not known"}
        lines = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in cells.items())
        return f"<div><b>{escape(repr(self)[1:-1])}</b><table>{lines}</table></div>"

    def testing(self) -> Self:
        """A view through which test rows can be asked for. For `evaluate` only: methods never see them."""
        view = copy.copy(self)
        view._allowed = self._allowed | {"test"}
        return view

    @contextmanager
    def watched(self, watch: Watch) -> Iterator[None]:
        """Tell `watch` of every chunk of answers inside: phase, clients done, clients asked."""
        before, self._watch = self._watch, watch
        try:
            yield
        finally:
            self._watch = before

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Count the server's own work inside as this phase; what is spent in `map` meanwhile has its own phase."""
        started, mapped = time.perf_counter(), sum(self.seconds.values())
        yield
        spent = time.perf_counter() - started
        self.seconds[phase] += spent - (sum(self.seconds.values()) - mapped)

    def map(self, task: Task, cohort: Cohort, *, work: Work | None = None, shared: Tree | None = None,
            each: Tree | None = None, **options: Any) -> Heard:
        """Ask every client of the cohort to do `task`; all receive `shared`, position p receives row p of `each`."""
        refuse_unknown_options(task, options)
        call = Call(task, cohort, (work or Work()).checked(), shared or {}, each or {}, options, self.uplinks, self.now)
        if call.work.rows not in self._allowed:
            allowed = ", ".join(sorted(self._allowed))
            raise UmbelError(f"A method may ask for the rows {allowed}. Got '{call.work.rows}' instead.")
        started = time.perf_counter()
        names = [self.names[i] for i in cohort.ids.tolist()]
        self._bill_down(call, names)
        stages = promises(self.net, call)
        expected = stages[0]
        known = _known(call, self.rows_told(call))
        lengths = Lengths(call, expected, self.net.statistics, known.get(STEPS)) if self.bound else None
        answers: Tree = {}
        heard = torch.zeros(len(cohort.ids), dtype=torch.bool)
        lost: dict[str, str] = {}
        done = 0
        for chunk in self.perform(call):
            if isinstance(chunk, Silent):
                lost[names[chunk.position]] = chunk.reason
                done += 1
            else:
                chunk = self.attackers.lie(chunk, call) if self.attackers else chunk
                good, reasons = believed(chunk, stages[-1], tree.take(known, chunk.positions))
                if len(good.positions):
                    self._bill_up(call, names, good)
                if call.uplinks and len(good.positions):
                    undone = arrive(good.send, call, good.positions, stages)
                    good, more = believed(Answered(good.positions, undone), expected,
                                          tree.take(known, good.positions))
                    reasons |= more
                lost |= {names[position]: reason for position, reason in reasons.items()}
                if len(good.positions):
                    _place(answers, good, expected, len(heard))
                    heard[good.positions] = True
                    if lengths is not None:
                        with one_thread():
                            lengths.measure(good)
                done += len(chunk.positions)
            self._watch(cohort.phase, done, len(cohort.ids))
        if lengths is not None:
            for position, reason in lengths.too_long(heard, self.bound).items():
                lost[names[position]], heard[position] = reason, False
        self.seconds[cohort.phase] += time.perf_counter() - started
        self.steps += self.steps_of(call)
        self.note(lost)
        if not bool(heard.any()):
            raise NobodyAnswered(lost)
        return Heard(cohort.ids[heard], _joined(answers, heard), lost)

    def _bill_down(self, call: Call, names: list[str]) -> None:
        for kind, value in {**call.shared, **call.each}.items():
            if isinstance(value, Held):
                amount = tree.nbytes(value.models) // tree.count(value.models)
            else:
                amount = tree.nbytes({kind: value}) // (len(names) if kind in call.each else 1)
            self._bill(call, "down", kind, names, amount)

    def _bill_up(self, call: Call, names: list[str], chunk: Answered) -> None:
        senders = [names[position] for position in chunk.positions.tolist()]
        for kind, value in chunk.send.items():
            amount = tree.nbytes({kind: value}) // len(senders)  # rows of a chunk have one shape
            self._bill(call, "up", kind, senders, amount)

    def _bill(self, call: Call, direction: str, kind: str, clients: list[str], amount: int) -> None:
        self.ledger.bill(Line(call.cohort.phase, call.cohort.round, direction, kind, tuple(clients),
                              (amount,) * len(clients)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, then as before: in torch, and in the linear algebra of numpy and scipy, which has its own.

    Threads change the last bits, and where cores are busy they wait for each other: a small eigenproblem of a signature
    took seventy times as long on two.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def _known(call: Call, rows: Tensor | None) -> dict[str, Tensor]:
    """(m,) each: what the server knows of the clients that it asks; nothing where noise may have been added to rows."""
    noisy = isinstance(call.task, Plain) and call.task.after and any(
        type(uplink).release is not Uplink.release for uplink in call.uplinks)
    if rows is None or noisy:
        return {}
    epochs, steps, batch, _ = call.work
    size = torch.full_like(rows, batch) if batch else rows.clamp(min=1)
    return {ROWS: rows, STEPS: torch.full_like(rows, steps) if steps else epochs * -(-rows // size)}


def believed(chunk: Answered, expected: Tree, known: Known | None = None) -> tuple[Answered, dict[int, str]]:
    """Part a chunk into what can be believed and, by position, why the rest cannot."""
    if fault := misfit(chunk.send, expected):
        return Answered(chunk.positions[:0], {}), {int(position): fault for position in chunk.positions}
    with one_thread():  # a second one would wait for a core while other processes train
        reasons = doubts(chunk.send, expected, known or {})
    if not reasons:
        return chunk, {}
    good = torch.ones(len(chunk.positions), dtype=torch.bool)
    good[list(reasons)] = False
    kept = tree.each(lambda leaf: leaf[good.to(leaf.device)], chunk.send)
    return Answered(chunk.positions[good], kept), {int(chunk.positions[row]): why for row, why in reasons.items()}


def _place(answers: Tree, chunk: Answered, expected: Tree, count: int) -> None:
    """Write what some of `count` positions sent into its place: nothing is in memory twice. Counts go to the CPU."""
    positions = chunk.positions
    everybody = len(positions) == count and bool((positions[1:] > positions[:-1]).all())  # and in order

    def put(places: Tree, send: Tree, expected: Tree) -> None:
        for name, leaf in expected.items():
            if isinstance(leaf, dict):
                put(places.setdefault(name, {}), send[name], leaf)
                continue
            rows = send[name]
            if is_ragged(leaf):
                places.setdefault(name, _Rows()).update(zip(positions.tolist(), rows, strict=True))
                continue
            rows = rows if rows.is_floating_point() else rows.cpu()
            if everybody:
                places[name] = rows
                continue
            if name not in places:
                places[name] = rows.new_empty(count, *rows.shape[1:])
            places[name].index_copy_(0, positions.to(rows.device), rows)

    put(answers, chunk.send, expected)


class _Rows(dict[int, Tensor]):
    """Ragged answers by position."""


def _joined(answers: Tree, heard: Tensor) -> Tree:
    """The answers of those who were heard, in the cohort's order; ragged ones are padded."""
    everybody = bool(heard.all())

    def one(leaf: Any) -> Any:
        if isinstance(leaf, _Rows):
            rows = [leaf[position] for position in sorted(leaf)]
            padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            return Ragged(padded, torch.tensor([len(row) for row in rows]))
        if isinstance(leaf, dict):
            return {name: one(part) for name, part in leaf.items()}
        return leaf if everybody else leaf[heard.to(leaf.device)]

    return {name: one(leaf) for name, leaf in answers.items()}
