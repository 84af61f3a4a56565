"""Flower's simulation on Ray: the same pair of apps as in a deployment, on this machine, a process for each core.

Slower than the simulator (seconds to start, a tenth of a second a message): it shows that a method runs on Flower.
"""

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path
from queue import Queue
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # before Flower is imported: it sends nothing to anybody
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # nodes are small: not to be ended for others' memory
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default: without it, Ray warns

import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from umbel.data.clients import Population
from umbel.engines.on_disk import clients_from, write_clients
from umbel.errors import UmbelError
from umbel.flower.client import Site, node_app
from umbel.flower.inprocess import OwnGrid, SimulatedFlower, one
from umbel.flower.server import Patience
from umbel.nets import MODELS
from umbel.nets.model import Model
from umbel.scratch import Scratch

PATIENCE = Patience(deadline=86_400.0, hello=86_400.0)  # nodes of a simulation are slow at most, never gone


class RayFlower(SimulatedFlower):
    """An engine: `workers` Ray processes do the work of all nodes."""

    grid: "RayGrid"

    def __init__(self, net: Model, population: Population, seed: int, device: torch.device) -> None:
        if not net.registered:
            raise UmbelError("The engine 'flower' builds models in other processes, by their names:"
                             f" {', '.join(MODELS)}. Got '{net.name}' instead.")
        if device.type != "cpu":
            raise UmbelError(f"The engine 'flower' computes on the CPU. Got device '{device.type}': take --device cpu.")
        scratch = Scratch()
        self.folder = scratch.path
        write_clients(self.folder, population, net, seed)
        grid = RayGrid(self.folder, len(population.names))
        super().__init__(net, population, seed, grid, self.folder / "memory", PATIENCE)
        self._end = weakref.finalize(self, _end, grid, scratch)

    def arrive(self, round: int) -> None:
        """As in any simulation; Ray starts here, once `workers` is known."""
        self.grid.workers = self.workers
        super().arrive(round)

    def close(self) -> None:
        """End Ray's processes."""
        self._end()


def _end(grid: "RayGrid", scratch: Scratch) -> None:
    grid.close()
    scratch.remove()


@lru_cache(maxsize=1)
def _written(folder: Path) -> tuple[Population, Model]:
    clients, net = clients_from(folder)
    return clients.population, net


def simulated_site(folder: Path, context: Context) -> Site:
    """What a simulated node brings: its part of the population that was written down."""
    people, net = _written(folder)
    return Site(one(people, int(context.node_config["partition-id"])), net, folder / "memory", durable=False)


class RayGrid(OwnGrid):
    """Flower's simulation as a Grid of this thread. It starts when it is first used."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = nodes
        self.workers = 1
        self._inner: Grid | None = None
        self._failure: BaseException | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def inner(self) -> Grid:
        """Flower's own grid, as its server app received it."""
        if self._inner is None:
            handed: Queue[Grid | None] = Queue()
            self._thread = threading.Thread(target=self._simulate, args=(handed,), daemon=True)
            self._thread.start()
            self._inner = handed.get()
        if self._inner is None or self._failure is not None:
            raise UmbelError(f"Flower's simulation ended: {self._failure}") from self._failure
        return self._inner

    def _simulate(self, handed: "Queue[Grid | None]") -> None:
        """Run Flower's simulation in a thread of its own; its server app only hands its grid over and waits."""
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            handed.put(grid)
            while not self._done.wait(0.5) and threading.main_thread().is_alive():
                pass

        logger = logging.getLogger("flwr")
        before = logger.level
        logger.setLevel(logging.ERROR)
        try:
            run_simulation(server, node_app(partial(simulated_site, self.folder)), self.nodes, backend_config={
                "init_args": {"num_cpus": self.workers, "logging_level": logging.ERROR, "log_to_driver": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            })
        except BaseException as error:
            self._failure = error.__cause__ or error
        finally:
            handed.put(None)  # `inner` may still be waiting for a grid, and none will come
            logger.setLevel(before)

    def close(self) -> None:
        """Let the simulation end, and wait for it."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def get_nodes(self) -> Iterable[Any]:
        """All nodes; waits for them, since Flower registers some when its server app has begun already."""
        while len(list(self.inner.get_node_ids())) < self.nodes:
            time.sleep(0.1)
        return self.inner.get_nodes()

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As Flower's grid does."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As Flower's grid does."""
        return self.inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower's grid does."""
        return self.inner.send_and_receive(messages, timeout=timeout)

    @property
    def run(self) -> Any:
        """Flower's description of the run."""
        return self.inner.run
