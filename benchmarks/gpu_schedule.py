"""A schedule on a GPU: a rate that changes every round records no CUDA graph anew. Plain asserts.

    python benchmarks/gpu_schedule.py

FedAvg over twelve clients of unequal size, an MLP and LeNet-5 on scikit-learn's digits, under SGD (plain, with
momentum, nesterov and decay) and Adam, each along a cosine of 50 rounds: all graphs are recorded in the first round.
Then two rounds of fewer steps beside the loop engine on a CPU: weights within 1e-4. (Adam divides a slope by its own
size: over many steps a rounding in a slope near zero, or a pixel that wins a pool, grows to a step's length.) Without a
GPU the graphs are left out, and the simulator is compared on the CPU. Needs torch, numpy and scikit-learn alone.
"""

import time
from dataclasses import replace

import numpy as np
import torch
from sklearn.datasets import load_digits

from umbel import tree
from umbel.algorithms.base import Local
from umbel.algorithms.fedavg import FedAvg
from umbel.data.clients import Pool, Population
from umbel.engines.loop import LoopEngine
from umbel.engines.simulator import Simulator
from umbel.engines.steps import Recorded
from umbel.federation.door import Cohort, Federation
from umbel.nets.wrap import build
from umbel.tree import Params

ROUNDS, CLIENTS, TOLERANCE, SEED = 50, 12, 1e-4, 3
SLOW = Local(lr=0.02, momentum=0.0, epochs=1, batch=10, schedule="cosine")
WALKS = {
    "sgd": SLOW,
    "momentum": replace(SLOW, momentum=0.5),
    "nesterov, decayed": replace(SLOW, lr=0.005, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": replace(SLOW, lr=1e-4, optimiser="adam"),
    "adamw": replace(SLOW, lr=1e-4, optimiser="adamw", weight_decay=0.01),
}
recorded: list[tuple[int, int]] = []  # width and steps of every graph, in the order of their recording


def counted() -> None:
    """Write down what is recorded from now on."""
    record = Recorded._record

    def noted(self: Recorded, width: int, length: int) -> torch.cuda.CUDAGraph:
        recorded.append((width, length))
        return record(self, width, length)

    Recorded._record = noted  # type: ignore[method-assign]


def people() -> Population:
    """Clients with 1, 2, ... shares of the digits, on 28 x 28 pixels with some noise: equal ones tie in a pool."""
    images, y = load_digits(return_X_y=True)
    x = np.kron((images / 16).reshape(-1, 1, 8, 8), np.ones((1, 1, 3, 3)))
    x = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    x = (0.9 * x + 0.1 * np.random.default_rng(SEED).random(x.shape)).astype(np.float32)
    ends = (len(y) * np.cumsum(np.arange(1, CLIENTS + 1)) / sum(range(CLIENTS + 1))).astype(int)
    train = np.split(np.arange(len(y)), ends[:-1])
    return Population(Pool(x, y.astype(np.int64)), train, [rows[:2] for rows in train], np.zeros(CLIENTS, int), 10)


def walked(fed: Federation, local: Local, rounds: int) -> tuple[Params, int, float]:
    """FedAvg's model after some rounds of a cosine over ROUNDS, graphs of the first round, seconds of the others."""
    method = FedAvg(local=local).for_run(ROUNDS)
    state, everybody = method.init(fed, SEED), torch.arange(CLIENTS)
    recorded.clear()
    for index in range(rounds):
        state = method.round(fed, state, Cohort(everybody, index))
        if index == 0:
            first, start = len(recorded), time.perf_counter()
    model = tree.to(tree.take(state.models, 0), "cpu")  # waits for the GPU
    return model, first, time.perf_counter() - start


def main() -> None:
    """Every network and optimiser, one line each."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = torch.cuda.get_device_name() if device == "cuda" else "a CPU: graphs are left out"
    print(f"torch {torch.__version__}, {place}")
    counted()
    data = people()
    for network in ("mlp", "lenet5"):
        net = build(network, data.shape, 10, (0.5,), (0.5,))
        for name, local in WALKS.items():
            said = ""
            if device == "cuda":
                _, first, seconds = walked(Simulator(net, data, SEED, device), local, ROUNDS)
                assert 0 < first == len(recorded), (network, name, first, len(recorded))
                said = (f"{first} graphs after round 1, {len(recorded)} after {ROUNDS};"
                        f" {1000 * seconds / (ROUNDS - 1):.0f} ms a round; ")
            fewer = replace(local, batch=50)
            there, _, _ = walked(Simulator(net, data, SEED, device, vectorise=True), fewer, 2)
            here, _, _ = walked(LoopEngine(net, data, SEED, "cpu"), fewer, 2)
            apart = max(float((there[leaf] - here[leaf]).abs().max()) for leaf in here)
            print(f"{network:7} {name:18} {said}{apart:.0e} from the loop on a CPU", flush=True)
            assert apart <= TOLERANCE, (network, name, apart)


if __name__ == "__main__":
    main()
