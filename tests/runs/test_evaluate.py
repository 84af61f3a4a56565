import pytest
from helpers import ENGINES, LOCAL, SEED, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms import FedAvg
from umbel.nets.objective import Classify, Regress
from umbel.runs.evaluate import agreement, scores, summary


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


def scored(pairs, **pooled):
    """Clients of these scores and rows."""
    return {"clients": {f"c{i}": {"score": score, "loss": 1.0, "rows": rows} for i, (score, rows) in enumerate(pairs)},
            "pooled": pooled}


def test_summary_of_accuracies():
    """Mean 0.6 of four clients, worst tenth is the worst of them, weighted by test rows."""
    pairs = [(0.2, 1), (0.6, 1), (0.6, 1), (1.0, 7)]
    found = summary(scored(pairs, accuracy=0.84), Classify(10))
    assert found.pop("pooled") == {"accuracy": 0.84}
    assert found == pytest.approx(
        {"mean": 0.6, "std": 0.28284271, "worst_decile": 0.2, "weighted": 0.84, "over": 4, "value": 0.6})


def test_summary_of_errors():
    """The worst tenth of errors is the largest of them; the rest is as for accuracies."""
    found = summary(scored([(2.0, 1), (6.0, 1), (6.0, 1), (10.0, 7)], mae=8.4), Regress())
    assert (found["mean"], found["worst_decile"], found["weighted"], found["value"]) == (6.0, 10.0, 8.4, 6.0)


def test_a_pooled_metric_is_judged_over_all_rows():
    """A site that cannot define it harms nothing and is left out of the mean; nothing at all is no summary."""
    objective = Classify(2, judged_by="auc")
    found = summary(scored([(0.8, 4), (None, 9), (0.6, 4)], accuracy=0.5, auc=0.9), objective)
    assert (found["value"], found["weighted"], found["over"]) == (0.9, 0.9, 2)
    assert found["mean"] == pytest.approx(0.7)
    alone = summary(scored([(None, 4), (None, 9)], accuracy=0.5, auc=0.75), objective)
    assert (alone["value"], alone["mean"], alone["std"], alone["worst_decile"], alone["over"]) == (0.75, *[None] * 3, 0)
    assert summary(scored([(None, 4)], accuracy=1.0, auc=None), objective) == {}
    assert summary(scored([]), objective) == summary(scored([]), Regress()) == {}


def test_the_worst_tenth_of_eleven_clients_are_two():
    """A tenth is rounded up: mean of 0.1 and 0.3, where one client alone would be 0.1."""
    pairs = [(value, 1) for value in (0.3, 0.1, *[0.9] * 9)]
    assert summary(scored(pairs), Classify(10))["worst_decile"] == pytest.approx(0.2)
    assert summary(scored(pairs), Regress())["worst_decile"] == pytest.approx(0.9)


@pytest.mark.parametrize("engine", ["loop", "simulator"])
def test_clients_are_scored_on_their_test_rows(engine):
    """Hits among the ten test rows of each, and no other rows."""
    fed = ENGINES[engine](tiny_model(), tiny_population(), SEED)
    state = FedAvg(local=LOCAL).init(fed, SEED)
    found = scores(fed, FedAvg(local=LOCAL), state, 1)
    total = 0.0
    for i, name in enumerate(fed.names):
        x, y = fed.clients.gather(fed.clients.population.test[i])
        hits = (fed.net.logits(tree.take(state.models, 0), x).argmax(1) == y).sum()
        own = found["clients"][name]
        assert (own["score"], own["rows"]) == (pytest.approx(float(hits) / 10), 10)
        total += float(hits)
    assert found["pooled"] == {"accuracy": total / (10 * len(fed.names))}
