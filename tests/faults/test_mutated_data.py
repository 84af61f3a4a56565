"""Damaged data files: a small part of the campaign, which is a program of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


def counted(*words: str) -> dict[str, int]:
    """What the campaign counts. It runs in a process of its own, whose children have no threads of pytest's."""
    program = Path(__file__).with_name("mutated_data.py")
    ended = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, timeout=600, check=False)
    found = re.search(r"tried (\d+), refused (\d+), harmless (\d+), FAILED (\d+)\n$", ended.stdout)
    assert found, ended.stdout + ended.stderr
    assert ended.returncode == (found[4] != "0"), ended.stdout
    return dict(zip(("tried", "refused", "harmless", "FAILED"), map(int, found.groups()), strict=True))


def test_a_damaged_file_is_refused_or_read() -> None:
    """Three mutations of each format: none ends in a traceback, hangs or takes a gigabyte; some do no harm."""
    counts = counted("--count", "39", "--seed", "1")
    assert counts["FAILED"] == 0
    assert counts["tried"] == 39
    assert min(counts["refused"], counts["harmless"]) > 5


@pytest.mark.slow
def test_more_damaged_files_are_refused_or_read() -> None:
    """As many as the issue names."""
    assert counted("--count", "372")["FAILED"] == 0
