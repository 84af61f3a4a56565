"""Where the real data sets lie, for tests that need them."""

import os
from pathlib import Path

import pytest

REAL = Path(os.environ.get("UMBEL_DATA") or Path(__file__).parents[2] / "shared" / "data")
needs_data = pytest.mark.skipif(not REAL.is_dir(), reason=f"no data sets in {REAL}: set UMBEL_DATA")
