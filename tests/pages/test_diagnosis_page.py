"""The page of a diagnosis: what stands in it, where its figures put things, and that it loads nothing."""

import re

import pytest
from helpers import LOCAL, SEED, tiny_model, tiny_population

import umbel
from umbel.diagnosis.diagnose import Diagnosis, diagnose, diagnosed
from umbel.engines import LoopEngine
from umbel.pages import diagnosis as page


@pytest.fixture(scope="module")
def found():
    """Two groups that differ in looks, with a trial that nine validation rows may decide."""
    fed = LoopEngine(tiny_model(), tiny_population(), SEED)
    return diagnosed(fed, umbel.Auto(least=1, local=LOCAL).for_run(20), 20)


def test_the_first_screen_has_the_answer(found):
    """What to train as the title, the reason below it, then each kind of difference with yes or no."""
    html = page.write(found)
    title = re.search("<h1>(.*)</h1>", html)[1]
    assert title.lower() == found.info["chosen"]
    assert re.search('<p class="lead">(In a short trial .*)</p>', html)
    assert re.findall(r"<h3>(\w+: \w+)</h3>", html) == ["labels: no", "looks: yes", "meanings: no", "amounts: no"]
    assert "By their rows clients fall into 2 clusters." in html
    assert all(f"<title>{name}</title>" in html for name in found.info["places"])


def test_it_loads_nothing_and_escapes_all_text(found):
    """A name that is markup stays text; no address is in the page."""
    wicked = "<img src=x onerror=alert(1)>"
    html = page.write(Diagnosis(found.info | {"data": wicked}))
    assert wicked not in html
    assert "&lt;img src=x" in html
    assert not re.search(r"https?://|src=\"(?!data:)", html)


def test_report_writes_it(found, tmp_path, monkeypatch):
    """To a file, into a folder, or here."""
    monkeypatch.chdir(tmp_path)
    assert umbel.report(found).name == "diagnosis.html"
    assert umbel.report(found, tmp_path) == tmp_path / "diagnosis.html"
    assert umbel.report(found, "new/d.html").read_text().count("<h1>") == 1


def test_bars_stand_on_one_scale():
    """The line is at no gain; a plan's bar reaches from its low to its high end."""
    plans = [{"plan": "a", "groups": "one", "tuned": False, "score": 0.5, "low": 0.0, "high": 0.0, "worst": 0.1,
              "bytes_a_round": 1, "chosen": False},
             {"plan": "b", "groups": "alone", "tuned": True, "score": 0.6, "low": -0.1, "high": 0.3, "worst": 0.1,
              "bytes_a_round": 0, "chosen": True}]
    one, alone = page.bars(plans, umbel.Classify(2).metric)
    inside = 1 - 2 * page.EDGE
    assert page._zero(plans) == one.at == pytest.approx(page.EDGE + inside / 4)
    assert (alone.low, alone.at, alone.high) == pytest.approx((page.EDGE, 0.5, 1 - page.EDGE))
    assert page.bars([plans[0] | {"low": None, "high": None}], umbel.Classify(2).metric)[0].low is None


def test_clients_lie_on_one_scale_for_both_axes():
    """The widest axis fills the figure, the other keeps its proportion; colours are those of the clusters."""
    info = {"places": {"a": [0.0, 0.0], "b": [4.0, 1.0]}, "clusters": [{"clients": ["a"]}, {"clients": ["b"]}]}
    a, b = page.dots(info)
    assert (a.x, b.x) == pytest.approx((page.EDGE, 1 - page.EDGE))
    assert a.y - b.y == pytest.approx((b.x - a.x) / 4)
    assert (a.hue, b.hue) == (0, 1)


def test_a_diagnosis_without_a_trial_has_a_page():
    """Evidence alone, alike clients, one client."""
    fed = LoopEngine(tiny_model(), tiny_population(), SEED)
    html = page.write(diagnose(fed, local=LOCAL, trial=False))
    assert "<h1>Clients differ in looks</h1>" in html
    assert 'id="worth"' not in html
    one = diagnose(LoopEngine(tiny_model(), tiny_population((0,)), SEED), local=LOCAL)
    assert "There is one client to be heard" in page.write(one)
