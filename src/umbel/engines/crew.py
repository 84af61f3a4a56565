"""Worker processes for a simulation on a CPU: one client each, one thread each.

Whole clients are trained apart, with the same code and the same bits as in one process, for any number of workers.
"""

import subprocess
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

import torch

from umbel import tree
from umbel.engines.codec import receive, send
from umbel.engines.local import LocalClients
from umbel.engines.on_disk import write_clients
from umbel.errors import UmbelError
from umbel.federation.door import Answered, Call, Silent
from umbel.federation.tasks import Loop
from umbel.federation.uplink import written
from umbel.nets.model import Model
from umbel.processes import how_it_ended, start
from umbel.scratch import MORE_ROOM, Scratch
from umbel.tree import Tree

AHEAD = 2  # jobs of a worker: it finds the next one in its pipe when it has answered the last
PIPE = 2**20  # bytes: a model passes in a few pieces, where the system allows it
TRIES = 3  # of a job whose worker is lost: memory may have been short for a moment, and a job draws no randomness


def can_leave_home(net: Model, call: Call) -> bool:
    """Whether another process can build the model and look up task and uplinks by their names alone."""
    assert isinstance(call.task, Loop)
    homes = [call.task.begin.__module__, *(type(uplink).__module__ for uplink in call.uplinks)]
    return net.registered and all(home.startswith("umbel.") for home in homes)


class Lost(Exception):
    """A worker process ended before it had answered."""


class Worker:
    """A process that answers in the order in which it is asked; it can be asked again before it has answered.

    One that is lost is followed by another.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writing, self.reading = Lock(), Lock()
        self.changing = Lock()  # held while `process` is, or `over` becomes, another
        self.over = False
        self.process = _start(folder)
        self.has_shared = False  # whether it was sent what all clients of this call receive

    def ask(self, header: dict[str, Any], values: Tree, shared: Tree) -> tuple[dict[str, Any], Tree]:
        """Send a job and wait for its answer. Who has asked waits to read before the next may ask: so order is kept."""
        answer = None
        with ExitStack() as turn, suppress(BrokenPipeError):
            with self.writing:
                process = self.process
                assert process.stdin is not None
                assert process.stdout is not None
                send(process.stdin, header | {"has_shared": self.has_shared},
                     values if self.has_shared else {**values, "shared": shared})
                self.has_shared = True
                turn.enter_context(self.reading)
            answer = receive(process.stdout)
        if answer is None:
            raise Lost(self._follow(process))
        return answer

    def _follow(self, lost: "subprocess.Popen[bytes]") -> str:
        """Start another process in the place of a lost one, unless somebody has; return how that one ended."""
        with self.writing, self.reading, self.changing:  # nobody asks, and nobody waits for an answer of the old one
            if self.process is lost and not self.over:
                _end_process(lost)
                self.process, self.has_shared = _start(self.folder), False
        return how_it_ended(lost.wait())

    def end(self) -> None:
        """End the process, whatever it does; no other follows."""
        with self.changing:
            self.over = True
        _end_process(self.process)


class Crew:
    """Some worker processes and the folder that tells them who the clients are."""

    def __init__(self, clients: LocalClients, net: Model, count: int) -> None:
        self.clients = clients
        self.net = net
        self.scratch = Scratch()
        self.workers: list[Worker] = []
        self.close = weakref.finalize(self, _end, self.workers, self.scratch)
        try:
            write_clients(self.scratch.path, clients.population, net, clients.seed, f"{MORE_ROOM}, or take --workers 1")
            for _ in range(count):
                self.workers.append(Worker(self.scratch.path))
        except BaseException:
            self.close()
            raise
        self.free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers * AHEAD:
            self.free.put(worker)
        self.threads = ThreadPoolExecutor(count * AHEAD)

    def perform(self, call: Call) -> Iterator[Answered | Silent]:
        """Hand the clients of a call out to whoever is free, the largest first; answers come as they are ready."""
        for worker in self.workers:
            worker.has_shared = False
        size = [len(self.clients.rows(i, call.work.rows, call.now)) for i in call.cohort.ids.tolist()]
        jobs = {self.threads.submit(self._ask, call, p): p for p in sorted(range(len(size)), key=lambda p: -size[p])}
        try:
            for job in as_completed(jobs):
                position = jobs[job]
                said, reply = job.result()
                if "silent" in said:
                    yield Silent(position, said["silent"])
                    continue
                name = self.clients.population.names[int(call.cohort.ids[position])]
                self.clients.diary.write(name, call.cohort.round, reply.get("keep", {}))
                yield Answered(torch.tensor([position]), reply["send"])
        except BaseException:  # an interruption, too, must not leave work in the queue
            self.threads.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise

    def _ask(self, call: Call, position: int) -> tuple[dict[str, Any], Tree]:
        i = int(call.cohort.ids[position])
        declared = call.task.memory(self.net, self.clients.seed)
        page = self.clients.diary.read(self.clients.population.names[i], call.cohort.round)
        values: Tree = {"inputs": tree.take(call.inputs(torch.tensor([position])), 0)}
        remembered = {name: page[name] for name in declared if name in page}
        values |= {"memory": remembered} if remembered else {}
        header = {"task": call.task.name, "client": i, "round": call.cohort.round, "phase": call.cohort.phase,
                  "work": list(call.work), "options": call.options, "uplinks": written(call.uplinks),
                  "now": call.now}
        said, reply = self._answer(header, values, call.shared)
        if "complaint" in said:
            raise UmbelError(said["complaint"])
        return said, reply

    def _answer(self, header: dict[str, Any], values: Tree, shared: Tree) -> tuple[dict[str, Any], Tree]:
        """What some worker answers; a job whose worker is lost is done by another, in the same bits."""
        how = ""
        for _ in range(TRIES):
            worker = self.free.get()
            try:
                return worker.ask(header, values, shared)
            except Lost as lost:
                how = str(lost)
            finally:
                self.free.put(worker)
        name = self.clients.population.names[header["client"]]
        raise UmbelError(f"{TRIES} worker processes that trained the client '{name}' are lost; the last {how}. Go on"
                         " with fewer (--resume, --workers 1), or start again with a smaller batch or model.")


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    """A worker in a session of its own: Ctrl-C reaches the simulator alone, which then ends it."""
    code = "import sys; from umbel.algorithms import import_all; from umbel.engines.worker import main;" \
           " import_all(); main(sys.argv[1])"  # tasks come by name, and methods bring some of their own
    return start(code, str(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                 pipesize=PIPE)


def _end(workers: list[Worker], scratch: Scratch) -> None:
    for worker in workers:
        worker.end()
    scratch.remove()


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    """Kill it: it has nothing of its own to lose."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not flushed has nowhere to go
                pipe.close()
