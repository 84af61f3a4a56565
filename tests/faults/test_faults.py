"""The campaigns with small budgets; `make faults` runs them with large ones."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CAMPAIGNS = {
    "disk": ("disk.py", "--budget", "60"),
    "folders": ("folders.py", "--count", "60"),
    "command lines": ("command_lines.py", "--count", "80"),
}


@pytest.mark.slow
@pytest.mark.parametrize("words", CAMPAIGNS.values(), ids=CAMPAIGNS)
def test_a_campaign_finds_nothing_wrong(words: tuple[str, ...]) -> None:
    """Every trial is harmless, refused in a sentence, or killed and gone on with to the same bits."""
    if words[0] == "disk.py" and (sys.platform != "linux" or shutil.which("cc") is None):
        pytest.skip("the disk that fails is built with cc and loaded by Linux's linker")
    ended = subprocess.run([sys.executable, HERE / words[0], *words[1:]], capture_output=True, text=True, timeout=900)
    told = re.findall(r"(\d+) tried: .*; (\d+) wrong", ended.stdout)
    assert told, ended.stdout + ended.stderr
    assert (ended.returncode, told[-1][1]) == (0, "0"), ended.stdout + ended.stderr
    assert int(told[-1][0]) >= int(words[2])
