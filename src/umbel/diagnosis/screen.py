"""A diagnosis on a terminal."""

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from umbel.diagnosis.diagnose import Diagnosis
from umbel.nets.objective import Metric

FEW = 4  # clients that a line names


def show(found: Diagnosis, console: Console) -> None:
    """Tables and sentences: the recommendation comes first."""
    def say(sentence: str) -> None:  # one line as it is, however long
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    say(found.advice)
    console.print()
    console.print(differences_table(found))
    for line in clusters_lines(found):
        say(line)
    if (plans := plans_table(found)) is not None:
        console.print()
        console.print(plans)
    console.print()
    for sentence in (cost_said(found), found.info["reveals"], lost_said(found)):
        if sentence:
            say(sentence)


def differences_table(found: Diagnosis) -> Table:
    """What differs, kind by kind."""
    table = Table(title="What differs", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "differ", "what was found"):
        table.add_column(column)
    for each in found.info["differences"]:
        answer = answered(each)
        table.add_row(each["kind"], f"[bold]{answer}[/bold]" if each["found"] else answer, each["words"])
    return table


def answered(difference: dict[str, Any]) -> str:
    """Whether clients differ in this: yes, no, or a dash where it could not be asked."""
    return "yes" if difference["found"] else "no" if difference["asked"] else "–"


def clusters_lines(found: Diagnosis) -> Iterator[str]:
    """Who is together, and why."""
    groups = found.info["clusters"]
    if len(groups) < 2:
        return
    yield f"By their rows clients fall into {len(groups)} clusters:"
    for k, group in enumerate(groups):
        yield f"  {k}: {some(group['clients'])}{': ' + group['marks'] if group['marks'] else ''}"


def some(clients: list[str], most: int = FEW) -> str:
    """A few names, and how many more there are."""
    more = len(clients) - most
    return ", ".join(clients[:most]) + (f" and {more} more" if more > 0 else "")


def plans_table(found: Diagnosis) -> Table | None:
    """What each plan is worth; None where none was tried."""
    plans = found.info["plans"]
    if not plans:
        return None
    metric, over = found.metric, found.info["over"]
    table = Table(title="What it is worth", title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
                  caption=f"{metric.caption} on {over['validation_rows']} validation rows of {over['clients']} clients"
                          f" after {rounds_said(found.info['cost']['trial_rounds'])} of trial; in brackets 95 %"
                          " intervals, paired over clients.", caption_justify="left")
    table.add_column("plan")
    for column in ("mean", "better than one model by", "worst client", "MB a round"):
        table.add_column(column, justify="right")
    for each in plans:
        mark = "[bold]" if each["chosen"] else ""
        table.add_row(f"{mark}{each['plan']}", f"{mark}{metric.shown(each['score'], 1)}", gain_said(each, metric),
                      metric.shown(each["worst"], 1), f"{each['bytes_a_round'] / 1e6:.2f}")
    return table


def gain_said(plan: dict[str, Any], metric: Metric) -> str:
    """How much better than one model, with its interval; a dash for that itself."""
    if plan["groups"] == "one" and not plan["tuned"]:
        return "–"
    if plan["low"] is None:
        return "not known"
    low, high = plan["low"], plan["high"]
    return f"{metric.shown((low + high) / 2, 1)} [{metric.shown(low, 1)}, {metric.shown(high, 1)}]"


def rounds_said(count: int) -> str:
    """As in: one round, 2 rounds."""
    return "one round" if count == 1 else f"{count} rounds"


def cost_said(found: Diagnosis) -> str:
    """What the diagnosis cost, in a sentence."""
    cost = found.info["cost"]
    words = (f"The evidence took {cost['evidence_bytes'] / 1e6:.2f} MB, as much as {cost['evidence_rounds']:.2g} rounds"
             " of one model")
    if cost["trial_rounds"]:
        words += (f"; the trial {cost['trial_bytes'] / 1e6:.2f} MB, {100 * cost['trial_share']:.0f} % of a run of"
                  f" {rounds_said(found.info['rounds'])}")
    return f"{words}."


def lost_said(found: Diagnosis) -> str:
    """Who was not heard, in a sentence; empty where everybody was."""
    lost = found.info["lost"]
    said = ", ".join(f"{name} ({', '.join(reasons)})" for name, reasons in lost.items())
    return f"Not heard to the end: {said}." if lost else ""
