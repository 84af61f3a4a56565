"""A table of your own with a column that says whose each row is: a CSV in, a score for each hospital out.

    python examples/own_table.py [TABLE.csv CLIENT_COLUMN TARGET_COLUMN]

Without a file it writes one and reads that: 569 patients of scikit-learn's breast cancer set at four hospitals. One of
them counts in other units, two have gaps. From the command line the same is

    umbel run fedavg --data TABLE.csv --client-column CLIENT_COLUMN --target-column TARGET_COLUMN
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

import umbel


def write(path: Path) -> None:
    """Stand-in for your file."""
    frame = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 4, 5, 30]]
    frame.columns = ["radius", "texture", "smoothness", "compactness", "healthy"]
    rng = np.random.default_rng(0)
    frame["ward"] = rng.choice(["day", "night"], len(frame))
    frame["hospital"] = rng.choice(["north", "south", "east", "west"], len(frame), p=[0.4, 0.3, 0.2, 0.1])
    frame.loc[frame["hospital"] == "west", "radius"] *= 10  # tenths of a millimetre
    frame.loc[frame["hospital"].isin(["north", "south"]) & (rng.random(len(frame)) < 0.1), "texture"] = np.nan
    frame.to_csv(path, index=False)


def federation(path: Path, client: str, target: str, scaling: str) -> umbel.Federation:
    """`scaling` is by sums of all clients ("federated"), by each site's own rows ("site"), or not at all ("none")."""
    data = umbel.from_frame(pd.read_csv(path), client=client, target=target, name=path.name)
    return umbel.simulate(data, scaling=scaling, device="cpu")


def main(path: Path, client: str, target: str) -> None:
    """Scale by the numbers of all, or each by its own; then one model for all, or one for each."""
    for scaling in ("federated", "site"):
        for method in (umbel.FedAvg(), umbel.Solo()):
            result = umbel.run(method, federation(path, client, target, scaling), rounds=2, fine_tune=0)
            each = result.info["score"][result.info["headline"]]
            print(f"{scaling:9} {type(method).__name__:6} {result.metric.name} {result.metric.said(result.score)}"
                  f" on average, {result.metric.said(each['worst_decile'])} at the worst site")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main(Path(sys.argv[1]), *sys.argv[2:])
    else:
        with TemporaryDirectory() as folder:
            write(Path(folder) / "patients.csv")
            main(Path(folder) / "patients.csv", "hospital", "healthy")
