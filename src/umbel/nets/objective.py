"""What a model is for: which targets it learns, by which loss, and what it is judged by.

A metric is made of sums over rows, which each client computes of its own. Where it is no mean over rows (AUC, macro F1,
R2), the clients' sums are added first: a site that holds one class alone harms nothing.

torch is imported where it is used: data sets name their objectives, and a shell that completes names must not wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import exp, inf, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from umbel import plugins
from umbel.errors import UmbelError, unknown
from umbel.fields import bounded, check, choice, number, refuse_names, shown
from umbel.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

BROKEN = 1e6  # the loss, or the error in units of the scale, of a model that gives no numbers: it is scored and fails
BINS = 128  # of a histogram of scores in [0, 1]: an AUC from it errs by less than the pairs that share a bin
WORST = 100.0  # loss of a token: e to any more is a number whose square is none
NO_TOKEN = -1  # a target that is none: padding
Sums: TypeAlias = "Mapping[str, Tensor]"  # over rows, float64


def _four(value: float, padded: str = "") -> str:
    """A number by four significant digits, and never as 1e+05."""
    text = f"{value:{padded}.4g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text


class Metric(NamedTuple):
    """What runs are judged by."""

    name: str
    unit: str = ""  # "%": a share in [0, 1], shown times a hundred
    higher_is_better: bool = True
    pooled: bool = False  # judged over all clients' rows together, since it is no mean over them

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Metric:
        """As a file describes it; what a later version adds to that is left out."""
        return cls(*(words[name] for name in cls._fields))

    def shown(self, value: float | None, digits: int = 2) -> str:
        """A value as a table has it, without its unit: `digits` of a percentage, else four significant ones."""
        if value is None:
            return "–"
        if self.unit == "%":
            return f"{100 * value:.{digits}f}"
        return _four(value, "#").rstrip(".")  # 36.70, not 36.7: columns of a table line up

    def said(self, value: float, digits: int = 2) -> str:
        """A value with its unit, as a sentence has it."""
        return f"{self.shown(value, digits) if self.unit == '%' else _four(value)} {self.unit}".strip()

    def spread(self, deviation: float | None) -> str:
        """A standard deviation behind a value; nothing where there is none."""
        return "" if deviation is None else f" ± {self.shown(deviation)}"

    @property
    def axis(self) -> str:
        """Name and unit, as an axis has them."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def title(self) -> str:
        """The name at the beginning of a sentence."""
        return self.name[:1].upper() + self.name[1:]

    @property
    def caption(self) -> str:
        """What begins the sentence below a table: name, unit, and which way is better where that is not plain."""
        unit = f" in {self.unit}" if self.unit else ""
        return f"{self.title}{unit}{'' if self.higher_is_better else ' (lower is better)'}"

    def must_be_accuracy(self) -> None:
        """Refuse `.accuracy` of a run that is judged by something else."""
        if self.name != "accuracy":
            raise UmbelError(f"A run has an .accuracy where it is judged by it. This one is judged by {self.name}: ask"
                             " for its .score.")

    def better(self, one: float, other: float) -> bool:
        """Whether one value beats another."""
        return one > other if self.higher_is_better else one < other

    def gain(self, value: float, over: float) -> float:
        """How much better a value is than another: positive is better, whichever way the metric points."""
        return value - over if self.higher_is_better else over - value


METRICS: dict[str, Metric] = {  # by their names in a summary
    "accuracy": Metric("accuracy", "%"),
    "balanced_accuracy": Metric("balanced accuracy", "%", pooled=True),
    "macro_f1": Metric("macro F1", "%", pooled=True),
    "auc": Metric("AUC", "%", pooled=True),
    "mae": Metric("MAE", "", False),
    "rmse": Metric("RMSE", "", False, pooled=True),
    "r2": Metric("R2", pooled=True),
    "token_accuracy": Metric("token accuracy", "%", pooled=True),
    "perplexity": Metric("perplexity", "", False, pooled=True),
}
ACCURACY = METRICS["accuracy"]


OBJECTIVES: dict[str, type[Objective]] = {}  # by kind: a file names one so


class Objective(ABC):
    """What a model is for. Objectives are frozen dataclasses; files and fingerprints have them as `described` does.

    An own loss is a subclass with another `row_loss`, say of Classify; it is read back as what it is a subclass of,
    which judges the same, unless it has a `kind` of its own.
    """

    kind: ClassVar[str]
    classes: int = 0  # of a classification; 0 elsewhere

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in cls.__dict__:
            OBJECTIVES[cls.kind] = cls

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers the network puts out for one target."""

    @property
    @abstractmethod
    def target(self) -> tuple[int, ...]:
        """Shape of one row's target."""

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of what the network puts out for one row."""
        return (self.outputs,)

    @property
    @abstractmethod
    def metric(self) -> Metric:
        """What runs are judged by."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what it may be judged by; none where it judges by its own rule."""
        fitting: tuple[str, ...] = next((each.metadata["one_of"] for each in fields(self)  # type: ignore[arg-type]
                                         if each.name == "judged_by"), ())
        return fitting

    def judged_as(self, metric: str) -> Objective:
        """The same objective, judged by the metric of this name."""
        if metric not in self.metrics:
            fitting = f"must be {' or '.join(self.metrics)}" if self.metrics else "cannot be chosen"
            raise UmbelError(f"The metric of the objective '{self.kind}' {fitting}. Got '{metric}' instead.")
        judged: Objective = replace(self, judged_by=metric)  # type: ignore[type-var]
        return judged

    def weighed(self, weights: str) -> Objective:
        """The same objective with weights of classes as they are typed: "balanced", or "1,4"."""
        raise UmbelError(f"Weights are of classes, and the targets of the objective '{self.kind}' are none."
                         f" Got '{weights}'.")

    @property
    @abstractmethod
    def sums(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what a client sums over its rows."""

    @property
    def counts(self) -> dict[str, tuple[str, int]]:
        """Those of the sums that count, and what they are counted among: another sum, or "size", the rows, so often.

        A server believes no line of them that adds up to more. An own objective need not say.
        """
        return {}

    def agrees(self, name: str, sums: Tensor) -> Tensor:
        """(n, ...) whether n clients' sums of this name can be true, beside their range."""
        return sums == sums

    @abstractmethod
    def check(self, y: NDArray[Any], of: str) -> NDArray[Any]:
        """Targets as they are stored; what does not fit is refused, in a sentence that names `of`."""

    @abstractmethod
    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """(rows,) the loss of each row: training, IFCA, FedSoft and sweeps all use this one."""

    @abstractmethod
    def row_values(self, out: Tensor, y: Tensor) -> dict[str, Tensor]:
        """(rows, ...) what `tally` counts."""

    @abstractmethod
    def tally(self, values: Sums) -> dict[str, Tensor]:
        """Values of one client's rows -> its sums, float64."""

    @abstractmethod
    def summary(self, sums: Sums, count: int) -> dict[str, float | None]:
        """The metrics of these sums over `count` rows, the judged one among them; None where one is not defined."""

    def merit(self, sums: Sums, count: int) -> float:
        """One client's rows as a number near [0, 1] of which more is better: by it short trials are compared."""
        metrics = self.summary(sums, count)
        return float(next(iter(metrics.values())) or 0.0)

    def predicted(self, out: Tensor) -> NDArray[Any]:
        """(rows, ...) what is foretold, from what a `Standalone` puts out: here the most probable class or token."""
        return out.argmax(-1).numpy()

    @property
    def groups(self) -> int:
        """How many kinds of target there are, for methods that look at clients kind by kind; 0 = no such thing."""
        return self.classes

    def groups_of(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """(rows,) the kind of each target; one kind for all where there are none."""
        return np.zeros(len(y), dtype=np.int64)

    def mean_loss(self, out: Tensor, y: Tensor, live: Tensor | None, many: bool,
                  weight: Tensor | None = None) -> Tensor:
        """The mean over the live rows, all without `live`; `many`: it stands inside a vmap over clients.

        The loss of each row is multiplied by its `weight` first.
        """
        loss = self.row_loss(out, y)
        loss = loss if weight is None else loss * weight
        return loss.mean() if live is None else (loss * live).sum() / live.sum().clamp(min=1)

    def _refuse_shape(self, y: NDArray[Any], what: str) -> None:
        """Targets must be a row each, of the shape that one of them has."""
        if y.shape[1:] != self.target:
            raise UmbelError(f"The {what} must be (rows{''.join(f', {n}' for n in self.target)})."
                             f" Got the shape {y.shape} instead.")

    def described(self) -> dict[str, Any]:
        """Plain words from which `objective_of` makes it again."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Classify(Objective):
    """One of some classes, by cross-entropy.

    `weights` has a number for each class, by which the losses of its rows are multiplied; nothing is judged by them.
    "balanced" stands for those by which every class counts as much as any other over all clients' training rows.
    """

    classes: int = number(2, ge=1, le=1_000_000)
    judged_by: str = choice("accuracy", "accuracy", "balanced_accuracy", "macro_f1", "auc")
    labels: tuple[str, ...] = ()  # what the classes are called, where they were given as texts
    weights: tuple[float, ...] | Literal["balanced"] = ()  # () = all classes count alike

    kind: ClassVar[str] = "classify"

    def __post_init__(self) -> None:
        check(self, "a classification")
        object.__setattr__(self, "labels", tuple(self.labels))
        refuse_names(self.labels, "The names of classes")
        if self.weights != "balanced":
            object.__setattr__(self, "weights", self._numbers(self.weights))

    def _numbers(self, weights: Any) -> tuple[float, ...]:
        try:
            each = () if isinstance(weights, str) and weights else tuple(float(one) for one in weights)
        except (TypeError, ValueError):
            each = ()
        sound = len(each) == self.classes and all(0 <= one < inf for one in each) and any(each)
        if not sound and weights != ():
            raise UmbelError("The 'weights' of a classification must be \"balanced\", or a number from 0 for each of"
                             f" its {self.classes} classes, not all 0. Got {shown(weights)} instead.")
        return each

    def weighed(self, weights: str) -> Objective:
        """With weights as they are typed."""
        given: Any = weights if weights == "balanced" else [word.strip() for word in weights.split(",")]
        return replace(self, weights=given)

    def balanced(self, counts: NDArray[np.int64]) -> Classify:
        """With numbers for weights that are "balanced": by how many training rows there are of each class."""
        if self.weights != "balanced":
            return self
        each = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
        return replace(self, weights=tuple(np.where(counts > 0, each, 0.0).tolist()))

    @property
    def outputs(self) -> int:
        """One for each class."""
        return self.classes

    @property
    def target(self) -> tuple[int, ...]:
        """A single number."""
        return ()

    @property
    def metric(self) -> Metric:
        """Shares, in per cent; all but accuracy over all clients' rows together."""
        return METRICS[self.judged_by]

    @property
    def sums(self) -> dict[str, tuple[int, ...]]:
        """Rows that were right, and what else the metric needs.

        By class: rows that were right, that are of it, that were taken for it. For AUC: histograms of each class's
        probability, of the other rows and of its own.
        """
        extra: dict[str, dict[str, tuple[int, ...]]] = {
            "accuracy": {}, "auc": {"by_class": (3, self.classes), "histogram": (self.classes, 2, BINS)}}
        return {"hits": ()} | extra.get(self.judged_by, {"by_class": (3, self.classes)})

    @property
    def counts(self) -> dict[str, tuple[str, int]]:
        """All of them count rows; a line of a histogram has each class's rows and the others."""
        return dict.fromkeys(self.sums, ("size", 1))

    def agrees(self, name: str, sums: Tensor) -> Tensor:
        """Of a class no more rows are right than are of it, or were taken for it."""
        return sums[:, :1] <= sums[:, 1:] if name == "by_class" else super().agrees(name, sums)

    def check(self, y: NDArray[Any], of: str) -> NDArray[Any]:
        """Whole numbers from 0; texts, where the classes have names."""
        y = np.asarray(y)
        if y.dtype.kind in "US" or y.dtype == object:
            return self._numbered(y, of)
        if y.dtype.kind not in "iub":
            first = y.reshape(-1)[:1].tolist()
            raise UmbelError(f"The labels of {of} must be whole numbers from 0 to {self.classes - 1}. Got {y.dtype}"
                             f"{f', as in {first[0]}' if first else ''}: give whole numbers, or objective=Regress() for"
                             " numbers to be predicted.")
        if y.ndim != 1:
            raise UmbelError(f"The labels of {of} must be one number a row. Got the shape {y.shape} instead.")
        wrong = np.flatnonzero((y < 0) | (y >= self.classes))
        if len(wrong):
            raise UmbelError(f"The labels of {of} must lie in 0 .. {self.classes - 1}."
                             f" Got {y[wrong[0]]} in row {wrong[0]} instead.")
        return y.astype(np.int64)

    def _numbered(self, y: NDArray[Any], of: str) -> NDArray[Any]:
        place = {label: k for k, label in enumerate(self.labels)}
        for label in np.unique(y.astype(str)).tolist():
            if label not in place:
                if not self.labels:
                    raise UmbelError(f"The labels of {of} are texts, as in '{label}': number them from 0, or name them"
                                     " in order, as in Classify(2, labels=(\"no\", \"yes\")).")
                raise unknown(f"label in {of} named", label, self.labels)
        return np.array([place[label] for label in y.astype(str).tolist()], dtype=np.int64)

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, times the weight of the row's class."""
        from torch.nn.functional import cross_entropy

        loss = cross_entropy(out, y, reduction="none")
        weights: Any = self.weights
        if not weights:
            return loss
        factor = loss.new_zeros(loss.shape)
        for k, weight in enumerate(weights):  # numbers of Python: a tensor of them could be in no CUDA graph
            factor = factor.masked_fill(y == k, weight)
        return loss * factor

    def mean_loss(self, out: Tensor, y: Tensor, live: Tensor | None, many: bool,
                  weight: Tensor | None = None) -> Tensor:
        """In one kernel where clients are stacked on a GPU; weights and an own loss have none."""
        if self.weights or weight is not None or type(self).row_loss is not Classify.row_loss:
            return super().mean_loss(out, y, live, many, weight)
        from umbel.ops import mean_loss

        return mean_loss(out, y, live, many=many)

    def row_values(self, out: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Whether it was right; what it is and what it was taken for; the bin of each class's probability.

        A row whose outputs are not all finite is taken for no class, numbered behind the last, and its own class is
        the least probable one: argmax alone would take it for the first.
        """
        from torch.nn.functional import one_hot

        sound = out.isfinite().all(1)
        guess = out.argmax(1).where(sound, self.classes)
        values = {"hit": guess == y}
        if "by_class" in self.sums:
            values |= {"is": y, "guess": guess}
        if "histogram" in self.sums:
            wrong = (1 - one_hot(y, self.classes)) * (BINS - 1)
            place = (out.softmax(1) * BINS).nan_to_num().long().clamp(0, BINS - 1)
            values["bin"] = place.where(sound[:, None], wrong).byte()
        return values

    def tally(self, values: Sums) -> dict[str, Tensor]:
        """Counts."""
        import torch
        from torch.nn.functional import one_hot

        sums = {"hits": values["hit"].sum().double()}
        if "by_class" in self.sums:
            y, guess = values["is"], values["guess"]
            kinds = (y[values["hit"]], y, guess)
            sums["by_class"] = torch.stack([_counts(kind, self.classes) for kind in kinds]).double()
        if "histogram" in self.sums:
            own = one_hot(y, self.classes)  # (rows, classes): 1 where the class is the row's
            place = (torch.arange(self.classes, device=y.device) * 2 + own) * BINS + values["bin"].long()
            flat = torch.bincount(place.flatten(), minlength=self.classes * 2 * BINS)
            sums["histogram"] = flat.view(self.classes, 2, BINS).double()
        return sums

    def summary(self, sums: Sums, count: int) -> dict[str, float | None]:
        """Accuracy; balanced accuracy and macro F1 over the classes that are there; AUC, one class against the rest."""
        metrics: dict[str, float | None] = {"accuracy": float(sums["hits"]) / count if count else None}
        if "by_class" in sums:
            counts = sums["by_class"].cpu()
            right, present, guessed = counts[:, counts[1] > 0]
            metrics["balanced_accuracy"] = float((right / present).mean()) if len(present) else None
            metrics["macro_f1"] = float((2 * right / (present + guessed)).mean()) if len(present) else None
        if "histogram" in sums:
            areas = [area(*histogram) for histogram in sums["histogram"].cpu()]
            known = [each for each in areas if each is not None]
            metrics["auc"] = sum(known) / len(known) if known else None
        return metrics

    def predicted(self, out: Tensor) -> NDArray[Any]:
        """The most probable class, by its name where it has one."""
        classes = super().predicted(out)
        return np.array(self.labels)[classes] if self.labels else classes

    def groups_of(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """The labels."""
        return y


def _counts(kinds: Tensor, classes: int) -> Tensor:
    """How often each class is there; what is no class is not counted."""
    return kinds.bincount(minlength=classes + 1)[:classes]


def area(without: Tensor, having: Tensor) -> float | None:
    """Area under the curve: how often a row of the class scores above one of the rest; pairs in one bin count half."""
    pairs = float(without.sum() * having.sum())
    below = without.cumsum(0) - without
    return float((having * (below + without / 2)).sum()) / pairs if pairs else None


@dataclass(frozen=True)
class Regress(Objective):
    """Numbers, by squared or Huber error.

    The network puts out (target - centre) / scale, so that its outputs are of the size that networks start with;
    errors are told in the target's own unit. `bins` are the borders between groups of targets, by which methods that
    look at clients class by class (FLAG) can be used; a number of bins stands for as many equal shares of a normal
    distribution with this centre and scale.
    """

    columns: int = number(1, ge=1, le=1_000_000)  # numbers of one target
    loss: str = choice("mse", "mse", "huber")
    centre: float = 0.0
    scale: float = number(1.0, gt=0)
    bins: tuple[float, ...] = ()
    unit: str = ""
    judged_by: str = choice("mae", "mae", "rmse", "r2")
    labels: tuple[str, ...] = ()  # what the numbers of a target are called, where that is known

    kind: ClassVar[str] = "regress"

    def __post_init__(self) -> None:
        check(self, "a regression")
        if isinstance(self.bins, int) and not isinstance(self.bins, bool):
            bounded(self.bins, "bins", "a regression", ge=0, le=1000)
            normal = NormalDist(self.centre, self.scale)
            object.__setattr__(self, "bins", tuple(normal.inv_cdf(k / self.bins) for k in range(1, self.bins)))
        object.__setattr__(self, "bins", tuple(float(border) for border in self.bins))
        if list(self.bins) != sorted(set(self.bins)):
            raise UmbelError(f"The 'bins' of a regression are borders in ascending order. Got {self.bins} instead.")
        object.__setattr__(self, "labels", tuple(self.labels))
        if len(self.labels) not in (0, self.columns):
            raise UmbelError(f"The 'labels' of a regression name each of its {self.columns} numbers. Got {self.labels}"
                             " instead.")

    @property
    def outputs(self) -> int:
        """One for each number of a target."""
        return self.columns

    @property
    def target(self) -> tuple[int, ...]:
        """One number, or a row of them."""
        return () if self.columns == 1 else (self.columns,)

    @property
    def metric(self) -> Metric:
        """MAE and RMSE are in the target's own unit; lower is better."""
        metric = METRICS[self.judged_by]
        return metric if self.judged_by == "r2" else metric._replace(unit=self.unit)

    @property
    def sums(self) -> dict[str, tuple[int, ...]]:
        """Absolute and squared errors; targets and their squares, for R2, in units of the scale around the centre."""
        return dict.fromkeys(("absolute", "squared", "target", "target_squared"), (self.columns,))

    def check(self, y: NDArray[Any], of: str) -> NDArray[Any]:
        """Finite numbers, one a row or `columns` a row."""
        y = np.asarray(y)
        if y.dtype.kind not in "iuf":
            raise UmbelError(f"The targets of {of} must be numbers. Got {y.dtype} instead.")
        self._refuse_shape(y, f"targets of {of}")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
            stored = y.astype(np.float32)
        wrong = np.flatnonzero(~np.isfinite(stored.reshape(len(y), -1)).all(1))
        if len(wrong):
            raise UmbelError(f"The targets of {of} must be finite. Got {y[wrong[0]]} in row {wrong[0]} instead.")
        return stored

    def _aimed(self, y: Tensor) -> Tensor:
        """(rows, columns) what the network should put out."""
        return (y.reshape(len(y), self.columns) - self.centre) / self.scale

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """In units of the scale; a mean over the columns."""
        from torch.nn.functional import huber_loss, mse_loss

        one = mse_loss if self.loss == "mse" else huber_loss
        return one(out, self._aimed(y), reduction="none").mean(1)

    def row_values(self, out: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Error and target, in units of the scale, (rows, columns)."""
        return {"error": out - self._aimed(y), "aimed": self._aimed(y)}

    def tally(self, values: Sums) -> dict[str, Tensor]:
        """Sums in the target's own unit; of the targets in that of the scale."""
        error = self.scale * values["error"].double().nan_to_num(nan=BROKEN, posinf=BROKEN, neginf=-BROKEN)
        aimed = values["aimed"].double()
        parts = {"absolute": error.abs(), "squared": error**2, "target": aimed, "target_squared": aimed**2}
        return {name: part.sum(0) for name, part in parts.items()}

    def summary(self, sums: Sums, count: int) -> dict[str, float | None]:
        """MAE and RMSE, a mean over the columns; R2, the share of the targets' spread that is explained."""
        if not count:
            return {"mae": None, "rmse": None, "r2": None}
        absolute, squared, target, target_squared = (sums[name].cpu() for name in self.sums)
        spread = float((target_squared - target**2 / count).sum())
        there = spread > 1e-12 * float(target_squared.sum())  # below is rounding: the targets are all the same
        squares = float(squared.sum())
        return {
            "mae": float(absolute.mean()) / count, "rmse": sqrt(float(squared.mean()) / count),
            "r2": 1 - squares / (self.scale**2 * spread) if there else None,
        }

    def merit(self, sums: Sums, count: int) -> float:
        """What is left of the scale when the mean absolute error is taken off."""
        return 1 - float(sums["absolute"].mean()) / (max(1, count) * self.scale)

    def predicted(self, out: Tensor) -> NDArray[Any]:
        """Numbers in the target's own unit."""
        return out.reshape(-1, *self.target).numpy()

    @property
    def groups(self) -> int:
        """One more than there are borders."""
        return len(self.bins) + 1 if self.bins else 0

    def groups_of(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """The bin of each target; of several columns, of the first."""
        return np.searchsorted(np.array(self.bins), y.reshape(len(y), -1)[:, 0]).astype(np.int64)


@dataclass(frozen=True)
class NextToken(Objective):
    """The token that follows, by cross-entropy: one for each row, or one at each of `length` places."""

    vocabulary: int = number(2, ge=2, le=10_000_000)
    length: int = number(0, ge=0, le=1_000_000)
    judged_by: str = choice("token_accuracy", "token_accuracy", "perplexity")

    kind: ClassVar[str] = "next_token"

    def __post_init__(self) -> None:
        check(self, "a language model")

    @property
    def outputs(self) -> int:
        """One for each token, at every place."""
        return self.vocabulary

    @property
    def target(self) -> tuple[int, ...]:
        """One token, or one at each place."""
        return (self.length,) if self.length else ()

    @property
    def out_shape(self) -> tuple[int, ...]:
        """One number for each token, at every place."""
        return (*self.target, self.vocabulary)

    @property
    def metric(self) -> Metric:
        """Over all rows together, since rows have unequal numbers of tokens."""
        return METRICS[self.judged_by]

    @property
    def sums(self) -> dict[str, tuple[int, ...]]:
        """Tokens foretold, tokens in all, and their losses."""
        return dict.fromkeys(("right", "tokens", "token_loss"), ())

    @property
    def counts(self) -> dict[str, tuple[str, int]]:
        """Tokens, of which a row has one or `length`."""
        return {"right": ("tokens", 1), "tokens": ("size", max(1, self.length))}

    def check(self, y: NDArray[Any], of: str) -> NDArray[Any]:
        """Whole numbers below the vocabulary; -1 where there is no token."""
        y = np.asarray(y)
        if y.dtype.kind not in "iu":
            raise UmbelError(f"The tokens of {of} must be whole numbers. Got {y.dtype} instead.")
        self._refuse_shape(y, f"target tokens of {of}")
        wrong = np.argwhere((y.astype(np.int64) < NO_TOKEN) | (y >= self.vocabulary))
        if len(wrong):
            place = tuple(wrong[0].tolist())
            raise UmbelError(f"The tokens of {of} must lie in 0 .. {self.vocabulary - 1}, or be -1 for none."
                             f" Got {y[place]} in row {place[0]} instead.")
        return y.astype(np.int64)

    def _losses(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, places) each: loss, tokens foretold, and whether there is a token."""
        from torch.nn.functional import cross_entropy

        flat, aimed = out.reshape(-1, self.vocabulary), y.reshape(-1)
        places = max(1, self.length)
        loss = cross_entropy(flat, aimed, reduction="none", ignore_index=NO_TOKEN).view(-1, places)
        right = (flat.argmax(1) == aimed) & flat.isfinite().all(1)
        return loss, right.view(-1, places), (aimed != NO_TOKEN).view(-1, places)

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """The mean over a row's tokens."""
        loss, _, real = self._losses(out, y)
        return loss.sum(1) / real.sum(1).clamp(min=1)

    def row_values(self, out: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Of each row."""
        loss, right, real = self._losses(out, y)
        return {"right": right.sum(1), "tokens": real.sum(1), "token_loss": loss.sum(1)}

    def tally(self, values: Sums) -> dict[str, Tensor]:
        """Plain sums."""
        return {name: values[name].double().nan_to_num(nan=BROKEN, posinf=BROKEN).sum() for name in self.sums}

    def summary(self, sums: Sums, count: int) -> dict[str, float | None]:
        """Token accuracy, and perplexity: e to the mean loss of a token."""
        right, tokens, loss = (float(sums[name]) for name in self.sums)
        if not tokens:
            return {"token_accuracy": None, "perplexity": None}
        return {"token_accuracy": right / tokens, "perplexity": exp(min(loss / tokens, WORST))}


def objective_of(given: Objective | int | Mapping[str, Any], own: Objective | None = None) -> Objective:
    """An objective; a number of classes stands for a classification, plain words for what they describe.

    `own` is a person's own, whose settings the words are: it is that one with these.
    """
    if isinstance(given, Objective):
        return given
    if isinstance(given, Mapping):
        words = dict(given)
        if own is not None and not type(own).__module__.startswith("umbel."):
            names = {each.name for each in fields(own) if each.init}  # type: ignore[arg-type]
            changed: Objective = replace(own, **{  # type: ignore[type-var]
                name: tuple(value) if isinstance(value, list) else value for name, value in words.items()
                if name in names})
            return changed
        kind = str(words.pop("kind", ""))
        if kind not in OBJECTIVES:
            raise unknown("objective", kind, OBJECTIVES)
        return OBJECTIVES[kind](**{name: tuple(value) if isinstance(value, list) else value
                                   for name, value in words.items()})
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise UmbelError("An objective is a number of classes, Classify, Regress or NextToken."
                         f" Got {given!r} instead.")
    return Classify(int(given))


def admitted(name: str, thing: Any) -> Objective:
    """An objective that umbel did not bring: one itself, or a class or a function that makes one of nothing."""
    made = thing if isinstance(thing, Objective) or not callable(thing) else plugins.called(name, thing)
    if not isinstance(made, Objective):
        raise UmbelError("An objective must be one of Classify, Regress, NextToken or a subclass, or what makes one of"
                         f" nothing. Got '{name}', which is not.")
    return made


GOALS: Registry[Objective] = Registry("objective", {}, group="umbel.objectives", admit="umbel.nets.objective:admitted",
                                      files=True)  # by the name that a person types


def judged(objective: Objective, metrics: Mapping[str, float | None]) -> float | None:
    """The metric that runs are judged by, out of a summary."""
    return metrics[getattr(objective, "judged_by", next(iter(metrics)))]
