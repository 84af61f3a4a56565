"""What came of a run: one schema for all methods, computed from the round records and the last state alone."""

import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from umbel import plugins, tree
from umbel.algorithms import ALGORITHMS
from umbel.algorithms.base import Algorithm, State, keeps_norms
from umbel.clustering.cuts import plural
from umbel.errors import UmbelError, unknown
from umbel.federation import ledger
from umbel.federation.door import Federation
from umbel.federation.phases import CLUSTERING, EVALUATE, SIGNATURE
from umbel.federation.provenance import Provenance
from umbel.nets.model import Model
from umbel.nets.objective import Metric, Objective
from umbel.nets.standalone import Standalone
from umbel.runs import evaluate
from umbel.runs.options import RunOptions
from umbel.runs.reasons import steady
from umbel.runs.recipe import settings_of
from umbel.runs.run import Stopwatch, best_of, by_validation, three_scores
from umbel.runs.schema import SCHEMA
from umbel.tree import Params, Tree

if TYPE_CHECKING:
    import pandas

AT_ONCE = 1024  # rows of one forward pass of `predict`


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run. `info` is what result.json holds, `clusters` what clusters.json does."""

    info: dict[str, Any]
    clusters: dict[str, Any]
    state: State
    records: list[dict[str, Any]]
    algorithm: Algorithm
    net: Model | None  # None where a run was loaded whose network is the user's own
    memory: Tree  # what clients keep, by name
    memory_rounds: dict[str, int]  # and the round that it is from
    provenance: Provenance
    options: RunOptions
    forecasts: dict[str, Any] | None = None  # what forecasts.json holds, of a regression in a simulation

    @property
    def labels(self) -> Tensor:
        """(n,) the cluster of each client; -1 = not placed."""
        return self.state.labels

    @property
    def names(self) -> list[str]:
        """The clients, in the order of the labels."""
        return list(self.info["clusters"]["labels"])

    @property
    def models(self) -> Tree:
        """The clusters' models, side by side."""
        return self.state.models

    @property
    def metric(self) -> Metric:
        """What the run is judged by."""
        return Metric.of(self.info["metric"])

    @property
    def score(self) -> float:
        """By the metric: mean over clients, or over all their rows together; a share ("%") is in [0, 1]."""
        headline = self.info["headline"]
        if self.info["score"][headline] is None:
            raise UmbelError(f"This run has no score: {self.info['score']['missing'][headline]}.")
        return float(self.info["score"][headline]["value"])

    @property
    def accuracy(self) -> float:
        """The score of a run that is judged by accuracy."""
        self.metric.must_be_accuracy()
        return self.score

    @property
    def curve(self) -> dict[int, float]:
        """The score by number of rounds done."""
        return {each["round"] + 1: each["score"]["value"] for each in self.records if each.get("score")}

    def model(self, cluster: int | None = None, *, client: str | None = None) -> nn.Module:
        """A cluster's model, or the one that a client uses, as a plain module that scales its inputs itself.

        It takes images as they were given, uint8 or in [0, 1], and needs nothing of umbel.
        """
        if (cluster is None) == (client is None):
            raise UmbelError("Say whose model: model(0), of a cluster, or model(client='c000').")
        if self.net is None:
            raise UmbelError("This run's network was your own: load it again as umbel.load(folder, model=...), with the"
                             " module or the function that builds it.")
        return Standalone(self.net, self._of_client(client) if client is not None else self._of_cluster(cluster))

    def _of_cluster(self, cluster: int | None) -> Params:
        clusters = tree.count(self.models)
        if type(cluster) is not int or not 0 <= cluster < clusters:
            raise UmbelError(f"The clusters of this run are 0 to {clusters - 1}. Got {cluster!r} instead.")
        assert self.net is not None
        if not self.algorithm.has_cluster_model or keeps_norms(self.net, self.algorithm.local):
            raise UmbelError(f"The method '{self.info['method']}' has no model for a whole cluster: ask for a client's,"
                             " as in model(client='c000').")
        return tree.to(tree.take(self.models, cluster), "cpu")

    def _of_client(self, client: str) -> Params:
        assert self.net is not None
        labels = self.info["clusters"]["labels"]
        if client not in labels:
            raise unknown("client", str(client), labels)
        if labels[client] < 0:
            raise UmbelError(f"The client '{client}' was never placed, and has no model.")
        sent = tree.take(self.models, labels[client])
        kept = {"last": self.net.init(self.info["seed"]), **self.memory.get(client, {})}
        if keeps_norms(self.net, self.algorithm.local):
            sent = {**sent, **tree.to(kept.get("norms", self.net.first_norms()), tree.device_of(sent))}
        return tree.to(self.algorithm.personal(sent, kept), "cpu")

    def predict(self, x: NDArray[Any] | Tensor, *, client: str | None = None,
                cluster: int | None = None) -> NDArray[Any]:
        """What is foretold for each row, by the model of a client or of a cluster.

        Of a classification the class, (rows,), by its name where it has one; of a regression numbers in the target's
        own unit; of a language model tokens.
        """
        module = self.model(cluster, client=client)
        inputs = torch.as_tensor(x)
        assert self.net is not None
        if tuple(inputs.shape[1:]) != self.net.shape:
            what = "Images" if len(self.net.shape) == 3 else "Inputs"
            raise UmbelError(f"{what} must be (rows, {', '.join(map(str, self.net.shape))})."
                             f" Got {tuple(inputs.shape)} instead.")
        objective = self.net.objective
        with torch.no_grad():
            parts = [module(inputs[start : start + AT_ONCE]) for start in range(0, len(inputs), AT_ONCE)]
        out = torch.cat(parts) if parts else torch.empty(0, *objective.out_shape)
        wrong = (~out.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        if wrong:
            raise UmbelError(f"What the model puts out must be finite. It is not for {len(wrong)} of {len(out)} rows,"
                             f" as in row {wrong[0]}: look for numbers there that are not finite, or train with a"
                             " smaller learning rate.")
        return objective.predicted(out)

    def to_pandas(self, of: str = "clients") -> "pandas.DataFrame":
        """A table of the clients (cluster, true group, three scores), or of the rounds (score, bytes, seconds)."""
        if of == "clients":
            rows = [{"client": each["name"], "cluster": each["cluster"], "truth": each["truth"], **each["score"]}
                    for each in self.clusters["clients"]]
            return data_frame(rows, "client")
        if of == "rounds":
            return data_frame([_line(each) for each in self.records if each["round"] >= 0], "round")
        raise UmbelError(f"A table is of 'clients' or of 'rounds'. Got '{of}' instead.")

    def save(self, folder: str | Path) -> Path:
        """Keep the run in a new folder, as `umbel run` would have."""
        from umbel.runs.session import keep  # a session is built on results

        return keep(self, Path(folder))

    def __repr__(self) -> str:
        return f"<Result {self._words}>"

    @property
    def _words(self) -> str:
        info = self.info
        score, metric = info["score"][info["headline"]], self.metric
        agreement = "" if info["clusters"]["ari"] is None else f", ARI {info['clusters']['ari']:.2f}"
        reached = "not tested" if score is None else f"{metric.name} {metric.said(score['value'])}"
        return (f"{info['method']} on {where(info)}: {reached},"
                f" {plural(info['clusters']['count'])} of {info['clients']} clients{agreement}")

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        metric = self.metric
        cells = "".join(
            f"<tr><td>{start.replace('_', ' ')}</td>"
            f"<td>{metric.shown(score['value'])}{metric.spread(score['std'])}</td><td>{metric.shown(score['worst_decile'])}</td></tr>"
            for start in evaluate.STARTS if (score := self.info["score"][start])
        )
        value = "all rows together" if metric.pooled else "mean"
        unit = f" ({escape(metric.unit)})" if metric.unit else ""
        return (f"<div><b>{escape(self._words)}</b><table><tr><th>{escape(metric.name)} of</th>"
                f"<th>{value} ± std over clients{unit}</th><th>worst tenth</th></tr>{cells}</table></div>")


def where(info: Mapping[str, Any]) -> str:
    """The data of a result and its scenario, if it has one: data of one's own have none."""
    return ", ".join([info["data"], *([info["scenario"]] if info["scenario"] else [])])


def data_frame(rows: list[dict[str, Any]], index: str) -> "pandas.DataFrame":
    """A table by one of its columns; pandas is an extra."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise UmbelError("to_pandas() needs pandas: pip install 'umbel[pandas]'.") from error
    return pandas.DataFrame(rows).set_index(index)


def finish(algorithm: Algorithm, fed: Federation, state: State, records: list[dict[str, Any]],
           options: RunOptions | None = None) -> Result:
    """Make a result of any loop over `rounds`: of its last (or best) state, and the records of all its rounds.

        records = []
        for done in umbel.rounds(method, fed, rounds=100):
            records.append(done.record)
            if good_enough(done.score):
                break
        result = umbel.finish(method, fed, done.state, records)

    A loop that was left early is tested now, and the bytes and seconds of that are added to its last round.
    """
    if not records or records[-1]["round"] < 0:
        raise UmbelError("A result needs at least one round: let the loop go on to round 0 or beyond.")
    if records[-1].get("lost_in_a_row", 0) > records[-1]["round"]:
        why = "; ".join(sorted({why for reasons in records[-1]["lost"].values() for why in reasons}))
        raise UmbelError("A result needs at least one round with a usable answer. Each one so far was lost, the last"
                         f" because of: {why}.")
    options = options or RunOptions(**records[0].get("options", {}))
    if "final" not in records[-1]:
        records = [*records[:-1], _tested_late(algorithm, fed, state, records[-1], options)]
    pages, rounds = fed.memory()
    info = _info(algorithm, fed, state, records, options)
    steady_ones = info["clusters"]["why"].get("steady", {}).get("clients", {})
    clusters = _clusters_table(fed.names, fed.provenance, state, records[-1], steady_ones)
    epochs = algorithm.local.epochs if options.fine_tune is None else options.fine_tune
    shown = evaluate.forecasts(fed, algorithm, state, records[-1]["round"], epochs)
    return Result(info, clusters, state, records, algorithm, fed.net, pages, rounds, fed.provenance, options, shown)


def _tested_late(algorithm: Algorithm, fed: Federation, state: State, record: dict[str, Any],
                 options: RunOptions) -> dict[str, Any]:
    """A round's record with all three scores, as if it had been the last from the start."""
    with Stopwatch(fed) as watch:
        if fed.now != record["round"]:  # a run that was stopped behind its last round has not seen it
            fed.arrive(record["round"])
        final = three_scores(algorithm, fed, state, record["round"], options, remembered=options.keep == "last")
    extra = watch.seconds
    seconds = {name: record["seconds"].get(name, 0.0) + extra.get(name, 0.0) for name in {**record["seconds"], **extra}}
    sent = ledger.merge([record["bytes"], ledger.totals(fed.ledger.drain())])
    late: dict[str, Any] = {"final": final, "bytes": sent, "seconds": seconds}
    if not record.get("score"):
        clients = evaluate.current_of(final, algorithm)
        late["score"] = evaluate.summary(clients, fed.net.objective) if clients is not None else {}
    if not record.get("validation") and algorithm.local.rows == "fit":
        chosen_by = by_validation(algorithm, fed, state, record["round"], options)
        late["validation"] = evaluate.summary(chosen_by, fed.net.objective)
    return {**record, **late}


def _info(algorithm: Algorithm, fed: Federation, state: State, records: list[dict[str, Any]],
          options: RunOptions) -> dict[str, Any]:
    about = fed.provenance
    done = records[-1]["round"] + 1
    rounds = {"pretrain": min(algorithm.pretrain, done), "after": max(0, done - algorithm.pretrain)}
    if rounds["after"] < options.rounds:
        rounds["asked"] = options.rounds  # it was stopped early
    info: dict[str, Any] = {
        "schema": SCHEMA,
        "status": "finished",
        "method": algorithm.name,
        "params": settings_of(algorithm),
        "data": about.data,
        "data_part": about.part,
        "scenario": about.setup.get("scenario"),
        "scenario_facts": about.scenario,
        "partition_hash": about.partition_hash,
        "test_mode": about.test_mode,
        "model": {"name": fed.net.name, "parameters": fed.net.parameters, "head": fed.net.head},
        "seed": fed.seed,
        "clients": len(fed.names),
        "rounds": rounds,
        "fraction": options.fraction,
        "uplink": options.uplink,
        "bound": options.bound,
        "engine": about.setup.get("engine"),
        "device": fed.device.type,
        "precision": fed.net.precision,
        "workers": fed.workers,
        "headline": algorithm.headline,
        "clusters": _clusters(fed, about.truth_at(records[-1]["round"]), algorithm, state),
        "metric": fed.net.objective.metric._asdict(),
        "score": _scores(algorithm, fed.net.objective, state, records, options),
        "bytes": ledger.summary(ledger.merge(record["bytes"] for record in records)),
        "steps": sum(record.get("steps", 0) for record in records),
        "seconds": _seconds(records),
        "lost": dict(Counter(chain.from_iterable(chain.from_iterable(record["lost"].values() for record in records)))),
        "versions": versions(),
    }
    if records[-1].get("validation"):
        info["validation"] = records[-1]["validation"]["value"]
    if options.keep == "best":
        best = best_of(records) or records[-1]  # nobody has validation rows: the last
        info["kept"] = {"round": best["round"], "validation": (best.get("validation") or {}).get("value")}
    return info


def _line(record: dict[str, Any]) -> dict[str, Any]:
    """A round as a row of a table."""
    sent = ledger.summary(record["bytes"])
    return {"round": record["round"], "score": (record.get("score") or {}).get("value"),
            "worst_decile": (record.get("score") or {}).get("worst_decile"), "clusters": record["clusters"],
            "ari": record.get("ari"),
            "asked": record["asked"], "lost": sum(map(len, record["lost"].values())), "bytes_down": sent["down"],
            "bytes_up": sent["up"], "seconds": record["seconds"]["wall"]}


def _clusters_table(names: list[str], about: Provenance, state: State, last: dict[str, Any],
                    steady: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """What clusters.json holds: the members of each cluster, and a line for each client, as of the last round."""
    labels, final = state.labels.tolist(), last["final"]
    truth, counts = about.truth_at(last["round"]), about.label_counts_at(last["round"])

    def reached(name: str) -> dict[str, float]:  # what is not defined is left out
        there = ((start, scores["clients"].get(name)) for start, scores in final.items() if scores)
        return {start: own["score"] for start, own in there if own and own["score"] is not None}

    def holds(i: int) -> dict[str, int] | None:  # only a simulation knows
        return {str(label): n for label, n in enumerate(counts[i]) if n} if counts else None

    clients = [
        {"name": name, "cluster": label, "truth": truth[i] if truth else None, "score": reached(name),
         "holds": holds(i), **({"steady": steady[name]["own"]} if "own" in steady.get(name, {}) else {})}
        for i, (name, label) in enumerate(zip(names, labels, strict=True))
    ]
    members = {str(k): [c["name"] for c in clients if c["cluster"] == k] for k in sorted(set(labels))}
    return {"members": members, "clients": clients}


def _clusters(fed: Federation, truth: tuple[int, ...] | None, algorithm: Algorithm, state: State) -> dict[str, Any]:
    """The clusters, and how far those of honest clients agree with the true groups of the last round."""
    names, labels, honest = fed.names, state.labels.tolist(), fed.honest.tolist()
    placed = [i for i, label in enumerate(labels) if label >= 0]
    agreement = dict.fromkeys(("ari", "ami", "homogeneity", "completeness", "v_measure"), None)
    if truth:
        judged = [i for i in placed if honest[i]]
        agreement |= evaluate.agreement([labels[i] for i in judged], [truth[i] for i in judged])
    return {
        "count": len({labels[i] for i in placed}), "labels": dict(zip(names, labels, strict=True)),
        "truth": dict(zip(names, truth, strict=True)) if truth else None, **agreement,
        "unplaced": len(labels) - len(placed), "why": _why(algorithm, state, names),
    }


def _why(algorithm: Algorithm, state: State, names: list[str]) -> dict[str, Any]:
    """What the method says of its own choice, as far as it fits a line; the whole evidence is in its file."""
    why: dict[str, Any] = {name: state.evidence[name].tolist() for name in ("cut", "hopkins", "variation")
                           if name in state.evidence}
    curve = state.evidence.get("curve")
    if curve is not None and bool((curve[:, 3] == 1).any()):
        why["score"] = float(curve[curve[:, 3] == 1][0, 2])
        why["tried"] = len(curve)
    if test := state.evidence.get("test"):
        why |= {name: float(value) for name, value in test.items()}
    if "pays" in state.evidence:
        numbers = zip(("gain", "error", "p"), state.evidence["pays"].tolist(), strict=False)
        why["pays"] = {name: value for name, value in numbers if isfinite(value)}
    if found := steady(state, names):
        why["steady"] = found
    if words := algorithm.why(state):
        why["words"] = words
    return why


def _scores(algorithm: Algorithm, objective: Objective, state: State, records: list[dict[str, Any]],
            options: RunOptions) -> dict[str, Any]:
    """The three scores, None where one does not exist, with the reason."""
    final = records[-1]["final"]
    scores: dict[str, Any] = dict.fromkeys(final)
    for start, clients in final.items():
        if clients is not None and (summary := evaluate.summary(clients, objective)):
            scores[start] = summary | {"rounds_averaged": 1}
    window = [record["score"] for record in records[-options.average_last:] if record.get("score")]
    if scores["cluster_model"] and len(window) > 1 and options.keep == "last":
        names = ("mean", "std", "worst_decile", "weighted", "value")
        scores["cluster_model"] |= _averaged([{name: each[name] for name in names} for each in window])
        scores["cluster_model"]["pooled"] = _averaged([each["pooled"] for each in window])
        scores["cluster_model"]["rounds_averaged"] = len(window)
    if scores["last_local"]:
        trained = {i for record in records for i in record["trained"]}
        placed = {i for i, label in enumerate(state.labels.tolist()) if label >= 0}
        scores["last_local"]["never_trained"] = len(placed - trained)
    reasons = {
        "cluster_model": "the server's models do not predict by themselves in this method",
        "fine_tuned": "fine-tuning was left out (fine_tune = 0)",
        "last_local": "clients keep no local model above 256 MiB in all" if options.keep == "last"
                      else "what clients keep is of the last round, and the best round's models were kept",
    }
    undefined = f"the clients' test rows do not define {objective.metric.name}"
    nobody = "no client that could be asked has test rows"
    missing = {start: reasons[start] if final[start] is None else undefined if final[start]["clients"] else nobody
               for start, each in scores.items() if not each}
    return {**scores, "missing": missing}


def _averaged(lines: list[dict[str, float | None]]) -> dict[str, float | None]:
    """The mean of each number over rounds; of those that define it."""
    known = {name: [value for line in lines if (value := line[name]) is not None] for name in lines[-1]}
    return {name: sum(values) / len(values) if values else None for name, values in known.items()}


def _seconds(records: list[dict[str, Any]]) -> dict[str, float]:
    """Time by the clock: in all, per round without evaluation, for signatures, for clustering on the server."""
    def phase(name: str) -> float:
        return float(sum(record["seconds"].get(name, 0.0) for record in records))

    training = [record for record in records if record["round"] >= 0]
    busy = [record["seconds"]["wall"] - record["seconds"].get(EVALUATE, 0.0) for record in training]
    return {
        "total": phase("wall"), "per_round": sum(busy) / max(1, len(busy)), "evaluate": phase(EVALUATE),
        "signature": phase(SIGNATURE), "clustering": phase(CLUSTERING),
    }


def versions() -> dict[str, str]:
    """Of umbel and of what its numbers depend on."""
    known = {"python": platform.python_version()}
    for package in ("umbel", "torch", "numpy", "scipy", "scikit-learn"):
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "not installed"
    return known


def environment(fed: Federation) -> dict[str, Any]:
    """What a result may depend on beside its recipe."""
    device = torch.cuda.get_device_name(fed.device) if fed.device.type == "cuda" else platform.machine()
    return {
        "versions": versions(), "system": platform.system(), "device": device, "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def recipe_of(algorithm: Algorithm, about: Provenance, options: RunOptions) -> dict[str, Any]:
    """Every choice that decides a run, as its recipe has them."""
    recipe = {"method": method_word(algorithm), **about.setup, **asdict(options), "settings": settings_of(algorithm)}
    files = plugins.digests(recipe.get(name) for name in plugins.NAMED_IN)
    return recipe | ({"plugins": files} if files else {})


def method_word(algorithm: Algorithm) -> str:
    """What a person types for this method: its name where umbel or a package knows it, else its place in a file."""
    kind = type(algorithm)
    known = algorithm.name in ALGORITHMS and ALGORITHMS[algorithm.name] is kind
    return algorithm.name if known else plugins.place_of(kind) or algorithm.name


