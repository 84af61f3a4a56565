"""A federation on this machine, in one call."""

from pathlib import Path

from umbel.data import scenarios
from umbel.data.clients import Population
from umbel.data.plans import realise
from umbel.data.scenarios import SCENARIOS
from umbel.data.sources import Dataset
from umbel.errors import UmbelError
from umbel.federation.door import Federation
from umbel.nets import model_for
from umbel.runs.experiment import RAW, Experiment, Network, aimed, aims, federation_of, network_for
from umbel.runs.prepared import prepare


def simulate(
    data: str | Dataset | Population = "digits",
    *,
    scenario: str | None = None,
    clients: int | None = None,
    model: Network | None = None,
    metric: str = "",
    class_weights: str = "",
    seed: int = 0,
    engine: str = "simulator",
    device: str = "auto",
    precision: str = "float32",
    test_mode: str | None = None,
    data_dir: str | Path | None = None,
    workers: int = 1,
    scaling: str = "federated",
    attack: str = "",
) -> Federation:
    """A federation on this machine: of a named data set, of your own `Dataset`, or of clients you drew yourself.

    `scenario` deals the rows of a set out: by default `natural` where it has clients of its own, `iid` elsewhere.
    Rows of your own are checked: floats become float32, and what does not fit the objective is refused (docs/data.md).
    `metric` and `class_weights` (docs/data.md) come on top of what the data's objective says. A raw table is prepared
    as `scaling` says. `workers` processes share long training on a CPU; the result does not depend on how many there
    are. `attack` makes some clients lie, as in "2:scaled:100" (docs/belief.md).
    """
    name = model if isinstance(model, str) else None
    named = data if isinstance(data, str) and not _brings_data(data) else None
    experiment = Experiment(  # checks every choice, whatever the data are
        data=named, scenario=data if isinstance(data, str) and named is None else scenario, clients=clients, model=name,
        metric=metric, class_weights=class_weights, seed=seed, engine=engine, device=device, precision=precision,
        test_mode=test_mode, attack=attack, scaling=scaling if isinstance(data, Dataset) and data.columns else None,
    ).resolved()
    if isinstance(data, str):
        drawn = experiment.draw(None if data_dir is None else Path(data_dir))
        return experiment.build(*drawn, network=None if model is name else model, workers=workers)[0]
    plan = None
    if isinstance(data, Dataset):
        data, scenario = data.checked(), scenario or scenarios.usual(data.clients)
        plan = scenarios.draw(scenario, data, clients=clients, seed=seed, test_mode=test_mode)
        data = realise(experiment.changed(plan, data), data)
    else:
        if "mislabelled" in attack:
            raise UmbelError("Labels are turned round where clients are drawn, and these are drawn already: turn them"
                             " round yourself, or take another attack.")
        data = data.checked()
    data, how, sent = prepare(data, scaling, None, seed)
    data = aimed(data, metric, class_weights)
    usual = "mlp" if len(data.shape) == 3 else model_for(data.shape, data.tokens)  # an own image may be of any size
    net = network_for(data, model or usual, RAW, precision)
    setup = {"data": "own", "scenario": scenario or "iid", "clients": len(data.train), "model": net.name, "seed": seed,
             "engine": engine, "device": experiment.device, "precision": precision, **aims(metric, class_weights)}
    return federation_of(net, data, seed, engine, device, workers, attack, setup=setup, plan=plan, preparation=how,
                         prepared=sent)


def _brings_data(name: str) -> bool:
    return name in SCENARIOS and SCENARIOS[name].brings_data
