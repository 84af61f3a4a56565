"""Networks as people write them, and eight small clients for them: the tests' and benchmarks/gpu_modules.py's."""

import numpy as np
from torch import Tensor, nn

from umbel.data.clients import Pool, Population
from umbel.nets.model import Model
from umbel.nets.wrap import wrap

CLASSES, SHAPE = 3, (3, 16, 16)
ROWS = (24, 16, 21, 16, 8, 13, 24, 17)  # of each client: batches of eight, some of five, one of one row


class Block(nn.Module):
    """Two 3x3 convolutions beside a way around them."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        y: Tensor = self.relu(out)
        return y


class ResNet18(nn.Module):
    """ResNet of 18 layers as torchvision builds it, with fewer channels.

    In float64, two engines must agree far below 1e-4. In float32 they cannot: a rounding that opens another ReLU or
    lets another pixel win a pooling window moves a gradient by a percent, and BatchNorm over the five single pixels of
    a last stage multiplies roundings by hundreds. `smooth` has neither kink: with enough rows it agrees in float32 too.
    """

    def __init__(self, width: int = 8, classes: int = CLASSES, smooth: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        sides = [width, width, 2 * width, 4 * width, 8 * width]
        for k in range(4):
            blocks = [Block(sides[k], sides[k + 1], 1 if k == 0 else 2), Block(sides[k + 1], sides[k + 1], 1)]
            self.add_module(f"layer{k + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(sides[-1], classes)
        if smooth:
            _without_kinks(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for k in range(4):
            x = self.get_submodule(f"layer{k + 1}")(x)
        y: Tensor = self.fc(self.avgpool(x).flatten(1))
        return y


def _without_kinks(module: nn.Module) -> None:
    for name, layer in list(module.named_children()):
        if isinstance(layer, nn.ReLU):
            setattr(module, name, nn.SiLU())
        elif isinstance(layer, nn.MaxPool2d):
            setattr(module, name, nn.AvgPool2d(3, 2, 1))
        else:
            _without_kinks(layer)


class Double(nn.Module):
    """A network in float64."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.double()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x.double())
        return y


def dropping(classes: int = CLASSES) -> nn.Module:
    """A small convolutional network that drops channels, then numbers."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))


def resnet18() -> Model:
    return wrap(ResNet18, SHAPE, CLASSES, name="resnet18")


def resnet18_in_double() -> Model:
    return wrap(lambda: Double(ResNet18()), SHAPE, CLASSES, name="resnet18-float64")


def smooth_resnet18() -> Model:
    return wrap(lambda: ResNet18(smooth=True), SHAPE, CLASSES, name="resnet18-smooth")


def dropout_net() -> Model:
    return wrap(dropping, SHAPE, CLASSES, name="dropping")


def eight_clients(rows: tuple[int, ...] = ROWS) -> Population:
    """Two groups with other looks; ten test rows each."""
    rng = np.random.default_rng(7)
    looks = rng.normal(size=(2, CLASSES, *SHAPE))
    xs, ys, train, test, at = [], [], [], [], 0
    for k, own in enumerate(rows):
        shown = rng.integers(0, CLASSES, own + 10)
        shown[:CLASSES] = range(CLASSES)
        xs.append(looks[k % 2][shown] + 0.5 * rng.normal(size=(own + 10, *SHAPE)))
        ys.append(shown)
        train.append(np.arange(at, at + own))
        test.append(np.arange(at + own, at + own + 10))
        at += own + 10
    pool = Pool(np.concatenate(xs).astype(np.float32), np.concatenate(ys).astype(np.int64))
    return Population(pool, train, test, np.arange(len(rows)) % 2, CLASSES)
