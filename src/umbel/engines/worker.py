"""A worker process: trains one client at a time for the simulator that started it, and knows no more than a node would.

It reads a job from its standard input and writes the answer to its standard output: a line of JSON, then the bytes of
tensors. A task is looked up by name; nothing that comes in is imported or evaluated.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from umbel import tree
from umbel.data.clients import Work
from umbel.engines.codec import receive, send
from umbel.engines.local import LocalClients
from umbel.engines.on_disk import clients_from
from umbel.errors import UmbelError
from umbel.federation.door import Call, Cohort, Silent
from umbel.federation.tasks import TASKS
from umbel.federation.uplink import parse
from umbel.nets.model import Model
from umbel.tree import Tree


def main(folder: str) -> None:
    """Work until the simulator closes the pipe."""
    clients, net = clients_from(Path(folder))
    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # a stray print must not end up among the answers
    shared: Tree = {}
    while (job := receive(sys.stdin.buffer)) is not None:
        header, values = job
        shared = shared if header["has_shared"] else values.get("shared", {})
        said: dict[str, str] = {}
        reply: Tree = {}
        try:
            said, reply = _done(clients, net, header, values, shared)
        except UmbelError as error:
            said = {"complaint": str(error)}
        except Exception as error:
            first = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
            said = {"complaint": f"A worker process failed at the client '{clients.population.names[header['client']]}'"
                                 f" ({type(error).__name__}: {first}): with --workers 1 it says where."}
        with suppress(BrokenPipeError):  # the simulator is gone; the next read says so
            send(out, said, reply)


def _done(clients: LocalClients, net: Model, header: dict[str, Any], values: Tree,
          shared: Tree) -> tuple[dict[str, str], Tree]:
    """A job's answer: what the client sends and keeps, or why it is silent."""
    i, name = header["client"], clients.population.names[header["client"]]
    cohort = Cohort(torch.tensor([i]), header["round"], header["phase"])
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in header["options"].items()}
    each = {key: leaf[None] if torch.is_tensor(leaf) else tree.stack([leaf])
            for key, leaf in values.get("inputs", {}).items()}
    clients.diary.pages = {name: {header["round"] - 1: values["memory"]}} if "memory" in values else {}
    call = Call(TASKS[header["task"]], cohort, Work(*header["work"]), shared, each, options,
                parse(header["uplinks"]), header["now"])
    done = clients.answer(net, call, 0)
    if isinstance(done, Silent):
        return {"silent": done.reason}, {}
    kept = clients.diary.pages.get(name, {}).get(header["round"], {})
    return {}, {"send": done.send} | ({"keep": kept} if kept else {})
