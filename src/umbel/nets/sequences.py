"""Networks that read series and texts: a GRU and causal convolutions, in products that stack over clients.

torch's own recurrent layers have no rule for vmap, and its convolutions gain little by it. These compute the same from
parameters of the same names and shapes, so that the weights fit into `nn.GRU` and `nn.Conv1d`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, relu

from umbel.nets.networks import Columns, embedding_size


class Reader(nn.Module):
    """Series or tokens -> a layer over time -> a linear layer, at the last place or at all."""

    def __init__(self, layer: Callable[[int], nn.Module], width: int, shape: tuple[int, ...], outputs: int,
                 levels: tuple[int, ...], vocabulary: int, everywhere: bool) -> None:
        super().__init__()
        self.embedding: nn.Module = nn.Identity()
        if vocabulary:
            size = embedding_size(vocabulary)
            self.embedding = nn.Embedding(vocabulary, size)
        elif any(levels):
            self.embedding = columns = Columns(levels, embedding_size)
            size = columns.width
        else:
            size = shape[1]
        self.over_time = layer(size)
        self.head = nn.Linear(width, outputs)
        self.everywhere = everywhere

    def forward(self, x: Tensor) -> Tensor:
        """(b, time, features), or tokens (b, places) -> (b, outputs), or (b, places, outputs)."""
        states = self.over_time(self.embedding(x))
        out: Tensor = self.head(states if self.everywhere else states[:, -1])
        return out


class GRU(nn.GRU):
    """`nn.GRU` of one layer, which gives the states alone: (b, time, inputs) -> (b, time, hidden)."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """What the inputs give to the gates is one product for all times; what the state gives is one for each."""
        hidden, turned = self.hidden_size, self.weight_hh_l0.mT
        given = linear(x, self.weight_ih_l0, self.bias_ih_l0)
        state, states = torch.zeros_like(given[:, 0, :hidden]), []
        for now in given.unbind(1):
            own = torch.addmm(self.bias_hh_l0, state, turned)
            reset, keep = torch.sigmoid(now[:, : 2 * hidden] + own[:, : 2 * hidden]).chunk(2, 1)
            new = torch.tanh(now[:, 2 * hidden :] + reset * own[:, 2 * hidden :])
            state = new + keep * (state - new)
            states.append(state)
        return torch.stack(states, 1)


class CausalConv1d(nn.Conv1d):
    """`nn.Conv1d` behind zeros, so that no place sees a later one: (b, time, inputs) -> (b, time, out)."""

    def forward(self, x: Tensor) -> Tensor:
        """One product, of the places that the kernel sees side by side."""
        (kernel,), (step,), time = self.kernel_size, self.dilation, x.shape[1]
        x = pad(x, (0, 0, (kernel - 1) * step, 0))
        seen = torch.cat([x[:, k * step : k * step + time] for k in range(kernel)], 2)
        return linear(seen, self.weight.mT.flatten(1), self.bias)


class CausalConvolutions(nn.Module):
    """Convolutions of three places, each with twice the dilation of the one before, until the last sees `time` places.

    From the second on, each adds to what it was given.
    """

    def __init__(self, inputs: int, width: int, time: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        sees = step = 1
        while sees < time or not self.layers:
            self.layers.append(CausalConv1d(inputs, width, 3, dilation=step))
            inputs, sees, step = width, sees + 2 * step, 2 * step

    def forward(self, x: Tensor) -> Tensor:
        """(b, time, inputs) -> (b, time, width)."""
        first, *others = self.layers
        x = relu(first(x))
        for layer in others:
            x = x + relu(layer(x))
        return x


def gru(shape: tuple[int, ...], outputs: int, *, levels: tuple[int, ...] = (), vocabulary: int = 0,
        everywhere: bool = False) -> nn.Module:
    """A GRU of 64 units over series or texts."""
    return Reader(lambda size: GRU(size, 64), 64, shape, outputs, levels, vocabulary, everywhere)


def tcn(shape: tuple[int, ...], outputs: int, *, levels: tuple[int, ...] = (), vocabulary: int = 0,
        everywhere: bool = False) -> nn.Module:
    """Causal, dilated convolutions of 32 channels over series or texts: no place sees a later one."""
    return Reader(lambda size: CausalConvolutions(size, 32, shape[0]), 32, shape, outputs, levels, vocabulary,
                  everywhere)
