"""A network as pure functions of its parameters, from any `nn.Module`.

Tasks never touch a module: they ask a `Model` for logits, features or a gradient at given parameters.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from umbel.errors import UmbelError
from umbel.nets.gradients import Borrower, Network, functional
from umbel.nets.objective import Objective
from umbel.nets.stacking import activations, for_vmap
from umbel.nets.tape import Tapes
from umbel.tree import Params

PRECISIONS = ("float32", "tf32", "bf16")


class Batch(NamedTuple):
    """Some rows of one client. `live` masks padding, or is None where there is none."""

    x: Tensor  # (b, ...) images in [0, 1], numbers, or tokens
    y: Tensor  # (b, ...)
    live: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Model:
    """A network and how to read it. Parameters come in as an argument, always.

    `make` builds a module with fresh weights; an instance given instead of a factory starts every run from
    its own weights (say, pretrained ones). Modules run in evaluation mode: tasks draw no randomness, so
    dropout is inactive.
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
    functional: bool = False  # to be run under vmap: differentiate by torch.func
    recordable: bool = False  # its operations depend on the shapes of a batch alone: gradients may be replayed
    registered: bool = False  # `build` makes it again from its name, shape and classes, in any process
    module: nn.Module = field(repr=False, default_factory=nn.Module)  # skeleton; its weights are never read

    def init(self, seed: int) -> Params:
        """Fresh parameters on the CPU; the same seed gives the same ones."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make()
        return {name: leaf.detach().clone() for name, leaf in module.named_parameters()}

    def zeros(self) -> Params:
        """All parameters zero, where the model lives."""
        return {name: torch.zeros_like(leaf) for name, leaf in self.module.named_parameters()}

    @cached_property
    def shapes(self) -> Params:
        """Parameters without numbers: their names, shapes and types."""
        return {name: leaf.detach().to("meta") for name, leaf in self.module.named_parameters()}

    @cached_property
    def parameters(self) -> int:
        """How many numbers a model is."""
        return sum(leaf.numel() for leaf in self.shapes.values())

    @property
    def classes(self) -> int:
        """How many kinds of target there are: classes, or bins of a number."""
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
        """Whether there are convolutions in it, which gain little when clients are stacked on a CPU."""
        return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in self.module.modules())

    @cached_property
    def activations(self) -> int:
        """How many numbers the layers put out for one input: the measure of a step's memory."""
        return activations(self.module, self.blank(1, self.mean.device))

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the classifier's parameters."""
        return tuple(name for name, _ in self.module.named_parameters() if name.startswith(f"{self.head}."))

    def logits(self, params: Params, x: Tensor) -> Tensor:
        """(b, outputs) for raw inputs."""
        return self._outputs(lambda x: functional_call(self.module, params, (x,)), x)

    def embed(self, params: Params, x: Tensor) -> Tensor:
        """What enters the classifier, (b, d)."""
        inner = {name: leaf for name, leaf in params.items() if name not in self.head_names}
        return self._outputs(lambda x: functional_call(self._body, inner, (x,)), x)

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
        return self.objective.mean_loss(self._outputs(network, batch.x), batch.y, batch.live, many=self.functional)

    def gradient(self, params: Params, batch: Batch, only: tuple[str, ...] = ()) -> Params:
        """Gradient of the loss with respect to the parameters, or to those named in `only`."""
        names, loss = only or tuple(params), partial(self._loss, batch)
        if self.functional:
            return functional(self.module, params, names, loss)
        differentiate = partial(self._borrower.slopes, params, names, loss)
        if self.recordable and batch.x.is_cpu and batch.live is None:
            kind = (names, tuple(params), batch.x.shape, batch.x.stride())
            slopes = self._tapes.run(kind, [*params.values(), batch.x, batch.y], differentiate)
        else:
            slopes = differentiate()
        return dict(zip(names, slopes, strict=True))

    @cached_property
    def _borrower(self) -> Borrower:
        return Borrower(self.module)

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
