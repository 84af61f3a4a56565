"""BatchNorm and dropout side by side: the vectorised simulator against the loop engine, on the device given.

    python benchmarks/gpu_modules.py cuda

Eight clients, two rounds of FedAvg, FedBN and FLAG. Checked to 1e-4: a ResNet-18 as torchvision builds it, in float64;
the same without kinks and a network with dropout, in float32. The ResNet-18 in float32 is shown and not checked: one
rounding that opens another ReLU moves its gradients by a percent, in any engine (tests/networks.py). Needs the
package's own dependencies alone.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import SEED, gap, play  # isort: skip
from networks import dropout_net, eight_clients, resnet18, resnet18_in_double, smooth_resnet18  # isort: skip

from umbel.algorithms import FLAG, Algorithm, FedAvg, FedBN, Local
from umbel.data.clients import Population
from umbel.engines import LocalEngine, LoopEngine, Simulator
from umbel.federation import ledger
from umbel.nets.model import Model

TOLERANCE = 1e-4
WHOLE = (64, 32, 64, 32, 64, 32, 64, 32)  # rows: whole batches of 32


def methods(local: Local) -> list[Algorithm]:
    """What is compared."""
    return [FedAvg(local=local), FedBN(local=local), FLAG(gradient_epochs=2, cut="gap", local=local)]


def apart(algorithm: Algorithm, build: Callable[[], Model], people: Population, device: str) -> float:
    """The largest difference between two engines, in models and in what clients keep; labels and bytes are equal."""
    loop = LoopEngine(build(), people, SEED, device)
    many = Simulator(build(), people, SEED, device, vectorise=True)
    a, b = (play(algorithm, fed, rounds=2) for fed in (loop, many))
    assert a.labels.tolist() == b.labels.tolist(), (a.labels, b.labels)
    assert ledger.totals(loop.ledger.lines) == ledger.totals(many.ledger.lines)
    return max(gap(a.models, b.models), _kept_apart(loop, many))


def _kept_apart(one: LocalEngine, other: LocalEngine) -> float:
    pages, others = one.memory()[0], other.memory()[0]
    return max(gap(page[kind], others[name][kind]) for name, page in pages.items() for kind in page)


def main(device: str = "cuda") -> int:
    """One line a network and method; 1 where a difference that is checked is above the tolerance."""
    worst = 0.0
    short, whole = eight_clients(), eight_clients(WHOLE)
    trials = [(resnet18_in_double, short, 8, True), (smooth_resnet18, whole, 32, True), (dropout_net, short, 8, True),
              (resnet18, short, 8, False)]
    for build, people, batch, checked in trials:
        for algorithm in methods(Local(lr=0.01, momentum=0.5, epochs=1, batch=batch)):
            started = time.perf_counter()
            found = apart(algorithm, build, people, device)
            worst = max(worst, found) if checked else worst
            print(f"{build.__name__:20} {algorithm.name:8} {found:.1e} {'' if checked else 'not checked'}"
                  f" {time.perf_counter() - started:6.1f} s", flush=True)
    print(f"largest difference {worst:.1e}, allowed {TOLERANCE:.0e}, on {device}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
