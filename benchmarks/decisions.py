"""Are the decisions right? Alike clients must stay one cluster, true groups whole and apart, newcomers find their own.

    python benchmarks/decisions.py SUITE [--method METHOD ...] [--seeds 100:120] [--only TEXT] [--out runs/decisions]

A suite is a list of cases; a trial is one case with one seed and one method. Each finished trial is a line of
OUT/SUITE.jsonl and is kept, so a suite can be stopped and gone on with. Rules are chosen on seeds below 100 and
reported on seeds from 100. The method `core` is the test on parts of clients' rows alone, with the tree of its own
distances.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
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
from umbel.clustering import parts, tested
from umbel.data import shift
from umbel.federation.phases import SIGNATURE
from umbel.seeds import generator

Ints = NDArray[np.int64]
SETS = ("digits", "mnist", "fashion-mnist", "cifar10")


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
    "rotations": Kind(lambda g, c: None, lambda g: shift.ROTATIONS[g % 4]),
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

    @property
    def name(self) -> str:
        """By which a finished trial is known."""
        if self.scenario:
            return f"{self.data} {self.scenario} {self.clients}"
        how = "".join(word for word, on in ((" unequal", self.unequal), (" balanced", self.balanced)) if on)
        groups = np.bincount(self.truth)
        each = f"{len(groups)}x{groups[0]}" if len(groups) > 1 else str(len(self.truth))
        return f"{self.data} {self.kind} {each}x{self.rows}{how}"

    def federation(self, seed: int) -> umbel.Federation:
        """The same for the same name and seed."""
        if self.scenario:
            data = self.data if self.scenario.startswith("mix") else rows_of(self.data)
            return umbel.simulate(data, scenario=self.scenario, clients=self.clients, model="mlp", seed=seed,
                                  device="cpu")
        rng = generator(seed, "decisions", self.name)
        sizes = [self.rows] * len(self.truth)
        if self.unequal:
            sizes = np.round(self.rows * 2.0 ** rng.uniform(-1, 1, len(self.truth))).astype(int).tolist()
        drawn = population(self.data, self.kind, list(self.truth), sizes, rng, self.balanced)
        return umbel.simulate(drawn, model="mlp", seed=seed, device="cpu")


# The test alone ---------------------------------------------------------------------------------------------------


def parts_of(fed: umbel.Federation) -> parts.Parts:
    """What everybody says of its rows."""
    cohort = umbel.Cohort(torch.arange(len(fed.names)), 0, SIGNATURE)
    counts = fed.map(parts.distinct_counts, cohort).answers["counts"]
    heard = fed.map(parts.raw_parts, cohort, sizes=tuple(parts.sizes(counts).tolist())).answers
    return parts.read({"vector": heard["part"].values, "length": heard["part"].length,
                       "kind": heard["part_kind"].values, "counts": counts})


def core(fed: umbel.Federation) -> tuple[Ints, dict[str, Any]]:
    """The test on parts, along the tree of their own distances."""
    of = parts_of(fed)
    cut = tested.tested(of, tested.by_distance(tested.energy(of)), generator(fed.seed, "tested"))
    return cut.labels, {"looks": cut.root.looks, "absent": cut.root.absent, "shares": cut.root.shares,
                        "enough": cut.root.enough, "by_shares": cut.by_shares}


METHODS: dict[str, Callable[[umbel.Federation], tuple[Ints, dict[str, Any]]]] = {"core": core}


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
        for draw in range(100):
            rows = (60, 100, 200)[draw // len(kinds) % 3]
            yield Case(("mnist", "fashion-mnist")[draw % 2], kind=kinds[draw // 2 % len(kinds)], truth=truth, rows=rows,
                       unequal=draw // 8 % 4 == 3), draw


POWER = {
    "flag:labels=0.2,alpha=0.25,groups=3": 60, "flag:labels=0.3,alpha=0.25,groups=3": 60,
    "flag:labels=0.2,alpha=0.25,groups=7": 60, "flag:labels=0.3,alpha=0.25,groups=7": 60,
    "flag:labels=0.2,alpha=0.25,groups=16": 100, "flag:labels=0.3,alpha=0.25,groups=16": 100,
    **{f"{scenario}:per_label={each}": 36 for scenario in ("rotation-4", "swap-6", "feature-3", "label-4")
       for each in (10, 20, 100)},
    "flag:labels=0.3,groups=3+rotation-4": 96, "flag:labels=0.3,groups=4+rotation-4": 96,
}


def power() -> Iterator[tuple[Case, int]]:
    """Groups that are there."""
    for draw in range(100):
        for data in ("mnist", "fashion-mnist", "cifar10"):
            for scenario, clients in POWER.items():
                if data != "cifar10" or scenario.startswith("flag:labels=0.2"):
                    yield Case(data, scenario, clients), draw
        yield Case("mix-4", "mix-4", 50), draw
        for data in ("mnist", "fashion-mnist"):
            for truth in ((0, 0, 1, 1), (0, 0, 0, 1, 1, 1), (0, 0, 1, 1, 2, 2), (0, 1, 2, 3)):
                for kind in ("rotations", "pairs"):
                    yield Case(data, kind=kind, truth=truth, rows=100), draw


SUITES: dict[str, Callable[[], Iterator[tuple[Case, int]]]] = {
    "false-alarms": false_alarms, "balanced": lambda: false_alarms(balanced=True), "over-splitting": over_splitting,
    "power": power,
}


def split_further(truth: Ints, labels: Ints) -> bool:
    return any(len(set(labels[truth == group].tolist())) > 1 for group in np.unique(truth))


def trial(case: Case, seed: int, method: str) -> dict[str, Any]:
    fed = case.federation(seed)
    truth = np.asarray(fed.provenance.truth)
    start = time.perf_counter()
    labels, said = METHODS[method](fed)
    return {"clusters": int(labels.max()) + 1, "ari": round(float(adjusted_rand_score(truth, labels)), 4),
            "true": len(np.unique(truth)), "further": split_further(truth, labels),
            "seconds": round(time.perf_counter() - start, 2), **said}


# Tables -----------------------------------------------------------------------------------------------------------


def table(suite: str, found: list[dict[str, Any]], console: Console) -> None:
    shown = Table(box=None, title=suite)
    columns = {"false-alarms": ("trials", "split", "too few", "looks", "absent", "shares"),
               "balanced": ("trials", "split", "too few", "looks", "absent", "shares"),
               "over-splitting": ("trials", "split further", "ARI"),
               "power": ("true", "clusters", "ARI", "least", "seconds")}[suite]
    for column in ("method", "case", *columns):
        shown.add_column(column, no_wrap=True)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in found:
        groups.setdefault((line["method"], line["group"]), []).append(line)
    if suite != "power":
        for method in dict.fromkeys(line["method"] for line in found):
            groups[method, "all"] = [line for line in found if line["method"] == method]
    for (method, group), lines in groups.items():
        n = str(len(lines))
        if suite in ("false-alarms", "balanced"):
            told = [sum(line.get(test, 1) <= tested.LEVEL / tested.TESTS for line in lines)
                    for test in ("looks", "absent", "shares")]
            row = [n, str(sum(line["clusters"] > 1 for line in lines)),
                   str(sum(not line.get("enough", True) for line in lines)), *map(str, told)]
        elif suite == "over-splitting":
            row = [n, str(sum(line["further"] for line in lines)), f"{np.mean([line['ari'] for line in lines]):.3f}"]
        else:
            aris = [line["ari"] for line in lines]
            row = [str(lines[0]["true"]), f"{np.mean([line['clusters'] for line in lines]):.1f}",
                   f"{np.mean(aris):.3f}", f"{min(aris):.2f}", f"{np.mean([line['seconds'] for line in lines]):.1f}"]
        shown.add_row(method, group, *row)
    console.print(shown)


def group_of(suite: str, case: Case) -> str:
    """What a line of the table is about."""
    if suite in ("false-alarms", "balanced"):
        return f"{len(case.truth)} x {case.rows}"
    if suite == "over-splitting":
        return case.name.split()[2].rpartition("x")[0]
    return case.name


def main(
    suite: Annotated[str, typer.Argument(help=", ".join(SUITES))],
    method: Annotated[list[str], typer.Option(help=", ".join(METHODS))] = ["core"],  # noqa: B006
    seeds: Annotated[str, typer.Option(help="FIRST:END, one draw of each case a seed.")] = "100:120",
    only: Annotated[str, typer.Option(help="Only cases whose name contains this text.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of the lines.")] = Path("runs/decisions"),
) -> None:
    """Do the trials of a suite that are not done yet, and print its table."""
    torch.set_num_threads(1)
    first, end = map(int, seeds.split(":"))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{suite}.jsonl"
    done = {}
    if path.exists():
        for text in path.read_text().splitlines():
            line = json.loads(text)
            done[line["case"], line["seed"], line["method"]] = line
    found = []
    for case, draw in SUITES[suite]():
        if first + draw >= end or only not in case.name:
            continue
        for name in method:
            which = (case.name, first + draw, name)
            if which not in done:
                done[which] = dict(zip(("case", "seed", "method"), which, strict=True)) | {
                    "group": group_of(suite, case), **trial(case, first + draw, name)}
                with path.open("a") as file:
                    file.write(json.dumps(done[which]) + "\n")
            found.append(done[which])
    table(suite, found, Console(width=150))


if __name__ == "__main__":
    typer.run(main)
