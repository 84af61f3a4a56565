"""Networks as pure functions of their parameters."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from umbel.registry import Registry

if TYPE_CHECKING:
    from torch import nn

MODELS: "Registry[Callable[[tuple[int, ...], int], nn.Module]]" = Registry("model", {
    "mlp": "umbel.nets.networks:mlp",
    "lenet5": "umbel.nets.networks:LeNet5",
    "resnet9": "umbel.nets.networks:ResNet9",
    "alexnet": "umbel.nets.networks:alexnet",
}, group="umbel.models", admit="umbel.nets.wrap:admitted", files=True)
