"""What a person sees while a run goes on and when it is done."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from umbel.federation.door import Federation
from umbel.nets.objective import METRICS, Metric
from umbel.runs.reasons import reason, steadiness_said
from umbel.runs.result import where
from umbel.runs.run import Round
from umbel.runs.session import Session

WORDS = {
    "cluster_model": "the cluster's model",
    "fine_tuned": "the same, fine-tuned",
    "last_local": "after a client's last training",
}
POOLED = ("all rows together", "mean ± std over clients", "worst tenth")  # where the metric is no mean over rows


def follow(session: Session, console: Console, name: str, quiet: bool = False) -> Iterator[Round]:
    """Hand the rounds of a session on, showing progress unless that is not wanted."""
    if quiet:
        return session.rounds()
    return followed(session.rounds(), console, name, session.total, session.fed,
                    session.saved.round + 1 if session.saved else 0)


def followed(rounds: Iterator[Round], console: Console, name: str, total: int, fed: Federation,
             done_before: int = 0) -> Iterator[Round]:
    """Hand rounds on, showing progress: a live bar on a terminal or in a notebook, plain lines elsewhere."""
    if console.is_terminal or console.is_jupyter:
        with _bar(console, name, total, fed, done_before) as show:
            for done in rounds:
                show(done)
                yield done
    else:
        for done in rounds:
            if line := _line(done, total):
                console.print(f"{name}  {line}", highlight=False, markup=False, soft_wrap=True)
            yield done


def _line(done: Round, total: int) -> str:
    if done.index < 0:
        return ""
    parts = [f"round {done.index + 1}/{total}", f"clusters {done.record['clusters']}"]
    parts += [f"{done.metric.name} {done.metric.said(done.score)}"] if done.score is not None else []
    parts += [f"lost {sum(map(len, done.record['lost'].values()))} answers"] if done.record["lost"] else []
    return "  ".join([*parts, f"{done.record['seconds']['wall']:.1f} s"])


@contextmanager
def _bar(console: Console, name: str, total: int, fed: Federation, done_before: int) -> Iterator[Any]:
    rest = Column(ratio=1, no_wrap=True, overflow="crop")  # what an 80-column terminal leaves
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(bar_width=max(10, 30 - len(name))), MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"), TimeElapsedColumn(), TextColumn("[dim]left"), TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[phase]}", table_column=rest),
    )
    with Progress(*columns, console=console, expand=True) as progress:
        bar = progress.add_task(escape(name), total=total, completed=done_before, score="", phase="")

        def watch(phase: str, done: int, asked: int) -> None:
            progress.update(bar, phase=escape(f"{phase} {done}/{asked}"))

        def show(done: Round) -> None:
            progress.update(bar, completed=done.index + 1)
            if done.score is not None:
                progress.update(bar, score=f"[green]{escape(done.metric.said(done.score))}")

        with fed.watched(watch):
            yield show
        progress.update(bar, phase="")


def result_table(info: Mapping[str, Any]) -> Group:
    """One finished run."""
    title = f"{info['method']} on {where(info)}, {info['clients']} clients, seed {info['seed']}"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    metric = Metric.of(info["metric"])
    table.add_column(Text(f"{metric.name} of"))
    for column in (POOLED if metric.pooled else ("mean ± std", "worst tenth", "weighted by rows")):
        table.add_column(column, justify="right")
    for start, words in WORDS.items():
        mark = "[bold]" if start == info["headline"] else ""
        score = info["score"][start]
        if score is None:
            table.add_row(words, "–", "–", "–")
            continue
        mean, worst, weighted = (metric.shown(score[name]) for name in ("mean", "worst_decile", "weighted"))
        mean += metric.spread(score["std"])
        first, *rest = (weighted, mean, worst) if metric.pooled else (mean, worst, weighted)
        table.add_row(f"{mark}{words}", f"{mark}{first}", *rest)
    return Group(table, _note(f"{metric.caption} on clients' own test rows; ± standard deviation over clients."))


def understood_lines(about: Mapping[str, Any]) -> list[str]:
    """What was understood of data of one's own, in at most fifteen lines."""
    sites, columns = about.get("sites", {}), about.get("columns", {})
    counts = sorted(sites.values())
    target = about.get("target", {})
    lines = [f"Understood: {about['rows']:,} rows" + (f" of {len(sites)} clients ({counts[0]:,} to {counts[-1]:,}"
                                                      f" rows), by {about['client']}." if sites else ".")]
    if target:
        classes = target.get("classes", [])
        lines.append(f"Target: {target['name']}, {f'classes {_few(classes)}' if classes else 'a number'}"
                     f" ({about['objective']}). Test rows by {about['split']}.")
    if weight := about.get("weight"):
        lines.append(f"Rows weigh in the loss by {weight}.")
    if without := about.get("rows_without_target"):
        lines.append(f"Left out: {without:,} rows without a target.")
    for kind, names in (("numbers", [n for n, c in columns.items() if "category" not in c]),
                        ("categories", [f"{n} ({c['levels']})" for n, c in columns.items() if "category" in c]),
                        ("missing", [f"{n} {c['missing']:,}" for n, c in columns.items() if c["missing"]]),
                        ("kept out", [f"{n} ({why})" for n, why in about.get("kept_out", {}).items()])):
        lines += [f"{len(names)} {kind}: {_few(names)}"] if names else []
    return lines


def _few(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" ... {len(names) - most} more" if len(names) > most else "")


def _note(text: str) -> Text:
    """What stands below a table: not wrapped to its width."""
    return Text(text, style="dim italic")


def result_lines(info: Mapping[str, Any]) -> list[str]:
    """Clusters, cost and time in words."""
    clusters, sent, seconds = info["clusters"], info["bytes"], info["seconds"]
    steady = steadiness_said(clusters)
    facts = [f"ARI against the true groups {clusters['ari']:.2f}."] if clusters["ari"] is not None else []
    facts += [f"{clusters['unplaced']} clients not placed."] if clusters["unplaced"] else []
    lost = ", ".join(f"{n} {why}" for why, n in info["lost"].items())
    facts += [f"Answers lost: {lost}."] if lost else []
    uplink = [f"Uplink: {info['uplink']}."] if info.get("uplink") else []
    return [
        reason(clusters), *([steady] if steady else []),
        *_tendency(clusters["why"]), *([" ".join(facts)] if facts else []), *_others(info),
        f"Sent: {size(sent['down'])} to the clients, {size(sent['up'])} from them.",
        *uplink,
        f"Time: {seconds['total']:.1f} s, {seconds['per_round']:.2f} s a round, on {info['device']}.",
    ]


def _tendency(why: Mapping[str, Any]) -> list[str]:
    """CFLGT's tests of whether there is anything to cluster."""
    if "hopkins" not in why or "variation" not in why:
        return []
    pull, push = why["variation"]
    return [f"Hopkins {why['hopkins']:.2f}, c_v of pull and push {pull:.2f} and {push:.2f}."]


def _others(info: Mapping[str, Any]) -> list[str]:
    """The metrics beside the one that the run is judged by, where there are some."""
    pooled = (info["score"][info["headline"]] or {}).get("pooled", {})
    said = [f"{METRICS[name].name} {METRICS[name].said(value)}" for name, value in pooled.items()
            if name in METRICS and value is not None]
    return [f"Over all test rows together: {', '.join(said)}."] if len(said) > 1 else []


def compare_table(lines: Sequence[Mapping[str, Any]], title: str, equal: str = "") -> Group:
    """Several methods side by side; `equal` is what they were given alike."""
    several = lines[0]["seeds"] > 1
    over = f"over {lines[0]['seeds']} seeds" if several else "over clients (one seed)"
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0),
                  header_style="bold")
    table.add_column("method", no_wrap=True)
    metric = Metric.of(lines[0]["metric"])
    for column in (escape(metric.name), "cluster\nmodel", "fine-\ntuned", "last\nlocal", "worst\ntenth", "rnds", "k",
                   "ARI", "sent", "time\n(s)"):
        table.add_column(column, justify="right", no_wrap=True)
    for line in lines:
        spread = line["score_std_over_seeds"] if several else line["score_std_over_clients"]
        table.add_row(
            escape(line["method"]), f"[bold]{metric.shown(line['score'])}{metric.spread(spread)}",
            *(metric.shown(line[start], 1) for start in WORDS),
            metric.shown(line["worst_decile"], 1), _span(line["rounds"]), _span(line["clusters"]),
            "–" if line["ari"] is None else f"{line['ari']:.2f}", size(line["bytes_down"] + line["bytes_up"]),
            f"{line['seconds']:.1f}" if line["seconds"] < 100 else f"{line['seconds']:.0f}",
        )
    return Group(table, _note(
        f"{metric.caption}, {'over all rows together' if metric.pooled else 'mean over clients'};"
        f" ± standard deviation {over}.\n"
        "The first is the one of the next three that the method is judged by.\n"
        "rnds: rounds in all, those before clusters are formed too. k: clusters. ARI: agreement with the true groups,"
        " 1 is perfect.",
    ), *map(_note, [*_early(lines), *_tuned(lines), *_alike(lines, equal)]))


def vary_table(lines: Sequence[Mapping[str, Any]], title: str) -> Group:
    """One method under several settings."""
    several = lines[0]["seeds"] > 1
    metric = Metric.of(lines[0]["metric"])
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0),
                  header_style="bold")
    for name in lines[0]["settings"]:
        table.add_column(escape(name), justify="right")
    for column in (escape(metric.name), "worst tenth", "rnds", "k", "ARI", "sent"):
        table.add_column(column, justify="right", no_wrap=True)
    known = [line["score"] for line in lines if line["score"] is not None]
    best = (max if metric.higher_is_better else min)(known, default=None)
    for line in lines:
        spread = line["score_std_over_seeds"] if several else line["score_std_over_clients"]
        mark = "[bold]" if line["score"] == best else ""
        table.add_row(
            *(escape(f"{value}") for value in line["settings"].values()),
            f"{mark}{metric.shown(line['score'])}{metric.spread(spread)}", metric.shown(line["worst_decile"], 1),
            _span(line["rounds"]), _span(line["clusters"]), "–" if line["ari"] is None else f"{line['ari']:.2f}",
            size(line["bytes_down"] + line["bytes_up"]))
    over = f"over {lines[0]['seeds']} seeds" if several else "over clients (one seed)"
    return Group(table, _note(f"{metric.caption}; ± standard deviation {over}. The best is chosen by test rows: it says"
                              " what the score depends on, and is no result of the method."))


def _span(counts: Sequence[int]) -> str:
    """A number, or a range over seeds."""
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"


def _early(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who trained before its clusters were formed, where not all did so alike."""
    early = [f"{line['method']} {line['pretrain']}" for line in lines if line["pretrain"]]
    return [f"Of the rounds, before clusters were formed: {', '.join(early)}."] if early else []


def _tuned(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was tried and chosen for each method."""
    said = []
    for line in (line for line in lines if "tuned" in line):
        metric, tuned = Metric.of(line["metric"]), line["tuned"]
        each = [f"{_words(one['settings'])} {metric.shown(one['validation'])}" for one in tuned["tried"]]
        said.append(f"{line['method']}: {_words(tuned['chosen'])}, by validation score ({'; '.join(each)}).")
    first = "Tuned: all train on nine tenths of their training rows; the rest are for validation."
    return [first, *said] if said else []


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as it is"


def _alike(lines: Sequence[Mapping[str, Any]], equal: str) -> list[str]:
    """What was given alike, and what whole rounds made of it."""
    if not equal:
        return []
    reached = [{"rounds": _span(line["rounds"]), "steps": f"{line['steps'] or 0:,.0f}",
                "bytes": size(line["bytes_down"] + line["bytes_up"])}[equal] for line in lines]
    each = ", ".join(f"{line['method']} {much}" for line, much in zip(lines, reached, strict=True))
    near = "as near as whole rounds, ten times --rounds at most, allow"
    whose = "" if equal == "rounds" else f", as {lines[0]['method']}, {near}"
    return [f"All were given the same {equal}{whose}: {each}."]


def size(amount: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError
