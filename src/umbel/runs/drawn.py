"""What was really drawn, in words: who holds how much of what, and what is less than was asked for."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from umbel.data import scenarios
from umbel.data.scenarios import SCENARIOS
from umbel.errors import UmbelError
from umbel.federation.door import Federation


def said(fed: Federation) -> list[str]:
    """Clients, their training rows and labels, true groups; and what the set was too small for."""
    about = fed.provenance
    facts = about.scenario or {}
    rows = [sum(counts) for counts in about.label_counts or ()]
    parts = [f"{len(fed.names)} clients"]
    if rows:
        parts.append(f"{_span(rows)} training rows each (median {median(rows):g})")
        kinds = "labels" if fed.net.objective.classes else "bins of the target"
        parts.append(f"{_span([sum(map(bool, counts)) for counts in about.label_counts or ()])} {kinds}")
    groups = len(set(about.truth or ()))
    parts += [f"{groups} true groups"] if groups > 1 else []
    return [f"Drawn: {', '.join(parts)}.", *_bent(facts, len(fed.names))]


def warnings(fed: Federation, batch: int) -> list[str]:
    """What is too little of: a client with fewer rows than classes, or than a batch."""
    rows = [sum(counts) for counts in fed.provenance.label_counts or ()]
    natural = str((fed.provenance.scenario or {}).get("scenario")).startswith("natural")
    advice = "Fewer (--clients) are those with the most." if natural else (
        "Fewer clients would hold more each (--clients).")
    few = []
    for what, least in ((f"the {fed.net.objective.classes} classes", fed.net.objective.classes),
                        (f"a batch of {batch}", batch)):
        short = [i for i, size in enumerate(rows) if size < least]
        if short:
            worst = min(short, key=lambda i: rows[i])
            few.append(f"{len(short)} of {len(rows)} clients have fewer training rows than {what}; the smallest,"
                       f" {fed.names[worst]}, has {rows[worst]}. {advice}")
    return few


def _bent(facts: Mapping[str, Any], clients: int) -> list[str]:
    """Numbers of the scenario that the set could not give."""
    try:
        parts = scenarios.parse(str(facts.get("scenario")))
    except UmbelError:  # clients of a person's own were drawn by no scenario
        return []
    return [
        f"The set is too small for {name}={asked:g} with {clients} clients: it was lowered to {facts[name]:g}."
        for scenario, given in parts for name, parameter in SCENARIOS[scenario].parameters.items()
        if isinstance(facts.get(name), int) and facts[name] < (asked := given.get(name, parameter.default))
    ]


def _span(numbers: list[int]) -> str:
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"
