"""Planted bugs: each entry of mutants.toml breaks a copy of the code, and the test that it names must fail.

    python tests/mutants.py [--only WORDS ...] [--jobs N]

A test that passes on broken code guards nothing. A change that does not apply any more is an error, as a survivor is.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED = 0, 1  # pytest's exit codes; any other means that no test had a chance to fail
LONGEST = 300  # seconds of one test


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    breaks: str  # what goes wrong, in a sentence
    file: str  # under src/umbel
    before: str  # stands there exactly once
    after: str
    test: str  # under tests/: file::function, or file::function[case]

    def planted(self, code: str) -> str:
        """The code with the bug in it."""
        if code.count(self.before) != 1:
            raise ValueError(f"{self.file} has {code.count(self.before)} places like this, not one: {self.before!r}")
        return code.replace(self.before, self.after)


def mutants() -> list[Mutant]:
    """All planted bugs."""
    return [Mutant(**entry) for entry in tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]]


def run_tests(source: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run these tests on the code in `source`, which comes before an installed umbel."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        environment = {**os.environ, "PYTHONPATH": str(source), "HYPOTHESIS_STORAGE_DIRECTORY": scratch}
        where = subprocess.run([sys.executable, "-c", "import umbel; print(umbel.__file__)"], cwd=ROOT, text=True,
                               env=environment, capture_output=True, check=True).stdout
        if not where.startswith(str(source)):
            raise RuntimeError(f"The tests would run on {where.strip()}, not on {source}.")
        words = ["-x", "-q", "-p", "no:cacheprovider", "--basetemp", f"{scratch}/pytest"]
        return subprocess.run([sys.executable, "-m", "pytest", *words, *[f"tests/{test}" for test in tests]], cwd=ROOT,
                              env=environment, capture_output=True, text=True, timeout=LONGEST)


def judged(mutant: Mutant) -> str:
    """Plant one bug and run its test: "caught", or what is wrong with the entry."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        place = source / "umbel" / mutant.file
        try:
            place.write_text(mutant.planted(place.read_text()))
            code = run_tests(source, [mutant.test]).returncode
        except (OSError, ValueError) as error:
            return f"DOES NOT APPLY: {error}"
        except subprocess.TimeoutExpired:
            return f"DID NOT END within {LONGEST} seconds"
    return {FAILED: "caught", PASSED: "SURVIVED"}.get(code, f"NO TEST RAN (pytest's exit code {code})")


def timed(mutant: Mutant) -> tuple[Mutant, str, float]:
    """`judged`, with the seconds that it took."""
    start = time.perf_counter()
    return mutant, judged(mutant), time.perf_counter() - start


def main() -> int:
    """Run what is asked for, a line for each; 1 where anything but a failing test came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="bugs whose entry has one of these words")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="tests that run at once")
    asked = parser.parse_args()
    chosen = [each for each in mutants()
              if not asked.only or any(word.lower() in f"{each.file} {each.breaks}".lower() for word in asked.only)]
    sound = run_tests(ROOT / "src", sorted({mutant.test for mutant in chosen}))
    if sound.returncode != PASSED:
        print(sound.stdout, sound.stderr, "The tests must pass before anything is planted.", sep="\n")
        return 1
    caught, start = 0, time.perf_counter()
    with ThreadPoolExecutor(asked.jobs) as pool:
        for mutant, verdict, seconds in pool.map(timed, chosen):
            print(f"{seconds:5.1f} s  {verdict:8}  {mutant.file}: {mutant.breaks}", flush=True)
            caught += verdict == "caught"
    print(f"{len(chosen)} planted, {caught} caught, in {time.perf_counter() - start:.0f} seconds")
    return 0 if caught == len(chosen) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
