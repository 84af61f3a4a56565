"""The server's side of a Flower federation: `map` over a Grid.

One push carries the messages of a call, with different models for different clients; a model that many receive is
uploaded once. The server polls by itself, until everybody has answered, or a quorum has and a grace has passed, or a
deadline. Replies are matched to the messages that they answer, since an error does not name the node. What comes back
is checked before it is used.

A client is known by its own name, not by Flower's number for its node.
"""

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from httpx import HTTPError
from torch import Tensor

from umbel import tree
from umbel.federation.door import Answered, Call, Cohort, Federation, Heard, NobodyAnswered, Silent
from umbel.federation.tasks import Task
from umbel.federation.uplink import promises
from umbel.flower.wire import NAME, WORDS, Parcels, Unbelievable, asked, digest, fingerprint, promised, shown
from umbel.flower.wire import words as words_of
from umbel.nets.model import Model
from umbel.tree import Tree

log = logging.getLogger("flwr.umbel")  # a child of Flower's logger: `flwr log` shows it

MOST_ROWS = 2**31  # that a site may say it has: its answers weigh by them
SLACK = 60.0  # seconds that clocks of server and nodes may differ, before Flower takes a message for expired
LATE = "late"
KINDS = {"train": int, "test": int, "fingerprint": str, "version": str, "policy": str}  # of what a node says of itself


class AgainstPolicy(Unbelievable):
    """A site's policy forbids what this run asks for."""


class Patience(NamedTuple):
    """How long a server waits, in seconds."""

    deadline: float = 600.0  # of one exchange: who has not answered by then is lost for this round
    quorum: float = 1.0  # share of those asked; when so many have answered, the others have ...
    grace: float = 30.0  # ... this long
    hello: float = 120.0  # for a node to say who it is
    poll: float = 0.2  # between two looks for replies


class Clock(NamedTuple):
    """Time, so that tests can have their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class FlowerFederation(Federation):
    """A federation over a Grid. Before each round it looks which nodes are connected, and asks who the new ones are."""

    def __init__(self, net: Model, grid: Grid, seed: int, *, run: str, names: list[str] | None = None,
                 patience: Patience | None = None, clock: Clock | None = None,
                 plan: Mapping[str, Any] | None = None) -> None:
        super().__init__(net, list(names or []), seed, torch.device("cpu"))
        self.grid = grid
        self.run = run  # nodes keep what they remember under this name
        self.plan = dict(plan or {})  # what the run will ask for: told to nodes, whose policies may forbid it
        self.patience = patience or Patience()
        self.clock = clock or Clock()
        self.told: dict[str, tuple[int, int]] = {}  # name of a client -> training and test rows, by its own word
        self.nodes: dict[str, int] = {}  # name of a client -> its node, as far as it was met in this process
        self.online[:] = False
        self.forbidden: dict[int, str] = {}  # node -> what its site's policy says against this run
        self._refused: dict[int, tuple[int, int]] = {}  # node -> times refused, round in which it is asked again
        self._late: set[str] = set()  # did not answer in time in this round: not asked again before the next
        self._renamed: set[str] = set()  # whose node answered under another name: asked who it is before the next round
        self._serial = itertools.count()

    # Who is there -----------------------------------------------------------------------------------------------------

    def arrive(self, round: int) -> None:
        """Look who is connected and ask unknown nodes who they are; new names follow the old ones, sorted."""
        super().arrive(round)
        while self._renamed:
            self.nodes.pop(self._renamed.pop(), None)
        self._late.clear()
        here = self._look(round)
        self.online = torch.tensor([self.nodes.get(name) in here for name in self.names], dtype=torch.bool)

    def _look(self, round: int) -> set[int]:
        here = {int(node.node_id): str(node.name) for node in self.grid.get_nodes()}
        met = set(self.nodes.values())
        unknown = [node for node in here if node not in met and self._refused.get(node, (0, round))[1] <= round]
        if unknown:
            self._meet({node: here[node] for node in unknown}, set(here), round)
            self.names += sorted(set(self.nodes) - set(self.names))
        return set(here)

    def _meet(self, unknown: dict[int, str], here: set[int], round: int) -> None:
        """Ask nodes who they are. Who is late is asked again next time, who does not fit 1, 2, 4 ... rounds later."""
        plan = json.dumps(self.plan)
        messages = {node: self._message(node, "query.describe", f"describe/{round}", {}, plan=plan) for node in unknown}
        replies = dict(self._exchange(messages, self.patience.hello, everybody=True))
        for node in sorted(replies):  # of two that claim one name, it is always the same that gets it
            self.forbidden.pop(node, None)
            try:
                description = self._words(messages[node], replies[node])
                name = self._introduced(description, unknown[node], here)
            except Unbelievable as error:
                if str(error) != LATE:
                    times, _ = self._refused.get(node, (0, 0))
                    self._refused[node] = (times + 1, round + 2**times)
                if isinstance(error, AgainstPolicy):
                    self.forbidden[node] = str(error).removeprefix("refused: ")
                _log_lost({f"node {node}": str(error)})
                continue
            self._refused.pop(node, None)
            self.nodes[name] = node
            self.told[name] = description["train"], description["test"]
            self._welcome(name, description)

    def forgive(self) -> None:
        """Ask refused nodes again at the next `arrive`."""
        self._refused.clear()

    def _welcome(self, name: str, description: dict[str, Any]) -> None:
        rules = "" if description["policy"] == "{}" else f", and a policy of its own: {shown(description['policy'])}"
        log.info("%s is here, with %d training and %d test rows%s.", name, description["train"],
                 description["test"], rules)

    def _introduced(self, description: dict[str, Any], registered: str, here: set[int]) -> str:
        """The name that a node may have, or why it may not."""
        name, kinds = description.get("name"), KINDS
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise Unbelievable("has no proper name")
        typed = all(type(description.get(key)) is kind for key, kind in kinds.items())
        if not typed or not 1 <= description["train"] <= MOST_ROWS or not 0 <= description["test"] <= MOST_ROWS:
            raise Unbelievable(f"calls itself {name}, and does not say what it has")
        if registered and registered != name:
            raise Unbelievable(f"calls itself {name}, but its key is registered as {shown(registered)}")
        if self.nodes.get(name) in here:
            raise Unbelievable(f"calls itself {name}, a name that another node uses")
        if description["version"] != version("umbel"):
            theirs = shown(description["version"])
            raise Unbelievable(f"calls itself {name}, and has umbel {theirs}, not {version('umbel')}")
        if description["fingerprint"] != fingerprint(self.net):
            raise Unbelievable(f"calls itself {name}, and has another model than the server")
        return name

    # What is asked ----------------------------------------------------------------------------------------------------

    def map(self, task: Task, cohort: Cohort, **rest: Any) -> Heard:
        """As on any engine; answers that are missing or refused are logged with the client's name."""
        try:
            heard = super().map(task, cohort, **rest)
        except NobodyAnswered as error:
            _log_lost(error.lost)
            raise
        _log_lost(heard.lost)
        return heard

    def perform(self, call: Call) -> Iterator[Answered | Silent]:
        """One message to each client of the cohort, also where it stands there several times."""
        places: dict[str, list[int]] = {}
        for position, client in enumerate(call.cohort.ids.tolist()):
            places.setdefault(self.names[client], []).append(position)
        parcels, expected = Parcels(call), promises(self.net, call)[-1]
        messages, owner = {}, {}
        for name, positions in places.items():
            if name in self._late or name not in self.nodes:
                reason = LATE if name in self._late else "away"
                yield from (Silent(position, reason) for position in positions)
                continue
            node = self.nodes[name]
            title = f"{call.task.name}/{call.cohort.phase}/{call.cohort.round}"
            about = asked(call, len(positions))
            messages[node] = self._message(node, "train", title, parcels.of(positions), about=about)
            owner[node] = name
        for node, reply in self._exchange(messages, self.patience.deadline):
            name, positions = owner[node], places[owner[node]]
            try:
                answers = self._answers(messages[node], reply, name, len(positions), expected)
            except Unbelievable as error:
                if str(error) == LATE:
                    self._late.add(name)
                yield from (Silent(position, str(error)) for position in positions)
                continue
            for position, send in zip(positions, answers, strict=True):
                yield Answered(torch.tensor([position]), tree.stack([send]))

    def rows_told(self, call: Call) -> Tensor | None:
        """What each said when it came: who has more by now is believed when it comes anew."""
        half = int(call.work.rows == "test")
        return torch.tensor([self.told.get(self.names[i], (0, 0))[half] for i in call.cohort.ids.tolist()],
                            dtype=torch.long)

    def _message(self, node: int, kind: str, title: str, inputs: dict[str, Any], **words: Any) -> Message:
        """A message that expires when nobody waits for its answer any more."""
        content = RecordDict(dict(inputs))
        content[WORDS] = ConfigRecord({
            "call": f"{self.run}/{title}/{next(self._serial)}", "run": self.run, "seed": self.seed,
            "fingerprint": fingerprint(self.net), "method": str(self.plan.get("method", "")), **words,
        })
        wait = self.patience.hello if kind == "query.describe" else self.patience.deadline
        return Message(content, node, kind, ttl=wait + SLACK)

    # What comes back --------------------------------------------------------------------------------------------------

    def _exchange(self, messages: dict[int, Message], deadline: float,
                  everybody: bool = False) -> Iterator[tuple[int, Message | str]]:
        """Push once, then hand out replies as they come; nodes that stay silent come last, as late."""
        if not messages:
            return
        pushed = set(self.grid.push_messages(list(messages.values())))
        waiting = {message.metadata.message_id: node for node, message in messages.items()}
        for node in [waiting.pop(key) for key in set(waiting) - pushed]:
            yield node, "could not be reached"
        end, answered = self.clock.now() + deadline, 0
        enough = len(messages) if everybody else self.patience.quorum * len(messages)
        while waiting and self.clock.now() < end:
            for key in list(waiting):
                for reply in self._pull(key):
                    node, answered = waiting.pop(key), answered + 1
                    yield node, reply
                    break
            if answered >= enough:
                end, enough = min(end, self.clock.now() + self.patience.grace), len(messages) + 1
            if waiting:
                self.clock.sleep(max(self.patience.poll, 0.005 * len(waiting)))
        for node in waiting.values():
            yield node, LATE

    def _pull(self, key: str) -> list[Message | str]:
        """The reply to one message, if it is there. Pulled one by one, so that an unreadable reply loses no other."""
        try:
            return [each for each in self.grid.pull_messages([key]) if each.metadata.reply_to_message_id == key]
        except (OSError, HTTPError):  # the SuperLink cannot be reached: no client is to blame
            raise
        except Exception:
            return ["cannot be read"]

    def _words(self, message: Message, reply: Message | str) -> dict[str, Any]:
        """The words of a reply that answers this very message."""
        if isinstance(reply, str):
            raise Unbelievable(reply)
        if reply.has_error():
            raise Unbelievable(f"gave no answer: error {reply.error.code}, {shown(reply.error.reason)}")
        if not reply.has_content():
            raise Unbelievable("is empty")
        words = words_of(reply.content)
        if "refused" in words:
            kind = AgainstPolicy if words.get("forbidden") is True else Unbelievable
            raise kind(f"refused: {shown(words['refused'])}")
        if words.get("call") != words_of(message.content)["call"]:
            raise Unbelievable("answers another call")
        return words

    def _answers(self, message: Message, reply: Message | str, name: str, jobs: int, expected: Tree) -> list[Tree]:
        """What a client sends, checked in all but shapes, types and numbers, which `map` checks for every engine."""
        words = self._words(message, reply)
        assert isinstance(reply, Message)
        if words.get("name") != name:
            self._renamed.add(name)
            raise Unbelievable(f"answers under the name {shown(words.get('name'))}")
        if "silent" in words:
            raise Unbelievable(shown(words["silent"]))
        if set(words) != {"call", "name", "digest"} or set(reply.content) != {WORDS, *map(str, range(jobs))}:
            raise Unbelievable("has other parts than promised")
        answers = [promised(reply.content[str(job)], expected) for job in range(jobs)]
        if words["digest"] != digest(reply.content):
            raise Unbelievable("was changed on its way")
        return answers

    # What clients keep is at the nodes --------------------------------------------------------------------------------

    def memory(self) -> tuple[Tree, dict[str, int]]:
        """Nothing: it lies at the nodes, under the name of the run."""
        return {}, {}

    def remember(self, pages: Tree, rounds: dict[str, int]) -> None:
        """Nodes find their pages themselves: asked for round r, they read the newest before r."""


def _log_lost(lost: Mapping[str, str]) -> None:
    for name, reason in lost.items():
        log.warning("Lost: %s: %s.", name, reason.rstrip("."))
