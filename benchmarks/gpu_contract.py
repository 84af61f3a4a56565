"""The contract on a GPU: every method on the CUDA simulator against the loop engine on the CPU. Plain asserts.

    python benchmarks/gpu_contract.py

Needs a GPU and the package's own dependencies alone. First the Triton kernels against plain torch, and all distances
between clients against the CPU's. Then, with the tiny network of the tests: labels and bytes equal, weights within
1e-4, the same bits after a stop and resume, a client that answers NaN or nothing harms nobody. With LeNet-5 and clients
of unequal size (masked batches, shrinking widths): weights within 1e-4 after a round. The larger networks' gradients in
float64: in float32 one rounding that lets another pixel win a pooling window moves some by a percent, in any engine.
"""

import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import ALL, ASKED, LOCAL, SEED, TRUTH, gap, models_by_name, play, silence, without  # isort: skip
from helpers import tiny_model, tiny_population  # isort: skip

from umbel import tree
from umbel.algorithms import Local
from umbel.clustering import proximity
from umbel.data.clients import Pool, Population
from umbel.engines import LocalEngine, LoopEngine, Simulator
from umbel.federation import ledger
from umbel.nets.model import Batch
from umbel.nets.wrap import build
from umbel.ops import dense_triton, loss, pooled
from umbel.runs.checkpoint import RunFolder
from umbel.runs.run import rounds
from umbel.tree import Ragged

TOLERANCE = 1e-4


def kernels_agree() -> None:
    """Each Triton kernel equals the plain computation on the CPU to 1e-4 of the largest number."""
    torch.manual_seed(0)

    def near(found: Any, expected: Any) -> None:
        for a, b in zip(found, expected, strict=True):
            if b.is_floating_point():
                assert bool(((a.cpu() - b).abs().max() <= 1e-4 * b.abs().max().clamp(min=1)).all()), (a, b)
            else:
                assert torch.equal(a.cpu(), b)

    for k, b, c, h, w, o, r in ((20, 10, 3, 32, 32, 6, 5), (7, 10, 6, 14, 14, 16, 5), (2, 3, 1, 9, 11, 5, 3)):
        x, weight, bias = torch.rand(k, b, c, h, w), torch.randn(k, o, c, r, r) / 5, torch.randn(k, o) / 10
        y, winner = pooled.forward(x, weight, bias)
        near(pooled.forward(x.cuda(), weight.cuda(), bias.cuda()), (y, winner))
        slope = torch.randn_like(y)
        near(pooled.backward_weights(slope.cuda(), winner.cuda(), x.cuda(), r),
             pooled.backward_weights(slope, winner, x, r))
        near([pooled.backward_input(slope.cuda(), winner.cuda(), weight.cuda(), h, w)],
             [pooled.backward_input(slope, winner, weight, h, w)])
    for k, b, f, n in ((20, 10, 400, 120), (5, 10, 84, 10), (3, 37, 784, 200), (2, 5, 9, 8)):
        x, weight, bias, slope = torch.randn(k, b, f), torch.randn(k, n, f), torch.randn(k, n), torch.randn(k, b, n)
        near([dense_triton.forward(x.cuda(), weight.cuda(), bias.cuda())], [torch.baddbmm(bias[:, None], x, weight.mT)])
        near(dense_triton.backward_weights(slope.cuda(), x.cuda()), (slope.mT @ x, slope.sum(1)))
        y, live = torch.randint(0, n, (k, b)), torch.rand(k, b) > 0.3
        near(loss.forward(slope.cuda(), y.cuda(), live.cuda()), loss.forward(slope, y, live))
        near(loss.forward(slope.cuda(), y.cuda()), loss.forward(slope, y))


def distances_agree() -> None:
    """Angles of vectors (some clients send fewer) and distances of updates equal the CPU's."""
    torch.manual_seed(0)
    length = torch.tensor([3, 1, 2] * 30)
    inside = torch.arange(3) < length[:, None]
    basis = torch.linalg.qr(torch.randn(90, 40, 3))[0].mT * inside[..., None]
    there = Ragged(basis.cuda(), length)
    for name, angle in proximity.ANGLES.items():
        apart = (angle(there, there).cpu() - angle(Ragged(basis, length), Ragged(basis, length))).abs().max()
        assert apart <= 1e-5, (name, apart)  # degrees
    updates = torch.randn(90, 5000)
    for distance in (proximity.update_angle, proximity.cosine, proximity.euclidean, proximity.manhattan):
        apart = (distance(updates.cuda(), updates.cuda()).cpu() - distance(updates, updates)).abs().max()
        assert apart <= 1e-3, (distance.__name__, apart)


def gradients_agree(network: str) -> None:
    """Of two clients side by side, in float64, relative to the largest number of each layer."""
    torch.manual_seed(0)
    x, y = torch.rand(2, 10, 3, 32, 32, dtype=torch.float64), torch.arange(20).view(2, 10) % 10

    def found(device: str) -> tree.Tree:
        net = build(network, (3, 32, 32), 10).to(torch.device(device)).vectorised()
        params = tree.each(lambda leaf: leaf.double().to(device), tree.stack([net.init(0), net.init(1)]))
        return torch.vmap(lambda *one: net.gradient(one[0], Batch(*one[1:])))(params, x.to(device), y.to(device))

    there, here = home(found("cuda")), found("cpu")
    for name, leaf in here.items():
        assert (there[name] - leaf).abs().max() <= 1e-5 * leaf.abs().max(), (network, name)


def tiny(device: str = "cuda", budget: int | None = None, people: Population | None = None) -> LocalEngine:
    people = people or tiny_population()
    if device == "cpu":
        return LoopEngine(tiny_model(), people, SEED)
    return Simulator(tiny_model(), people, SEED, device, budget=budget)


def home(params: tree.Tree) -> tree.Tree:
    return tree.to(params, "cpu")


def farthest(a: dict[str, tree.Tree], b: dict[str, tree.Tree]) -> float:
    return max(gap(home(a[name]), home(b[name])) for name in a)


def agrees(name: str, budget: int | None = None) -> float:
    reference, other = tiny("cpu"), tiny(budget=budget)
    a, b = (play(ALL[name].make(LOCAL, TRUTH), fed, ids=(0, 2, 3, 5)) for fed in (reference, other))
    assert torch.equal(a.labels, b.labels), (name, a.labels, b.labels)
    assert ledger.totals(reference.ledger.lines) == ledger.totals(other.ledger.lines), name
    return farthest(models_by_name(reference, a), models_by_name(other, b))


def bills(name: str) -> None:
    fed = tiny()
    play(ALL[name].make(LOCAL, TRUTH), fed, rounds=2, ids=ASKED)
    moved = ledger.summary(ledger.totals(fed.ledger.lines))
    assert (moved["down"], moved["up"]) == ALL[name].cost(4 * fed.net.parameters), name


def resumes(name: str, folder: Path) -> None:
    algorithm = ALL[name].make(LOCAL, TRUTH)
    whole = list(rounds(algorithm, tiny(), rounds=4, fraction=0.5))[-1]
    saved, fed = RunFolder.create(folder, {}), tiny()
    for done in rounds(algorithm, fed, rounds=4, fraction=0.5):
        saved.commit(done.index, done.state, *fed.memory(), done.record)
        if done.index == 1:
            break
    last = list(rounds(algorithm, tiny(), rounds=4, fraction=0.5, saved=saved.load(algorithm.state)))[-1]
    saved.close()
    assert torch.equal(tree.flat(whole.state.models), tree.flat(last.state.models)), name
    assert torch.equal(whole.state.labels, last.state.labels), name


def withstands(name: str) -> None:
    sick = tiny_population()
    sick.pool.x[sick.train[1]] = np.nan
    algorithm = ALL[name].make(LOCAL, TRUTH)
    away, with_it = play(algorithm, without(tiny(), 1)), play(algorithm, tiny(people=sick))
    silent = play(algorithm, silence(tiny(), "c001"))
    for other in (with_it, silent):
        assert gap(home(away.models), home(other.models)) <= TOLERANCE, name


def unequal(shape: tuple[int, ...], tens: bool = False) -> Population:
    """Eight clients with 5 to 96 rows (`tens`: whole batches of ten alone), in two groups that look different."""
    rng = np.random.default_rng(1)
    sizes = [10, 100, 30, 10, 60, 50, 20, 70] if tens else [5, 96, 33, 10, 61, 48, 17, 70]
    at = np.cumsum([0, *sizes])
    y = rng.integers(0, 10, at[-1])
    x = rng.integers(0, 128, (at[-1], *shape)) + 12 * y.reshape(-1, *[1] * len(shape))
    truth = np.arange(len(sizes)) % 2
    train = [np.arange(a, b) for a, b in pairwise(at)]
    for rows, group in zip(train, truth, strict=True):
        x[rows] = x[rows][..., ::-1] if group else x[rows]
    return Population(Pool(x.astype(np.uint8), y), train, [rows[:2] for rows in train], truth, 10)


def with_network(name: str, network: str, shape: tuple[int, ...], tens: bool = False) -> float:
    net, people = build(network, shape, 10, (0.5,), (0.5,)), unequal(shape, tens)
    local, truth = Local(lr=0.01, momentum=0.5, epochs=1, batch=10), tuple(people.truth.tolist())
    reference, other = LoopEngine(net, people, SEED), Simulator(net, people, SEED, "cuda")
    a, b = (play(ALL[name].make(local, truth), fed, rounds=1) for fed in (reference, other))
    assert torch.equal(a.labels, b.labels), (name, a.labels, b.labels)
    return farthest(models_by_name(reference, a), models_by_name(other, b))


def main() -> None:
    kernels_agree()
    distances_agree()
    for network in ("mlp", "resnet9", "alexnet"):
        gradients_agree(network)
        with_network("fedavg", network, (3, 32, 32))  # runs; see above
    place = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    table = Table(title=f"The contract on {place}: distance to the CPU")
    for column in ("method", "tiny", "tiny, in chunks", "lenet5 28 px", "lenet5 32 px", "bytes, resume, NaN, silence"):
        table.add_column(column, justify="left" if column == "method" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for name in ALL:
            found = [agrees(name), agrees(name, budget=20_000), with_network(name, "lenet5", (1, 28, 28)),
                     with_network(name, "lenet5", (3, 32, 32))]
            whole_batches = with_network(name, "lenet5", (1, 28, 28), tens=True)
            assert max(*found, whole_batches) <= TOLERANCE, (name, found, whole_batches)
            bills(name)
            resumes(name, Path(folder) / name)
            withstands(name)
            table.add_row(name, *(f"{value:.0e}" for value in found), "hold")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
