"""What a server could ask of a site and get, read from its app, its configuration, its data and its policy."""

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import parse_config_args

from umbel.errors import UmbelError
from umbel.files import read_text
from umbel.flower.client import SITES, Site, refuse_unwritable
from umbel.flower.policy import different
from umbel.tree import nbytes


class Answer(NamedTuple):
    """One thing that could be asked."""

    what: str
    allowed: bool
    how: str  # what would leave, or why nothing would


def site_in(folder: Path, node_config: str) -> Site:
    """The site that a SuperNode with this configuration would be, by the app in a folder.

    The app's code runs, as it would at the site.
    """
    path = folder / "pyproject.toml"
    try:
        about = tomllib.loads(read_text(path, follow=True))["tool"]["flwr"]["app"]
        module, _, name = about["components"]["clientapp"].partition(":")
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise UmbelError(f"The file {path} must be that of a Flower app, with its clientapp. It is not: {error}.") \
            from error
    try:
        config: dict[str, Any] = parse_config_args([node_config])
    except Exception as error:  # Flower's own, with its own sentence
        raise UmbelError("A node's configuration is written as in 'name=\"site-a\" data=\"rows.npz\"'. Got"
                         f" {node_config} instead.") from error
    sys.path.insert(0, str(folder))
    try:
        app = getattr(import_module(module), name)
        if not isinstance(app, ClientApp) or app not in SITES:
            raise UmbelError(f"The clientapp of {folder} must be made by umbel.flower.client_app. It is {app!r}.")
        return SITES[app](Context(0, 0, config, RecordDict(), about.get("config", {})))
    except UmbelError:
        raise
    except Exception as error:  # whatever an app's own code does
        raise UmbelError(f"The site cannot begin: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(str(folder))


def answers(site: Site) -> list[Answer]:
    """What a server could ask, and what it would get."""
    policy, people = site.policy, site.people
    train, test = people.train[0], people.test[0]
    kept = policy.described(people).train[0]
    held, told = (np.unique(people.kinds[rows]).tolist() for rows in (train, kept))
    few = different(people.pool.x, train, policy.least_rows) < policy.least_rows
    untested = different(people.pool.x, test, policy.least_rows) < policy.least_rows

    def one(what: str, allowed: bool, enough: bool, how: str, rows: str = "rows") -> Answer:
        if not allowed:
            return Answer(what, False, "the policy says no")
        return Answer(what, enough, how if enough else f"fewer than {policy.least_rows} different {rows}")

    left_out = f"; left out: {_listed(sorted(set(held) - set(told)))}" if len(told) < len(held) else ""
    made = f"of {len(kept):,} rows, classes {_listed(told)}{left_out}"
    return [
        one("models trained here", True, not few,
            f"on the rows {' or '.join(policy.train_on)}; in one call up to {policy.most_epochs:,} epochs,"
            f" {policy.most_steps:,} steps, {policy.most_jobs:,} jobs"),
        one("descriptions", policy.signatures, bool(len(kept)), f"up to {policy.most_rank} vectors {made}"),
        one("counts of classes", policy.counts, bool(len(kept)), made),
        one("scores", policy.scores, not untested, f"sums over {len(test):,} test rows, and over training and"
            " validation rows", "test rows"),
        one("models it keeps", policy.kept_models, True, "as they are"),
    ]


def _listed(kinds: list[int]) -> str:
    """Some classes, not all of a thousand."""
    shown = ", ".join(map(str, kinds[:20]))
    return shown + (f" and {len(kinds) - 20} more" if len(kinds) > 20 else "") or "none"


def conditions(site: Site) -> list[str]:
    """What holds for every answer, in sentences; raises where the site could not remember."""
    refuse_unwritable(site.memory, nbytes(site.net.shapes))
    policy = site.policy
    said = [f"{site.name}: {len(site.people.train[0]):,} training and {len(site.people.test[0]):,} test rows for the"
            f" model {site.net.name}.",
            f"Memory in {site.memory} can be written; the log is {site.audit}."]
    for what, names in (("methods", policy.methods), ("tasks", policy.tasks)):
        said += [f"Allowed {what}: {', '.join(names)}."] if names is not None else []
    said += [f"Every answer must pass {policy.uplinks}."] if policy.uplinks else []
    return said
