"""The Triton kernels of `umbel/ops` on a CPU, by Triton's interpreter, against plain torch.

What this shows: indices, masks, signs and sums of every kernel are right, on shapes that take each of its branches.
What it does not: the interpreter runs one program after another in numpy, so it sees no compiler, no warps, no races,
no TF32 and no CUDA graph. `benchmarks/gpu_contract.py` shows those, on a GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
KERNELS = [
    "pooled, forwards", "pooled, input", "pooled, weight", "pooled, bias", "dense, forwards", "dense, weight",
    "dense, bias", "loss, forwards", "loss, slope", "updates, add", "updates, weights", "updates, velocity",
]


@pytest.fixture(scope="module")
def apart():
    """The largest difference of each kernel. In a process of its own: Triton reads the variable when it is imported."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed; `make slow` installs it where there is a wheel: Linux")
    done = subprocess.run([sys.executable, str(Path(__file__).parent / "interpreted.py")], capture_output=True,
                          text=True, timeout=600, env={**os.environ, "TRITON_INTERPRET": "1"}, check=False)
    if done.returncode == 3:
        pytest.skip(f"this triton does not run interpreted: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_gives_what_plain_torch_gives(kernel, apart):
    """To 1e-5 of the largest number: sums are taken in another order."""
    assert apart[kernel] <= 1e-5


def test_no_kernel_is_left_out(apart):
    """What the script compares is what is tested."""
    assert sorted(apart) == sorted(KERNELS)
