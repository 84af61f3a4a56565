"""Planted links and pipes: the whole campaign, which is a program of its own."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_nothing_is_written_or_shown_behind_a_link() -> None:
    """Wherever a command writes or reads: it ends, in a sentence or with its work done, and what is outside stays."""
    program = Path(__file__).with_name("links.py")
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=1200, check=False)
    last = ended.stdout.splitlines()[-1:]
    assert last, ended.stderr
    assert last[0].endswith("failed 0"), ended.stdout
    assert int(last[0].split()[1].rstrip(",")) > 40
