"""What a site lets a server ask for, and what it lets leave: the site's own rules, which no message can change.

A policy is held against a run's plan when a node is asked who it is, against every call before anything of it is done,
against the rows that the answer rests on, and against the answer. What is refused is one sentence. It binds whoever is
on the other side, an honest server or not; what it cannot stop is said in docs/flower.md.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from umbel import tree
from umbel.algorithms import ALGORITHMS, import_all
from umbel.clustering.parts import LEAST_ROWS
from umbel.clustering.signatures import MOST_RANK
from umbel.data.clients import EPOCHS, IntArray, Population
from umbel.engines.local import behind
from umbel.errors import UmbelError, unknown
from umbel.federation.tasks import TASKS, Loop, refuse_unknown_options
from umbel.federation.uplink import parse
from umbel.fields import check, number, refuse_unknown
from umbel.files import read_text
from umbel.flower.wire import shown
from umbel.tree import Tree

LARGEST = 2**16  # bytes of a file
TRAINED_ON = ("train", "fit", "validation")  # rows that training may be allowed on; test rows never are
TELLS = {  # what tasks tell beside models: a key of the policy, and the tasks that it is about
    "signatures": ("principal_vectors", "class_vectors", "principal_embedded", "class_embedded", "raw_parts",
                   "embedded_parts", "trajectory"),
    "counts": ("class_counts", "distinct_counts", "column_sums", "level_counts"),
    "scores": ("score", "contrast", "losses", "votes"),
    "kept_models": ("remembered", "with_norms", "merged", "alone"),
}
BY_CLASS = (*TELLS["signatures"], "class_counts", "distinct_counts")  # these see no class with too few rows


class Forbidden(UmbelError):
    """A policy says no."""


@dataclass(frozen=True)
class Policy:
    """The rules of one site; each is a key of its policy.toml. The defaults are for sites whose rows are people's."""

    methods: tuple[str, ...] | None = None  # that may be run; None = any
    tasks: tuple[str, ...] | None = None  # that may be asked for; None = any that the site knows
    least_rows: int = number(10, ge=1)  # different ones that an answer rests on
    least_rows_per_class: int = number(10, ge=1)  # different ones, below which a class is left out of descriptions
    least_rows_per_part: int = number(LEAST_ROWS, ge=1)  # of which a part is the mean
    most_rank: int = number(5, ge=1, le=MOST_RANK)  # vectors, of all rows or of each class
    most_epochs: int = number(1000, ge=1, le=EPOCHS)  # of one job
    most_steps: int = number(2**20, ge=1)  # of training in one call: ten epochs of 50,000 rows by 10 are 50,000
    most_jobs: int = number(1024, ge=1)  # in one call; FLAG's sweep asks for one of each partition that it compares
    most_drawn: int = number(2**25, ge=1)  # rows in the batches of one job, drawn beforehand: 600 epochs of 50,000
    train_on: tuple[str, ...] = ("train", "fit")  # rows that models may be trained on
    signatures: bool = True  # whether descriptions of rows may leave: vectors, parts, trajectories
    counts: bool = True  # whether it may be told how many rows are of which class or category
    scores: bool = True  # whether it may be told how well models serve this site
    kept_models: bool = False  # whether a model that the site keeps for itself may leave as it is
    uplinks: str = ""  # what every answer must pass, as in "clip:1"; stronger ones will do

    def __post_init__(self) -> None:
        check(self, "a policy")
        for name, known in (("methods", ALGORITHMS), ("tasks", TASKS), ("train_on", TRAINED_ON)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _names(name, getattr(self, name), known))
        parse(self.uplinks)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The policy in a file of TOML; what it leaves out is as by default."""
        try:
            values = tomllib.loads(read_text(path, LARGEST, follow=True))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise UmbelError(f"The policy {path} must be TOML. It is not: {error}.") from error
        import_all()  # their files register the tasks that may be named
        try:
            refuse_unknown(cls, values, "a policy")
            return cls(**values)
        except UmbelError as error:
            raise UmbelError(f"The policy {path} cannot be kept. {error}") from error

    def changed(self) -> dict[str, Any]:
        """What is not as by default."""
        usual = asdict(Policy())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    # Before anything is asked -----------------------------------------------------------------------------------------

    def refuse_plan(self, whose: str, plan: Mapping[str, Any]) -> None:
        """Raise where a run's plan, as its server tells it, needs what this policy does not allow.

        `whose` begins each sentence: "The policy of 'site-a'".
        """
        if "method" in plan:
            self._refuse_method(whose, plan["method"])
        if "uplinks" in plan:
            self._refuse_uplinks(whose, str(plan["uplinks"]))
        for name, what, limit in (("rank", "vectors", self.most_rank), ("epochs", "epochs", self.most_epochs)):
            if name in plan:
                _most(whose, what, plan[name], limit)
        self._refuse_training(whose, [plan["rows"]] if "rows" in plan else [])
        for told in plan.get("tells", ()):
            self._refuse_telling(whose, told, f"The method '{shown(plan.get('method'))}' needs them.")

    # Before a call is done --------------------------------------------------------------------------------------------

    def refuse_call(self, whose: str, facts: Mapping[str, Any], method: object, rows: int) -> None:
        """Raise where a call asks for what this policy does not allow.

        `facts` are its words (`wire.facts_of`), `rows` how many the site has of any kind at most.
        """
        options, kind = facts["options"], facts["work"][3]
        become = options.get("become", ())
        if not isinstance(become, list | tuple):
            raise Forbidden("What a model is to become is a list of tasks.")
        self._refuse_method(whose, method)
        for name in (facts["task"], *become):
            if name not in TASKS:
                raise Forbidden(f"There is no task '{shown(name)}' at this node.")
            if self.tasks is not None and name not in self.tasks:
                raise Forbidden(f"{whose} does not allow the task '{name}'.")
        refuse_unknown_options(TASKS[facts["task"]], options)
        self._refuse_task(whose, facts["task"], kind)
        trains = [behind(kind) for name in become if isinstance(TASKS[name], Loop)]
        self._refuse_training(whose, trains + ([kind] if isinstance(TASKS[facts["task"]], Loop) else []))
        if "rank" in options:
            _most(whose, "vectors", options["rank"], self.most_rank, 1)
        for size in _sequence(options.get("sizes", ())):
            if type(size) is not int or size < self.least_rows_per_part:
                raise Forbidden(f"{whose} allows parts of {self.least_rows_per_part:,} rows at least."
                                f" Asked for were parts of {shown(size)}.")
        self._refuse_uplinks(whose, facts["uplinks"])
        self._refuse_excess(whose, facts, len(become), max(1, rows))

    def _refuse_task(self, whose: str, task: str, kind: str) -> None:
        """A task may tell what the policy keeps, or look at rows that are not for it."""
        for told, tasks in TELLS.items():
            if task in tasks:
                self._refuse_telling(whose, told, f"The task '{task}' tells them.")
        if kind not in (*TRAINED_ON, "test"):
            raise Forbidden(f"A site has rows to train on, to fit, for validation and to test. Asked for were"
                            f" '{shown(kind)}'.")
        if kind == "test" and task != "score":
            raise Forbidden(f"A site's test rows are for scores alone. Asked for was the task '{task}'.")
        if kind != "train" and task in BY_CLASS:  # a part of the rows can be chosen such that a class has one
            raise Forbidden(f"A site describes all its training rows or none. Asked for were '{kind}' alone.")

    def _refuse_method(self, whose: str, method: object) -> None:
        if self.methods is not None and method not in self.methods:
            said = f"Asked for was '{shown(method)}'" if method else "The server names none"
            raise Forbidden(f"{whose} allows the methods {', '.join(self.methods)}. {said}.")

    def _refuse_telling(self, whose: str, told: str, why: str) -> None:
        if not getattr(self, told, True):
            raise Forbidden(f"{whose} lets no {told.replace('_', ' ')} leave. {why}")

    def _refuse_training(self, whose: str, kinds: Iterable[str]) -> None:
        for kind in kinds:
            if kind not in self.train_on:
                raise Forbidden(f"{whose} allows training on the rows {', '.join(self.train_on)}. Asked"
                                f" for were '{shown(kind)}'.")

    def _refuse_uplinks(self, whose: str, chain: str) -> None:
        given = parse(chain)
        for needed in parse(self.uplinks):
            if not any(each.serves(needed) for each in given):
                raise Forbidden(f"{whose} lets answers leave by the uplink {needed} or a stronger one"
                                f" alone. The run has {shown(chain) or 'none'}: add uplink=\"{needed}\".")

    def _refuse_excess(self, whose: str, facts: Mapping[str, Any], become: int, rows: int) -> None:
        """A server must not keep a site busy for days; looked at before memory is taken for it."""
        jobs, (epochs, steps, batch, _) = facts["jobs"], facts["work"]
        size = batch or rows
        if min(epochs, steps, size, jobs - 1) < 0:
            raise Forbidden(f"A call asks for one job or more, and for no work below 0. Asked for were {jobs} jobs of"
                            f" {epochs} epochs or {steps} steps in batches of {batch}.")
        in_epoch = -(-rows // size)
        whole = -(-steps // in_epoch) if steps else epochs
        asked = {"jobs": (jobs, self.most_jobs), "epochs": (0 if steps else epochs, self.most_epochs),
                 "steps": (jobs * (1 + become) * (steps or epochs * in_epoch), self.most_steps),
                 "rows in one job": (whole * in_epoch * size, self.most_drawn)}
        for what, (count, most) in asked.items():
            _most(whose, what, count, most)

    # The rows that an answer rests on ---------------------------------------------------------------------------------

    def refuse_few(self, whose: str, people: Population, rows: IntArray, facts: Mapping[str, Any]) -> None:
        """Raise where an answer would rest on too few different rows; a score of no rows tells nothing of any."""
        _, steps, batch, _ = facts["work"]
        found = different(people.pool.x, rows, self.least_rows)
        if isinstance(TASKS[facts["task"]], Loop) and steps and batch:
            found = min(found, steps * batch)
        if found < self.least_rows and (len(rows) or facts["task"] in BY_CLASS):
            raise Forbidden(f"{whose} lets answers leave that rest on {self.least_rows:,} different rows"
                            f" or more. This one would rest on {found:,}.")

    def described(self, people: Population) -> Population:
        """The clients without those training rows whose class has too few different ones: what descriptions are of."""
        if self.least_rows_per_class == 1:
            return people
        changes = tuple(each._replace(train=self._common(people, each.train)) for each in people.changes)
        return replace(people, train=[self._common(people, rows) for rows in people.train], changes=changes)

    def _common(self, people: Population, rows: IntArray) -> IntArray:
        kinds, least = people.kinds[rows], self.least_rows_per_class
        many = [kind for kind in np.unique(kinds) if different(people.pool.x, rows[kinds == kind], least) == least]
        common: IntArray = rows[np.isin(kinds, many)]
        return common

    # Before an answer leaves ------------------------------------------------------------------------------------------

    def refuse_answer(self, whose: str, send: Tree, kinds: Iterable[int]) -> None:
        """Raise where an answer tells of too few rows, or of classes other than these; whatever task it is of."""
        leaves = tree.named(send)
        size = int(leaves["size"]) if "size" in leaves else 0
        if 0 < size < self.least_rows:
            raise Forbidden(f"{whose} lets answers leave that rest on {self.least_rows:,} different rows"
                            f" or more. This one rests on {size:,}.")
        told = {int(kind) for name in ("basis_class", "part_kind") if name in leaves for kind in leaves[name].flatten()}
        if self.least_rows_per_class > 1 and (rare := sorted(told - {-1, *kinds})):
            raise Forbidden(f"{whose} lets no class be described that has fewer than"
                            f" {self.least_rows_per_class:,} different rows. This answer describes {rare[0]}.")


def different(x: Any, rows: IntArray, enough: int) -> int:
    """How many of these rows of a pool differ in any number; counting ends when there are enough."""
    seen: set[bytes] = set()
    for row in rows:
        seen.add(x[row].tobytes())
        if len(seen) >= enough:
            break
    return len(seen)


def _names(key: str, given: Any, known: Iterable[str]) -> tuple[str, ...]:
    """A list of names out of those that are known; an empty one would be read either way."""
    if not isinstance(given, list | tuple) or not given or not all(isinstance(name, str) for name in given):
        raise UmbelError(f"The '{key}' of a policy must be a list of one name or more. Got {shown(given)} instead.")
    for name in given:
        if name not in known:
            raise unknown(f"name for '{key}' of a policy like", name, known)
    return tuple(given)


def _sequence(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _most(whose: str, what: str, given: Any, most: int, least: int = 0) -> None:
    if type(given) is not int or not least <= given <= most:
        count = f"{given:,}" if type(given) is int else f"'{shown(given)}'"
        raise Forbidden(f"{whose} allows one call at most {most:,} {what}. Asked for were {count}.")


OPEN = Policy(least_rows=1, least_rows_per_class=1, least_rows_per_part=1, most_rank=MOST_RANK, most_epochs=EPOCHS,
              train_on=TRAINED_ON, kept_models=True)
"""What a simulated node allows: its rows belong to whoever simulates. The limits to one call's work are as ever."""
