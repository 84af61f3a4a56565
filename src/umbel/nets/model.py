"""A network as pure functions of its parameters, from any `nn.Module`.

Tasks never touch a module: they ask a `Model` for logits, features or a gradient at given parameters.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from umbel.errors import UmbelError
from umbel.nets.gradients import Borrower, Network, functional
from umbel.nets.learner import Learner, dropouts, norms, statistics_of
from umbel.nets.objective import NextToken, Objective
from umbel.nets.sequences import CausalConv1d
from umbel.nets.stacking import activations, for_vmap
from umbel.nets.tape import Tapes
from umbel.tree import Params

PRECISIONS = ("float32", "tf32", "bf16")


class Batch(NamedTuple):
    """Some rows of one client. `live` masks padding, or is None where there is none.

    `key` is what dropout's masks are drawn by; without one, nothing is dropped. By `weight` the losses of rows are
    multiplied.
    """

    x: Tensor  # (b, ...) images in [0, 1], numbers, or tokens
    y: Tensor  # (b, ...)
    live: Tensor | None = None
    key: Tensor | None = None  # 0-d int64
    weight: Tensor | None = None  # (b,) float32; None = all rows count alike


@dataclass(frozen=True, eq=False)
class Model:
    """A network and how to read it. Parameters come in as an argument, always.

    `make` builds a module with fresh weights; an instance given instead of a factory starts every run from
    its own weights (say, pretrained ones). `Params` are the parameters that are trained and the running statistics of
    BatchNorm layers; frozen parameters and other buffers stay in the module. Modules run in evaluation mode; for a
    gradient, their BatchNorm and dropout layers are in training mode (nets/learner.py).
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one input, without the batch
    objective: Objective
    head: str  # path of the classifier layer
    mean: Tensor  # normalisation, the model's first act, broadcast over an input
    std: Tensor
    precision: str = "float32"  # of products: tf32 rounds their factors on a GPU, bf16 whole layers
    raw: bool = False  # mean 0 and std 1: nothing to scale
    tokens: bool = False  # inputs are whole numbers that stand for words
    levels: tuple[int, ...] = ()  # of each column, 0 = a number; of each place of tokens; () = no categories anywhere
    functional: bool = False  # to be run under vmap: differentiate by torch.func
    recordable: bool = False  # its operations depend on the shapes of a batch alone: gradients may be replayed
    registered: bool = False  # `build` makes it again from its name, shape, levels and objective, in any process
    trained: tuple[str, ...] = field(repr=False, default=())  # names of the parameters that learn; others are frozen
    module: nn.Module = field(repr=False, default_factory=nn.Module)  # skeleton; of its weights only frozen ones count

    def init(self, seed: int) -> Params:
        """Fresh parameters on the CPU; the same seed gives the same ones."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make()
        return {name: leaf.detach().clone() for name, leaf in self._moving(module).items()}

    def zeros(self) -> Params:
        """All trained parameters zero, where the model lives."""
        weights = self._moving(self.module)
        return {name: torch.zeros_like(weights[name]) for name in self.trained}

    def first_norms(self) -> Params:
        """What the BatchNorm layers of a client hold that keeps them to itself and was never trained."""
        weights = self._moving(self.module)
        return {name: weights[name].detach().clone() for name in self.norms}

    def _moving(self, module: nn.Module) -> Params:
        """Of a module what `Params` are: what is trained, then running statistics."""
        leaves: Params = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: leaves[name] for name in (*self.trained, *self.statistics)}

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """Names of the running statistics of BatchNorm layers; those of a frozen layer are frozen with it."""
        return tuple(name for path, layer in norms(self.module).items()
                     if layer.track_running_stats and path not in self._still for name in statistics_of(path))

    @cached_property
    def norms(self) -> tuple[str, ...]:
        """Names of all that BatchNorm layers hold, as far as it is trained or follows the data."""
        of_norms = {f"{path}.{name}" for path, layer in norms(self.module).items() for name in ("weight", "bias")}
        return tuple(name for name in (*self.trained, *self.statistics) if name in of_norms or name in self.statistics)

    @cached_property
    def _still(self) -> frozenset[str]:
        """Paths of frozen BatchNorm layers: they have parameters, and none of them learns."""
        return frozenset(path for path, layer in norms(self.module).items()
                         if layer.affine and not {f"{path}.weight", f"{path}.bias"} & set(self.trained))

    def frozen_digest(self) -> str:
        """Of frozen parameters and other buffers, names and values; empty where there are none."""
        leaves = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        total, frozen = blake2b(digest_size=16), sorted(set(leaves) - set(self.shapes))
        frozen = [name for name in frozen if not name.endswith("num_batches_tracked")]  # read by nobody
        for name in frozen:
            leaf = leaves[name].detach().cpu().contiguous()
            total.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
            total.update(leaf.view(-1).view(torch.uint8).numpy().tobytes())
        return total.hexdigest() if frozen else ""

    @property
    def drops(self) -> bool:
        """Whether its steps need keys to draw dropout's masks by."""
        return bool(dropouts(self.module))

    @cached_property
    def shapes(self) -> Params:
        """Parameters without numbers: their names, shapes and types."""
        return {name: leaf.detach().to("meta") for name, leaf in self._moving(self.module).items()}

    @cached_property
    def parameters(self) -> int:
        """How many numbers a model is: those that are trained, and statistics."""
        return sum(leaf.numel() for leaf in self.shapes.values())

    @property
    def classes(self) -> int:
        """How many kinds of target there are: classes, bins of a number, or one where texts go on."""
        if isinstance(self.objective, NextToken):
            return 1  # a row of text has many targets, and none of them says of which kind the row is
        if not self.objective.groups:
            raise UmbelError("This method looks at clients class by class, and the targets are none: give the objective"
                             " bins, as in Regress(bins=4), or take another method.")
        return self.objective.groups

    @property
    def features(self) -> int:
        """How many numbers an input is."""
        return prod(self.shape)

    def blank(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        """Inputs of zeros."""
        return torch.zeros(rows, *self.shape, device=device, dtype=torch.int64 if self.tokens else torch.float32)

    @property
    def convolves(self) -> bool:
        """Whether there are convolutions in it, which gain little when clients are stacked on a CPU; products gain."""
        return any(isinstance(layer, nn.modules.conv._ConvNd) and not isinstance(layer, CausalConv1d)
                   for layer in self.module.modules())

    @cached_property
    def activations(self) -> int:
        """How many numbers the layers put out for one input: the measure of a step's memory."""
        return activations(self.module, self.blank(1, self.mean.device))

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the classifier's parameters."""
        names = tuple(name for name in self.trained if name.startswith(f"{self.head}."))
        if not names:
            raise UmbelError(f"The classifier '{self.head}' of the model '{self.name}' must be trained here, and it is"
                             " frozen: unfreeze it, or take a method that needs no classifier of its own.")
        return names

    def logits(self, params: Params, x: Tensor) -> Tensor:
        """(b, outputs) for raw inputs."""
        return self._outputs(lambda x: functional_call(self.module, params, (x,)), x)

    def embed(self, params: Params, x: Tensor) -> Tensor:
        """What enters the classifier, (b, d)."""
        inner = {name: leaf for name, leaf in params.items() if not name.startswith(f"{self.head}.")}
        return self._outputs(lambda x: functional_call(self._body, inner, (x,)), x)

    def classify(self, params: Params, features: Tensor) -> Tensor:
        """(b, classes) for what enters the classifier."""
        head = {name.removeprefix(f"{self.head}."): leaf for name, leaf in params.items()
                if name.startswith(f"{self.head}.")}
        out: Tensor = functional_call(self.module.get_submodule(self.head), head, (features,))
        return out

    @cached_property
    def _body(self) -> nn.Module:
        body = copy.deepcopy(self.module)
        body.set_submodule(self.head, nn.Identity())
        return body

    def _outputs(self, network: Network, x: Tensor) -> Tensor:
        """What a network gives for raw inputs: scaled before, in the model's precision, as float32 after."""
        with self._rounding(x.device):
            out = network(x if self.raw else (x - self.mean) / self.std)
        return out.float() if out.dtype == torch.bfloat16 else out

    def _rounding(self, device: torch.device) -> AbstractContextManager[object]:
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Mean loss over the live rows."""
        return self._loss(batch, lambda x: functional_call(self.module, params, (x,)))

    def _loss(self, batch: Batch, network: Network) -> Tensor:
        return self.objective.mean_loss(self._outputs(network, batch.x), batch.y, batch.live, many=self.functional,
                                        weight=batch.weight)

    def gradient(self, params: Params, batch: Batch, only: tuple[str, ...] = ()) -> Params:
        """Gradient of the loss with respect to what is trained, or to the parameters named in `only`."""
        return self.gradient_and_statistics(params, batch, only)[0]

    def gradient_and_statistics(self, params: Params, batch: Batch,
                                only: tuple[str, ...] = ()) -> tuple[Params, Params]:
        """The gradient, and the running statistics after this batch; they stay as they are where `only` names layers.

        Then BatchNorm goes by the running statistics: what is tuned alone is tuned to what it will be used with.
        """
        names, loss, learner = only or self.trained, partial(self._loss, batch), self._learner
        learner.begin(batch.live, batch.key, adapt=not only)
        if self.functional:
            return functional(learner.module, params, names, loss, lambda: learner.statistics)
        differentiate = partial(self._borrower.slopes, params, names, loss)
        if self.recordable and learner.plain and batch.x.is_cpu and batch.live is None:
            beside = [] if batch.weight is None else [batch.weight]
            kind = (names, tuple(params), batch.x.shape, batch.x.stride(), len(beside))
            slopes = self._tapes.run(kind, [*params.values(), batch.x, batch.y, *beside], differentiate)
        else:
            slopes = differentiate()
        return dict(zip(names, slopes, strict=True)), learner.statistics

    @cached_property
    def _learner(self) -> Learner:
        return Learner(self.module, self._still, self.functional)

    @cached_property
    def _borrower(self) -> Borrower:
        return Borrower(self._learner.module, self.trained)

    @cached_property
    def _tapes(self) -> Tapes:
        return Tapes()

    def vectorised(self) -> "Model":
        """The same model, to be run under `torch.vmap`."""
        return replace(self, functional=True, module=for_vmap(self.module))

    def to(self, device: torch.device) -> "Model":
        """The same model for tensors on `device`."""
        if self.precision == "tf32" and device.type != "cuda":
            raise UmbelError("The precision 'tf32' is a mode of NVIDIA GPUs: take --precision float32 on this device.")
        return replace(self, mean=self.mean.to(device), std=self.std.to(device),
                       module=copy.deepcopy(self.module).to(device))
