"""Flower without its processes: the same pair of apps, in this very process, for tests and for trying things out.

Who is dead, late or slow is set by hand, and the clock is a number: nothing really waits.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity  # private; a Message cannot be made without it
from torch import Tensor

from umbel.data.clients import Population
from umbel.federation.door import Answered, Call, Silent
from umbel.flower.client import DiskDiary, Site, node_app
from umbel.flower.policy import OPEN, Policy
from umbel.flower.server import Clock, FlowerFederation, Patience
from umbel.nets.model import Model
from umbel.scratch import Scratch
from umbel.tree import Tree


class OwnGrid(Grid):
    """What Flower asks of any grid, and umbel's federations do not use."""

    def create_message(self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str,
                       ttl: float | None = None) -> Message:
        """As Flower's own grids do it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        """Nothing: the one run is known."""


class InProcessGrid(OwnGrid):
    """Nodes that are function calls. `dead` is who does not answer, `delay` how many seconds an answer takes."""

    def __init__(self, app: ClientApp, configs: Iterable[dict[str, Any]] = (), run_config: Any = None) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.app = app
        self.run_config = dict(run_config or {})
        self.contexts: dict[int, Context] = {}  # the nodes that are connected
        self.dead: set[int] = set()
        self.delay: dict[int, float] = {}
        self.tamper: Callable[[Message], Message] = lambda reply: reply  # what happens to replies on their way
        self.pushed: list[list[Message]] = []  # everything that was sent, push by push
        self.replies: dict[str, tuple[float, Message]] = {}
        self.time = 0.0
        self.clock = Clock(lambda: self.time, self._wait)
        for config in configs:
            self.connect(**config)

    def _wait(self, seconds: float) -> None:
        self.time += seconds

    def connect(self, **config: Any) -> int:
        """A node joins, and gets its number."""
        node = 1000 + len(self.contexts)
        while node in self.contexts:
            node += 1
        self.contexts[node] = Context(1, node, config, RecordDict(), self.run_config)
        return node

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let every node do its work now; its answer can be pulled after its `delay`."""
        sent = list(messages)
        self.pushed.append(sent)
        for message in sent:
            message.metadata.__dict__["_message_id"] = key = str(uuid4())
            node = message.metadata.dst_node_id
            if node not in self.contexts:
                reply = Message(Error(5, "Node Unavailable"), reply_to=message)
            elif node in self.dead:
                continue
            else:
                reply = self.tamper(self.app(message, self.contexts[node]))
            self.replies[key] = (self.time + self.delay.get(node, 0.0), reply)
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there by now."""
        due = [key for key in message_ids if key in self.replies and self.replies[key][0] <= self.time]
        return [self.replies.pop(key)[1] for key in due]

    def get_node_ids(self) -> Iterable[int]:
        """Who is connected."""
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies that need no waiting."""
        return self.pull_messages(self.push_messages(messages))

    @property
    def run(self) -> Any:
        """Flower's description of the run; there is none here."""
        return None


class SimulatedFlower(FlowerFederation):
    """Flower nodes for the clients of a population, all on this machine, so that their memory is within reach."""

    def __init__(self, net: Model, population: Population, seed: int, grid: Grid, memory: Path,
                 patience: Patience | None = None, clock: Clock | None = None) -> None:
        super().__init__(net, grid, seed, run="run", names=list(population.names), patience=patience, clock=clock)
        self.population = population
        self.online = torch.from_numpy(population.present(0))
        self.diary = DiskDiary(memory / self.run, durable=False)

    def arrive(self, round: int) -> None:
        """All nodes are connected from the start: those whose clients the population has not now count as away."""
        super().arrive(round)
        self.online &= torch.from_numpy(self.population.present(round))

    def perform(self, call: Call) -> Iterator[Answered | Silent]:
        """As on any grid; where no round has begun yet, the nodes are asked for their names first."""
        if not self.nodes:
            self._look(call.cohort.round)
        yield from super().perform(call)

    def _welcome(self, name: str, description: dict[str, Any]) -> None:
        """No line in the log: that the nodes of a simulation are there is no news."""

    def rows_told(self, call: Call) -> Tensor | None:
        """What they hold in this round: rows of a population may change."""
        at = self.population.at(call.now)
        held = {"test": at.test, "validation": self.population.validation or at.train}.get(call.work.rows, at.train)
        return torch.tensor([len(held[i]) for i in call.cohort.ids.tolist()], dtype=torch.long)

    def memory(self) -> tuple[Tree, dict[str, int]]:
        """The last page of every client."""
        return self.diary.newest()

    def remember(self, pages: Tree, rounds: dict[str, int]) -> None:
        """Restore the pages."""
        self.diary.restore(pages, rounds)


class InProcessFlower(SimulatedFlower):
    """An engine: server, messages and nodes as in a deployment, in one process.

    Its nodes allow all, unless a `policy` is to be tried on them.
    """

    grid: InProcessGrid

    def __init__(self, net: Model, population: Population, seed: int = 0, *, patience: Patience | None = None,
                 policy: Policy = OPEN) -> None:
        self._scratch = Scratch()
        memory = self._scratch.path
        sites = [Site(one(population, i), net, memory, durable=False, policy=policy)
                 for i in range(len(population.names))]
        app = node_app(lambda context: sites[int(context.node_config["partition-id"])])
        grid = InProcessGrid(app, [{"partition-id": i} for i in range(len(sites))])
        super().__init__(net, population, seed, grid, memory, patience, grid.clock)


def one(population: Population, i: int) -> Population:
    """Client i alone, with the rows that it holds at any time."""
    mine = [change for change in population.changes if change.client == i]
    parts = [population.train[i], population.test[i]]
    parts += [part for change in mine for part in (change.train, change.test)]
    parts += [] if population.validation is None else [population.validation[i]]
    rows = np.concatenate(parts)
    pool = population.pool.take(rows)
    own = np.split(np.arange(len(rows)), np.cumsum([len(part) for part in parts])[:-1])
    changes = tuple(change._replace(client=0, train=own[2 * k], test=own[2 * k + 1])
                    for k, change in enumerate(mine, start=1))
    return Population(pool, [own[0]], [own[1]], population.truth[i : i + 1], population.objective,
                      [population.names[i]], ordered=population.ordered, late=population.late[i : i + 1],
                      changes=changes,
                      validation=population.validation and [own[-1]])
