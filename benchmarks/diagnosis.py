"""Does the diagnosis name what differs, stay silent where nothing does, and choose a plan that is worth it?

    python benchmarks/diagnosis.py SUITE [--seeds 100:101] [--only TEXT] [--out runs/diagnosis] [--jobs 2]
                                         [--data-dir FOLDER]

    names    60 federations a seed: ten of each kind of difference, ten of two kinds, ten of none; half of them on
             KMNIST and USPS. Right: exactly the true set.
    iid      100 federations a seed whose clients are alike. Right: nothing differs.
    regret   `auto` against the plans it chooses from, each played to the end, on natural and synthetic federations.

Each finished trial is a line of OUT/SUITE.jsonl and is kept, so a suite can be stopped and gone on with. Rules are
chosen on seeds below 100 and reported on seeds from 100.
"""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import umbel
from umbel.algorithms.alike import described
from umbel.clustering.differences import KINDS, differences
from umbel.clustering.parts import read
from umbel.data import shift
from umbel.seeds import generator

Ints = NDArray[np.int64]
SEEN, UNSEEN = ("mnist", "fashion-mnist"), ("kmnist", "usps")
FACTORS = (0.1, 0.2, 0.6, 1.0)
LOCAL = umbel.Local(lr=0.05, epochs=5, batch=20)


@lru_cache
def rows_of(name: str, folder: str) -> umbel.Dataset:
    return umbel.open_dataset(name, Path(folder) if folder else None)


@dataclass(frozen=True)
class Case:
    """A federation, but for its seed."""

    data: str
    true: tuple[str, ...]  # of KINDS
    turn: int  # which ways and sizes are taken

    @property
    def name(self) -> str:
        """By which a finished trial is known."""
        return f"{self.data} {'+'.join(self.true) or 'none'} {self.turn}"

    def federation(self, seed: int, folder: str) -> umbel.Federation:
        """Clients with the differences that are true, and no row twice."""
        rng = generator(seed, "diagnosis", self.name)
        data = rows_of(self.data, folder)
        clients = (8, 12, 20)[self.turn % 3]
        sizes = _amounts(clients, self.turn, rng) if "amounts" in self.true else [(100, 200)[self.turn % 2]] * clients
        chances = _labels(clients, data.classes, self.turn, rng) if "labels" in self.true else None
        looks = _looks(clients, self.turn) if "looks" in self.true else [""] * clients
        means = _meanings(clients, self.turn) if "meanings" in self.true else [""] * clients
        left = [rng.permutation(np.flatnonzero(data.y_train == label)) for label in range(data.classes)]
        share = np.bincount(data.y_train, minlength=data.classes) / len(data.y_train)
        xs, ys = [], []
        for i, size in enumerate(sizes):
            # Where meanings differ, P(y) must not: a swap of a common and a rare label would change it.
            each = (np.full(data.classes, size // data.classes) if "meanings" in self.true and chances is None
                    else rng.multinomial(size, share if chances is None else chances[i]))
            mine = np.concatenate([rows[:many] for rows, many in zip(left, each, strict=True)])
            left = [rows[many:] for rows, many in zip(left, each, strict=True)]
            kind = "+".join(filter(None, (looks[i], means[i])))
            x, y = shift.apply(kind, data.x_train[mine], data.y_train[mine], mine)
            xs.append(x), ys.append(y)
        return _simulated(data, xs, ys, rng, seed)


def _simulated(data: umbel.Dataset, xs: list[Any], ys: list[Any], rng: np.random.Generator,
               seed: int) -> umbel.Federation:
    """These clients; evidence is of training rows alone, so that all share a few to be tested on."""
    test = rng.choice(len(data.y_test), 50, replace=False)
    ends = np.cumsum([len(y) for y in ys])
    pool = umbel.Pool(np.concatenate([*xs, data.x_test[test]]), np.concatenate([*ys, data.y_test[test]]))
    train, held = np.split(np.arange(ends[-1]), ends[:-1]), np.arange(ends[-1], ends[-1] + 50)
    people = umbel.Population(pool, train, [held] * len(ys), np.zeros(len(ys), dtype=np.int64), data.classes)
    return umbel.simulate(people, model="mlp", seed=seed, device="cpu")


def _amounts(clients: int, turn: int, rng: np.random.Generator) -> list[int]:
    if turn % 2:
        return [max(20, int(300 * FACTORS[i % len(FACTORS)])) for i in range(clients)]
    sizes = np.exp(rng.normal(size=clients))
    sizes[0], sizes[1] = sizes.max() * 2, sizes.min() / 2
    return [max(20, int(size)) for size in 300 * sizes / sizes.max()]


def _labels(clients: int, classes: int, turn: int, rng: np.random.Generator) -> NDArray[np.float64]:
    if turn % 2:
        return rng.dirichlet(np.full(classes, 1.0), clients)
    own = [np.isin(np.arange(classes), [2 * (i % 4), 2 * (i % 4) + 1]) for i in range(clients)]
    weights = 1 + 4.0 * np.array(own)
    return weights / weights.sum(1, keepdims=True)


def _looks(clients: int, turn: int) -> list[str]:
    ways = (shift.ROTATIONS, shift.FEATURES, ("", "noise:0.4"))[turn % 3]
    return [ways[i % len(ways)] for i in range(clients)]


def _meanings(clients: int, turn: int) -> list[str]:
    ways = (("", *shift.SWAPS), ("", "swap:1-7"), ("", "swap:0-3+swap:2-5", "swap:4-8"))[turn % 3]
    return [ways[i % len(ways)] for i in range(clients)]


PAIRS = (("labels", "looks"), ("labels", "meanings"), ("looks", "meanings"), ("labels", "amounts"),
         ("looks", "amounts"))


def names() -> Iterator[Case]:
    """Sixty: of each kind, of two, of none; sets in turn, so that half are of UNSEEN."""
    sets = (*SEEN, *UNSEEN)
    for true in [*((kind,) for kind in KINDS), ()]:
        for turn in range(10):
            yield Case(sets[turn % 4], true, turn)
    for turn in range(10):
        yield Case(sets[turn % 4], PAIRS[turn % 5], turn)


def iid() -> Iterator[Case]:
    """A hundred federations of alike clients."""
    for turn in range(100):
        yield Case((*SEEN, *UNSEEN)[turn % 4], (), turn)


def named(case: Case, seed: int, folder: str) -> Iterator[dict[str, Any]]:
    """What is said of one federation."""
    start = time.perf_counter()
    fed = case.federation(seed, folder)
    _, answers, _ = described(fed, torch.arange(len(fed.names)), LOCAL, fed.net.init(fed.seed))
    found = differences(read(answers), generator(seed, "differences"), fed.net.objective.groups)
    said = [each.kind for each in found if each.found]
    yield {"case": case.name, "seed": seed, "true": sorted(case.true), "said": sorted(said),
           "right": set(said) == set(case.true), "seconds": round(time.perf_counter() - start, 2),
           "p": {each.kind: each.p for each in found}, "strength": {each.kind: each.strength for each in found}}


# What a plan is worth, and what it costs to choose one -------------------------------------------------------------


@dataclass(frozen=True)
class Federation:
    """One to play all plans on."""

    data: str
    scenario: str
    clients: int | None = None

    @property
    def name(self) -> str:
        """By which a finished trial is known."""
        return f"{self.data} {self.scenario}"


ROUNDS = 20
PLAYED = umbel.Local(lr=0.05, epochs=3, batch=20)
METHODS: dict[str, tuple[Callable[[], umbel.Algorithm], tuple[str, ...]]] = {  # and which of their scores are plans
    "fedavg": (lambda: umbel.FedAvg(local=PLAYED), ("cluster_model", "fine_tuned")),
    "flag": (lambda: umbel.FLAG(local=PLAYED), ("cluster_model", "fine_tuned")),
    "solo": (lambda: umbel.Solo(local=PLAYED), ("last_local",)),
    "auto": (lambda: umbel.Auto(local=PLAYED), ("last_local",)),
}


def federations() -> Iterator[Federation]:
    """Four natural and ten synthetic ones; the two of sequences take minutes."""
    yield from (Federation(name, "natural") for name in ("heart-disease", "wisdm"))
    yield from (Federation(name, "natural", 12) for name in ("beijing-air", "shakespeare"))
    for data, scenario in (("fashion-mnist", "rotation-4:per_label=8"), ("mnist", "swap-6:per_label=10"),
                           ("kmnist", "feature-3:per_label=8"), ("usps", "label-4:per_label=20"),
                           ("fashion-mnist", "quantity-4:per_label=20"), ("digits", "iid"),
                           ("digits", "dirichlet:alpha=0.3"), ("kmnist", "cflgt-1:per_label=30"),
                           ("digits", "label-skew:labels=0.3"), ("usps", "rotation-4:per_label=10")):
        yield Federation(data, scenario, 12)


def regretted(case: Federation, seed: int, folder: str) -> Iterator[dict[str, Any]]:
    """Each method played to its end; test scores of the plans, and of `auto`."""
    start = time.perf_counter()
    model = None if case.data in ("beijing-air", "shakespeare") else "mlp"
    # Test rows are mixed as the client's own: what is to come is like what validation rows show.
    fed = umbel.simulate(case.data, scenario=case.scenario, clients=case.clients, model=model, seed=seed, device="cpu",
                         data_dir=folder or None, test_mode=None if case.scenario == "natural" else "matched")
    scores: dict[str, float] = {}
    for name, (method, starts) in METHODS.items():
        done = umbel.run(method(), fed, rounds=ROUNDS, eval_every=ROUNDS)
        for kind in starts:
            scores[f"{name} {kind}"] = done.info["score"][kind]["value"]
    said, kept = done.info["clusters"]["why"].get("words", ""), done.state.evidence
    trial = {name: kept[name].tolist() for name in ("judged_plans", "judged_rows", "scores", "known") if name in kept}
    yield {"case": case.name, "seed": seed, "metric": done.info["metric"], "scores": scores, "auto": said,
           "trial": trial, "chosen": int(kept["plan"]), "seconds": round(time.perf_counter() - start, 1)}


def regrets(suite: str, found: list[dict[str, Any]]) -> Table:
    """By how much each way of choosing is behind the plan that is best in the mean over seeds; ± its standard error.

    In points of a share, in per cent of (worst - best) of an error.
    """
    shown = Table(box=None, title=f"{suite}: test score behind the best plan's")
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in found:
        groups.setdefault(line["case"], []).append(line)
    ways = list(found[0]["scores"]) if found else []
    for column in ("federation", "seeds", "best plan", *ways):
        shown.add_column(column)
    sums: dict[str, list[float]] = {way: [] for way in ways}
    for case, lines in groups.items():
        sign = 1.0 if lines[0]["metric"]["higher_is_better"] else -1.0
        each = {way: sign * np.array([line["scores"][way] for line in lines]) for way in ways}
        plans = {way: float(values.mean()) for way, values in each.items() if not way.startswith("auto")}
        best = max(plans, key=plans.__getitem__)
        scale = 100.0 if sign > 0 else 100.0 / max(1e-12, plans[best] - min(plans.values()))
        cells = []
        for way in ways:
            behind = scale * (each[best] - each[way])
            error = behind.std(ddof=1) / len(behind) ** 0.5 if len(behind) > 1 else float("nan")
            sums[way].append(float(behind.mean()))
            cells.append(f"{behind.mean():.1f} ± {error:.1f}")
        shown.add_row(case, str(len(lines)), best, *cells)
    shown.add_row("mean", "", "", *(f"{np.mean(values):.2f}" for values in sums.values() if values))
    return shown


SUITES: dict[str, tuple[Callable[[], Iterator[Any]], Callable[..., Iterator[dict[str, Any]]]]] = {
    "names": (names, named), "iid": (iid, named), "regret": (federations, regretted),
}


def table(suite: str, found: list[dict[str, Any]]) -> Table:
    """How often a suite is right, kind by kind, and what was said instead."""
    shown = Table(box=None, title=suite)
    for column in ("what differs", "federations", "right", "said instead"):
        shown.add_column(column)
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in found:
        true = line["true"]
        groups.setdefault("two kinds" if len(true) > 1 else "".join(true) or "nothing", []).append(line)
    for group, lines in (groups | {"all": found}).items():
        wrong = [f"{'+'.join(line['said']) or 'nothing'} for {line['case']} (seed {line['seed']})" for line in lines
                 if not line["right"]]
        shown.add_row(group, str(len(lines)), str(len(lines) - len(wrong)), "" if group == "all" else "; ".join(wrong))
    return shown


def play(suite: str, case: Any, seed: int, folder: str) -> list[dict[str, Any]]:
    """One trial, in a process of its own."""
    torch.set_num_threads(1)
    return list(SUITES[suite][1](case, seed, folder))


def main(
    suite: Annotated[str, typer.Argument(help=", ".join(SUITES))],
    seeds: Annotated[str, typer.Option(help="FIRST:END; every case once a seed.")] = "100:101",
    only: Annotated[str, typer.Option(help="Only cases whose name contains this text.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of the lines.")] = Path("runs/diagnosis"),
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    data_dir: Annotated[str, typer.Option(envvar="UMBEL_DATA", help="Folder with data sets.")] = "",
    only_table: Annotated[bool, typer.Option(help="Show what is done.")] = False,
) -> None:
    """Do the trials of a suite that are not done yet, and print its table."""
    first, end = map(int, seeds.split(":"))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{suite}.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(line["case"], line["seed"]) for line in found}
    todo = [(case, seed) for seed in range(first, end) for case in SUITES[suite][0]()
            if only in case.name and (case.name, seed) not in done]
    with path.open("a") as file, ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for each in as_completed([pool.submit(partial(play, suite), case, seed, data_dir)
                                  for case, seed in ([] if only_table else todo)]):
            for line in each.result():
                found.append(line)
                file.write(json.dumps(line) + "\n")
                file.flush()
    mine = [line for line in found if first <= line["seed"] < end and only in line["case"]]
    Console(width=160).print(TABLES.get(suite, table)(suite, mine))


TABLES: dict[str, Callable[[str, list[dict[str, Any]]], Table]] = {"regret": regrets}

if __name__ == "__main__":
    typer.run(main)
