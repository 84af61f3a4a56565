"""The networks that come with umbel, by name: ordinary modules. `umbel.nets.wrap` takes any other."""

from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from umbel.nets import MODELS as MODELS  # kept apart from them, where its names cost no torch
from umbel.ops import pooled_conv


def mlp(shape: tuple[int, ...], classes: int, hidden: int = 200) -> nn.Module:
    """One hidden layer of 200: the Comparative Evaluation's and IFCA's network."""
    features = prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


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
