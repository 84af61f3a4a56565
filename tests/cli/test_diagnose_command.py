"""`umbel diagnose`: the recommendation first, tables, JSON, and bad input in a sentence."""

import json

from terminal import Umbel

WORDS = ("diagnose", "--clients", "8", "--rounds", "2", "--epochs", "2", "--device", "cpu")


def test_the_recommendation_comes_first(umbel: Umbel) -> None:
    """Then what differs, what it is worth, what it cost."""
    out = umbel(*WORDS, "--scenario", "rotation-4", "--seed", "1").out
    lines = out.splitlines()
    assert "in a short trial" in lines[0]
    assert "What differs" in out
    assert "By their rows clients fall into 4 clusters:" in out
    assert "everybody alone" in out
    assert "The evidence took 0.0" in out
    assert "No row left it." in lines[-1]


def test_json_is_all_that_is_printed(umbel: Umbel, tmp_path) -> None:
    """The same as the file has."""
    done = umbel(*WORDS, "--scenario", "iid", "--no-trial", "--json", "--out", "d.json")
    assert json.loads(done.out) == json.loads((tmp_path / "d.json").read_text())
    assert json.loads(done.out)["advice"] == "Nothing differs: one model."


def test_a_page_is_written(umbel: Umbel, tmp_path) -> None:
    """Into a folder that is made for it."""
    assert umbel(*WORDS, "--no-trial", "--out", "pages/d.html").out.endswith("Written: pages/d.html\n")
    assert "<h1>One model</h1>" in (tmp_path / "pages" / "d.html").read_text()


def test_a_runs_federation_is_diagnosed(umbel: Umbel, tmp_path) -> None:
    """The same clients and local training; the folder stays as it is, and what it says cannot be typed beside it."""
    words = ("--scenario", "rotation-4", "--clients", "8", "--rounds", "2", "--epochs", "2", "--device", "cpu")
    assert umbel("run", "fedprox", *words, "--set", "mu=0.5", "--out", "a").code == 0
    before = sorted(path.name for path in (tmp_path / "a").iterdir())
    typed = umbel("diagnose", *words, "--json").out
    assert json.loads(umbel("diagnose", "a", "--json").out)["differences"] == json.loads(typed)["differences"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == before
    assert "Leave out clients, or the folder." in umbel("diagnose", "a", "--clients", "3").err
    assert "The file nowhere/recipe.toml cannot be read" in umbel("diagnose", "nowhere").err


def test_wrong_input_is_a_sentence(umbel: Umbel) -> None:
    """As with `umbel run`."""
    assert "Did you mean 'rotation-4'?" in umbel("diagnose", "--scenario", "rotate-4").err
    done = umbel(*WORDS, "--out", "d.txt")
    assert done.code == 2
    assert "A diagnosis is written to FILE.html or FILE.json. Got 'd.txt' instead." in done.err
    assert "There is no setting of auto named 'trail'" in umbel("diagnose", "--set", "trail=2").err
