"""A clustered method of your own: group clients once by the classes that they hold.

`OneShot` does all that such methods share: it asks everybody, cuts the dendrogram, trains inside clusters, describes
newcomers like the rest. A method says two things: what a client tells of itself (`describe`) and how far two such
answers are apart (`apart`). Here `class_counts` comes with umbel. A task of your own is a function of one client:

    from umbel.tasks import Leaf                        # what the server expects, and refuses to believe otherwise

    def brightness(net, client):                        # client.x (rows, channels, height, width), client.y (rows,)
        return umbel.Reply({"mean": client.x.mean(0).flatten()})         # travels, and is billed; keep={...} stays

    mean_image = umbel.register(umbel.Plain(            # by this name a remote client finds it
        "mean_image", brightness, answers=lambda net, **options: {"mean": Leaf((net.features,))}))

and `fed.map(mean_image, cohort)` asks for it. What is beyond one-shot grouping subclasses `umbel.Algorithm` instead.

    python examples/your_method.py
"""

from dataclasses import dataclass

import torch

import umbel
from umbel.algorithms.oneshot import OneShot
from umbel.proximity import manhattan
from umbel.signatures import class_counts


@dataclass(frozen=True)
class ByClasses(OneShot):
    """Total variation between class histograms, cut at the largest gap. Cheap, and tells the server who holds what."""

    local: umbel.Local = umbel.Local()

    def describe(self, fed, cohort, anchor):
        """q_i: the share of each class among the client's training rows."""
        heard = fed.map(class_counts, cohort)
        counts = heard.answers["counts"].double()
        return heard.ids, {"shares": counts / counts.sum(1, keepdim=True).clamp(min=1)}

    def apart(self, a, b, evidence):
        """d_ij = 1/2 sum_c |q_ic - q_jc|, from 0 (the same mix) to 1 (no class in common)."""
        return manhattan(a["shares"], b["shares"]) / 2


LOCAL = umbel.Local(epochs=2)


def federation():
    """Digits at 20 clients in five groups; each group holds two classes, unevenly divided among its clients."""
    return umbel.simulate("digits", scenario="flag:groups=5", clients=20, seed=0)


if __name__ == "__main__":
    for method in (umbel.FedAvg(LOCAL), ByClasses(LOCAL)):
        result = umbel.run(method, federation(), rounds=10)
        clusters = result.info["clusters"]
        print(f"{type(method).__name__:9} accuracy {100 * result.accuracy:.1f} %, {clusters['count']} clusters,"
              f" ARI {clusters['ari']:.2f}, {result.info['bytes']['by_kind'].get('counts', 0)} bytes of signatures")
