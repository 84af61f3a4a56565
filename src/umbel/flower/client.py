"""A node of a Flower federation: one client, its rows, and a folder for what it remembers.

The node answers two kinds of message: `query.describe` (who are you, and do we mean the same model?) and `train` (do a
task, which it looks up by name). Its rows never leave it; what a task sends is all that travels, as far as the site's
policy allows it, and a line of each message is in the site's log before its answer leaves.
"""

import json
import logging
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

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
from umbel.files import clear_leftovers, make_folder, parse_json, read_bytes, remove, write_atomically
from umbel.flower import audit
from umbel.flower.policy import BY_CLASS, OPEN, Forbidden, Policy
from umbel.flower.wire import (
    NAME,
    WORDS,
    Unbelievable,
    call_from,
    digest,
    facts_of,
    fingerprint,
    record,
    shown,
    words,
)
from umbel.nets.model import Model
from umbel.tree import Tree, nbytes

Half: TypeAlias = tuple[NDArray[Any], NDArray[Any]]  # inputs and targets
LoadData: TypeAlias = Callable[[Context], tuple[Half, Half | None]]  # training and test rows of this node
Words: TypeAlias = dict[str, Any]

SITES: WeakKeyDictionary[ClientApp, Callable[[Context], "Site"]] = WeakKeyDictionary()  # what apps are made of
LEAST_ROOM = 2**24  # bytes that must be free where a site remembers, beside two generations of what it may keep
POLICY = "The site's policy"  # the name of the site is known to who hears its refusal
PROBE = "_probe"  # a file that is written and removed there
KEPT_MODELS = 3  # that a method lets a site keep at once, at most: SCAFFOLD keeps two

log = logging.getLogger("flwr.umbel")  # a child of Flower's logger, so that its handlers show it


class Site(NamedTuple):
    """What a node brings: its one client, the model it was built for, where it remembers, where it computes."""

    people: Population
    net: Model
    memory: Path
    device: torch.device = torch.device("cpu")
    durable: bool = True  # whether its memory must survive a crash of the machine, or need only last for this run
    policy: Policy = OPEN  # what may be asked of it, and what may leave
    audit: Path | None = None  # the log of what was asked and what left; None = there is none

    @property
    def name(self) -> str:
        """The name of its client."""
        return self.people.names[0]


Answer: TypeAlias = Callable[[Site, Words, RecordDict], tuple[Words, RecordDict]]  # request, content -> said, content


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
        clear_leftovers(path.parent)
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
    SITES[app] = site

    @app.query("describe")
    def describe(message: Message, context: Context) -> Message:
        return _reply(message, lambda: site(context), _described)

    @app.train()
    def work(message: Message, context: Context) -> Message:
        return _reply(message, lambda: site(context), _done)

    return app


def _reply(message: Message, site: Callable[[], Site], answer: Answer) -> Message:
    """Answer, or say in one sentence why not, here and there. The text of an unexpected error stays in this log."""
    request: dict[str, Any] = {}
    here: Site | None = None
    try:
        here = site()
        request = words(message.content)
        said, content = answer(here, request, message.content)
    except Exception as error:
        said, content = _refused(error), RecordDict()
    if here is not None and here.audit is not None:
        try:
            audit.write(here.audit, audit.entry(here.name, request, message.content, said, content))
        except Exception as error:  # a full disk: nothing leaves that is not in the log
            said, content = _refused(error), RecordDict()
    content[WORDS] = ConfigRecord({**said, "call": request.get("call", ""), "digest": digest(content)})
    return Message(content, reply_to=message)


def _refused(error: Exception) -> Words:
    """Why nothing leaves, logged here as well as told."""
    if isinstance(error, UmbelError | Unbelievable):
        log.warning("Refused: %s", error)
        return {"refused": str(error), **({"forbidden": True} if isinstance(error, Forbidden) else {})}
    log.error("A task failed.", exc_info=error)
    return {"refused": f"The task failed at the node with {type(error).__name__}."}


def _described(site: Site, request: Words, _: RecordDict) -> tuple[Words, RecordDict]:
    people = site.people
    if not len(people.train[0]):
        raise UmbelError(f"A client needs rows to train on, and '{site.name}' has none.")
    site.policy.refuse_plan(f"The policy of '{site.name}'", parse_json(str(request.get("plan", "{}")), "A plan"))
    if site.durable:
        refuse_unwritable(site.memory, nbytes(site.net.shapes))
    said = {"name": site.name, "train": len(people.train[0]), "test": len(people.test[0]),
            "fingerprint": fingerprint(site.net), "version": version("umbel"),
            "policy": json.dumps(site.policy.changed())}
    return said, RecordDict()


def _done(site: Site, request: Words, content: RecordDict) -> tuple[Words, RecordDict]:
    run, seed = str(request["run"]), int(request["seed"])
    if not NAME.fullmatch(run):
        raise UmbelError(f"The name of a run is letters, digits, '.', '_' and '-'. Got '{shown(run)}' instead.")
    if request["fingerprint"] != fingerprint(site.net):
        raise UmbelError(f"The model of '{site.name}' is another than the server's.")
    import_all()  # methods bring tasks of their own, and this node may never have heard of the server's method
    facts, policy, people = facts_of(str(request["about"])), site.policy, site.people
    most = max(len(people.train[0]), len(people.test[0]))
    policy.refuse_call(POLICY, facts, request.get("method", ""), most)
    call = call_from(facts, content)
    common = policy.described(people)
    clients = LocalClients(common if call.task.name in BY_CLASS else people, seed, site.device)
    clients.diary = DiskDiary(site.memory / run, site.durable)
    rows = clients.rows(0, call.work.rows, call.now)
    policy.refuse_few(POLICY, clients.population, rows, facts)
    changed = common.change_of(0, call.now)
    held = common.train[0] if changed is None else common.changes[changed].train
    kinds = set(people.kinds[held].tolist())
    net = site.net if site.device.type == "cpu" else site.net.to(site.device)
    answers = RecordDict()
    for job in range(len(call.cohort.ids)):
        done = clients.answer(net, call, job)
        if isinstance(done, Silent):
            return {"name": site.name, "silent": done.reason}, RecordDict()
        policy.refuse_answer(POLICY, tree.take(done.send, 0), kinds)
        answers[str(job)] = record(tree.take(done.send, 0))
    return {"name": site.name}, answers


# A node with its own data -------------------------------------------------------------------------------------------


def site_of(context: Context, load_data: LoadData, net: Model) -> Site:
    """What `load_data` and the node's configuration say: name, data, ordered, memory-dir, device, policy, audit."""
    config = context.node_config
    name = client_name(context)
    policy = Policy.read(Path(str(config["policy"])).expanduser()) if "policy" in config else Policy()
    people = alone(name, net, *load_data(context), ordered=config.get("ordered") is True)
    home = Path(str(config.get("memory-dir", Path.home() / ".umbel" / "memory"))).expanduser()
    told = Path(str(config.get("audit", audit.place(home, name)))).expanduser()
    return Site(people, net, home, device_of(str(config.get("device", "cpu"))), policy=policy, audit=told)


def refuse_unwritable(memory: Path, model: int) -> None:
    """Raise where a site could not remember what methods let it keep, of a model of so many bytes."""
    make_folder(memory)
    clear_leftovers(memory)
    probe = memory / PROBE
    write_atomically(probe, b"umbel\n", private=True)
    remove(probe)
    free, due = shutil.disk_usage(memory).free, LEAST_ROOM + 2 * KEPT_MODELS * model
    if free < due:
        raise UmbelError(f"The folder {memory} needs {due:,} free bytes for what methods let a site keep. There are"
                         f" {free:,}: make room, or choose another memory-dir.")


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
