"""Texts of your own: for each client its text in, the next character out.

    python examples/own_text.py [a FOLDER with a .txt file for each client]

Without a folder four clients speak two languages made up here, which have the letters in common and little else: what
follows a letter is another one in each. One model must guess which of them it reads; a model for each language knows.
"""

import sys
from pathlib import Path

import numpy as np

import umbel

LENGTH = 20  # characters of a row: at each of them the next one is foretold
LANGUAGES = (["sun", "rise", "over", "hill", "river", "runs", "down", "valley", "birds", "sing"],
             ["nus", "esir", "revo", "llih", "revir", "snur", "nwod", "yellav", "sdrib", "gnis"])
LOCAL = umbel.Local(lr=0.5, momentum=0.9, epochs=4)


def texts() -> dict[str, str]:
    """Stand-in for your texts: client -> text."""
    rng = np.random.default_rng(0)
    return {name: " ".join(rng.choice(LANGUAGES[k % 2], 200)) for k, name in enumerate(("ann", "bob", "cem", "dee"))}


def read(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.txt"))}


def federation(said: dict[str, str], letters: str) -> umbel.Federation:
    """Rows of 20 characters and, place by place, those that follow; a text's last fifth is for the test."""
    number = {letter: k for k, letter in enumerate(letters)}
    sites = {}
    for name, text in said.items():
        codes = np.array([number[letter] for letter in text], dtype=np.int64)
        starts = np.arange(0, len(codes) - LENGTH, LENGTH)
        rows = np.stack([codes[start : start + LENGTH + 1] for start in starts])
        x, y, cut = rows[:, :-1], rows[:, 1:], len(rows) * 4 // 5
        sites[name] = (x[:cut], y[:cut], x[cut:], y[cut:])
    objective = umbel.NextToken(len(letters), length=LENGTH)
    return umbel.simulate(umbel.Population.of_sites(sites, objective, ordered=True), model="gru", device="cpu")


def continued(result: umbel.Result, client: str, start: str, letters: str) -> str:
    """Forty characters more, each the most probable one after the last twenty."""
    text = start.rjust(LENGTH)[-LENGTH:]
    for _ in range(40):
        row = np.array([[letters.index(letter) for letter in text[-LENGTH:]]], dtype=np.int64)
        text += letters[int(result.predict(row, client=client)[0, -1])]
    return text.strip()


if __name__ == "__main__":
    said = read(Path(sys.argv[1])) if len(sys.argv) > 1 else texts()
    letters = "".join(sorted({" ", *"".join(said.values())}))
    for method in (umbel.FedAvg(local=LOCAL), umbel.IFCA(2, local=LOCAL)):
        result = umbel.run(method, federation(said, letters), rounds=5, fine_tune=0)
        first = next(iter(said))
        print(f"{type(method).__name__:6} token accuracy {100 * result.score:.1f} %,"
              f" {first}: {continued(result, first, said[first][:LENGTH], letters)!r}")
