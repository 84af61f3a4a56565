"""Data for a try: python make_data.py FOLDER. Four sites with digits; those of site-b and site-d lie on their side."""

import sys
from pathlib import Path

import numpy as np

import umbel

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
digits = umbel.open_dataset("digits")
order = np.random.default_rng(0).permutation(len(digits.y_train))
for k, (name, turned) in enumerate({"site-a": 0, "site-b": 1, "site-c": 0, "site-d": 1}.items()):
    rows = order[300 * k : 300 * (k + 1)]
    x, y = np.rot90(digits.x_train[rows], turned, axes=(2, 3)), digits.y_train[rows]
    np.savez(folder / f"{name}.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    print(f"{folder}/{name}.npz: 200 training and 100 test rows")
