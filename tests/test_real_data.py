"""What the papers show, on the real data sets; skipped where they are not at hand."""

import os
from pathlib import Path

import pytest

import umbel

REAL = Path(os.environ.get("UMBEL_DATA") or Path(__file__).parents[2] / "shared" / "data")
needs_data = pytest.mark.skipif(not REAL.is_dir(), reason=f"no data sets in {REAL}: set UMBEL_DATA")
LOCAL = umbel.Local(lr=0.01, momentum=0.0, epochs=10, batch=32)  # the Comparative Evaluation's


@pytest.mark.slow
@needs_data
def test_the_oracle_beats_one_model_on_rotated_images():
    """Fashion-MNIST, 48 clients, four rotations: a model per rotation is far ahead after four rounds already."""
    fed = umbel.simulate("fashion-mnist", scenario="rotation-4", model="mlp", seed=42, data_dir=REAL, device="cpu")
    one = umbel.run(umbel.FedAvg(LOCAL), fed, rounds=4, eval_every=4, fine_tune=0)
    groups = umbel.run(umbel.Oracle(tuple(fed.facts["truth"]), LOCAL), fed, rounds=4, eval_every=4, fine_tune=0)
    assert groups.accuracy > one.accuracy + 0.1
    assert groups.info["clusters"]["ari"] == 1
