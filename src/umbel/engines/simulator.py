"""Many clients at once: one step of training is one vectorised call over all clients of a chunk.

Clients of unequal size: a chunk is sorted by the number of batches, and a client that has finished leaves it, so
that nobody trains on padding. Only a short last batch is padded, and masked out of the loss.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from umbel import tree
from umbel.data.clients import IntArray, Population
from umbel.engines.crew import Crew, can_leave_home
from umbel.engines.local import LocalEngine, behind, side_by_side, values
from umbel.engines.steps import LONG, Recorded, Step, Steps, kind
from umbel.errors import UmbelError
from umbel.federation.door import Answered, Call, Silent, one_thread
from umbel.federation.tasks import TASKS, Client, Loop, Reply, Rows
from umbel.federation.uplink import depart
from umbel.nets.model import Batch, Model
from umbel.tree import Held, Tree

STEP, FLOP = 3e-4, 5e-11  # seconds: of a step's overhead, of one multiplication in it (a rough core)
WORTH = 5.0  # seconds of work that pay for starting worker processes
GIB = 2**30
BUDGET = {"cpu": 1 * GIB, "cuda": 16 * GIB}  # declared, never asked of the machine: widths decide the last bits
RECORDED = 8  # kinds of training whose CUDA graphs are kept
SMALL = 50_000  # parameters: up to here vectorised steps win on a CPU (benchmarks/engines.py)


class Simulator(LocalEngine):
    """`map` is vectorised over clients, in chunks that fit a memory budget.

    `vectorise=None` decides by the model and the device alone: always on a GPU, on a CPU for models of at most
    50,000 parameters without convolutions. Without vectorising, results equal the loop engine's to the last bit.
    """

    def __init__(self, net: Model, population: Population, seed: int = 0, device: str | torch.device = "cpu", *,
                 vectorise: bool | None = None, budget: int | None = None) -> None:
        super().__init__(net, population, seed, device)
        pays = self.device.type != "cpu" or (net.parameters <= SMALL and not net.convolves)
        self.vectorise = pays if vectorise is None else vectorise
        self.budget = budget or BUDGET.get(self.device.type, GIB)
        self.many = self.net.vectorised()
        self.recorded: dict[Any, Recorded] = {}
        self.graph_memory = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.crews: list[Crew] = []  # at most one, shared by all views of this federation

    def perform(self, call: Call) -> Iterator[Answered | Silent]:
        """Training together where that pays, rows once per model, the rest one client at a time."""
        if isinstance(call.task, Loop) and self.vectorise:
            yield from self._train(call)
        elif isinstance(call.task, Rows):
            yield from self._score(call)
        elif isinstance(call.task, Loop) and self._worth_a_crew(call):
            yield from self._crew().perform(call)
        else:
            yield from self.one_by_one(call)

    def close(self) -> None:
        """End the worker processes."""
        for crew in self.crews:
            crew.close()

    def _crew(self) -> Crew:
        """The worker processes, started when they are first needed, and anew after an interruption."""
        if not self.crews or not self.crews[-1].close.alive:
            self.crews[:] = [Crew(self.clients, self.net, self.workers)]
        return self.crews[-1]

    def _worth_a_crew(self, call: Call) -> bool:
        """More than five seconds of training on one core, by a rule that knows the work and not the machine."""
        if self.workers < 2 or self.device.type != "cpu" or not can_leave_home(self.net, call):
            return False
        rows = [len(self.clients.rows(i, call.work.rows, call.now)) for i in call.cohort.ids.tolist()]
        batch = call.work.batch or max(rows, default=1)
        return self.steps_of(call) * (STEP + FLOP * 6 * self.net.parameters * batch) > WORTH

    # Training ---------------------------------------------------------------------------------------------------

    def _train(self, call: Call) -> Iterator[Answered | Silent]:
        plans = [self.clients.plan(i, call.cohort, call.work, call.now) for i in call.cohort.ids.tolist()]
        longest_first = sorted(range(len(plans)), key=lambda position: -len(plans[position]))
        batch = max((plan.shape[1] for plan in plans), default=1)
        width = max(1, self.budget // footprint(self.net, batch, LONG if self.device.type == "cuda" else 1))
        for start in range(0, len(plans), width):
            chosen = longest_first[start : start + width]
            with one_thread(), torch.no_grad():  # on a CPU, threads slow small steps down and change the last bits
                reply = self._side_by_side(call, chosen, [plans[position] for position in chosen])
                send = depart(reply.send, call, torch.tensor(chosen))
            yield from self.clients.settled(self.net, call, Answered(torch.tensor(chosen), send), reply.keep)

    def _side_by_side(self, call: Call, chosen: list[int], plans: list[IntArray]) -> Reply:
        """`_train_chunk`, with one sentence for what cannot be vectorised or does not fit."""
        try:
            return self._train_chunk(call, chosen, plans)
        except torch.cuda.OutOfMemoryError as error:
            raise UmbelError(
                f"The GPU has too little free memory to train {len(chosen)} clients of the model '{self.net.name}' side"
                " by side: take a smaller batch or model, free the GPU, or take --device cpu."
            ) from error
        except (RuntimeError, NotImplementedError) as error:
            why = str(error).strip().splitlines()[0].rstrip(".")
            if "CUDA error" in why:  # the device failed, not vmap; nothing works on it in this process any more
                raise UmbelError(f"The GPU failed while it trained {len(chosen)} clients side by side ({why}): start"
                                 " again, with --resume or with --device cpu.") from error
            raise UmbelError(
                f"The task '{call.task.name}' with the model '{self.net.name}' cannot be vectorised over clients"
                f" ({why}): take --engine loop, which trains one at a time."
            ) from error

    def _train_chunk(self, call: Call, chosen: list[int], plans: list[IntArray]) -> Reply:
        """Train some clients side by side, longest schedule first; returns their replies, stacked."""
        assert isinstance(call.task, Loop)
        task, net, options = call.task, self.many, call.options
        ids = call.cohort.ids[chosen].tolist()
        shared = tree.to(call.shared, self.device)
        inputs = tree.to(call.inputs(torch.tensor(chosen)), self.device)
        client = self._stacked_client(call, ids, plans)

        begin = torch.vmap(lambda client, inputs: task.begin(net, client, **shared, **inputs, **options))
        finish = torch.vmap(lambda client, carry, fixed: task.finish(net, client, carry, fixed, **options))

        carry, fixed = begin(client, inputs)
        rows, lengths = side_by_side(plans), [len(plan) for plan in plans]
        full = int((rows >= 0).sum()) == sum(lengths) * rows.shape[2]
        index = torch.from_numpy(rows).to(self.device)
        beside: Tree = {} if full else {"live": index >= 0}
        if net.drops:
            keys = [self.clients.keys(i, call.cohort, length)[:, None] for i, length in zip(ids, lengths, strict=True)]
            beside["key"] = torch.from_numpy(side_by_side(keys)[..., 0]).to(self.device)  # (steps, clients)
        index = index.clamp(min=0)  # on a GPU, a client that has finished may be trained on with nobody looking
        if self.clients.weight is not None:
            beside["weight"] = self.clients.weight[index]  # (steps, clients, size)
        changing = {name: options[name] for name in task.changing if isinstance(options.get(name), float)}
        steps = self._steps(task, options, changing, carry, fixed, index, beside)
        steps.load(carry, fixed, index, beside, changing)
        done: list[Tree] = []  # carries of clients that have finished, shortest schedule first
        going, turn = len(plans), 0
        for end in sorted(set(lengths)):
            steps.play(going, end - turn)
            still = sum(length > end for length in lengths)
            done.append(steps.rows(still, going))
            going, turn = still, end
        carry = tree.cat(done[::-1])
        reply: Reply = finish(client, carry, fixed)
        return reply

    def _steps(self, task: Loop, options: dict[str, Any], changing: dict[str, float], carry: Tree, fixed: Tree,
               index: Tensor, beside: Tree) -> Steps | Recorded:
        """Vectorised steps; on a GPU those recorded for the same task, shapes and options but the `changing` ones."""
        lasting = {name: value for name, value in options.items() if name not in changing}

        def vectorised(changing: dict[str, Any]) -> Step:
            def step(carry: Tree, fixed: Tree, x: Tensor, y: Tensor, beside: Tree) -> Tree:
                return task.step(self.many, carry, fixed, Batch(x, y, **beside), **lasting, **changing)

            return torch.vmap(step)  # `changing` is closed over: the same for all clients

        gather = self.clients.gather
        if self.device.type != "cuda":
            return Steps(gather, vectorised)
        room = 1 << (len(index) - 1).bit_length()  # schedules of other lengths fit the same buffer
        index = index.new_empty(room, *index.shape[1:])
        beside = tree.each(lambda part: part.new_empty(room, *part.shape[1:]), beside)
        key = (task, repr(sorted(lasting.items())), tuple(changing), kind(carry, fixed, index, beside))
        if key not in self.recorded:
            while len(self.recorded) >= RECORDED:
                del self.recorded[next(iter(self.recorded))]
            self.recorded[key] = Recorded(gather, vectorised, carry, fixed, index, beside, changing, self.graph_memory)
        return self.recorded[key]

    def _stacked_client(self, call: Call, ids: list[int], plans: list[IntArray]) -> Client:
        """The clients of a chunk as one `Client` with a leading axis; memory holds what the task declares."""
        memory: Tree = {}
        if declared := call.task.memory(self.net, self.seed):
            pages = [self.clients.memory(i, call.cohort.round, call.task, self.net) for i in ids]
            memory = tree.stack([{name: page[name] for name in declared} for page in pages])
        sizes = [len(self.clients.rows(i, call.work.rows, call.now)) for i in ids]
        size, steps = torch.tensor([sizes, [len(plan) for plan in plans]], device=self.device)
        none = torch.zeros(len(ids), 0, device=self.device)
        return Client(none, none, size, steps, memory)

    # Rows -------------------------------------------------------------------------------------------------------

    def _score(self, call: Call) -> Iterator[Answered]:
        """Each (model, row of the pool) once; then every client gathers its own."""
        for positions, inputs in self._models(call):
            mine = [self._own_rows(call, position) for position in positions]
            needed = torch.unique(torch.cat(mine))
            with one_thread() if self.vectorise else nullcontext(), torch.no_grad():  # threads slow small models down
                known = self._values(call, inputs, needed)
            axis = 1 if "models" in inputs else 0
            for position, rows in zip(positions, mine, strict=True):
                at = torch.searchsorted(needed, rows).to(self.device)
                own = tree.each(partial(torch.index_select, dim=axis, index=at), known)
                reply = call.task.finish(self.net, own, **call.options)  # type: ignore[union-attr]
                alone = torch.tensor([position])
                yield Answered(alone, depart(tree.stack([reply.send]), call, alone))

    def _own_rows(self, call: Call, position: int) -> Tensor:
        return torch.from_numpy(self.clients.rows(int(call.cohort.ids[position]), call.work.rows, call.now))

    def _values(self, call: Call, inputs: Tree, rows: Tensor) -> Tree:
        assert isinstance(call.task, Rows)
        x, y = self.clients.gather(rows)
        return values(self.net, call.task, inputs, x, y)

    def _models(self, call: Call) -> Iterator[tuple[list[int], Tree]]:
        """Positions that share a model, and that model."""
        everybody = range(len(call.cohort.ids))
        if call.options.get("become", ()):
            yield from self._become(call)
        elif "models" in call.shared or "model" in call.shared:
            yield list(everybody), tree.to(call.shared, self.device)
        elif isinstance(handed := call.each.get("model"), Held):
            labels = handed.index.tolist()
            for label in sorted(set(labels)):
                yield [p for p in everybody if labels[p] == label], {"model": tree.take(handed.models, label)}
        else:
            for position in everybody:
                yield [position], tree.take(tree.to(call.inputs(torch.tensor([position])), self.device), 0)

    def _become(self, call: Call) -> Iterator[tuple[list[int], Tree]]:
        """Let clients turn the model they were sent into the one that they use, chunk by chunk."""
        first, *rest = (TASKS[name] for name in call.options["become"])
        work = call.work._replace(rows=behind(call.work.rows))
        options = {name: value for name, value in call.options.items() if name != "become"}
        start = call._replace(task=first, work=work, options=options if isinstance(first, Loop) else {},
                              uplinks=())  # these models never travel
        for chunk in self.perform(start):
            assert isinstance(chunk, Answered)
            models = {"model": chunk.send["model"]}
            for task in rest:
                cohort = call.cohort._replace(ids=call.cohort.ids[chunk.positions])
                again = start._replace(task=task, cohort=cohort, shared={}, each=models,
                                       options=options if isinstance(task, Loop) else {})
                parts = [part for part in self.perform(again) if isinstance(part, Answered)]
                order = torch.cat([part.positions for part in parts]).argsort().to(self.device)
                models = {"model": tree.take(tree.cat([part.send["model"] for part in parts]), order)}
            for position, own in zip(chunk.positions.tolist(), tree.unstack(models), strict=True):
                yield [position], own


def footprint(net: Model, batch: int, gathered: int = 1) -> int:
    """Bytes one client needs in a vectorised step: model, velocity, gradient, start and copies; activations thrice.

    `gathered` is the number of steps whose images are there at once.
    """
    return 4 * (8 * net.parameters + 3 * batch * net.activations + (2 + gathered) * batch * net.features)
