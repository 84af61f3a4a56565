"""Tables, folders and frames of one's own: what is understood of them, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

import umbel
from umbel.data import tables
from umbel.data.own import from_folder, from_frame, from_huggingface, from_partitions, read_site, to_huggingface
from umbel.data.plans import load_plan, realise, save_plan
from umbel.data.prepare import Column, Preparation, Sums, prepared
from umbel.data.scenarios import draw
from umbel.data.tables import Asked, hashed
from umbel.engines.local import LocalClients
from umbel.errors import UmbelError
from umbel.federation.phases import PREPARE
from umbel.nets.objective import Classify, Regress

pandas = pytest.importorskip("pandas")


def frame(**more: object) -> "pandas.DataFrame":
    """Eight patients of two hospitals."""
    return pandas.DataFrame({
        "hospital": ["b", "a"] * 4, "age": [40.0, np.nan, 50, 60, 70, 40, 50, 60], "sex": ["f", "m", "m", None] * 2,
        "year": 2020, "death": ["no", "yes", "no", "no", "yes", "no", "no", "yes"], **more,
    })


def written(folder: Path, **more: object) -> Path:
    frame(**more).to_csv(folder / "patients.csv", index=False)
    return folder / "patients.csv"


def test_a_frame_becomes_a_set_with_natural_clients() -> None:
    """Numbers with gaps, hashes of names, clients by name; a constant column is kept out; each client has test rows."""
    data = from_frame(frame(), client="hospital", target="death")
    assert (data.columns, data.levels, data.clients) == (("age", "sex"), (0, 2), ("a", "b"))
    assert data.objective == Classify(2, labels=("no", "yes"))
    assert data.understood["kept_out"] == {"year": "one value"}
    assert data.understood["sites"] == {"a": 4, "b": 4}
    assert data.owners is not None
    assert [np.bincount(half).tolist() for half in data.owners] == [[3, 3], [1, 1]]
    x = np.concatenate([data.x_train, data.x_test])
    assert set(x[~np.isnan(x[:, 1]), 1].tolist()) == {hashed("f"), hashed("m")}
    assert np.isnan(x[:, 0]).sum() == 1


def test_a_file_read_in_parts_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows at a time, or all: the same numbers, and the row of a mistake is counted through."""
    path = written(tmp_path)
    asked = Asked("hospital", "death")
    whole = tables.read([(None, path)], asked, "patients.csv")
    monkeypatch.setattr(tables, "AT_ONCE", 3)
    parts = tables.read([(None, path)], asked, "patients.csv")
    assert np.array_equal(whole.x, parts.x, equal_nan=True)
    assert whole.about == parts.about
    mixed = written(tmp_path, age=["1", "2", "3", "4", "5", "6", "old", "8"])
    with pytest.raises(UmbelError, match=r"must hold numbers or texts, not both\. It has numbers, and 'old' in row 7"):
        tables.read([(None, mixed)], asked, "patients.csv")


@pytest.mark.parametrize(("more", "asked", "sentence"), [
    ({}, {"client": "hosptal"}, "There is no column in frame named 'hosptal'. Did you mean 'hospital'?"),
    ({"hospital": ["a"] * 7 + ["b"]}, {}, "Every client needs a row to be tested on, and 'b' has none, of 1 in all"),
    ({"age": ["2024-01-02"] * 8}, {}, "'age' of frame holds dates, as '2024-01-02' in row 1.*drop the column"),
    ({}, {"objective": "regress"}, "The target 'death' of frame must hold numbers for a regression. Got 'no' in row 1"),
    ({"death": "no"}, {}, "The target 'death' of frame must have two values or more. It is 'no' in all rows"),
    ({"age": [np.inf] * 8}, {}, "'age' of frame must hold finite float32. Got inf in row 1"),
    ({"hospital": ["a", None] * 4}, {}, "Every row of frame must say whose it is. Row 2 has no 'hospital'"),
    ({}, {"split": "month"}, "The 'split' of a table must be rows, time:COLUMN or column:NAME. Got 'month' instead"),
    ({}, {"split": "column:sex"}, "The column 'sex' of frame must hold train, validation or test. Got 'f' in row 1"),
])
def test_what_does_not_fit_is_one_sentence(more: dict[str, object], asked: dict[str, str], sentence: str) -> None:
    """With the column, the row and what to do."""
    with pytest.raises(UmbelError, match=sentence):
        from_frame(frame(**more), **{"client": "hospital", "target": "death", **asked})


def test_a_split_by_time_trains_on_the_past() -> None:
    """Of each client the last rows are for the test, whatever their order in the file; dates are understood here."""
    dated = frame(day=[f"2024-01-0{8 - k}" for k in range(8)], place=range(8))
    data = from_frame(dated, client="hospital", target="death", split="time:day", drop=["sex"])
    assert data.columns == ("age", "place")
    assert sorted(data.x_test[:, 1].tolist()) == [0, 1]


def test_whole_numbers_are_classes_where_they_are_few() -> None:
    """Else a regression, unless a person says so."""
    few = from_frame(frame(death=[3, 5] * 4), client="hospital", target="death")
    assert few.objective == Classify(2, labels=("3", "5"))
    assert isinstance(from_frame(frame(death=np.arange(8) / 2), client="hospital", target="death").objective, Regress)
    asked = from_frame(frame(death=[3, 5] * 4), client="hospital", target="death", objective="regress")
    assert sorted(set(asked.y_train.tolist())) == [3.0, 5.0]


def test_natural_deals_rows_to_their_owners() -> None:
    """With their own test rows; the plan keeps the names; fewer clients are those with the most rows."""
    data = from_frame(frame(hospital=list("aaabbbbb")), client="hospital", target="death")
    plan = draw("natural", data)
    assert (plan.facts["names"], plan.facts["groups"], plan.test_mode) == (["a", "b"], 0, "own")
    assert [len(rows) for rows in plan.train] == [2, 4]
    assert data.owners is not None
    assert all((data.owners[0][rows] == i).all() for i, rows in enumerate(plan.train))
    assert all((data.owners[1][rows - len(data.y_train)] == i).all() for i, rows in enumerate(plan.test))
    assert draw("natural", data, clients=1).facts["names"] == ["b"]
    with pytest.raises(UmbelError, match="natural deals rows to the set's own clients, and digits has none"):
        draw("natural", umbel.open_dataset("digits"))


def test_preparation_fills_scales_and_codes() -> None:
    """By hand: (4 - 2) / 2 = 1, a gap is 0 and says so, an unheard name and a gap are the last level."""
    how = Preparation((Column("age", 2.0, 2.0, missing=True), Column("sex", levels=(5, 9))))
    raw = np.array([[4, 9], [np.nan, 5], [0, 7], [2, np.nan]], dtype=np.float32)
    assert how.applied(raw).tolist() == [[1, 1, 0], [0, 0, 1], [-1, 2, 0], [0, 2, 0]]
    assert (how.levels, how.inputs) == ((0, 3, 0), ("age", "sex", "age?"))
    assert Preparation.of(how.described(), "it") == how
    with pytest.raises(UmbelError, match="it must be a preparation as umbel wrote it"):
        Preparation.of({**how.described(), "scaling": "other"}, "it")


def test_moments_are_of_the_values_that_are_there() -> None:
    """1, 3 and a gap: mean 2, deviation 1; a constant and an empty column are not divided by nothing."""
    mean, std = Sums.of(np.array([[1, 7, np.nan], [3, 7, np.nan], [np.nan, 7, np.nan]])).moments
    assert (mean.tolist(), std.tolist()) == ([2, 7, 0], [1, 1, 1])


def test_clients_are_asked_and_that_is_billed() -> None:
    """Training rows give mean 0 and deviation 1 over all; 2 clients x 8 bytes each of count, size, sum and squares, and
    24 for each name at each client (f and m at b, m at a); result.json's first round has them.
    """
    data = from_frame(frame(), client="hospital", target="death")
    fed = umbel.simulate(data, model="mlp")
    people, how = fed.clients.population, fed.provenance.preparation
    train = np.concatenate(people.train)
    known = people.pool.x[train, 2] == 0
    assert people.levels == (0, 3, 0)
    assert abs(float(people.pool.x[train, 0].mean())) < 1e-6
    assert abs(float(people.pool.x[train, 0][known].std()) - 1) < 1e-6
    assert how is not None
    assert how.scaling == "federated"
    result = umbel.run("fedavg", fed, rounds=1)
    sent = result.records[0]["bytes"][PREPARE]["up"]
    assert {name: sent[name] for name in ("column_counts", "column_sums", "column_squares", "size")} == dict.fromkeys(
        ("column_counts", "column_sums", "column_squares", "size"), 16)
    assert sent["level_counts"] == 24 * 3
    assert result.info["bytes"]["by_kind"]["column_sums"] == 16


def test_sites_that_scale_by_themselves_send_no_sums() -> None:
    """Two sites around 0 and around 100 look alike then: each has mean 0 over its training rows."""
    shifted = pandas.DataFrame({"site": ["a"] * 8 + ["b"] * 8, "v": [*range(8), *range(100, 108)], "y": ["n", "y"] * 8})
    data = from_frame(shifted, client="site", target="y")
    own, all_of_them = (umbel.simulate(data, scaling=scaling) for scaling in ("site", "federated"))

    def means(fed: umbel.Federation) -> list[float]:
        people = fed.clients.population
        return [round(float(people.pool.x[rows, 0].mean()), 2) for rows in people.train]

    assert means(own) == [0, 0]
    assert means(all_of_them)[1] - means(all_of_them)[0] > 1.9
    assert not {line.kind for line in own.provenance.prepared} & {"column_sums", "column_squares"}


def test_a_number_to_be_predicted_is_centred_by_the_sums_of_all() -> None:
    """Centre and scale are mean and deviation of the training targets."""
    data = from_frame(frame(death=np.arange(8) / 2), client="hospital", target="death")
    goal = umbel.simulate(data).net.objective
    assert isinstance(goal, Regress)
    assert (goal.centre, goal.scale) == pytest.approx((data.y_train.mean(), data.y_train.std()))


def test_folders_and_partitions_have_a_client_a_file(tmp_path: Path) -> None:
    """CSV, npz and pictures; frames in a list."""
    for kind in ("csv", "npz"):
        (tmp_path / kind).mkdir()
    for name, part in frame().groupby("hospital"):
        part.drop(columns="hospital").to_csv(tmp_path / "csv" / f"{name}.csv", index=False)
        np.savez(tmp_path / "npz" / f"{name}.npz", x_train=np.eye(4, dtype=np.float32), y_train=np.array([0, 1, 0, 1]))
    by_file = from_folder(tmp_path / "csv", target="death")
    assert (by_file.clients, by_file.understood["sites"]) == (("a", "b"), {"a": 4, "b": 4})
    arrays = from_folder(tmp_path / "npz")
    assert (arrays.clients, arrays.classes, arrays.x_train.shape) == (("a", "b"), 2, (6, 4))
    parts = from_partitions([part.drop(columns="hospital") for _, part in frame().groupby("hospital")], target="death")
    assert parts.clients == ("0", "1")
    (tmp_path / "readme.txt").write_text("what is what")
    with pytest.raises(UmbelError, match="must hold one kind of thing, one for each client"):
        from_folder(tmp_path)


def test_pictures_in_folders(tmp_path: Path) -> None:
    """A folder for each client, in it one for each class; grey pictures have one channel."""
    image = pytest.importorskip("PIL.Image")
    for client in ("a", "b"):
        for label in ("cat", "dog"):
            (tmp_path / client / label).mkdir(parents=True)
            for k in range(3):
                image.fromarray(np.full((5, 4), 10 * k, dtype=np.uint8)).save(tmp_path / client / label / f"{k}.png")
    data = from_folder(tmp_path)
    assert data.x_train.shape[1:] == (1, 5, 4)
    assert data.x_train.dtype == np.uint8
    assert data.objective == Classify(2, labels=("cat", "dog"))


def test_a_site_reads_its_table_as_others_prepared_theirs(tmp_path: Path) -> None:
    """The run's own columns alone count; a class or a name that the site has not changes no code."""
    data = from_frame(frame(), client="hospital", target="death")
    how = umbel.simulate(data).provenance.preparation
    assert how is not None
    (tmp_path / "p.json").write_bytes(Preparation(how.columns, objective=data.objective, target="death").json())
    frame(death="no", age=40.0, extra=range(8)).to_csv(tmp_path / "site.csv", index=False)
    (x, y), test = read_site(tmp_path / "site.csv", tmp_path / "p.json")
    assert (x.shape, set(y.tolist())) == ((6, 3), {0})
    assert test is not None
    assert set(x[:, 1].tolist()) <= {0, 1, 2}


def test_sets_of_hugging_face_and_flower_go_both_ways() -> None:
    """A natural client column; partitions of a Flower partitioner; ours, taken apart by its NaturalIdPartitioner."""
    sets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    table = sets.Dataset.from_pandas(frame())
    data = from_huggingface(table, client="hospital", target="death")
    assert (data.clients, data.columns) == (("a", "b"), ("age", "sex"))
    drawn = partitioners.IidPartitioner(num_partitions=2)
    drawn.dataset = table
    parts = from_partitions([drawn.load_partition(i) for i in range(2)], target="death", drop=["hospital"])
    assert parts.understood["sites"] == {"0": 4, "1": 4}
    ours = to_huggingface(data)
    assert list(ours) == ["a", "b"]
    again = partitioners.NaturalIdPartitioner(partition_by="client")
    again.dataset = sets.concatenate_datasets(list(ours.values()))
    assert sorted(len(again.load_partition(i)) for i in range(again.num_partitions)) == [4, 4]
    assert sum(ours["a"]["test"]) == 1


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    """The same rows and the same understanding."""
    pytest.importorskip("pyarrow")
    frame().to_parquet(tmp_path / "patients.parquet")
    asked = Asked("hospital", "death")
    one = tables.read([(None, tmp_path / "patients.parquet")], asked, "patients")
    other = tables.read([(None, written(tmp_path))], asked, "patients")
    assert np.array_equal(one.x, other.x, equal_nan=True)
    assert one.about == other.about


def test_a_column_says_what_is_for_validation(tmp_path: Path) -> None:
    """Rows with that word choose and are never trained on, on any engine and after scaling by site; partitions keep
    them, and another word makes other rows.
    """
    words = ["train", "train", "Train ", "train", "validation", "validation", "test", "test"]
    data = from_frame(frame(part=words, place=range(8)), client="hospital", target="death", split="column:part")
    assert data.validation is not None
    assert data.x_train[data.validation][:, 2].tolist() == [4, 5]
    save_plan(tmp_path / "plan.npz", draw("natural", data))
    plan = load_plan(tmp_path / "plan.npz")
    for scaling in ("federated", "site"):
        people = prepared(realise(plan, data), Preparation(tuple(map(Column, data.columns)), scaling))
        clients = LocalClients(people, 0, torch.device("cpu"))
        held = {which: [clients.rows(i, which) for i in range(2)] for which in ("train", "fit", "validation", "test")}
        targets = {which: [people.pool.y[rows].tolist() for rows in both] for which, both in held.items()}
        assert targets == {"train": [[1, 0], [0, 0]], "fit": [[1, 0], [0, 0]], "validation": [[0], [1]],
                           "test": [[1], [0]]}
    words[3] = "validation"
    other = from_frame(frame(part=words, place=range(8)), client="hospital", target="death", split="column:part")
    assert other.digest != data.digest
    with pytest.raises(UmbelError, match="iid deals rows anew or changes them, and some of frame are only for"):
        draw("iid", data)
    words[5] = "train"
    words[3] = "train"
    with pytest.raises(UmbelError, match="Every client needs a row to be validated on, and 'a' has none, of 4 in all"):
        from_frame(frame(part=words), client="hospital", target="death", split="column:part")


@pytest.mark.parametrize("engine", ["loop", "simulator", "flower"])
def test_words_for_validation_hold_on_every_engine(engine: str) -> None:
    """The best round is chosen on those rows alone, and what they hold changes no model."""
    if engine == "flower":
        pytest.importorskip("flwr")
    words = ["train"] * 4 + ["validation", "validation", "test", "test"]

    def run(ages: list[float]) -> umbel.Result:
        data = from_frame(frame(part=words, age=[*np.arange(4.0), *ages, 6, 7]), client="hospital", target="death",
                          drop=["sex"], split="column:part")
        fed = umbel.simulate(data, engine="loop" if engine == "flower" else engine, device="cpu")
        if engine == "flower":
            from umbel.flower.inprocess import InProcessFlower
            fed = InProcessFlower(fed.net, fed.clients.population, 0)
        return umbel.run(umbel.FedAvg(local=umbel.Local(rows="fit")), fed, rounds=1, keep="best")

    one, other = run([4, 5]), run([400, -500])
    assert one.records[-1]["validation"]["over"] == 2
    assert one.records[-1]["validation"]["pooled"] is not None
    assert all(torch.equal(one.models[name], other.models[name]) for name in one.models)
