"""Mean cross-entropy of a small batch: forwards and its own slope in one kernel."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, one_hot

from umbel.ops.updates import stacked

LARGEST = 16_384  # rows x classes that one program holds in its registers


def mean_loss(logits: Tensor, y: Tensor, live: Tensor | None = None, many: bool = False) -> Tensor:
    """Mean over the live rows, all without `live`; `many`: it stands inside a vmap over clients."""
    if many and logits.is_cuda and logits.numel() <= LARGEST and logits.dtype != torch.float64:
        loss: Tensor = _MeanLoss.apply(logits.float(), y, live)[0]  # type: ignore[no-untyped-call]
        return loss
    if live is None:
        return cross_entropy(logits, y)
    return (cross_entropy(logits, y, reduction="none") * live).sum() / live.sum().clamp(min=1)


class _MeanLoss(torch.autograd.Function):
    """Returns the slope too: it is a by-product of the softmax."""

    @staticmethod
    def forward(logits: Tensor, y: Tensor, live: Tensor | None) -> tuple[Tensor, Tensor]:
        loss, slope = forward(logits[None], y[None], None if live is None else live[None])
        return loss[0], slope[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # no zeros for the slope's slope
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: None) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * scale, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *tensors: Tensor | None) -> tuple[Any, Any]:
        given = [leaf for leaf in tensors if leaf is not None]
        return forward(*stacked(info, in_dims[: len(given)], given)), (0, 0)


def forward(logits: Tensor, y: Tensor, live: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Loss (K,) and slope (K, B, classes) of logits (K, B, classes), labels (K, B) and live (K, B) or all rows."""
    if logits.is_cuda:
        from umbel.ops import loss_triton

        return loss_triton.forward(logits, y, live)
    live = torch.ones_like(y, dtype=torch.bool) if live is None else live
    weight = live / live.sum(1, keepdim=True).clamp(min=1)
    chosen = one_hot(y, logits.shape[-1])
    logs = log_softmax(logits, -1)
    return -((logs * chosen).sum(-1) * weight).sum(1), (logs.exp() - chosen) * weight[..., None]
