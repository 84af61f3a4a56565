"""Are the decisions right? Alike clients must stay one cluster, true groups whole and apart, newcomers find their own.

    python benchmarks/decisions.py SUITE [--method METHOD ...] [--seeds 100:120] [--only TEXT] [--out runs/decisions]
                                         [--jobs 2]

A suite is a list of cases; a trial is one case with one seed and one method. Each finished trial is a line of
OUT/SUITE.jsonl and is kept, so a suite can be stopped and gone on with. Rules are chosen on seeds below 100 and
reported on seeds from 100. The method `core` is the test on parts of clients' rows alone, with the tree of its own
distances.
"""

import gc
import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.metrics import adjusted_rand_score

import umbel
from umbel.algorithms.alike import cut_by_tests, described
from umbel.clustering.branches import by_distance
from umbel.clustering.energy import energy
from umbel.clustering.exchangeable import LEVEL, TESTS
from umbel.clustering.parts import read
from umbel.data import shift
from umbel.federation.phases import ADMIT
from umbel.seeds import generator

Ints = NDArray[np.int64]
SETS = ("digits", "mnist", "fashion-mnist", "cifar10")
FLAGS = 20_000  # rows that the scenario flag deals out here


# Federations ------------------------------------------------------------------------------------------------------


@lru_cache
def rows_of(name: str) -> umbel.Dataset:
    return umbel.open_dataset(name)


class Kind(NamedTuple):
    """How true groups differ."""

    labels: Callable[[int, int], Ints | None]  # group, classes -> probabilities of labels; None = as the set has them
    shift: Callable[[int], str]


def _only(group: int, classes: int) -> Ints:
    return np.isin(np.arange(classes), [2 * group % classes, (2 * group + 1) % classes]).astype(float)


def _more(group: int, classes: int) -> Ints:
    return 1 + 4 * _only(group, classes)


KINDS = {
    "alike": Kind(lambda g, c: None, lambda g: ""),
    "rotations": Kind(lambda g, c: None, lambda g: (*shift.ROTATIONS, "erode")[g]),
    "meanings": Kind(lambda g, c: None, lambda g: ("", *shift.SWAPS)[g]),
    "pairs": Kind(_only, lambda g: ""),
    "shares": Kind(_more, lambda g: ""),
}


def population(name: str, kind: str, truth: list[int], sizes: list[int], rng: np.random.Generator,
               balanced: bool = False) -> umbel.Population:
    """Clients of these sizes, no row twice: dealt at random inside what their group may hold, or balanced by label."""
    data = rows_of(name)
    left = rng.permutation(len(data.y_train))
    xs, ys = [], []
    for group, size in zip(truth, sizes, strict=True):
        weight = KINDS[kind].labels(group, data.classes)
        of = data.y_train[left]
        if balanced:
            turn = rng.permutation(data.classes)
            each = {label: size // data.classes + (k < size % data.classes) for k, label in enumerate(turn)}
            mine = np.concatenate([np.flatnonzero(of == label)[:many] for label, many in each.items()])
        elif weight is None:
            mine = np.arange(min(size, len(left)))
        else:
            chance = (weight / weight.max())[of]
            mine = np.flatnonzero(rng.random(len(of)) < chance)[:size]
        if len(mine) < size:
            raise ValueError(f"{name} has too few rows for {truth} with {sizes}")
        rows = left[mine]
        left = np.delete(left, mine if balanced else range(mine.max() + 1))  # who was passed over is not met again
        x, y = shift.apply(KINDS[kind].shift(group), data.x_train[rows], data.y_train[rows], rows)
        xs.append(x), ys.append(y)
    test = rng.choice(len(data.y_test), 100, replace=False)
    ends = np.cumsum(sizes)
    pool = umbel.Pool(np.concatenate([*xs, data.x_test[test]]), np.concatenate([*ys, data.y_test[test]]))
    train, held = np.split(np.arange(ends[-1]), ends[:-1]), np.arange(ends[-1], ends[-1] + 100)
    return umbel.Population(pool, train, [held] * len(truth), np.array(truth), data.classes,
                            facts={"groups": len(set(truth))})


@dataclass(frozen=True)
class Case:
    """A federation, but for its seed."""

    data: str
    scenario: str = ""  # a named one; empty: clients as `population` draws them
    clients: int = 0
    kind: str = "alike"
    truth: tuple[int, ...] = ()
    rows: int = 0  # of a client
    unequal: bool = False  # sizes from half to twice as many
    balanced: bool = False
    late: tuple[int, ...] = ()  # groups of who comes in round 1 ...
    late_rows: int = 0

    @property
    def name(self) -> str:
        """By which a finished trial is known."""
        if self.scenario:
            return f"{self.data} {self.scenario} {self.clients}"
        how = "".join(word for word, on in ((" unequal", self.unequal), (" balanced", self.balanced)) if on)
        groups = np.bincount(self.truth)
        each = f"{len(groups)}x{groups[0]}" if len(groups) > 1 else str(len(self.truth))
        coming = f" + {len(self.late)}x{self.late_rows}" if self.late else ""
        return f"{self.data} {self.kind} {each}x{self.rows}{how}{coming}"

    def federation(self, seed: int) -> umbel.Federation:
        """The same for the same name and seed."""
        if self.scenario:
            data = self.data if self.scenario.startswith("mix") else rows_of(self.data)
            if self.scenario.startswith("flag"):
                data = replace(data, x_train=data.x_train[:FLAGS], y_train=data.y_train[:FLAGS])
            return umbel.simulate(data, scenario=self.scenario, clients=self.clients, model="mlp", seed=seed,
                                  device="cpu")
        rng = generator(seed, "decisions", self.name)
        sizes = [self.rows] * len(self.truth)
        if self.unequal:
            sizes = np.round(self.rows * 2.0 ** rng.uniform(-1, 1, len(self.truth))).astype(int).tolist()
        sizes += [self.late_rows] * len(self.late)
        drawn = population(self.data, self.kind, [*self.truth, *self.late], sizes, rng, self.balanced)
        if self.late:
            drawn = replace(drawn, joins=np.repeat([0, 1], [len(self.truth), len(self.late)]))
        return umbel.simulate(drawn, model="mlp", seed=seed, device="cpu")


# Methods, as far as their clusters -------------------------------------------------------------------------------

LOCAL = umbel.Local(lr=0.05, epochs=2, batch=50)  # cheap, and enough for signatures of an MLP
LONGER = replace(LOCAL, epochs=5)  # where one round must tell who wants what
SHORT = {"pretrain": 2, "local": LOCAL}
SPLITS_WITHIN = 8  # rounds: clusters that CFL splits in two each round are as many as they will be
METHODS: dict[str, Callable[[], umbel.Algorithm]] = {
    "pacfl": lambda: umbel.PACFL(local=LOCAL),
    "flag": lambda: umbel.FLAG(gradient_epochs=5, local=LOCAL),
    "fedclust": lambda: umbel.FedClust(warmup=5, local=LOCAL),
    "flhc": lambda: umbel.FLHC(**SHORT),
    "kmeans": lambda: umbel.KMeans(**SHORT),
    "fedgroup": lambda: umbel.FedGroup(local=LOCAL),
    "cflgt": lambda: umbel.CFLGT(**SHORT),
    "cfl": lambda: umbel.CFL(local=LONGER),
    # What was the default before clusters rested on tests.
    "pacfl.before": lambda: umbel.PACFL(angle="mean", cut="silhouette", local=LOCAL),
    "flag.before": lambda: umbel.FLAG(gradient_epochs=5, cut="sweep", rule="both", local=LOCAL),
    "fedclust.before": lambda: umbel.FedClust(warmup=5, cut="silhouette", local=LOCAL),
    "flhc.before": lambda: umbel.FLHC(cut="silhouette", **SHORT),
}
ALL = [name for name in METHODS if not name.endswith("before")]


def remembering(fed: umbel.Federation) -> umbel.Federation:
    """The same clients, who answer a question that they were asked before at once: tasks draw no randomness."""
    answers: dict[bytes, umbel.Heard] = {}
    ask = fed.map

    def again(task: Any, cohort: umbel.Cohort, **asked: Any) -> umbel.Heard:
        name = blake2b(pickle.dumps((task.name, cohort.phase, cohort.round, cohort.ids.tolist(), _plain(asked))))
        if (digest := name.digest()) not in answers:
            answers[digest] = ask(task, cohort, **asked)
        return answers[digest]

    fed.map = again  # type: ignore[method-assign]
    return fed


def _plain(value: Any) -> Any:
    """What a question holds, as values that pickle in one way."""
    if isinstance(value, torch.Tensor):
        return value.cpu().numpy().tobytes()
    if isinstance(value, dict):
        return [(name, _plain(part)) for name, part in sorted(value.items())]
    return [_plain(part) for part in value] if isinstance(value, tuple | list) else value


def formed(method: umbel.Algorithm, fed: umbel.Federation) -> umbel.State:
    """A method until its clusters are there, everybody placed."""
    everybody = fed.online.nonzero().flatten()
    state = method.init(fed, fed.seed)
    for index in range(SPLITS_WITHIN if isinstance(method, umbel.CFL) else method.pretrain):
        state = method.round(fed, state, umbel.Cohort(everybody, index))
    waiting = (fed.online & (state.labels < 0)).nonzero().flatten()
    return method.admit(fed, state, umbel.Cohort(waiting, method.pretrain, ADMIT)) if len(waiting) else state


def core(fed: umbel.Federation) -> tuple[Ints, dict[str, Any]]:
    """The test on parts alone, along the tree of their own distances; the root is the same for every method."""
    _, answers, _ = described(fed, torch.arange(len(fed.names)), LOCAL, fed.net.init(fed.seed))
    parts = read(answers)
    cut = cut_by_tests(parts, by_distance(energy(parts)), fed.seed)
    said = {"looks": cut.root.looks, "absent": cut.root.absent, "shares": cut.root.shares, "enough": cut.root.enough}
    return cut.labels, said | {"differ": cut.root.differ, "by_shares": cut.by_shares}


def clusters_of(name: str, fed: umbel.Federation) -> tuple[Ints, dict[str, Any]]:
    """Whom a method puts together, and what else there is to say."""
    if name == "core":
        return core(fed)
    state = formed(METHODS[name](), fed)
    return state.labels.numpy(), {name: float(value) for name, value in state.evidence.get("test", {}).items()}


# Suites -----------------------------------------------------------------------------------------------------------

SIZES = ((3, 60), (3, 600), (4, 40), (4, 100), (8, 50), (8, 300), (20, 20), (20, 70), (50, 100), (100, 60))
"""Clients and rows of federations without groups."""


def false_alarms(balanced: bool = False) -> Iterator[tuple[Case, int]]:
    """Alike clients: every size in turn on every data set that has the rows, each fourth with unequal amounts."""
    for clients, rows in SIZES:
        sets = [name for name in SETS if name != "digits" or clients * rows <= 1000]
        for draw in range(100):
            yield Case(sets[draw % len(sets)], truth=(0,) * clients, rows=rows, unequal=draw // len(sets) % 4 == 3,
                       balanced=balanced), draw


def over_splitting() -> Iterator[tuple[Case, int]]:
    """True groups, none of which should be split further."""
    kinds = ("rotations", "pairs", "meanings", "shares")
    for groups, members in ((2, 2), (3, 2), (4, 5)):
        truth = tuple(np.repeat(range(groups), members).tolist())
        for draw in range(200):
            rows = (60, 100, 200)[draw // len(kinds) % 3]
            yield Case(("mnist", "fashion-mnist")[draw % 2], kind=kinds[draw // 2 % len(kinds)], truth=truth, rows=rows,
                       unequal=draw // 8 % 4 == 3), draw


POWER = {
    "fashion-mnist": {f"flag:labels=0.3,alpha=0.25,groups={groups}": clients
                      for groups, clients in ((3, 60), (7, 60), (16, 100))},
    "cifar10": {"flag:labels=0.2,alpha=0.25,groups=7": 60},
    "mnist": {f"{scenario}:per_label={each}": 36 for each in (10, 20, 100)
              for scenario in ("rotation-4", "swap-6", "feature-3", "label-4")}
             | {f"flag:labels=0.3,groups={groups}+rotation-4": 96 for groups in (3, 4)},
    "mix-4": {"mix-4": 50},
}
FEW = ((0, 0, 1, 1), (0, 0, 0, 1, 1, 1), (0, 0, 1, 1, 2, 2), (0, 1, 2, 3))


def power() -> Iterator[tuple[Case, int]]:
    """Groups that are there. Flag deals out 20,000 rows, so that a client has 200 to 333."""
    for draw in range(100):
        for data, cases in POWER.items():
            for scenario, clients in cases.items():
                yield Case(data, scenario, clients), draw
        for truth in FEW:
            for kind in ("rotations", "pairs"):
                yield Case("mnist", kind=kind, truth=truth, rows=100), draw


ALIKE = ("false-alarms", "balanced")


def newcomers() -> Iterator[tuple[Case, int]]:
    """Members of 35 rows in four groups, and who comes later: 40 of each size, and 20 like nobody (group 4)."""
    truth = tuple(np.repeat(range(4), 8).tolist())
    for draw in range(100):
        for kind in ("rotations", "pairs"):
            for rows in (20, 40, 60, 120):
                late = tuple((np.arange(40) % 4).tolist())
                yield Case("mnist", kind=kind, truth=truth, rows=35, late=late, late_rows=rows), draw
            yield Case("mnist", kind=kind, truth=truth, rows=35, late=(4,) * 20, late_rows=60), draw


SUITES: dict[str, Callable[[], Iterator[tuple[Case, int]]]] = {
    "false-alarms": false_alarms, "balanced": lambda: false_alarms(balanced=True), "over-splitting": over_splitting,
    "power": power, "newcomers": newcomers,
}


def split_further(truth: Ints, labels: Ints) -> bool:
    """Whether some true group lies in several clusters."""
    return any(len(set(labels[truth == group].tolist())) > 1 for group in np.unique(truth))


def coming(case: Case, fed: umbel.Federation, name: str) -> dict[str, Any]:
    """How many newcomers join the cluster of their group; of those like nobody, each by itself, how many found one."""
    fed.arrive(0)
    method, members = METHODS[name](), len(case.truth)
    state = formed(method, fed)
    early = state.labels[:members].tolist()
    fed.arrive(1)
    later = torch.arange(members, members + len(case.late))
    if case.late[0] >= len(set(case.truth)):
        after = [int(method.admit(fed, state, umbel.Cohort(one[None], 1, ADMIT)).labels[one]) for one in later]
        right = sum(label > max(early) for label in after)
    else:
        after = method.admit(fed, state, umbel.Cohort(later, 1, ADMIT)).labels[later].tolist()
        homes = {group: Counter(label for label, of in zip(early, case.truth, strict=True) if of == group)
                 for group in set(case.truth)}
        right = sum(label == homes[group].most_common(1)[0][0] for label, group in zip(after, case.late, strict=True))
    return {"right": right, "of": len(case.late), "clusters": max(early) + 1,
            "ari": round(float(adjusted_rand_score(case.truth, early)), 4)}


def trials(suite: str, case: Case, seed: int, methods: list[str]) -> Iterator[dict[str, Any]]:
    """One federation and some methods.

    Where the test of the parts does not tell any clients apart, every method answers one cluster: among alike clients
    that is taken as read, but for every tenth seed.
    """
    fed = remembering(case.federation(seed))
    truth = np.asarray(fed.provenance.truth)
    differ = True
    for name in methods:
        start = time.perf_counter()
        if suite == "newcomers":
            yield {"case": case.name, "seed": seed, "method": name, "group": case.name, **coming(case, fed, name)}
            continue
        asked = differ or seed % 10 == 0 or name.endswith("before")
        labels, said = clusters_of(name, fed) if asked else (np.zeros(len(truth), dtype=np.int64), {})
        if name == "core" and suite in ALIKE:
            differ = said["differ"]
        yield {"case": case.name, "seed": seed, "method": name, "group": group_of(suite, case),
               "clusters": int(labels.max()) + 1, "ari": round(float(adjusted_rand_score(truth, labels)), 4),
               "true": len(np.unique(truth)), "further": split_further(truth, labels), "run": asked,
               "seconds": round(time.perf_counter() - start, 2), **said}


# Tables -----------------------------------------------------------------------------------------------------------


def table(suite: str, found: list[dict[str, Any]]) -> Table:
    """What a suite says."""
    shown = Table(box=None, title=suite)
    methods = list(dict.fromkeys(line["method"] for line in found))
    for column in ("", *methods) if suite in CELLS else ("method", "", *COLUMNS[suite]):
        shown.add_column(column, no_wrap=True)
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in found:
        groups.setdefault(line["group"], []).append(line)
    if suite in CELLS:
        for group, lines in groups.items():
            seeds = len({line["seed"] for line in lines})
            shown.add_row(f"{group} ({seeds} seeds)",
                          *(CELLS[suite]([line for line in lines if line["method"] == name]) for name in methods))
        return shown
    for name in methods:
        for group, lines in (groups | {"all": found}).items():
            mine = [line for line in lines if line["method"] == name]
            shown.add_row(name, group, str(len(mine)), *(str(sum(told(line) for line in mine))
                                                         for told in COLUMNS[suite].values()))
    return shown


def _power(lines: list[dict[str, Any]]) -> str:
    aris = [line["ari"] for line in lines]
    return f"{np.mean([line['clusters'] for line in lines]):.1f}  {np.mean(aris):.3f}" if lines else ""


def _joined(lines: list[dict[str, Any]]) -> str:
    right, of = (sum(line[name] for line in lines) for name in ("right", "of"))
    return f"{right} of {of}" if lines else ""


CELLS = {"power": _power, "newcomers": _joined}  # a column for each method


def _below(test: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line.get(test, 1) <= LEVEL / TESTS


SPLITS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "split": lambda line: line["clusters"] > 1, "too few": lambda line: not line.get("enough", True),
    "looks": _below("looks"), "absent": _below("absent"), "shares": _below("shares"), "run": lambda line: line["run"]}
COLUMNS = {"false-alarms": SPLITS, "balanced": SPLITS,
           "over-splitting": {"split further": lambda line: line["further"], "exact": lambda line: line["ari"] == 1}}


def group_of(suite: str, case: Case) -> str:
    """What a line of the table is about."""
    if suite in ALIKE:
        return f"{len(case.truth)} x {case.rows}"
    return case.name.split()[2].rpartition("x")[0] if suite == "over-splitting" else case.name


def main(
    suite: Annotated[str, typer.Argument(help=", ".join(SUITES))],
    method: Annotated[list[str], typer.Option(help=f"core, {', '.join(METHODS)}; all = those of today.")] = ["core"],  # noqa: B006
    seeds: Annotated[str, typer.Option(help="FIRST:END, one draw of each case a seed.")] = "100:120",
    only: Annotated[str, typer.Option(help="Only cases whose name contains this text.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of the lines.")] = Path("runs/decisions"),
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    only_table: Annotated[bool, typer.Option(help="Show what is done.")] = False,
) -> None:
    """Do the trials of a suite that are not done yet, and print its table."""
    torch.set_num_threads(1)
    first, end = map(int, seeds.split(":"))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{suite}.jsonl"
    methods = list(dict.fromkeys(name for each in method for name in (["core", *ALL] if each == "all" else [each])))
    asked = [(case, first + draw) for case, draw in sorted(SUITES[suite](), key=lambda one: one[1])
             if first + draw < end and only in case.name]
    if not only_table:
        done = lines_of(path)
        todo = [(suite, case, seed, methods, path) for case, seed in asked
                if any((case.name, seed, name) not in done for name in methods)]
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            for _ in as_completed([pool.submit(tried, *one) for one in todo]):
                pass
    done = lines_of(path)
    found = [done[name] for case, seed in asked for each in methods if (name := (case.name, seed, each)) in done]
    Console(width=240).print(table(suite, found))


def tried(suite: str, case: Case, seed: int, methods: list[str], path: Path) -> None:
    """One federation, its lines behind the others in one write."""
    torch.set_num_threads(1)
    with path.open("a") as file:
        file.write("".join(f"{json.dumps(line)}\n" for line in trials(suite, case, seed, methods)))
    gc.collect()  # a federation that remembers its answers is a circle, and each is hundreds of megabytes


def lines_of(path: Path) -> dict[tuple[str, int, str], dict[str, Any]]:
    """The finished trials, by case, seed and method."""
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return {(line["case"], line["seed"], line["method"]): line for line in lines}


if __name__ == "__main__":
    typer.run(main)
