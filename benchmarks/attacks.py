"""What attackers cost the honest clients, by how answers become one: a markdown table for each method.

    python benchmarks/attacks.py [--method fedavg] [--attack flipped:3]

Digits, 10 rounds of 5 epochs, seeds 100 to 102; accuracy of honest clients on their own test rows in per cent, mean
and standard deviation over seeds. FedAvg has 12 clients with equal shares (iid), of whom 2 attack; FLAG has 24 in four
groups (rotation-4), of whom 3 do, and in brackets stands how far honest clients' clusters agree with the groups (ARI).
"""

import argparse
from statistics import mean, stdev

import umbel

SETTINGS = {"fedavg": ("iid", 12, 2), "flag": ("rotation-4", 24, 3)}  # scenario, clients, attackers
ATTACKS = ("", "scaled:100", "flipped:3", "mislabelled", "forged")
MEANS = ("mean, no bound", "mean", "median", "trimmed", "krum")
SEEDS = (100, 101, 102)


def one(method: str, attack: str, how: str, seed: int) -> tuple[float, float]:
    """Accuracy of the honest in per cent, and their agreement with the true groups."""
    scenario, clients, count = SETTINGS[method]
    fed = umbel.simulate("digits", scenario=scenario, clients=clients, seed=seed, device="cpu",
                         attack=f"{count}:{attack}" if attack else "")
    aggregate, _, unbound = how.partition(",")
    settings = {"aggregate": aggregate, "local": umbel.Local(epochs=5)}
    made = umbel.FLAG(**settings) if method == "flag" else umbel.FedAvg(**settings)
    result = umbel.run(made, fed, rounds=10, eval_every=10, fine_tune=0, **({"bound": 0} if unbound else {}))
    return 100 * result.accuracy, result.info["clusters"]["ari"]


def main() -> None:
    """Run all and print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--method", choices=tuple(SETTINGS))
    options.add_argument("--attack", choices=ATTACKS)
    given = options.parse_args()
    for method in [given.method] if given.method else SETTINGS:
        print(f"| {method}: attack | {' | '.join(MEANS)} |\n|---|{'---|' * len(MEANS)}", flush=True)
        for attack in ATTACKS if given.attack is None else (given.attack,):
            if (method, attack) == ("fedavg", "forged"):
                continue  # nobody is asked to describe itself
            cells = []
            for how in MEANS:
                scores, agreement = zip(*(one(method, attack, how, seed) for seed in SEEDS), strict=True)
                cells.append(f"{mean(scores):.1f} ± {stdev(scores):.1f}"
                             + (f" ({mean(agreement):.2f})" if method == "flag" else ""))
            print(f"| {attack or 'none'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
