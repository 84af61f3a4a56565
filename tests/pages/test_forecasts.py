"""Forecasts of a regression: a few sites' test rows and what was foretold of them, in a file and on the page."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from run_folders import resealed

import umbel as u
from umbel.pages import page
from umbel.pages.load import load
from umbel.runs.evaluate import FORESEEN

HOURS = ("1 hour ahead", "6 hours ahead")
LOCAL = u.Local(lr=0.05, epochs=2, batch=10)


def stations(count: int = 3, tests: int = 9) -> u.Population:
    """A wave at each station, whose next numbers are to be foretold from eight before."""
    sites = {}
    for i in range(count):
        wave = (50 + 20 * np.sin(np.arange(80) / 3 + i)).astype(np.float32)
        x = np.stack([wave[k : k + 8] for k in range(60)])[:, :, None] / 50
        y = np.stack([wave[8:68], wave[13:73]], 1)
        sites[f"s{i:02d}"] = (x[: 60 - tests], y[: 60 - tests], x[60 - tests :], y[60 - tests :])
    goal = u.Regress(columns=2, centre=50, scale=15, unit="µg/m³", labels=HOURS)
    return u.Population.of_sites(sites, goal, ordered=True)


@pytest.mark.parametrize("method", [u.FedAvg(local=LOCAL), u.FedAvgFT(local=LOCAL), u.Solo(local=LOCAL)])
def test_what_is_kept_is_what_the_models_foretell(method: u.Algorithm, tmp_path: Path) -> None:
    """Of each output the targets, and (network * scale + centre) by the model that the method is judged by."""
    people = stations()
    result = u.run(method, u.simulate(people, model="mlp", device="cpu"), rounds=2, out=tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "forecasts.json").read_text())
    assert (kept["outputs"], kept["unit"], kept["model"]) == (list(HOURS), "µg/m³", result.info["headline"])
    for i, (name, site) in enumerate(kept["sites"].items()):
        x, y = torch.from_numpy(people.pool.x[people.test[i]]), people.pool.y[people.test[i]]
        assert (name, site["cluster"], site["rows"]) == (f"s{i:02d}", int(result.labels[i]), 9)
        np.testing.assert_allclose(np.array(site["truth"]).T, y, rtol=1e-5)
        if result.info["headline"] != "fine_tuned":
            mine = result.model(client=name)(x).detach().numpy()
            np.testing.assert_allclose(np.array(site["forecast"]).T, mine, rtol=1e-4)
        errors = np.abs(np.array(site["forecast"]) - site["truth"])
        each = result.info["score"][result.info["headline"]]
        assert each["worst_decile"] >= errors.mean() - 1e-3  # the site's own score: nobody is worse than the worst
    assert len(kept["sites"]) == 3


def test_the_page_draws_them_for_each_site_and_output(tmp_path: Path) -> None:
    """Truth and forecast row by row, and one against the other; another file for another run is refused."""
    u.run(u.FedAvg(local=LOCAL), u.simulate(stations(), model="gru", device="cpu"), rounds=1, out=tmp_path / "run")
    text = page.write([load(tmp_path / "run")])
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    assert titles[titles.index("Forecasts") + 1] == "Forecast against truth"
    assert all(word in text for word in ("s00 (cluster 0)", "s02 (cluster 0)", *HOURS, "All test rows of a site"))
    kept = json.loads((tmp_path / "run" / "forecasts.json").read_text())
    drawn = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    assert json.dumps(kept["sites"]["s01"]["forecast"][1][:5])[1:-1] in json.dumps(drawn)
    kept["sites"]["s01"]["cluster"] = 1
    (tmp_path / "run" / "forecasts.json").write_text(json.dumps(kept))
    resealed(tmp_path / "run")
    with pytest.raises(u.UmbelError, match=r"The 'sites.s01' in .*forecasts.json must have a client of the run in its"):
        load(tmp_path / "run")


def test_a_few_sites_and_their_first_rows_are_kept(tmp_path: Path) -> None:
    """At most twelve sites; more rounds make them anew; who classifies has none."""
    fed = u.simulate("diabetes", clients=FORESEEN.sites + 2, device="cpu")
    u.run(u.FedAvg(local=LOCAL), fed, rounds=1, out=tmp_path / "run")
    before = json.loads((tmp_path / "run" / "forecasts.json").read_text())
    assert len(before["sites"]) == FORESEEN.sites
    u.resume(tmp_path / "run", rounds=2)
    after = json.loads((tmp_path / "run" / "forecasts.json").read_text())
    assert before["sites"]["c000"]["truth"] == after["sites"]["c000"]["truth"]
    assert before["sites"]["c000"]["forecast"] != after["sites"]["c000"]["forecast"]
    u.run(u.FedAvg(local=LOCAL), u.simulate(clients=2, device="cpu"), rounds=1, out=tmp_path / "digits")
    assert not (tmp_path / "digits" / "forecasts.json").exists()
    assert "Forecast" not in page.write([load(tmp_path / "digits")]).replace(page.drawing_library(), "")
