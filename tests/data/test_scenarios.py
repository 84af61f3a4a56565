"""Scenarios: names with parameters, ground truth, test sets, and plans on disk."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.data.partition import first_seen
from umbel.data.plans import Plan, load_plan, realise, save_plan
from umbel.data.scenarios import SCENARIOS, draw, mix4, parse, usual_clients
from umbel.data.sources import Dataset, open_dataset
from umbel.data.testsets import TEST_MODES
from umbel.errors import UmbelError
from umbel.nets.objective import Classify, Regress

quick = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31)
PAGE = Path(__file__).parents[2] / "docs" / "scenarios.md"


@cache
def made(per_label: int = 240, tests: int = 40, classes: int = 10, size: int = 4, name: str = "made") -> Dataset:
    """Random images, the same number of rows of every label, in mixed order."""
    rng = np.random.default_rng(0)
    y_train, y_test = (rng.permutation(np.repeat(np.arange(classes), count)) for count in (per_label, tests))
    x = rng.integers(0, 256, (len(y_train) + len(y_test), 1, size, size), dtype=np.uint8)
    return Dataset(name, x[: len(y_train)], y_train, x[len(y_train) :], y_test, classes)


@cache
def paper() -> Dataset:
    """48 clients x 100 rows of ten labels."""
    return made(4800, 2, size=2)


@cache
def four() -> Dataset:
    """A tiny mix-4: USPS 16 px, Fashion-MNIST 28 px, two colour sets."""

    def fake(name: str) -> Dataset:
        size, channels = {"usps": (16, 1), "fashion-mnist": (28, 1)}.get(name, (32, 3))
        value = {"usps": 10, "cifar10": 20, "svhn": 30, "fashion-mnist": 40}[name]
        y = np.repeat(np.arange(10), 6)
        x = np.full((60, channels, size, size), value, np.uint8)
        return Dataset(name, x, y, x[::3], y[::3], 10, "20,000 of 50,000" if name == "cifar10" else "")

    return mix4(fake)


def equal(one: Plan, other: Plan) -> bool:
    lists = ((one.train, other.train), (one.test, other.test))
    same_rows = all(len(a) == len(b) and all(map(np.array_equal, a, b)) for a, b in lists)
    rest = [(p.shift, p.truth.tolist(), p.classes, p.test_mode, p.facts) for p in (one, other)]
    return same_rows and rest[0] == rest[1]


# Names


def test_parse_reads_names_parameters_and_shorthands() -> None:
    """Parameters stand after a colon; shorthands are parameters; what deals out the rows comes first."""
    assert parse("iid") == [("iid", {})]
    assert parse("flag:labels=0.2,alpha=0.25,groups=10") == [("flag", {"labels": 0.2, "alpha": 0.25, "groups": 10})]
    assert parse("flag-20") == [("flag", {"labels": 0.2})]
    assert parse("flag-30") == [("flag", {"labels": 0.3})]
    assert parse("label-skew-30") == [("label-skew", {"labels": 0.3})]
    assert parse("dirichlet-0.1") == [("dirichlet", {"alpha": 0.1})]
    assert parse("dirichlet-clients-5") == [("dirichlet-clients", {"alpha": 5.0})]
    assert parse("flag-20:alpha=0.25") == [("flag", {"labels": 0.2, "alpha": 0.25})]
    assert parse("rotation-4+flag-20") == [("flag", {"labels": 0.2}), ("rotation-4", {})]
    assert isinstance(parse("flag:groups=4")[0][1]["groups"], int)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("flg", "There is no scenario 'flg'. Did you mean 'flag'?"),
        ("rotation-5", "There is no scenario 'rotation-5'. Did you mean 'rotation-4'?"),
        ("flag:alfa=1", "There is no parameter of flag 'alfa'. Did you mean 'alpha'?"),
        ("flag:alpha=0", "The 'alpha' of flag must be above 0 and at most 1e+06. Got 0 instead."),
        ("flag:alpha=nan", "The 'alpha' of flag must be above 0 and at most 1e+06. Got nan instead."),
        ("flag-120", "The 'labels' of flag must be above 0 and at most 1. Got 1.2 instead."),
        ("flag:groups=2.5", "The 'groups' of flag must be a whole number from 1 to 1000000. Got 2.5 instead."),
        ("flag:groups", "The 'groups' of flag must be a number. Got '' instead."),
        ("flag-20:labels=0.3", "The 'labels' of flag can be given once. Got it twice in 'flag-20:labels=0.3'."),
        ("dirichlet-1.2.3", "The 'alpha' of dirichlet must be a number. Got '1.2.3' instead."),
        ("flag+dirichlet", "A scenario has one partition, with shifts added to it. Got flag and dirichlet instead."),
        ("noise+noise", "A scenario can be added once. Got 'noise' twice in 'noise+noise'."),
        ("flag+swap-6:per_label=9", "Here 'flag' deals out the rows. Got 'per_label' for 'swap-6' instead."),
    ],
)
def test_wrong_names_are_refused_in_a_sentence(text: str, sentence: str) -> None:
    """An error names the thing, the rule, the value and the near spelling."""
    with pytest.raises(UmbelError) as caught:
        parse(text)
    assert str(caught.value) == sentence


def test_every_entry_describes_itself() -> None:
    """Each scenario has a line for the list, a known test mode, and defaults inside their own ranges."""
    for name, scenario in SCENARIOS.items():
        assert scenario.doc
        assert scenario.test_mode in TEST_MODES or (name, scenario.test_mode) == ("natural", "own")
        assert scenario.clients in (20, 48, 100) or scenario.natural
        for key, parameter in scenario.parameters.items():
            assert parse(f"{name}:{key}={parameter.default}") == [(name, {key: parameter.default})]


def test_the_page_lists_every_scenario_as_it_is() -> None:
    """docs/scenarios.md has each name in one row, with its parameters, defaults, clients and test mode."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    for name, scenario in SCENARIOS.items():
        (row,) = (row for row in rows if f"`{name}`" in row.split("|")[1])
        cells = [cell.strip() for cell in row.split("|")]
        given = [f"`{key}` ({parameter.default:g})" for key, parameter in scenario.parameters.items()]
        assert cells[3] == (", ".join(given) or "–")
        assert cells[5:7] == [str(scenario.clients or "the set's"), f"`{scenario.test_mode}`"]


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python example of docs/scenarios.md works as printed."""
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(PAGE.read_text(encoding="utf-8").split("```python")[1].split("```")[0], scope)
    assert len(scope["clients"].train) == 20
    assert scope["plan"].facts["groups"] == 4


# Drawing


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("mix-4", "natural")])
@pytest.mark.parametrize("mode", [None, *TEST_MODES])
@settings(deadline=None, max_examples=4)
@given(seed=seeds)
def test_every_scenario_draws_in_every_test_mode(name: str, mode: str | None, seed: int) -> None:
    """Everybody has training and test rows, disjoint; the seed decides; facts are JSON; no test set is trained on."""
    more = ":per_label=12" if name.startswith("cflgt") else ":min_size=2,alpha=0.5" if name == "dirichlet" else ""
    data = made()
    plan = draw(name + more, data, clients=20, seed=seed, test_mode=mode)
    assert equal(plan, draw(name + more, data, clients=20, seed=seed, test_mode=mode))
    other = draw(name + more, data, clients=20, seed=seed + 1, test_mode=mode)
    assert not all(map(np.array_equal, plan.train, other.train))
    assert len(plan.train) == len(plan.test) == len(plan.shift) == len(plan.truth) == 20
    for train, test in zip(plan.train, plan.test, strict=True):
        assert len(train)
        assert len(test)
        assert not np.intersect1d(train, test).size
        assert train.max() < len(data.y_train)
        assert (test.min() >= len(data.y_train)) == (plan.test_mode != "holdout")
    assert json.loads(json.dumps(plan.facts)) == plan.facts
    assert plan.facts["test_mode"] == plan.test_mode == (mode or SCENARIOS[name].test_mode)
    assert plan.facts["groups"] in (0, len(np.unique(plan.truth)))
    overlapping = name == "quantity-4"
    assert (plan.facts["overlap"]["train"] > 0) == overlapping
    assert (plan.facts["overlap"]["train_test"] > 0) == (overlapping and plan.test_mode == "holdout")


def test_default_numbers_of_clients() -> None:
    """A scenario brings the number of clients of its paper."""
    assert len(draw("rotation-4", paper()).train) == 48
    assert len(draw("flag-20", paper()).train) == len(draw("label-skew", paper()).train) == 100
    assert len(draw("iid", paper()).train) == len(draw("noise", paper()).train) == 20


def test_rotation_4_as_published() -> None:
    """Four blocks of 12 clients, 0 to 270 degrees; 700 training and 300 test rows of their own, all labels alike."""
    plan = draw("rotation-4", paper())
    assert plan.shift == [""] * 12 + ["rotate:90"] * 12 + ["rotate:180"] * 12 + ["rotate:270"] * 12
    assert plan.truth.tolist() == [0] * 12 + [1] * 12 + [2] * 12 + [3] * 12
    for train, test in zip(plan.train, plan.test, strict=True):
        assert np.bincount(paper().y_train[train]).tolist() == [70] * 10
        assert np.bincount(paper().y_train[test]).tolist() == [30] * 10
    assert plan.facts["per_label"] == 100
    assert plan.facts["groups"] == 4


def test_swap_6_as_published() -> None:
    """Six blocks of 8 clients; a client's test labels are swapped as its training labels are."""
    plan = draw("swap-6", paper())
    pairs = [(1, 7), (2, 7), (4, 7), (3, 8), (5, 6), (7, 9)]
    assert plan.shift == [f"swap:{a}-{b}" for a, b in pairs for _ in range(8)]
    assert plan.truth.tolist() == [k for k in range(6) for _ in range(8)]
    clients = realise(plan, paper())
    for i, (one, other) in enumerate(pairs):
        names = np.arange(10)
        names[[one, other]] = other, one
        for rows, pool_rows in ((plan.train, clients.train), (plan.test, clients.test)):
            assert np.array_equal(clients.pool.y[pool_rows[8 * i]], names[paper().y_train[rows[8 * i]]])


def test_feature_3_as_published() -> None:
    """Clients 0, 1, 2, 3 ...: as is, eroded, dilated, as is ..."""
    plan = draw("feature-3", paper())
    assert plan.shift == ["", "erode", "dilate"] * 16
    assert plan.truth.tolist() == [0, 1, 2] * 16


def test_label_4_and_quantity_4_as_published() -> None:
    """280 rows a client part into 196 and 84; 100, 200, 600, 1000 rows part 70 to 30."""
    label, quantity = draw("label-4", paper()), draw("quantity-4", paper())
    assert {(len(a), len(b)) for a, b in zip(label.train, label.test, strict=True)} == {(196, 84)}
    assert [len(rows) for rows in quantity.train] == [70, 140, 420, 700] * 12
    assert [len(rows) for rows in quantity.test] == [30, 60, 180, 300] * 12
    assert quantity.truth.tolist() == [0, 1, 2, 3] * 12
    assert not any(quantity.shift)


def test_blocks_for_any_number_of_clients() -> None:
    """Ten clients make rotation blocks of 3, 3, 2, 2."""
    assert draw("rotation-4", made(), clients=10).truth.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("name", ["iid", "dirichlet-clients", "noise", "dirichlet-1"])
def test_where_there_are_no_groups(name: str) -> None:
    """IID is one group; Dirichlet and noise have none (0), so that nobody scores agreement with them."""
    plan = draw(name, made(), clients=10)
    assert not plan.truth.any()
    assert plan.facts["groups"] == (1 if name == "iid" else 0)


@pytest.mark.parametrize(
    ("scenario", "clients", "mode", "sentence"),
    [
        ("iid", 0, None, "The number of clients must be at least 1. Got 0 instead."),
        ("iid", 5, "matchd", "There is no test mode 'matchd'. Did you mean 'matched'?"),
        ("swap-6", 5, None, "swap-6 needs at least 10 labels. Got 4 in small instead."),
        ("mix-4", 5, None, "mix-4 brings its own data sets; leave out --data. Got 'small'."),
        (
            "iid", 40, "holdout",
            "Every client needs a training row and a test row. Client 0 of 40 has no test row under 'iid' with test "
            "mode 'holdout'; ask for fewer clients or another test mode.",
        ),
    ],
)  # fmt: skip
def test_impossible_draws_are_refused_in_a_sentence(scenario: str, clients: int, mode: str, sentence: str) -> None:
    """What cannot be drawn is said before anything runs."""
    with pytest.raises(UmbelError) as caught:
        draw(scenario, made(10, 4, classes=4, name="small"), clients=clients, test_mode=mode)
    assert str(caught.value) == sentence


# Combining


@quick
@given(seed=seeds, clients=st.integers(16, 40))
def test_a_shift_goes_round_inside_each_group(seed: int, clients: int) -> None:
    """In flag+rotation-4 every group has all four rotations, as equally as can be; truth is (group, rotation)."""
    flag = draw("flag:groups=4", made(), clients=clients, seed=seed)
    both = draw("flag:groups=4+rotation-4", made(), clients=clients, seed=seed)
    assert all(map(np.array_equal, flag.train, both.train))
    assert all(map(np.array_equal, flag.test, both.test))
    table = np.zeros((4, 4), dtype=int)
    for group, kind in zip(flag.truth, both.shift, strict=True):
        table[group, ["", "rotate:90", "rotate:180", "rotate:270"].index(kind)] += 1
    assert (table.max(axis=1) - table.min(axis=1) <= 1).all()
    assert (table >= 1).all()
    assert both.truth.tolist() == first_seen(zip(flag.truth.tolist(), both.shift, strict=True)).tolist()
    assert both.facts["groups"] == 16


def test_the_order_of_a_combination_does_not_matter() -> None:
    """A shift before its partition is the same scenario."""
    one, other = (draw(text, made(), clients=12) for text in ("flag:groups=3+noise", "noise+flag:groups=3"))
    assert one.shift == other.shift
    assert all(map(np.array_equal, one.train, other.train))
    assert one.facts["groups"] == 3


def test_two_shifts_without_a_partition() -> None:
    """The first keeps its own rows and blocks, the second goes round inside them."""
    plan = draw("rotation-4+feature-3", made(), clients=12)
    assert plan.shift[:6] == ["", "erode", "dilate", "rotate:90", "rotate:90+erode", "rotate:90+dilate"]
    assert plan.facts["groups"] == 12
    assert plan.test_mode == "holdout"


def test_dirichlet_with_rotations_has_their_groups() -> None:
    """Where the partition has no groups, the shift's are the truth."""
    plan = draw("dirichlet-clients+rotation-4", made(), clients=8)
    assert plan.truth.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert plan.facts["groups"] == 4


def test_a_swap_nobody_feels_makes_no_group() -> None:
    """Clients of one flag group that hold none of the swapped labels stay one group."""
    plan = draw("flag:groups=3+swap-6", made(), clients=30, seed=1)
    for kind, rows in zip(plan.shift, plan.train, strict=True):
        held = {str(label) for label in made().y_train[rows]}
        assert not kind or held & set(kind.removeprefix("swap:").split("-"))
    flag = draw("flag:groups=3", made(), clients=30, seed=1)
    assert "" in plan.shift
    assert len(np.unique(plan.truth)) == len(set(zip(flag.truth.tolist(), plan.shift, strict=True)))


# From plan to clients


@pytest.mark.parametrize("name", ["flag:groups=2+rotation-4", "quantity-4", "noise", "swap-6+rotation-4"])
def test_the_pool_holds_each_row_and_shift_once(name: str) -> None:
    """Clients point at the very images of their plan, shifted, and no (row, shift) is stored twice."""
    data = made()
    plan = draw(name, data, clients=12)
    clients = realise(plan, data)
    pairs = {(kind, row) for i, kind in enumerate(plan.shift) for row in [*plan.train[i], *plan.test[i]]}
    assert len(clients.pool.x) == len(clients.pool.y) == len(pairs)
    used = np.unique(np.concatenate([*clients.train, *clients.test]))
    assert used.tolist() == list(range(len(pairs)))
    assert clients.pool.x.dtype == np.uint8
    assert clients.pool.x.flags.c_contiguous
    assert clients.objective.classes == 10
    assert clients.facts == plan.facts
    assert clients.truth is plan.truth
    x = np.concatenate([data.x_train, data.x_test])
    for i, kind in enumerate(plan.shift):
        if kind in ("", "rotate:90"):
            turned = np.rot90(x[plan.train[i]], 1 if kind else 0, axes=(2, 3))
            assert np.array_equal(clients.pool.x[clients.train[i]], turned)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "flag:labels=0.5,groups=4", "label-skew-50", "quantity-4"])
def test_numbers_are_dealt_out_by_their_bins(name: str, tmp_path: Path) -> None:
    """As labels are: the plan of the numbers is that of their bins; it is saved, read, and fits these numbers only."""
    numbers = open_dataset("diabetes")
    bins = replace(numbers, y_train=numbers.objective.groups_of(numbers.y_train), objective=Classify(4),
                   y_test=numbers.objective.groups_of(numbers.y_test))
    plan, same = draw(name, numbers, clients=8), draw(name, bins, clients=8)
    assert all(np.array_equal(a, b) for a, b in zip([*plan.train, *plan.test], [*same.train, *same.test], strict=True))
    assert plan.facts["data_hash"] != same.facts["data_hash"]
    save_plan(tmp_path / "plan.npz", plan)
    people = realise(load_plan(tmp_path / "plan.npz"), numbers)
    assert people.objective == numbers.objective
    assert people.pool.y.dtype == np.float32
    assert np.array_equal(people.pool.y[people.train[3]], numbers.y_train[plan.train[3]])
    assert people.label_counts.sum() == sum(map(len, plan.train))
    half = replace(numbers, y_train=numbers.y_train + np.float32(0.25))  # the same whole numbers
    with pytest.raises(UmbelError, match="A plan fits only the rows it was drawn on"):
        realise(plan, half)


def test_targets_without_kinds_are_dealt_out_at_random_alone() -> None:
    """Numbers without bins, and tokens, have nothing that a partition by label could go by."""
    plain = replace(open_dataset("diabetes"), objective=Regress())
    assert len(draw("iid", plain, clients=8).train) == 8
    with pytest.raises(UmbelError, match=r"dirichlet deals rows out by label, and the targets of diabetes have none: "
                                         r"give the objective bins, as in Regress\(bins=4\), or take iid\."):
        draw("dirichlet", plain, clients=8)


def test_float_images_are_turned_and_not_eroded() -> None:
    """Erosion, dilation and noise count in 0 .. 255."""
    data = made()
    floats = replace(data, x_train=data.x_train / np.float32(255), x_test=data.x_test / np.float32(255))
    assert draw("rotation-4", floats, clients=8).shift == draw("rotation-4", data, clients=8).shift
    with pytest.raises(UmbelError, match="feature-3 changes uint8 images, and the set made has none"):
        draw("feature-3", floats, clients=8)


def test_a_plan_fits_its_own_data_only() -> None:
    """A plan of another set, another part of it, or the same labels with other pixels is refused, with what to do."""
    told = r"A plan fits only the rows it was drawn on: made, whose digest is .*\. Got {}.*\(--data-dir\)"
    plan, data = draw("iid", made(), clients=4), made()
    for other, name in ((made(10, 10, name="other"), "other"), (replace(data, x_train=255 - data.x_train), "made"),
                        (replace(data, x_test=255 - data.x_test), "made")):
        with pytest.raises(UmbelError, match=told.format(name)):
            realise(plan, other)


def test_a_data_set_is_hashed_once() -> None:
    """Whole CIFAR-10 takes an eighth of a second: worth keeping in memory, not worth a file."""
    data = replace(made())
    first = data.digest
    data.x_train[0] ^= 255
    assert data.digest is first
    assert replace(data).digest != first
    data.x_train[0] ^= 255
    assert replace(data).digest == first


def test_digits_can_be_drawn() -> None:
    """The set inside scikit-learn serves the default scenarios, with fewer rows per label, said in the facts."""
    digits = open_dataset("digits")
    plan = draw("rotation-4", digits, clients=16)
    assert 2 <= plan.facts["per_label"] < 100
    assert plan.facts["data"] == "digits"
    assert realise(plan, digits).pool.x.shape[1:] == (1, 8, 8)
    assert [len(draw(name, digits).train) for name in ("iid", "flag-20", "label-skew-20", "quantity-4")] == [
        20, 12, 12, 12]  # of 1,438 rows, dealt out by label but for the first: a hundred a client or more


@pytest.mark.parametrize(("name", "rows", "clients"), [
    ("rotation-4", 1438, 12), ("rotation-4", 4800, 48), ("rotation-4", 4799, 44), ("rotation-4", 90, 4),
    ("flag", 600, 10), ("flag", 60_000, 100), ("iid", 90, 20), ("mix-4", 100, 100),
])
def test_a_small_set_has_fewer_clients_unless_one_says_how_many(name: str, rows: int, clients: int) -> None:
    """A hundred training rows each where rows are dealt out by label, in fours; every group has a client."""
    assert usual_clients(SCENARIOS[name], rows) == clients


# mix-4


def test_mix_4_makes_four_sets_alike() -> None:
    """3 x 32 x 32, forty labels in the published order, parts named."""
    data = four()
    assert data.x_train.shape == (240, 3, 32, 32)
    assert data.x_test.shape == (80, 3, 32, 32)
    assert data.classes == 40
    assert data.label == "mix-4 (cifar10 (20,000 of 50,000))"
    for first, value in ((0, 10), (10, 20), (20, 30), (30, 40)):
        mine = (data.y_train >= first) & (data.y_train < first + 10)
        assert mine.sum() == 60
        assert set(np.unique(data.x_train[mine])) <= {0, value}


def test_mix_4_clients_hold_one_set_and_meet_its_whole_test_set() -> None:
    """Truth is the data set; 100 clients are 32, 26, 28, 14; each is tested on all test rows of its set."""
    plan = draw("mix-4", four())
    assert np.bincount(plan.truth).tolist() == [32, 26, 28, 14]
    assert plan.classes == 40
    y = np.concatenate([four().y_train, four().y_test])
    for group, train, test in zip(plan.truth, plan.train, plan.test, strict=True):
        first = [10, 20, 30, 0][group]
        assert set(y[train]) == set(y[test]) == set(range(first, first + 10))
        assert len(test) == 20
    assert plan.facts["per_label"] == 6
    assert len(realise(plan, four()).pool.x) == 320


def test_mix_4_with_holdout_says_that_clients_share_rows() -> None:
    """A client's own rows stay apart, but one may train on what another is tested on, and the facts count it."""
    plan = draw("mix-4", four(), test_mode="holdout")
    assert not any(np.intersect1d(train, test).size for train, test in zip(plan.train, plan.test, strict=True))
    assert plan.facts["overlap"]["train_test"] > 0


# Plans on disk


@pytest.mark.parametrize("name", ["iid", "flag:groups=4+rotation-4", "noise"])
def test_a_saved_plan_comes_back(name: str, tmp_path: Path) -> None:
    """Save and load give an equal plan and equal clients; equal plans are equal files; nothing else is left behind."""
    plan = draw(name, made(), clients=16)
    save_plan(tmp_path / "deep" / "plan.npz", plan)
    save_plan(tmp_path / "deep" / "again.npz", plan)
    back = load_plan(tmp_path / "deep" / "plan.npz")
    assert equal(plan, back)
    assert all(isinstance(kind, str) for kind in back.shift)
    assert realise(back, made()).hash == realise(plan, made()).hash
    assert (tmp_path / "deep" / "plan.npz").read_bytes() == (tmp_path / "deep" / "again.npz").read_bytes()
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["again.npz", "plan.npz"]


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    """A file cut short anywhere, a file of another kind and a missing file each give one sentence."""
    path = tmp_path / "plan.npz"
    save_plan(path, draw("iid", made(), clients=4))
    whole = path.read_bytes()
    for size in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UmbelError, match="must be a whole and readable npz file"):
            load_plan(path)
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 255
    path.write_bytes(flipped)
    with pytest.raises(UmbelError, match="must be a whole and readable npz file"):
        load_plan(path)
    with path.open("wb") as file:
        np.savez(file, x_train=np.zeros(3))
    with pytest.raises(UmbelError, match=r"must be a partition that umbel saved\. It has no 'about'"):
        load_plan(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(UmbelError, match="must be a whole and readable npz file"):
        load_plan(path)
    with pytest.raises(UmbelError, match=r"There is no partition file '.*gone.npz'"):
        load_plan(tmp_path / "gone.npz")


def test_a_plan_whose_parts_do_not_add_up_is_refused(tmp_path: Path) -> None:
    """The last client ends where the rows do: a row more would be nobody's."""
    path = tmp_path / "plan.npz"
    save_plan(path, draw("iid", made(), clients=4))
    with np.load(path) as file:
        arrays = dict(file)
    arrays["train_rows"] = np.append(arrays["train_rows"], 0)
    np.savez(path, **arrays)
    with pytest.raises(UmbelError, match="must be a partition that umbel saved"):
        load_plan(path)


FORGED: dict[str, tuple[dict[str, Any], str]] = {  # of 4 clients with 600 + 100 rows each
    "a row below 0": ({"train_rows": lambda rows: np.where(rows == 7, -1, rows)}, "'train_rows' must be whole numbers"),
    "rows of floats": ({"test_rows": lambda rows: rows * 1.0}, "'test_rows' must be whole numbers from 0 to"),
    "huge rows": ({"train_rows": lambda rows: rows.astype(np.uint64) + 2**63}, "'train_rows' must be whole numbers"),
    "rows in a square": ({"train_rows": lambda rows: rows.reshape(4, -1)}, "'train_rows' must be whole numbers"),
    "ends that go back": ({"train_ends": lambda ends: ends[[1, 0, 2, 3]]}, "'train_ends' leaves a client without rows"),
    "an end below 0": ({"train_ends": lambda ends: ends - np.array([9999, 0, 0, 0])}, "'train_ends' must be whole"),
    "a client without rows": ({"test_ends": lambda ends: ends[[0, 0, 2, 3]]}, "'test_ends' leaves a client without"),
    "a group below 0": ({"truth": lambda truth: truth - 1}, "'truth' must be whole numbers from 0 to 1,048,575"),
    "a group of floats": ({"dealt": lambda dealt: dealt + 0.5}, "'dealt' must be whole numbers"),
    "three groups": ({"truth": lambda truth: truth[:3]}, "it speaks of 4 clients and of 3"),
    "no shift": ({"shift": lambda kinds: np.array(["turn:3"] * 4)}, "There is no shift 'turn'"),
    "a long shift": ({"shift": lambda kinds: np.array(["+".join(["erode"] * 101)] * 4)}, "at most 100 steps. Got 101"),
    "shifts of numbers": ({"shift": lambda kinds: np.arange(4)}, "must be a partition that umbel saved"),
    "classes": ({"about": lambda about: about.replace('"classes": 10', '"classes": 1e99')}, "no number of classes"),
    "facts": ({"about": lambda about: about.replace('"groups": 1', '"groups": ' + "[" * 99 + "]" * 99)}, "'about'"),
    "deep": ({"about": lambda about: about.replace('"groups": 1', '"groups": ' + "[" * 10**5)}, "nested too deeply"),
    "events": ({"about": lambda about: about.replace('"events": []', '"events": [{"train": [1e99]}]')}, "It is not"),
    "a new schema": ({"about": lambda about: about.replace('"plan": 2', '"plan": 3')}, "in schema 3"),
}


@pytest.mark.parametrize(("changes", "said"), FORGED.values(), ids=FORGED.keys())
def test_numbers_that_no_plan_can_have_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Each in one sentence; a row a little below 0 would be taken from the end of the data in silence."""
    path = tmp_path / "plan.npz"
    save_plan(path, draw("iid", made(), clients=4))
    with np.load(path) as file:
        arrays = dict(file)
    for name, change in changes.items():
        old = arrays[name]
        arrays[name] = np.array(change(str(old))) if name == "about" else change(old)
        assert arrays[name].shape != old.shape or arrays[name].tobytes() != old.tobytes()
    np.savez(path, **arrays)
    with pytest.raises(UmbelError) as caught:
        load_plan(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_that_the_data_set_has_not_are_refused(tmp_path: Path) -> None:
    """What cannot be known when a plan is read is checked against the data."""
    path = tmp_path / "plan.npz"
    drawn = draw("iid", made(), clients=4)
    for name, rows in (("train", drawn.train), ("test", drawn.test)):
        save_plan(path, replace(drawn, **{name: [*rows[:3], np.append(rows[3], 2800)]}))
        with pytest.raises(UmbelError, match=r"numbers from 0 to 2799\. Got other rows for client 3 in round 0"):
            realise(load_plan(path), made())


def test_a_failed_save_leaves_the_old_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is replaced whole or not at all."""
    path = tmp_path / "plan.npz"
    save_plan(path, draw("iid", made(), clients=4))
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="disk full"):
        save_plan(path, draw("iid", made(), clients=5))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
