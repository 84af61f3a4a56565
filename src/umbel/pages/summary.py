"""The top of the page: what happened, in a few sentences, numbers and one table."""

from collections.abc import Sequence
from html import escape
from statistics import mean, stdev

from umbel.pages.load import Run
from umbel.pages.parts import WORDS, Cell, number, table
from umbel.pages.views import Line
from umbel.runs.evaluate import ACCURACIES


def title(found: Sequence[Line]) -> str:
    """Who ran on what."""
    labels = list(dict.fromkeys(str(line.runs[0].info["method"]) for line in found))
    who = labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
    who = who if len(labels) <= 4 else f"{len(labels)} methods"
    settings = {(_of(line, "data"), _of(line, "scenario")) for line in found}
    if len(settings) > 1:
        return f"{who} on {len(settings)} settings"
    data, scenario = settings.pop()
    return f"{who} on {data}, {scenario}"


def _of(line: Line, name: str) -> str:
    return str(line.runs[0].info[name])


def _accuracy(line: Line) -> float | None:
    scores = [run.accuracy for run in line.runs if run.accuracy is not None]
    return mean(scores) if scores else None


def summary(found: Sequence[Line], names: dict[int, str]) -> str:
    """The setting, the story, a few large numbers, a table. HTML."""
    info = found[0].runs[0].info
    facts = [f"{info['clients']} clients", f"model {info['model']['name']}", f"{info['rounds']['after']} rounds"]
    several = [len(line.runs) for line in found]
    facts += [f"{max(several)} seeds"] if max(several) > 1 else [f"seed {info['seed']}"]
    facts += [f"data: {info['data']}"] if info.get("data_part") else []
    table = _lines_table(found) if max(several) > 1 else _runs_table(found, names)
    every = f"<details><summary>Every run</summary>{_runs_table(found, names)}</details>" if max(several) > 1 else ""
    return (
        f'<p class="setting">{escape(" · ".join(facts))}</p><p class="lead">{_story(found)}</p>{_cards(found)}'
        f"{table}{every}"
    )


def _story(found: Sequence[Line]) -> str:
    """What happened, in two or three sentences. HTML."""
    scored = [(line, score) for line in found if (score := _accuracy(line)) is not None]
    own = [pair for pair in scored if pair[0].runs[0].info["method"] != "oracle"]
    if not own:
        return "No client of these runs could be scored."
    best, score = max(own, key=lambda pair: pair[1])
    told = [f"<b>{escape(best.label)}</b> reaches {100 * score:.1f} % on clients' own test rows{_found(best)}."]
    one = next((pair for pair in scored if pair[0].runs[0].info["method"] == "fedavg" and pair[0] is not best), None)
    if one and _paired(best, one[0]):
        told.append(f"That is {_points(score - one[1])} one model for all (FedAvg, {100 * one[1]:.1f} %).")
    oracle = next((pair for pair in scored if pair[0].runs[0].info["method"] == "oracle"), None)
    if oracle and _paired(best, oracle[0]):
        told.append(f"The oracle, which is told the true groups, reaches {100 * oracle[1]:.1f} %.")
    if len({run.info["partition_hash"] for line in found for run in line.runs if run.info["seed"] ==
            found[0].runs[0].info["seed"]}) > 1:
        told.append("These runs do not share one partition: compare their numbers with care.")
    return " ".join(told)


def _points(change: float) -> str:
    if abs(change) < 0.0005:
        return "as much as"
    return f"{100 * abs(change):.1f} points {'above' if change > 0 else 'below'}"


def _found(line: Line) -> str:
    if line.runs[0].info["method"] == "solo":
        return ", everybody alone"
    if _count(line) == "1":
        return " with one model for all"
    ari = _ari(line)
    agreement = f", which agree with the true groups to an ARI of {ari:.2f}" if ari is not None else ""
    return f" with {_count(line)} clusters{agreement}"


def _paired(a: Line, b: Line) -> bool:
    return {run.info["partition_hash"] for run in a.runs} == {run.info["partition_hash"] for run in b.runs}


def _cards(found: Sequence[Line]) -> str:
    """A few large numbers of the best run that is not told the groups."""
    scored = [line for line in found if _accuracy(line) is not None]
    own = [line for line in scored if line.runs[0].info["method"] != "oracle"] or scored
    if not own:
        return ""
    best = max(own, key=lambda line: _accuracy(line) or 0.0)
    clusters = [run.info["clusters"] for run in best.runs]
    lost = sum(sum(run.info["lost"].values()) for run in best.runs)
    many, ari, worst = _count(best), _ari(best), _worst(best)
    cards = [
        (f"{100 * (_accuracy(best) or 0):.1f} %", f"accuracy of {best.label}, {WORDS[best.runs[0].headline]}"),
        ("–" if worst is None else f"{100 * worst:.1f} %", "mean of its worst tenth of clients"),
        (many, "clusters" if many != "1" else "cluster: one model for all"),
        ("–" if ari is None else f"{ari:.2f}",
         "no true groups known" if ari is None else "ARI against the true groups; 1 is perfect"),
        (_megabytes(mean(map(_moved, best.runs))), "moved between server and clients"),
    ]
    unplaced = max(each["unplaced"] for each in clusters)
    cards += [(str(unplaced), "clients not placed")] if unplaced else []
    cards += [(str(lost), "answers lost")] if lost else []
    return '<div class="cards">' + "".join(
        f'<div class="card"><b>{escape(number)}</b><span>{escape(words)}</span></div>' for number, words in cards
    ) + "</div>"


def _count(line: Line) -> str:
    counts = sorted(run.info["clusters"]["count"] for run in line.runs)
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]}–{counts[-1]}"


def _ari(line: Line) -> float | None:
    found = [run.info["clusters"]["ari"] for run in line.runs if run.info["clusters"]["ari"] is not None]
    return mean(found) if found else None


def _worst(line: Line) -> float | None:
    found = [run.info["accuracy"][run.headline]["worst_decile"] for run in line.runs
             if run.info["accuracy"][run.headline]]
    return mean(found) if found else None


def _moved(run: Run) -> float:
    return float(run.info["bytes"]["down"] + run.info["bytes"]["up"])


def _megabytes(amount: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= size:
            return f"{amount / size:.3g} {unit}" if amount < 999.5 * size else f"{amount / size:,.0f} {unit}"
    return f"{amount:.0f} B"


def _runs_table(found: Sequence[Line], names: dict[int, str]) -> str:
    rows = []
    for run in (run for line in found for run in line.runs):
        info, score = run.info, run.info["accuracy"][run.headline] or {}
        rows.append([
            Cell(names[id(run)]),
            Cell(f"{100 * score['mean']:.2f} ± {100 * score['std']:.2f}", score["mean"]) if score else Cell(None),
            number(score.get("worst_decile"), 1, 100),
            *(number((info["accuracy"][kind] or {}).get("mean"), 1, 100) for kind in ACCURACIES),
            Cell(str(info["clusters"]["count"])), number(info["clusters"]["ari"]),
            Cell(_megabytes(_moved(run)), _moved(run)), number(info["seconds"]["total"], 1),
        ])
    note = ("Accuracy in % on clients' own test rows; ± standard deviation over clients. The first is the one of the"
            " next three (after the worst tenth of clients) that the method is judged by. ARI: agreement with the true"
            " groups, 1 is perfect, 0 is chance.")
    return table(_HEADS, rows, "Runs") + f'<p class="note">{note}</p>'


_HEADS = ("run", "accuracy", "worst tenth", "cluster's model", "fine-tuned", "own last", "clusters", "ARI", "moved",
          "seconds")


def _lines_table(found: Sequence[Line]) -> str:
    rows = []
    for line in found:
        kinds = {kind: [run.info["accuracy"][kind]["mean"] for run in line.runs if run.info["accuracy"][kind]]
                 for kind in ACCURACIES}
        score, scores = _accuracy(line), [run.accuracy for run in line.runs if run.accuracy is not None]
        spread = f" ± {100 * stdev(scores):.2f}" if len(scores) > 1 else ""
        rows.append([
            Cell(line.label), Cell(None) if score is None else Cell(f"{100 * score:.2f}{spread}", score),
            number(_worst(line), 1, 100),
            *(number(mean(kinds[kind]) if kinds[kind] else None, 1, 100) for kind in ACCURACIES),
            Cell(_count(line), mean(run.info["clusters"]["count"] for run in line.runs)), number(_ari(line)),
            Cell(_megabytes(mean(map(_moved, line.runs))), mean(map(_moved, line.runs))),
            number(mean(run.info["seconds"]["total"] for run in line.runs), 1),
        ])
    note = ("Accuracy in % on clients' own test rows, mean over clients; ± standard deviation over seeds. The first is"
            " the one of the next three (after the worst tenth of clients) that the method is judged by. ARI: agreement"
            " with the true groups, 1 is perfect, 0 is chance.")
    return table(("method", *_HEADS[1:]), rows, "Methods") + f'<p class="note">{note}</p>'
