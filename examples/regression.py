"""Numbers to be predicted, at sites of your own: tables in, a mean absolute error out.

Two clinics count the disease's progress upwards, two downwards, so that one model cannot serve all four.

    python examples/regression.py
"""

from sklearn.datasets import load_diabetes

import umbel

TRUTH = (0, 0, 1, 1)  # only if you know it: it serves the oracle and the agreement scores
# The network puts out (target - centre) / scale; errors are told in the target's own unit.
OBJECTIVE = umbel.Regress(centre=150, scale=77, unit="points")


def federation() -> umbel.Federation:
    x, y = load_diabetes(return_X_y=True)
    x = x / x.std()
    sites = {}
    for i, (name, group) in enumerate(zip(("north", "south", "east", "west"), TRUTH, strict=True)):
        mine, target = x[i::4], y[i::4]
        target = 350 - target if group else target
        sites[name] = (mine[:90], target[:90], mine[90:], target[90:])  # 90 rows to train on, some twenty for the test
    return umbel.simulate(umbel.Population.of_sites(sites, OBJECTIVE, TRUTH), device="cpu")


if __name__ == "__main__":
    for method in (umbel.FedAvg(), umbel.IFCA(2), umbel.Oracle(truth=TRUTH)):
        result = umbel.run(method, federation(), rounds=5, fine_tune=0)
        print(f"{type(method).__name__:8} mean absolute error {result.score:.1f} points")
