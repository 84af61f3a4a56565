"""The networks that come with umbel, by name: ordinary modules. `umbel.nets.wrap` takes any other."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from umbel.nets import MODELS as MODELS  # kept apart from them, where its names cost no torch
from umbel.ops import pooled_conv


class Columns(nn.Module):
    """Columns as numbers: (b, ..., columns) -> (b, ..., width). A category's code becomes its row of an embedding.

    `levels` has a number for each column: 0 for a number, else how many levels the category has. Without `size`, which
    says how many numbers stand for one of so many levels, a level is one of as many numbers: 1, and the others 0.
    """

    def __init__(self, levels: tuple[int, ...], size: Callable[[int], int] | None) -> None:
        super().__init__()
        self.levels = {k: count for k, count in enumerate(levels) if count}
        sizes = {k: size(count) if size else count for k, count in self.levels.items()}
        self.embeddings = nn.ModuleDict({str(k): nn.Embedding(count, sizes[k]) for k, count in self.levels.items()}
                                        if size else {})
        self.width = len(levels) - len(sizes) + sum(sizes.values())

    def forward(self, x: Tensor) -> Tensor:
        """In the order of the columns; numbers that stand side by side stay so."""
        parts, after = [], 0
        for k, count in self.levels.items():
            if self.embeddings:
                own = self.embeddings[str(k)](x[..., k].long())
            else:
                own = (x[..., k : k + 1] == torch.arange(count, device=x.device)).to(x.dtype)  # vmap has no one_hot
            parts += [x[..., after:k], own]
            after = k + 1
        return torch.cat([*parts, x[..., after:]], -1)


def embedding_size(levels: int) -> int:
    """How many numbers stand for one of so many levels or tokens: half as many and one, 16 at most."""
    return min(16, (levels + 1) // 2 + 1)


def _numbers(shape: tuple[int, ...], levels: tuple[int, ...],
             size: Callable[[int], int] | None) -> tuple[nn.Module, int]:
    """The layer that makes one line of numbers of an input, and how many they are."""
    if not any(levels):
        return nn.Flatten(), prod(shape)
    columns = Columns(levels, size)
    return nn.Sequential(columns, nn.Flatten()), prod(shape[:-1]) * columns.width


def linear(shape: tuple[int, ...], outputs: int, *, levels: tuple[int, ...] = ()) -> nn.Module:
    """One linear layer; each level of a category has a weight of its own."""
    first, features = _numbers(shape, levels, None)
    return nn.Sequential(first, nn.Linear(features, outputs))


def mlp(shape: tuple[int, ...], outputs: int, *, hidden: int = 200, levels: tuple[int, ...] = ()) -> nn.Module:
    """One hidden layer of 200: the Comparative Evaluation's and IFCA's network. Categories are embedded."""
    first, features = _numbers(shape, levels, embedding_size)
    return nn.Sequential(first, nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class PooledConv2d(nn.Conv2d):
    """A convolution (stride 1, no padding), ReLU and 2x2 max pooling; fast where clients are stacked on a GPU."""

    many = False  # inside a vmap over clients

    def forward(self, x: Tensor) -> Tensor:
        """(b, channels, height, width) -> (b, out, (height - kernel + 1) // 2, ...)."""
        assert self.bias is not None
        return pooled_conv(x, self.weight, self.bias, self.many)


class LeNet5(nn.Module):
    """LeNet-5 as in PACFL's code: two 5x5 convolutions, three linear layers. Images below 28 px are padded."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.margin = [max(0, 28 - side) for side in (width, height)]
        side_h, side_w = ((max(28, side) - 4) // 2 - 4 for side in (height, width))
        self.conv1 = PooledConv2d(channels, 6, 5)
        self.conv2 = PooledConv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * (side_h // 2) * (side_w // 2), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(b, channels, height, width) -> (b, classes)."""
        across, down = self.margin
        if across or down:
            x = pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        if x.is_cpu:  # channels last: torch's pooling is twice as fast on it, and convolutions are no slower
            x = x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
        x = self.conv2(self.conv1(x))
        x = relu(self.fc2(relu(self.fc1(x.flatten(1)))))
        out: Tensor = self.fc3(x)
        return out


def _block(channels: int, out: int, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(channels, out, 3, padding=1, bias=True), nn.GroupNorm(32, out), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


class ResNet9(nn.Module):
    """ResNet-9 with GroupNorm(32) everywhere, as PACFL uses for CIFAR-100 (its Table 12, blocks 5 + 6 added)."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.block1 = _block(shape[0], 64)
        self.block2 = _block(64, 128, pool=True)
        self.block3 = nn.Sequential(_block(128, 128), _block(128, 128))
        self.block4 = _block(128, 256, pool=True)
        self.block5 = _block(256, 512, pool=True)
        self.block6 = nn.Sequential(_block(512, 512), _block(512, 512))
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(b, channels, height, width) -> (b, classes)."""
        x = self.block2(self.block1(x))
        x = self.block5(self.block4(x + self.block3(x)))
        x = (x + self.block6(x)).amax((2, 3))  # the 4x4 max pool of a 32 px image
        out: Tensor = self.classifier(x)
        return out


def alexnet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """AlexNet for small images, without batch norm and dropout: the large model of CFLGT's cost comparison."""
    channels, height, width = shape
    features: list[nn.Module] = []
    for out, stride, pool in ((64, 2, True), (192, 1, True), (384, 1, False), (256, 1, False), (256, 1, True)):
        features += [nn.Conv2d(channels, out, 3, stride=stride, padding=1), nn.ReLU(), *[nn.MaxPool2d(2)] * pool]
        channels = out
    flat = 256 * ((height + 1) // 16) * ((width + 1) // 16)  # halved four times, the first time rounded up
    dense = [nn.Linear(flat, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, classes)]
    return nn.Sequential(*features, nn.Flatten(), *dense)
