"""FedAvg in plain loops, without umbel: nothing here but torch, numpy and scikit-learn's digits.

It reads like the paper's box, and gives the library's numbers (tests/test_examples.py): run it beside
`umbel.run(umbel.FedAvg(...), ...)` to see that there is no magic in between.

    python examples/fedavg_by_hand.py
"""

from hashlib import blake2b

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

CLIENTS, ROUNDS, EPOCHS, BATCH, LR, MOMENTUM, SEED = 10, 3, 2, 10, 0.1, 0.5, 1


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def data() -> tuple[np.ndarray, np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Images, labels, and the training and test rows of each client: unequal blocks, every fifth row for testing."""
    x, y = load_digits(return_X_y=True)
    rows = np.arange(len(y))
    shares = np.arange(1, CLIENTS + 1) / sum(range(CLIENTS + 1))  # sizes as 1 : 2 : 3 ...
    blocks = np.split(rows, (len(y) * shares.cumsum()[:-1]).astype(int))
    train, test = ([block[mask(block)] for block in blocks] for mask in (lambda b: b % 5 > 0, lambda b: b % 5 == 0))
    return (x / 16).reshape(-1, 1, 8, 8).astype(np.float32), y.astype(np.int64), train, test


def shuffled(rows: np.ndarray, round: int, client: int) -> list[np.ndarray]:
    """Batches of all epochs, from a stream that (seed, round, client) decides, in umbel's way."""
    parts = ("int", SEED), ("str", "batches"), ("str", "train"), ("int", round), ("str", f"c{client:03d}")
    text = "\x1f".join(f"{kind}:{part}" for kind, part in parts)
    key = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
    rng = np.random.Generator(np.random.PCG64(key))
    batches = []
    for _ in range(EPOCHS):
        order = rng.permutation(rows)
        batches += [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    return batches


def local_training(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batches: list[np.ndarray]) -> None:
    """ClientUpdate of the paper: w <- w - lr * gradient, batch by batch."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for batch in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()


def fedavg() -> tuple[dict[str, torch.Tensor], float]:
    """The final weights, and the mean over clients of the accuracy on their own test rows."""
    images, labels, train, test = data()
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    torch.manual_seed(SEED)
    server = network().state_dict()
    for round in range(ROUNDS):
        total = sum(len(rows) for rows in train)
        mean = {name: torch.zeros_like(weights) for name, weights in server.items()}
        for client, rows in enumerate(train):
            model = network()
            model.load_state_dict(server)
            local_training(model, x, y, shuffled(rows, round, client))
            for name, weights in model.state_dict().items():
                mean[name] += len(rows) / total * weights  # w <- sum n_i w_i / n
        server = mean
    model = network()
    model.load_state_dict(server)
    hits = [(model(x[rows]).argmax(1) == y[rows]).float().mean().item() for rows in test]
    return server, sum(hits) / len(hits)


if __name__ == "__main__":
    print(f"accuracy after {ROUNDS} rounds: {fedavg()[1]:.4f}")
