"""Worker processes for a simulation on a CPU: one client each, one thread each.

Whole clients are trained apart, with the same code and the same bits as in one process, for any number of workers.
"""

import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import torch

from umbel import tree
from umbel.engines.local import LocalClients
from umbel.engines.worker import receive, send, write_clients
from umbel.federation import Answered, Call
from umbel.models import MODELS, Model
from umbel.tasks import Loop
from umbel.tree import Tree


def can_leave_home(net: Model, task: Loop) -> bool:
    """Whether another process can build the model and look up the task by their names alone."""
    return net.name in MODELS and task.begin.__module__.startswith("umbel.")


class Crew:
    """Some worker processes and the folder that tells them who the clients are."""

    def __init__(self, clients: LocalClients, net: Model, count: int) -> None:
        self.clients = clients
        self.net = net
        self.folder = Path(tempfile.mkdtemp(prefix="umbel-"))
        write_clients(self.folder, clients.population, net, clients.seed)
        self.idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        processes = [_start(self.folder) for _ in range(count)]
        for process in processes:
            self.idle.put(process)
        self.threads = ThreadPoolExecutor(count)
        self.close = weakref.finalize(self, _end, processes, self.folder)

    def perform(self, call: Call) -> Iterator[Answered]:
        """Hand the clients of a call out to whoever is idle; answers come as they are ready."""
        jobs = {self.threads.submit(self._ask, call, p): p for p in range(len(call.cohort.ids))}
        try:
            for job in as_completed(jobs):
                position = jobs[job]
                reply = job.result()
                name = self.clients.population.names[int(call.cohort.ids[position])]
                self.clients.diary.write(name, call.cohort.round, reply.get("keep", {}))
                yield Answered(torch.tensor([position]), tree.stack([reply["send"]]))
        except BaseException:  # an interruption, too, must not leave work in the queue
            self.threads.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise

    def _ask(self, call: Call, position: int) -> Tree:
        i = int(call.cohort.ids[position])
        declared = call.task.memory(self.net, self.clients.seed)
        page = self.clients.diary.read(self.clients.population.names[i], call.cohort.round)
        values: Tree = {"inputs": {**call.shared, **tree.take(call.inputs(torch.tensor([position])), 0)}}
        remembered = {name: page[name] for name in declared if name in page}
        values |= {"memory": remembered} if remembered else {}
        header = {"task": call.task.name, "client": i, "round": call.cohort.round, "phase": call.cohort.phase,
                  "work": list(call.work), "options": call.options}
        process = self.idle.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            send(process.stdin, header, values)
            answer = receive(process.stdout)
        finally:
            self.idle.put(process)
        if answer is None:
            raise RuntimeError(f"A worker process ended with code {process.wait()}; what it said stands above.")
        return answer[1]


def _start(folder: Path) -> subprocess.Popen[bytes]:
    """A worker in a session of its own: Ctrl-C reaches the simulator alone, which then ends it."""
    code = "import sys, umbel; from umbel.engines.worker import main; main(sys.argv[1])"
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            start_new_session=True)


def _end(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    for process in processes:
        process.terminate()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not flushed has nowhere to go
                    pipe.close()
    shutil.rmtree(folder, ignore_errors=True)
