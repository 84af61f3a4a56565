"""Your own sites: arrays in, a federation out.

Nothing is drawn or dealt out here: who holds what is what you say. To deal a data set of your own out by a named
scenario instead, make a `umbel.Dataset` and call `umbel.simulate(dataset, scenario="label-skew", clients=20)`.

    python examples/your_data.py
"""

import numpy as np

import umbel

TRUTH = (0, 0, 1, 1)  # only if you know it: it serves the oracle and the agreement scores


def load_site(inverted: bool, seed: int) -> tuple[np.ndarray, ...]:
    """Stand-in for your loading code: x_train, y_train, x_test, y_test; images are (rows, channels, height, width).

    Patterns 2 and 3 are the negatives of 0 and 1, so to a site whose scanner inverts, they mean one another.
    """
    half = np.random.default_rng(0).normal(size=(2, 1, 6, 6))
    patterns = np.concatenate([half, -half]) * (-1 if inverted else 1)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 150)
    images = (patterns[labels] + rng.normal(scale=1.5, size=(150, 1, 6, 6))).astype(np.float32)
    return images[:100], labels[:100], images[100:], labels[100:]


def federation() -> umbel.Federation:
    sites = {name: load_site(inverted=bool(group), seed=i)
             for i, (name, group) in enumerate(zip(("north", "south", "east", "west"), TRUTH, strict=True))}
    return umbel.simulate(umbel.Population.of_sites(sites, classes=4, truth=TRUTH), model="mlp", seed=0)


if __name__ == "__main__":
    for method in (umbel.FedAvg(), umbel.Oracle(truth=TRUTH), umbel.Solo()):
        result = umbel.run(method, federation(), rounds=5)
        print(f"{type(method).__name__:8} accuracy {100 * result.accuracy:.1f} %")
