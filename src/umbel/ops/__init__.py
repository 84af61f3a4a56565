"""A few operations that torch runs as many small kernels, made one each where clients are stacked on a GPU.

Each is an ordinary function of ordinary tensors. Under `torch.vmap` on a GPU, a Triton kernel computes all clients at
once; everywhere else, torch's own operations compute the same function.
"""

from umbel.ops.dense import dense
from umbel.ops.loss import mean_loss
from umbel.ops.pooled import pooled_conv
from umbel.ops.updates import sgd, sums

__all__ = ["dense", "mean_loss", "pooled_conv", "sgd", "sums"]
