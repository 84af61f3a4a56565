"""A checkpoint knows what it belongs to: a run is not gone on with on another recipe, other rows or other files."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny_model, tiny_population
from run_folders import outcome, resealed, unsealed
from terminal import Umbel

import umbel as u
from umbel.data.clients import Pool
from umbel.errors import UmbelError, UmbelWarning
from umbel.files import read_json
from umbel.runs.sealed import Sealed, sealed
from umbel.runs.session import Session

LOCAL = u.Local(lr=0.1, epochs=1, batch=5)
RECIPE = {"data": "digits", "scenario": "rotation-4", "clients": 8, "rounds": 3, "fine_tune": 0, "device": "cpu"}


def experiment(**changes: Any) -> u.Experiment:
    """Eight clients of digits."""
    return u.Experiment(method="fedavg", **{**RECIPE, "settings": {"epochs": 1, "batch": 100}, **changes})


def stop_after(experiment: u.Experiment, folder: Path, last: int = 1) -> Path:
    """A run that was stopped behind round `last`."""
    session = Session.start(experiment, folder)
    for done in session.rounds():
        if done.index == last:
            break
    session.close()
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run, the stopped runs whose files are put into it, and the run as it ends undisturbed."""
    place = tmp_path_factory.mktemp("sealed")
    stop_after(experiment(), place / "run")
    stop_after(experiment(seed=1), place / "another seed")
    stop_after(experiment(clients=12), place / "more clients")
    session = Session.start(experiment(), place / "whole")
    for _ in session.rounds():
        pass
    session.finish()
    return place


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run."""
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def edit(name: str, before: str, after: str) -> Callable[[Path, Path], None]:
    """One place in a file is other."""
    def done(run: Path, made: Path) -> None:
        text = (run / name).read_text()
        assert text.count(before) == 1, text
        (run / name).write_text(text.replace(before, after))

    return done


def taken(name: str, source: str) -> Callable[[Path, Path], object]:
    """A file is another run's."""
    return lambda run, made: shutil.copy(made / source / name, run / name)


CHANGES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "lr": (edit("recipe.toml", "lr = 0.01", "lr = 0.02"), "its 'lr' is 0.02, and was 0.01. Put it back, or start"),
    "seed": (edit("recipe.toml", "seed = 0", "seed = 1"), "its 'seed' is 1, and was 0"),
    "clients": (edit("recipe.toml", "clients = 8", "clients = 12"), "its 'clients' is 12, and was 8"),
    "method": (edit("recipe.toml", 'method = "fedavg"', 'method = "solo"'), "its 'method' is 'solo', and was 'fedavg'"),
    "model": (edit("recipe.toml", 'model = "mlp"', 'model = "lenet5"'), "its 'model' is 'lenet5', and was 'mlp'"),
    "rounds": (edit("recipe.toml", "rounds = 3", "rounds = 4"), "its 'rounds' is 4, and was 3"),
    "rows of another seed": (taken("partition.npz", "another seed"), "partition.npz must be as umbel wrote it"),
    "rows of more clients": (taken("partition.npz", "more clients"), "partition.npz must be as umbel wrote it"),
    "another round": (edit("checkpoint.json", '"round": 1', '"round": 0'), "checkpoint.json must be as umbel wrote it"),
    "another score": (lambda run, made: (run / "rounds.jsonl").write_text(
        (run / "rounds.jsonl").read_text().replace('"moved": 0', '"moved": 1', 1)), "rounds.jsonl must hold every"),
    "another state": (taken("state-1.safetensors", "another seed"), "state-1.safetensors must be as checkpoint.json"),
    "another model": (edit("model.json", '"mlp"', '"lenet5"'), "model.json must be as umbel wrote it"),
    "another machine": (edit("env.json", '"python"', '"pypy"'), "env.json must be as umbel wrote it"),
    "a missing file": (lambda run, made: (run / "model.json").unlink(), "model.json belongs to the run, and is miss"),
}


@pytest.mark.parametrize(("change", "sentence"), CHANGES.values(), ids=CHANGES)
def test_what_does_not_belong_to_the_checkpoint_is_refused_by_name(
    change: Callable[[Path, Path], object], sentence: str, run: Path, made: Path, umbel: Umbel,
) -> None:
    """One sentence that says which file or choice, from Python and from the command line; nothing is touched."""
    change(run, made)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(UmbelError, match=sentence):
        u.resume(run)
    code, out, err = umbel("run", "--resume", "--out", run, "--quiet")
    assert (code, out) == (2, "")
    assert sentence.split(".")[0] in err
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_an_untouched_folder_ends_as_if_it_had_never_stopped(run: Path, made: Path) -> None:
    """What the changes above are held against."""
    u.resume(run)
    assert outcome(run) == outcome(made / "whole")


def test_another_way_to_write_the_same_recipe_is_none(run: Path) -> None:
    """Comments and spaces may be added by hand."""
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text("# for the paper\n" + text.replace("seed = 0", "seed   =   0"))
    assert u.resume(run).info["rounds"]["after"] == 3


def test_other_pixels_are_refused(tmp_path: Path) -> None:
    """The same names, sizes and labels with inverted images are other data."""
    people = tiny_population()
    inverted = replace(people, pool=Pool(1 - people.pool.x, people.pool.y))
    assert np.array_equal(inverted.pool.y, people.pool.y)

    def fed(people: u.Population) -> u.Federation:
        return u.simulate(people, model=tiny_model().make, seed=5, device="cpu")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        u.run(u.FedAvg(local=LOCAL), fed(people), rounds=3, out=tmp_path / "run", on_round=interrupt)
    with pytest.raises(UmbelError, match=r"was begun on other data: the digest of clients' rows was [0-9a-f]+, and is"):
        u.resume(tmp_path / "run", fed=fed(inverted))
    assert u.resume(tmp_path / "run", fed=fed(people)).info["rounds"]["after"] == 3


def test_other_names_are_refused(tmp_path: Path) -> None:
    """Batches and cohorts follow the names of clients, so these belong to a run as their rows do."""
    people = tiny_population()
    renamed = replace(people, names=[f"site {name}" for name in people.names])
    assert renamed.hash != people.hash == replace(people, names=[]).hash


def test_other_versions_are_warned_of(run: Path) -> None:
    """The run goes on; its bits may be other than those of a run that was not stopped."""
    versions = {**read_json(run / "checkpoint.json")["versions"], "torch": "1.0"}
    resealed(run, versions=versions)
    with pytest.warns(UmbelWarning, match=r"was begun with torch 1\.0, now .* Go on, but bits may differ"):
        u.resume(run)


def test_a_folder_of_the_first_version_has_no_seal_and_is_believed(run: Path, made: Path) -> None:
    """It is gone on with, and sealed from then on."""
    unsealed(run)
    assert not Sealed(run).binds
    result = u.resume(run)
    assert Sealed(run).binds
    assert result.info["score"] == read_json(made / "whole" / "result.json")["score"]


def test_a_seal_covers_all_that_a_checkpoint_says() -> None:
    """Another value, another name, or none: another seal. A forger can seal anew, and the docs say so."""
    one = sealed({"round": 1, "files": {}})
    assert sealed(one) == one
    assert len({one["seal"], sealed({"round": 2, "files": {}})["seal"], sealed({"round": 1})["seal"]}) == 3
    assert json.dumps(one).count(one["seal"]) == 1


def test_a_finished_folder_is_read_through_its_seal(made: Path, tmp_path: Path, umbel: Umbel) -> None:
    """A result, a table of clients or a model that was changed afterwards is refused where it is loaded."""
    for name, before, after in (("result.json", '"finished"', '"Finished"'), ("clusters.json", '"c000"', '"c00x"')):
        run = Path(shutil.copytree(made / "whole", tmp_path / name))
        (run / name).write_text((run / name).read_text().replace(before, after, 1))
        with pytest.raises(UmbelError, match=f"{name} must be as umbel wrote it. It was cut short or changed"):
            u.load(run)
    run = Path(shutil.copytree(made / "whole", tmp_path / "state"))
    content = bytearray((run / "state.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "state.safetensors").write_bytes(content)
    with pytest.raises(UmbelError, match=r"state.safetensors must be as checkpoint.json describes it"):
        u.load(run)
