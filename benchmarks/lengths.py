"""How far honest updates differ in length: what the bound of a run must leave room for. A markdown table.

    python benchmarks/lengths.py

Each update's length as a multiple of what it is held against (federation/lengths.py), in every call of runs of ten
rounds: the longest of all, and how many in a thousand are above 3; of SCAFFOLD also the longest control variate. Seeds
0 to 2, which are those that the bound was chosen on; clients of very unequal size, or with few labels each. MNIST is
looked for where `--data-dir` or UMBEL_DATA says.
"""

import argparse
from pathlib import Path

import umbel
from umbel.federation import door
from umbel.federation.lengths import Lengths

SEEDS = range(3)
SETTINGS = (  # data, scenario, clients, fraction
    ("digits", "dirichlet:alpha=0.1", 20, 1.0), ("digits", "dirichlet:alpha=0.1", 20, 0.3),
    ("digits", "dirichlet:alpha=0.5,min_size=1", 40, 1.0), ("digits", "flag-20:alpha=0.1,min_per_label=1", 20, 1.0),
    ("digits", "quantity-4+rotation-4", 16, 1.0), ("digits", "label-skew-20", 20, 1.0),
    ("mnist", "dirichlet:alpha=0.1", 100, 0.1),
)
METHODS = ("fedavg", "flag", "scaffold")


class Noted(Lengths):
    """Lengths that write down how many times the usual one each is."""

    seen: dict[str, list[float]] = {}  # noqa: RUF012 (one table for all calls)

    def too_long(self, heard, bound):
        """Nothing is too long here."""
        for part, long in self.of.items():
            ratios = (long.cpu() / self._usual(part, long.cpu(), heard))[heard]
            self.seen.setdefault(part.kind, []).extend(ratios[ratios.isfinite()].tolist())
        return {}


def play(data: str, scenario: str, clients: int, fraction: float, method: str, seed: int,
         data_dir: Path | None) -> None:
    """One run."""
    fed = umbel.simulate(data, scenario=scenario, clients=clients, seed=seed, device="cpu", data_dir=data_dir)
    umbel.run(method, fed, rounds=10, fraction=fraction, eval_every=10, fine_tune=0)


def main() -> None:
    """Run all and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--only", default="", help="part of the name of a data set or scenario")
    given = options.parse_args()
    door.Lengths = Noted  # type: ignore[misc]
    print("| data | scenario, clients, fraction | method | updates | longest | above 3 (‰) | longest control |")
    print("|---|---|---|---|---|---|---|")
    for data, scenario, clients, fraction in SETTINGS:
        for method in METHODS if given.only in f"{data} {scenario}" else ():
            Noted.seen.clear()
            for seed in SEEDS:
                play(data, scenario, clients, fraction, method, seed, given.data_dir)
            updates, control = Noted.seen["model"], Noted.seen.get("control")
            print(f"| {data} | {scenario}, {clients}, {fraction:g} | {method} | {len(updates)} | {max(updates):.1f} |"
                  f" {1000 * sum(ratio > 3 for ratio in updates) / len(updates):.1f} |"
                  f" {'' if control is None else f'{max(control):.1f}'} |", flush=True)


if __name__ == "__main__":
    main()
