"""Networks as pure functions of their parameters."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from umbel.registry import Registry

if TYPE_CHECKING:
    from torch import nn

MODELS: "Registry[Callable[..., nn.Module]]" = Registry("model", {
    "linear": "umbel.nets.networks:linear",
    "mlp": "umbel.nets.networks:mlp",
    "lenet5": "umbel.nets.networks:LeNet5",
    "resnet9": "umbel.nets.networks:ResNet9",
    "alexnet": "umbel.nets.networks:alexnet",
    "gru": "umbel.nets.sequences:gru",
    "tcn": "umbel.nets.sequences:tcn",
}, group="umbel.models", admit="umbel.nets.wrap:admitted", files=True)

IMAGES = "images (channels, height, width)"
SERIES = "series (time, features)"
TEXTS = "int64 tokens (places)"
NUMBERS = "numbers"
TAKES: dict[str, tuple[str, ...]] = {  # of networks that do not take numbers of every shape
    "lenet5": (IMAGES,), "resnet9": (IMAGES,), "alexnet": (IMAGES,), "gru": (SERIES, TEXTS), "tcn": (SERIES, TEXTS),
}


def form_of(shape: tuple[int, ...], tokens: bool = False) -> str:
    """What inputs of this shape are: images, series, tokens, or numbers otherwise."""
    return TEXTS if tokens else {3: IMAGES, 2: SERIES}.get(len(shape), NUMBERS)


def takes(name: str, shape: tuple[int, ...], tokens: bool = False) -> bool:
    """Whether the network of this name takes inputs of this shape."""
    return form_of(shape, tokens) in TAKES[name] if name in TAKES else not tokens


def model_for(shape: tuple[int, ...], tokens: bool = False) -> str:
    """The network for inputs of this shape, where nobody names one."""
    return {IMAGES: "lenet5", SERIES: "tcn", TEXTS: "gru"}.get(form_of(shape, tokens), "mlp")
