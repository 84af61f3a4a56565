"""Clients whose data lies in this process: a simulation's hundreds, or a node's one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from umbel import tree
from umbel.data.clients import IntArray, Population, Work, batches, rows_of
from umbel.errors import UmbelError
from umbel.federation.door import Answered, Call, Cohort, Federation, Silent, believed, one_thread
from umbel.federation.tasks import TASKS, Client, Leaf, Loop, Plain, Reply, Rows, Task
from umbel.federation.uplink import Uplink, depart, promises, released
from umbel.nets.model import Batch, Model
from umbel.seeds import generator
from umbel.tree import Params, Tree

ROWS_AT_ONCE = {"cpu": 2048, "cuda": 16_384}  # in one forward pass
PIXELS_AT_ONCE = 2**18  # gathered together for the batches to come
RESIDENT = 2**30  # pixels up to which a pool lies on a GPU as floats
KEPT = "what it keeps"


class Diary:
    """What each client keeps between rounds: two generations, tagged by round.

    A client asked for round r reads the newest generation before r, so a round done twice (after a crash, a
    retry) reads the same memory both times.
    """

    def __init__(self) -> None:
        self.pages: dict[str, dict[int, Tree]] = {}

    def read(self, name: str, round: int) -> Tree:
        """The newest page before `round`, or an empty one."""
        pages = self.pages.get(name, {})
        past = [written for written in pages if written < round]
        return pages[max(past)] if past else {}

    def write(self, name: str, round: int, keep: Tree) -> None:
        """Add a page; names that are not kept anew are carried over."""
        if not keep:
            return
        pages = self.pages.setdefault(name, {})
        pages[round] = {**self.read(name, round), **keep}
        for old in sorted(pages)[:-2]:
            del pages[old]

    def newest(self) -> tuple[Tree, dict[str, int]]:
        """Every client's last page as one tree, and the rounds they were written in: the part of a checkpoint."""
        rounds = {name: max(pages) for name, pages in self.pages.items()}
        return {name: self.pages[name][round] for name, round in rounds.items()}, rounds

    def restore(self, pages: Tree, rounds: dict[str, int]) -> None:
        """Undo `newest`."""
        self.pages = {name: {rounds[name]: page} for name, page in pages.items()}


class LocalClients:
    """Data, schedule and memory of clients in this process, and how one of them does a task."""

    def __init__(self, population: Population, seed: int, device: torch.device) -> None:
        self.population = population
        self.seed = seed
        self.device = device
        self.x = torch.from_numpy(population.pool.x).to(device)
        if device.type == "cuda" and self.x.dtype == torch.uint8 and self.x.numel() <= RESIDENT:
            self.x = self.x.float() / 255  # four times the memory, two kernels less in every step
        self.y = torch.from_numpy(population.pool.y).to(device)
        weight = population.pool.weight
        self.weight = None if weight is None else torch.from_numpy(weight).to(device)  # (rows,) in the loss
        self.diary = Diary()
        self._cache: dict[tuple[int, str, int | None], IntArray] = {}  # by client, kind of rows, change in force

    def rows(self, i: int, which: str, now: int = 0) -> IntArray:
        """Rows of the pool that client i means by `which` in round `now`."""
        people = self.population
        change = people.change_of(i, now)
        if (i, which, change) not in self._cache:
            train, test = (people.train[i], people.test[i]) if change is None else people.changes[change][2:4]
            known = {} if people.validation is None else {"fit": train, "validation": people.validation[i]}
            self._cache[i, which, change] = known[which] if which in known else rows_of(
                train, test, which, self.seed, people.names[i], people.ordered, people.late[i] if people.late else 0)
        return self._cache[i, which, change]

    def plan(self, i: int, cohort: Cohort, work: Work, now: int = 0) -> IntArray:
        """The batches of client i in this round and phase, whoever computes them: (steps, size), -1 for no row.

        Rows are those of round `now`; `cohort.round` only seeds the draw. A signature always asks with round 0.
        """
        rng = generator(self.seed, "batches", cohort.phase, cohort.round, self.population.names[i])
        return batches(self.rows(i, work.rows, now), work, rng)

    def keys(self, i: int, cohort: Cohort, steps: int) -> IntArray:
        """What the dropout masks of client i are drawn by, one for each step of this round and phase."""
        rng = generator(self.seed, "dropout", cohort.phase, cohort.round, self.population.names[i])
        return rng.integers(0, 2**63 - 1, steps)

    def batches(self, plan: IntArray, keys: IntArray | None = None) -> Iterator[Batch]:
        """The batches of a plan, without padding; gathered some at a time, which is cheaper than one by one."""
        drawn = [None] * len(plan) if keys is None else torch.from_numpy(keys).to(self.device)
        at_once = max(1, PIXELS_AT_ONCE // max(1, plan.shape[1] * self.x[:1].numel()))
        for start in range(0, len(plan), at_once):
            rows = torch.from_numpy(plan[start : start + at_once])
            own = drawn[start : start + at_once]
            index = rows.clamp(min=0)
            weights = [] if self.weight is None else [self.weight[index.to(self.device)]]
            for live, key, *batch in zip(rows >= 0, own, *self.gather(index), *weights, strict=True):
                x, y, *weight = batch if bool(live[-1]) else (part[live] for part in batch)
                yield Batch(x, y, None, key, *weight)

    def gather(self, rows: IntArray | Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] and labels of these rows."""
        index = torch.as_tensor(rows, device=self.device)
        x = self.x.index_select(0, index.flatten()).view(*index.shape, *self.x.shape[1:])  # x[index] is slower
        return (x.float().div_(255) if x.dtype == torch.uint8 else x), self.y[index]

    def memory(self, i: int, round: int, task: Task, net: Model) -> Tree:
        """What client i remembers before `round`: its page over the task's default."""
        default = tree.to(task.memory(net, self.seed), self.device)
        return {**default, **self.diary.read(self.population.names[i], round)}

    def client(self, i: int, rows: IntArray, steps: int, memory: Tree, with_rows: bool) -> Client:
        """Client i as a task meets it."""
        x, y = self.gather(rows if with_rows else rows[:0])
        size, given = (torch.tensor(number, device=self.device) for number in (len(rows), steps))
        return Client(x, y, size, given, memory)

    def answer(self, net: Model, call: Call, position: int) -> Answered | Silent:
        """Let one client do its task, in plain torch on one thread.

        One thread and unpadded batches make the result the same to the last bit wherever it is computed.
        """
        i = int(call.cohort.ids[position])
        inputs = call.inputs(torch.tensor([position]))
        inputs = tree.to({**call.shared, **tree.take(inputs, 0)}, self.device)
        with one_thread(), torch.no_grad():
            reply = self._do(net, call.task, i, call.cohort, call.work, inputs, call.options, call.now, call.uplinks)
            alone, (send, keep) = torch.tensor([position]), (tree.stack([part]) for part in reply)
            send = depart(send, call, alone)
        return next(self.settled(net, call, Answered(alone, send), keep))

    def settled(self, net: Model, call: Call, leaving: Answered, keep: Tree) -> Iterator[Answered | Silent]:
        """Answers on their way out, once what their clients keep, stacked like them, is in the diary.

        A reply counts as a whole. Who would send or keep what nobody can believe is silent, and remembers what it
        remembered before: else a training that broke down would be the start of the next one.
        """
        if keep:
            due = tree.each(lambda leaf: Leaf(tuple(leaf.shape[1:]), leaf.dtype), keep)  # type: ignore[arg-type,return-value]
            whole = Answered(leaving.positions, {**leaving.send, KEPT: keep})
            good, reasons = believed(whole, {**promises(net, call)[-1], KEPT: due})
            for position, page in zip(good.positions.tolist(), tree.unstack(good.send.get(KEPT, {})), strict=True):
                self.diary.write(self.population.names[int(call.cohort.ids[position])], call.cohort.round, page)
            yield from (Silent(position, reason) for position, reason in reasons.items())
            leaving = Answered(good.positions, tree.without(good.send, [KEPT]))
        if len(leaving.positions):
            yield leaving

    def _do(self, net: Model, task: Task, i: int, cohort: Cohort, work: Work, inputs: Tree,
            options: dict[str, Any], now: int, uplinks: tuple[Uplink, ...] = ()) -> Reply:
        """What a client replies. What a `become` gives is for its own use, and meets no uplinks: it never travels."""
        rows = self.rows(i, work.rows, now)
        memory = self.memory(i, cohort.round, task, net)
        if isinstance(task, Plain):
            done = task.function(net, self.client(i, rows, 0, memory, with_rows=True), **inputs, **options)
            return released(net, task, done, options, uplinks)
        if isinstance(task, Rows):
            inputs = self._used(net, i, cohort, work, inputs, options, now)
            return task.finish(net, values(net, task, inputs, *self.gather(rows)), **options)
        plan = self.plan(i, cohort, work, now)
        client = self.client(i, rows, len(plan), memory, with_rows=False)
        carry, fixed = task.begin(net, client, **inputs, **options)
        carry = tree.each(torch.clone, carry)  # the step's own, whatever begin took it from
        keys = self.keys(i, cohort, len(plan)) if net.drops else None
        for batch in self.batches(plan, keys):
            carry = task.step(net, carry, fixed, batch, **options)
        return task.finish(net, client, carry, fixed, **options)


    def _used(self, net: Model, i: int, cohort: Cohort, work: Work, inputs: Tree, options: dict[str, Any],
              now: int) -> Tree:
        """What a client makes, for its own use, of the model that it was sent."""
        trained = work._replace(rows=behind(work.rows))
        for name in options.get("become", ()):
            become = TASKS[name]
            chosen = options if isinstance(become, Loop) else {}
            inputs = {"model": self._do(net, become, i, cohort, trained, inputs, chosen, now).send["model"]}
        return inputs

    def foretold(self, net: Model, i: int, cohort: Cohort, work: Work, model: Params, options: dict[str, Any],
                 now: int, most: int) -> tuple[Tensor, Tensor]:
        """Of client i's first rows, `most` of them: the targets, and what the model that it uses puts out for them.

        For the eye of whoever simulates: no task asks for this, so no site is ever asked for it.
        """
        with one_thread(), torch.no_grad():
            sent = tree.to({"model": model}, self.device)
            used: Params = self._used(net, i, cohort, work, sent, options, now)["model"]
            x, y = self.gather(self.rows(i, work.rows, now)[:most])
            return y.cpu(), net.logits(used, x).cpu()


class LocalEngine(Federation):
    """What engines over local clients share: everything but how the work is ordered."""

    def __init__(self, net: Model, population: Population, seed: int, device: str | torch.device) -> None:
        place = torch.device(device)
        if place.type == "cuda":  # strict float32 unless asked: by default torch lets convolutions round to TF32
            products = "tf32" if net.precision == "tf32" else "ieee"
            torch.backends.cudnn.conv.fp32_precision = products  # type: ignore[attr-defined]
            torch.backends.cuda.matmul.fp32_precision = products
        super().__init__(net.to(place), list(population.names), seed, place)
        self.clients = LocalClients(population, seed, place)
        self.arrive(0)

    def arrive(self, round: int) -> None:
        """A population knows when its clients come and go."""
        super().arrive(round)
        self.online = torch.from_numpy(self.clients.population.present(round))

    def steps_of(self, call: Call) -> int:
        """By the number of each client's rows."""
        if not isinstance(call.task, Loop):
            return 0
        work = call.work
        rows = self.rows_told(call).tolist()
        return sum(work.steps or work.epochs * -(-size // (work.batch or size)) for size in rows if size)

    def rows_told(self, call: Call) -> Tensor:
        """As many as there are: the data lie in this process."""
        return torch.tensor([len(self.clients.rows(i, call.work.rows, call.now)) for i in call.cohort.ids.tolist()],
                            dtype=torch.long)

    def memory(self) -> tuple[Tree, dict[str, int]]:
        """The last page of every client."""
        return self.clients.diary.newest()

    def remember(self, pages: Tree, rounds: dict[str, int]) -> None:
        """Restore the pages."""
        self.clients.diary.restore(tree.to(pages, self.device), rounds)

    def one_by_one(self, call: Call) -> Iterator[Answered | Silent]:
        """One client after another, each on its own."""
        for position in range(len(call.cohort.ids)):
            yield self.clients.answer(self.net, call, position)


def behind(rows: str) -> str:
    """The rows that a model is fine-tuned on before it is scored on these: never those themselves."""
    return "fit" if rows == "validation" else "train"


def values(net: Model, task: Rows, inputs: Tree, x: Tensor, y: Tensor) -> Tree:
    """One value per row under one model (rows, ...), or under each of k models (k, rows, ...)."""
    if "models" in inputs:
        return tree.stack([values(net, task, {"model": model}, x, y) for model in tree.unstack(inputs["models"])])
    rows = ROWS_AT_ONCE.get(x.device.type, 2048)
    starts = range(0, max(1, len(y)), rows)
    return tree.cat([task.each(net, inputs["model"], x[s : s + rows], y[s : s + rows]) for s in starts])


def device_of(name: str) -> torch.device:
    """The device for `cpu`, `cuda` or `auto`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UmbelError(f"The device '{name}' needs a GPU that torch can use, and there is none: take --device cpu.")
    return torch.device(name)


def side_by_side(plans: list[IntArray]) -> IntArray:
    """Plans of several clients as one, (steps, clients, size), with -1 where a client has no row."""
    steps, size = (max((plan.shape[axis] for plan in plans), default=0) for axis in (0, 1))
    index = np.full((steps, len(plans), size), -1, dtype=np.int64)
    for k, plan in enumerate(plans):
        index[: len(plan), k, : plan.shape[1]] = plan
    return index
