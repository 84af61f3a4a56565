"""A node of a Flower federation: one client, its rows, and a folder for what it remembers.

The node answers two kinds of message: `query.describe` (who are you, and do we mean the same model?) and `train` (do a
task, which it looks up by name). Its rows never leave it; what a task sends is all that travels.
"""

import json
import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from safetensors.torch import load, save

from umbel import tree
from umbel.algorithms import import_all
from umbel.data.clients import Pool, Population
from umbel.data.rows import Like, site
from umbel.engines.local import Diary, LocalClients, device_of
from umbel.errors import UmbelError
from umbel.federation.door import Silent
from umbel.files import make_folder, read_bytes, write_atomically
from umbel.flower.wire import NAME, WORDS, Unbelievable, call_from, digest, fingerprint, record, shown, words
from umbel.nets.model import Model
from umbel.tree import Tree

Half: TypeAlias = tuple[NDArray[Any], NDArray[Any]]  # inputs and targets
LoadData: TypeAlias = Callable[[Context], tuple[Half, Half | None]]  # training and test rows of this node

MOST_JOBS = 1024  # in one call; FLAG's trial asks for one of each partition that it compares
MOST_STEPS = 2**20  # of training in one call: ten epochs of 50,000 rows in batches of 10 are 50,000
MOST_DRAWN = 2**25  # rows in the batches of one job, whose numbers are drawn beforehand: 600 epochs of 50,000

log = logging.getLogger("flwr.umbel")  # a child of Flower's logger, so that its handlers show it


class Site(NamedTuple):
    """What a node brings: its one client, the model it was built for, where it remembers, where it computes."""

    people: Population
    net: Model
    memory: Path
    device: torch.device = torch.device("cpu")
    durable: bool = True  # whether its memory must survive a crash of the machine, or need only last for this run

    @property
    def name(self) -> str:
        """The name of its client."""
        return self.people.names[0]


class DiskDiary(Diary):
    """A diary whose pages are files, `folder/<name>/<round>.safetensors`: they outlive the process and the node."""

    def __init__(self, folder: Path, durable: bool = True) -> None:
        self.folder = folder
        self.durable = durable

    def _rounds(self, name: str) -> list[int]:
        files = (self.folder / name).glob("*.safetensors")
        return sorted(int(path.stem) for path in files if path.stem.isdecimal())

    def _page(self, name: str, round: int) -> Path:
        return self.folder / name / f"{round}.safetensors"

    def read(self, name: str, round: int) -> Tree:
        """The newest page before `round`, or an empty one: a round that is done twice reads the same page twice."""
        past = [written for written in self._rounds(name) if written < round]
        return tree.nested(load(read_bytes(self._page(name, past[-1])))) if past else {}

    def write(self, name: str, round: int, keep: Tree) -> None:
        """Add a page, and keep one older: the server may resume from the round before."""
        if not keep:
            return
        page = {**self.read(name, round), **keep}
        path = self._page(name, round)
        make_folder(path.parent)
        content = save({key: leaf.cpu().contiguous().clone() for key, leaf in tree.named(page).items()})
        write_atomically(path, content, self.durable, private=True)
        for old in self._rounds(name)[:-2]:
            self._page(name, old).unlink()

    def newest(self) -> tuple[Tree, dict[str, int]]:
        """Every client's last page; only in a simulation are all of them on one disk."""
        names = [each.name for each in self.folder.iterdir()] if self.folder.exists() else []
        rounds = {name: written[-1] for name in sorted(names) if (written := self._rounds(name))}
        return {name: self.read(name, round + 1) for name, round in rounds.items()}, rounds

    def restore(self, pages: Tree, rounds: dict[str, int]) -> None:
        """Replace all pages by those that `newest` gave."""
        for name in self.newest()[1]:
            for round in self._rounds(name):
                self._page(name, round).unlink()
        for name, page in pages.items():
            self.write(name, rounds[name], page)


def node_app(site: Callable[[Context], Site]) -> ClientApp:
    """The Flower app of a node, which is described by `site`."""
    app = ClientApp()

    @app.query("describe")
    def describe(message: Message, context: Context) -> Message:
        return _reply(message, lambda request: _described(site(context)))

    @app.train()
    def work(message: Message, context: Context) -> Message:
        return _reply(message, lambda request: _done(site(context), request, message.content))

    return app


def _reply(message: Message, answer: Callable[[dict[str, Any]], tuple[dict[str, Any], RecordDict]]) -> Message:
    """Answer, or say in one sentence why not. The text of an unexpected error stays in this site's log."""
    request: dict[str, Any] = {}
    try:
        request = words(message.content)
        said, content = answer(request)
    except (UmbelError, Unbelievable) as error:
        said, content = {"refused": str(error)}, RecordDict()
    except Exception as error:
        log.exception("A task failed.")
        said, content = {"refused": f"The task failed at the node with {type(error).__name__}."}, RecordDict()
    content[WORDS] = ConfigRecord({**said, "call": request.get("call", ""), "digest": digest(content)})
    return Message(content, reply_to=message)


def _described(site: Site) -> tuple[dict[str, Any], RecordDict]:
    people = site.people
    if not len(people.train[0]):
        raise UmbelError(f"A client needs rows to train on, and '{site.name}' has none.")
    said = {"name": site.name, "train": len(people.train[0]), "test": len(people.test[0]),
            "fingerprint": fingerprint(site.net), "version": version("umbel")}
    return said, RecordDict()


def _done(site: Site, request: dict[str, Any], content: RecordDict) -> tuple[dict[str, Any], RecordDict]:
    run, seed = str(request["run"]), int(request["seed"])
    if not NAME.fullmatch(run):
        raise UmbelError(f"The name of a run is letters, digits, '.', '_' and '-'. Got '{shown(run)}' instead.")
    if request["fingerprint"] != fingerprint(site.net):
        raise UmbelError(f"The model of '{site.name}' is another than the server's.")
    _refuse_excess(site, json.loads(str(request["about"])))
    import_all()  # methods bring tasks of their own, and this node may never have heard of the server's method
    call = call_from(str(request["about"]), content)
    clients = LocalClients(site.people, seed, site.device)
    clients.diary = DiskDiary(site.memory / run, site.durable)
    net = site.net if site.device.type == "cpu" else site.net.to(site.device)
    answers = RecordDict()
    for job in range(len(call.cohort.ids)):
        done = clients.answer(net, call, job)
        if isinstance(done, Silent):
            return {"name": site.name, "silent": done.reason}, RecordDict()
        answers[str(job)] = record(tree.take(done.send, 0))
    return {"name": site.name}, answers


def _refuse_excess(site: Site, about: dict[str, Any]) -> None:
    """Raise where one call asks for more work than any method does: a server must not keep a site busy for days."""
    jobs, become = int(about["jobs"]), about["options"].get("become", ())
    epochs, steps, batch = map(int, about["work"][:3])
    rows = max(1, len(site.people.train[0]), len(site.people.test[0]))
    size = batch or rows
    if min(epochs, steps, size, jobs - 1) < 0:
        raise UmbelError(f"A call asks for one job or more, and for no work below 0. Asked for were {jobs} jobs of"
                         f" {epochs} epochs or {steps} steps in batches of {batch}.")
    in_epoch = -(-rows // size)
    epochs = -(-steps // in_epoch) if steps else epochs
    asked = {"jobs": (jobs, MOST_JOBS), "steps": (jobs * (1 + len(become)) * (steps or epochs * in_epoch), MOST_STEPS),
             "rows in one job": (epochs * in_epoch * size, MOST_DRAWN)}
    for what, (number, most) in asked.items():
        if number > most:
            raise UmbelError(f"One call may ask a site for at most {most:,} {what}. Asked for were {number:,}.")


# A node with its own data -------------------------------------------------------------------------------------------


def site_of(context: Context, load_data: LoadData, net: Model) -> Site:
    """What `load_data` and the node's configuration say: name, data, ordered, memory-dir, device."""
    config = context.node_config
    name = client_name(context)
    people = alone(name, net, *load_data(context), ordered=config.get("ordered") is True)
    home = Path(str(config.get("memory-dir", Path.home() / ".umbel" / "memory"))).expanduser()
    return Site(people, net, home, device_of(str(config.get("device", "cpu"))))


def client_name(context: Context) -> str:
    """The `name` of the node's configuration; in Flower's simulation the number of its partition."""
    config = context.node_config
    if "name" not in config and "partition-id" in config:
        width = max(3, len(str(int(config.get("num-partitions", 1)) - 1)))
        return f"c{int(config['partition-id']):0{width}d}"
    name = str(config.get("name", ""))
    if not NAME.fullmatch(name):
        raise UmbelError(
            "A node needs a name of letters, digits, '.', '_' and '-', as in --node-config 'name=\"site-a\"'."
            f" Got '{shown(name)}' instead."
        )
    return name


def alone(name: str, net: Model, train: Half, test: Half | None, ordered: bool = False) -> Population:
    """A population of this one client; without test rows it is trained and placed, and not scored."""
    like = Like(net.shape, ("tokens",) if net.tokens else ("pixels", "numbers"), "the model takes them")
    halves = site(f"'{name}'", (*train, *(test or ())), net.objective, like)
    x, y = (np.concatenate(parts) for parts in zip(*halves, strict=True))
    rows = np.split(np.arange(len(y)), [len(halves[0][1])])
    return Population(Pool(x, y), [rows[0]], [rows[1]], np.zeros(1, dtype=np.int64), net.objective, [name],
                      ordered=ordered)
