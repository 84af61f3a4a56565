"""The top of the page: what happened, in a few sentences, numbers and one table."""

from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from umbel.nets.objective import Metric
from umbel.pages.load import Run
from umbel.pages.parts import START_NAMES, Table, TableCell, number, scored
from umbel.pages.views import Entrant
from umbel.runs.evaluate import STARTS
from umbel.runs.result import where

OF_SCORES = ("worst tenth", "cluster's model", "fine-tuned", "last local")
OF_REST = ("rounds", "clusters", "ARI", "sent", "seconds")
NOTE = ("{} on clients' own test rows{}. The first is the one of the next three (after the worst tenth of"
        " clients) that the method is judged by. ARI: agreement with the true groups, 1 is perfect, 0 is chance.")


class Summary(NamedTuple):
    """Everything above the first figure."""

    title: str
    setting: str
    best: str  # the label of the best method, which begins the story; empty where none was scored
    story: str
    cards: list[tuple[str, str]]  # a large number, and what it is
    table: Table
    every_run: Table | None  # where a row of the table is several seeds


def summary(entrants: Sequence[Entrant], names: dict[int, str]) -> Summary:
    """The setting, the story, a few large numbers, a table."""
    info, seeds = entrants[0].runs[0].info, max(len(entrant.runs) for entrant in entrants)
    setting = [f"{info['clients']} clients", f"model {info['model']['name']}", f"{info['rounds']['after']} rounds",
               f"{seeds} seeds" if seeds > 1 else f"seed {info['seed']}"]
    setting += [f"data: {info['data']}"] if info.get("data_part") else []
    rows = [_row(names[id(run)], [run], _client_spread(run)) for entrant in entrants for run in entrant.runs]
    metric = entrants[0].runs[0].metric
    scores = (metric.name, *OF_SCORES)
    rising = () if metric.higher_is_better else scores
    pooled = ", all clients' together" if metric.pooled else ""
    every_run = Table("Runs", ("run", *scores, *OF_REST), rows,
                      NOTE.format(metric.caption, f"{pooled}; ± standard deviation over clients"), rising)
    rows = [_row(entrant.label, entrant.runs, _seed_spread(entrant.runs)) for entrant in entrants]
    over = f"{pooled or ', mean over clients'}; ± standard deviation over seeds"
    methods = Table("Methods", ("method", *scores, *OF_REST), rows, NOTE.format(metric.caption, over), rising)
    table, below = (methods, every_run) if seeds > 1 else (every_run, None)
    return Summary(_title(entrants), " · ".join(setting), *_story(entrants), _cards(entrants), table, below)


def _title(entrants: Sequence[Entrant]) -> str:
    """Who ran on what."""
    methods = list(dict.fromkeys(_method(entrant) for entrant in entrants))
    who = methods[0] if len(methods) == 1 else f"{', '.join(methods[:-1])} and {methods[-1]}"
    who = who if len(methods) <= 4 else f"{len(methods)} methods"
    settings = {where(entrant.runs[0].info) for entrant in entrants}
    return f"{who} on {len(settings)} settings" if len(settings) > 1 else f"{who} on {settings.pop()}"


def _story(entrants: Sequence[Entrant]) -> tuple[str, str]:
    """The label of the best entrant, and two or three sentences that go on from it."""
    tested = [entrant for entrant in entrants if _mean_score(entrant.runs) is not None]
    if not tested:
        return "", "No client of these runs could be scored."
    best, metric = _best(tested), tested[0].runs[0].metric
    name = "" if metric.name == "accuracy" else f"{'an' if metric.name[0] in 'AMR' else 'a'} {metric.name} of "
    story = [f"reaches {name}{metric.said(_score(best), 1)} on clients' own test rows{_clusters(best)}."]
    fedavg = next((entrant for entrant in tested if _method(entrant) == "fedavg" and entrant is not best), None)
    if fedavg and _paired(best, fedavg):
        score = _score(fedavg)
        story.append(f"That is {_points(_score(best), score, metric)} one model for all (FedAvg,"
                     f" {metric.said(score, 1)}).")
    oracle = next((entrant for entrant in tested if _method(entrant) == "oracle"), None)
    if oracle and oracle is not best and _paired(best, oracle):
        story.append(f"The oracle, which is told the true groups, reaches {metric.said(_score(oracle), 1)}.")
    runs = [run for entrant in entrants for run in entrant.runs]
    if len({run.info["partition_hash"] for run in runs if run.info["seed"] == runs[0].info["seed"]}) > 1:
        story.append("These runs do not share one partition: compare their numbers with care.")
    return best.label, " ".join(story)


def _method(entrant: Entrant) -> str:
    return str(entrant.runs[0].info["method"])


def _score(entrant: Entrant) -> float:
    return _mean_score(entrant.runs) or 0.0


def _best(tested: Sequence[Entrant]) -> Entrant:
    """The best of those that do not know the true groups beforehand, if there are such."""
    own = [entrant for entrant in tested if _method(entrant) != "oracle"] or tested
    return max(own, key=lambda entrant: entrant.runs[0].metric.gain(_score(entrant), 0.0))


def _points(score: float, other: float, metric: Metric) -> str:
    change = score - other
    if abs(change) < (0.0005 if metric.unit == "%" else 0.0005 * abs(other)):
        return "as much as"
    far = f"{100 * abs(change):.1f} points" if metric.unit == "%" else metric.said(abs(change))
    return f"{far} {'above' if change > 0 else 'below'}"


def _clusters(entrant: Entrant) -> str:
    if _method(entrant) == "solo":
        return ", everybody alone"
    if _count(entrant.runs) == "1":
        return " with one model for all"
    ari = _ari(entrant.runs)
    agreement = f", which agree with the true groups to an ARI of {ari:.2f}" if ari is not None else ""
    return f" with {_count(entrant.runs)} clusters{agreement}"


def _paired(a: Entrant, b: Entrant) -> bool:
    return {run.info["partition_hash"] for run in a.runs} == {run.info["partition_hash"] for run in b.runs}


def _cards(entrants: Sequence[Entrant]) -> list[tuple[str, str]]:
    """A few large numbers of the best method that does not know the true groups beforehand."""
    tested = [entrant for entrant in entrants if _mean_score(entrant.runs) is not None]
    if not tested:
        return []
    best = _best(tested)
    runs, metric = best.runs, best.runs[0].metric
    many, ari, worst = _count(runs), _ari(runs), _worst(runs)
    cards = [
        (metric.said(_score(best), 1), f"{metric.name} of {best.label}, {START_NAMES[runs[0].headline]}"),
        ("–" if worst is None else metric.said(worst, 1), "mean of its worst tenth of clients"),
        (many, "clusters" if many != "1" else "cluster: one model for all"),
        ("–" if ari is None else f"{ari:.2f}",
         "no true groups known" if ari is None else "ARI against the true groups; 1 is perfect"),
        (_bytes(mean(map(_sent, runs))), "sent between server and clients"),
    ]
    unplaced = max(run.info["clusters"]["unplaced"] for run in runs)
    lost = sum(sum(run.info["lost"].values()) for run in runs)
    cards += [(str(unplaced), "clients not placed")] if unplaced else []
    cards += [(str(lost), "answers lost")] if lost else []
    return cards


def _row(name: str, runs: Sequence[Run], spread: str) -> list[TableCell]:
    """One run, or the mean of several."""
    score, sent, metric = _mean_score(runs), mean(map(_sent, runs)), runs[0].metric
    return [
        TableCell(name), TableCell(None) if score is None else TableCell(f"{metric.shown(score)}{spread}", score),
        scored(_worst(runs), metric),
        *(scored(_mean((run.info["score"][start] or {}).get("value") for run in runs), metric) for start in STARTS),
        TableCell(_span(_rounds(run) for run in runs), mean(map(_rounds, runs))),
        TableCell(_count(runs), mean(run.info["clusters"]["count"] for run in runs)), number(_ari(runs)),
        TableCell(_bytes(sent), sent), number(mean(run.info["seconds"]["total"] for run in runs), 1),
    ]


def _client_spread(run: Run) -> str:
    return run.metric.spread((run.info["score"][run.headline] or {}).get("std"))


def _seed_spread(runs: Sequence[Run]) -> str:
    scores = [run.score for run in runs if run.score is not None]
    return runs[0].metric.spread(stdev(scores)) if len(scores) > 1 else ""


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _mean_score(runs: Sequence[Run]) -> float | None:
    return _mean(run.score for run in runs)


def _worst(runs: Sequence[Run]) -> float | None:
    return _mean((run.info["score"][run.headline] or {}).get("worst_decile") for run in runs)


def _ari(runs: Sequence[Run]) -> float | None:
    return _mean(run.info["clusters"]["ari"] for run in runs)


def _count(runs: Sequence[Run]) -> str:
    """How many clusters: a number, or a range over seeds."""
    return _span(run.info["clusters"]["count"] for run in runs)


def _rounds(run: Run) -> int:
    """In all: those before its clusters are formed count."""
    return int(run.info["rounds"]["pretrain"] + run.info["rounds"]["after"])


def _span(counts: Iterable[int]) -> str:
    """A number, or a range over seeds."""
    known = sorted(counts)
    return f"{known[0]}" if known[0] == known[-1] else f"{known[0]}–{known[-1]}"


def _sent(run: Run) -> float:
    return float(run.info["bytes"]["down"] + run.info["bytes"]["up"])


def _bytes(amount: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= size:
            return f"{amount / size:.3g} {unit}" if amount < 999.5 * size else f"{amount / size:,.0f} {unit}"
    return f"{amount:.0f} B"
