"""A clustered method of your own: group clients once, by the mix of classes that they hold.

`OneShot` has what such methods share: it asks everybody, cuts the dendrogram where tests of clients' rows tell clients
apart, says why, trains inside the clusters, and places newcomers. A method says what a client tells of itself
(`describe`) and how far two answers are apart (`apart`). Repeat a field of `OneShot` (cut, clusters, linkage ...) to
make it an option or to change it.

Here the client's task, `class_counts`, is umbel's. One of your own is a function of one client, under a name:

    def look(net, client):                                           # client.x (rows, c, h, w) in [0, 1], client.y
        return umbel.Reply({"mean": client.x.mean(0).flatten()})     # travels and is billed; keep={...} would stay

    mean_image = umbel.register(umbel.Plain(
        "mean_image", look, answers=lambda net, **options: {"mean": umbel.Leaf((net.features,))}))

and `fed.map(mean_image, cohort).answers["mean"]` is (clients, features). An answer that is not what `answers` promised
is lost at the door. Options that a task takes are declared, `options=("rank",)`; others are refused. Methods that do
more than group once subclass `umbel.Algorithm`: init, round, admit.

    python examples/your_method.py
"""

from dataclasses import dataclass

from torch import Tensor

import umbel


@dataclass(frozen=True)
class ByClasses(umbel.OneShot):
    """Total variation between class histograms, cut by tests.

    It costs 8 bytes a class, and parts of rows for the tests; it tells the server who holds what, and is blind to how
    images look. The tests are not: with a field `cut: str = "gap"` it would go by these distances alone.
    """

    local: umbel.Local = umbel.training()

    def describe(self, fed: umbel.Federation, cohort: umbel.Cohort, anchor: dict) -> tuple[Tensor, dict]:
        """q_i: the share of each class among the client's training rows."""
        heard = fed.map(umbel.signatures.class_counts, cohort)
        counts = heard.answers["counts"].double()
        return heard.ids, {"shares": counts / counts.sum(1, keepdim=True)}

    def apart(self, a: dict, b: dict, evidence: dict) -> Tensor:
        """d_ij = 1/2 sum_c |q_ic - q_jc|: 0 for the same mix, 1 for no class in common."""
        return umbel.proximity.manhattan(a["shares"], b["shares"]) / 2


SCENARIO, CLIENTS, ROUNDS, LOCAL = "flag:groups=5,alpha=20", 20, 10, umbel.Local(epochs=2)


def federation() -> umbel.Federation:
    """Digits at 20 clients in five groups; a group holds two classes, its members not quite evenly."""
    return umbel.simulate("digits", scenario=SCENARIO, clients=CLIENTS, seed=0)


if __name__ == "__main__":
    for method in (umbel.FedAvg(local=LOCAL), ByClasses(local=LOCAL)):
        result = umbel.run(method, federation(), rounds=ROUNDS)
        clusters = result.info["clusters"]
        print(f"{type(method).__name__:9} accuracy {100 * result.accuracy:.1f} %, {clusters['count']} clusters,"
              f" ARI {clusters['ari']:.2f}")
