import pytest
from helpers import ENGINES, LOCAL, SEED, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms import FedAvg
from umbel.runs.evaluate import accuracy, agreement, summary


def merged(groups: int, members: int, *pairs: tuple[int, int]) -> tuple[list[int], list[int]]:
    """True groups of equal size, and the clusters when some of them are merged."""
    truth = [group for group in range(groups) for _ in range(members)]
    into = dict(pairs)
    return [into.get(group, group) for group in truth], truth


@pytest.mark.parametrize(
    ("labels_and_truth", "printed"),
    [
        (merged(4, 12, (1, 0), (3, 2)), (0.484, 0.656, 0.5, 1, 0.667)),  # rotation, F-MNIST
        (merged(4, 12, (1, 0)), (0.701, 0.848, 0.75, 1, 0.857)),  # rotation, KMNIST and MNIST
        (merged(6, 8, (1, 0)), (0.807, 0.918, 0.871, 1, 0.931)),  # swap, F-MNIST and MNIST
        (merged(6, 8, (1, 0), (2, 0)), (0.544, 0.793, 0.693, 1, 0.819)),  # swap, KMNIST
        (merged(3, 16, (1, 0)), (0.561, 0.727, 0.579, 1, 0.734)),  # feature skew, F-MNIST
    ],
)
def test_agreement_equals_the_comparative_papers_figures(labels_and_truth, printed):
    """Its client-side rows are exactly those of merging true groups, to the printed digits."""
    assert tuple(agreement(*labels_and_truth).values()) == pytest.approx(printed, abs=6e-4)


def test_numbers_of_clusters_do_not_matter():
    """Agreement sees who is with whom."""
    assert agreement([5, 5, 2, 2], [0, 0, 1, 1])["ari"] == 1


def test_summary_of_accuracies():
    """Mean 0.6 of four clients, worst tenth is the worst of them, weighted by test rows."""
    pairs = [(0.2, 1), (0.6, 1), (0.6, 1), (1.0, 7)]
    clients = {f"c{i}": {"accuracy": accuracy, "rows": rows} for i, (accuracy, rows) in enumerate(pairs)}
    assert summary(clients) == pytest.approx(
        {"mean": 0.6, "std": 0.28284271, "worst_decile": 0.2, "weighted": 0.84, "over": 4})


def test_the_worst_tenth_of_eleven_clients_are_two():
    """A tenth is rounded up: mean of 0.1 and 0.3, where one client alone would be 0.1."""
    clients = {f"c{i}": {"accuracy": value, "rows": 1} for i, value in enumerate([0.3, 0.1, *[0.9] * 9])}
    assert summary(clients)["worst_decile"] == pytest.approx(0.2)


@pytest.mark.parametrize("engine", ["loop", "simulator"])
def test_clients_are_scored_on_their_test_rows(engine):
    """Hits among the ten test rows of each, and no other rows."""
    fed = ENGINES[engine](tiny_model(), tiny_population(), SEED)
    state = FedAvg(local=LOCAL).init(fed, SEED)
    scores = accuracy(fed, FedAvg(local=LOCAL), state, 1)
    for i, name in enumerate(fed.names):
        x, y = fed.clients.gather(fed.clients.population.test[i])
        hits = (fed.net.logits(tree.take(state.models, 0), x).argmax(1) == y).sum()
        assert (scores[name]["accuracy"], scores[name]["rows"]) == (pytest.approx(float(hits) / 10), 10)
