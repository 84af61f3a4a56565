"""A `Model` from any `nn.Module`, or from the name of a registered network, with what is refused and why."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from umbel import plugins
from umbel.errors import UmbelError, unknown
from umbel.nets import MODELS, TAKES, takes
from umbel.nets.learner import Norm
from umbel.nets.model import Model
from umbel.nets.objective import Classify, NextToken, Objective, objective_of


def wrap(
    network: nn.Module | Callable[[], nn.Module],
    shape: tuple[int, ...],
    objective: Objective | int,
    *,
    head: str | None = None,
    name: str = "own",
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    tokens: bool = False,
) -> Model:
    """Make a `Model` of any `nn.Module`, or of a function that builds one.

    `objective` says what it is for; a number of classes stands for a classification. Its head is the layer of this
    name, or the last linear one with as many outputs as the objective asks for. `tokens`: inputs are whole numbers.
    """
    objective = objective_of(objective)
    if isinstance(objective, Classify) and objective.weights == "balanced":
        raise UmbelError("Balanced weights are counted over the rows of a federation, and a model alone has none: give"
                         " a number for each class, as in Classify(2, weights=(1, 4)).")
    make = network if not isinstance(network, nn.Module) else lambda: copy.deepcopy(network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make().train(False)
    _refuse_layers(name, module)
    trained = tuple(path for path, leaf in module.named_parameters() if leaf.requires_grad)
    if not trained:
        raise UmbelError(f"The model '{name}' must have something to train, and all its parameters are frozen: let some"
                         " of them have requires_grad=True.")
    broadcast = (-1, *[1] * (len(shape) - 1)) if len(shape) != 2 else (-1,)  # by channel; by feature of a series
    model = Model(
        name, make, shape, objective, _find_head(name, module, objective.outputs, head),
        torch.tensor(mean).view(broadcast), torch.tensor(std).view(broadcast),
        raw=tokens or (not any(mean) and all(one == 1 for one in std)), tokens=tokens, trained=trained,
        module=module.requires_grad_(False),
    )
    _try_once(model)
    return model


def _refuse_layers(name: str, module: nn.Module) -> None:
    """Layers whose training mode cannot be a pure function of parameters, batch and key."""
    def refuse(why: str, advice: str, bad: Callable[[Any], bool]) -> None:
        paths = [path for path, layer in module.named_modules() if bad(layer)]
        if paths:
            raise UmbelError(f"The model '{name}' has {why} in {', '.join(paths[:3])}"
                             f"{' and more' if len(paths) > 3 else ''}: {advice}.")

    refuse("a BatchNorm with a forward of its own", "take nn.BatchNorm1d, 2d or 3d as they are",
           lambda layer: isinstance(layer, Norm) and type(layer).forward is not Norm.forward)
    refuse("a BatchNorm with momentum=None, whose statistics depend on how many batches were seen",
           "give it a momentum, as in nn.BatchNorm2d(..., momentum=0.1)",
           lambda layer: isinstance(layer, Norm) and layer.track_running_stats and layer.momentum is None)
    refuse("running statistics of an InstanceNorm", "build it with track_running_stats=False",
           lambda layer: isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats)
    refuse("an AlphaDropout, whose masks umbel does not draw", "take nn.Dropout instead",
           lambda layer: isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout) and layer.p > 0)


def _find_head(name: str, module: nn.Module, outputs: int, head: str | None) -> str:
    layers = dict(module.named_modules())
    if head is not None:
        if head not in layers or not head:
            raise unknown(f"layer of model '{name}' named", head, (path for path in layers if path))
        return head
    linear = {str(path): layer for path, layer in layers.items() if isinstance(layer, nn.Linear)}
    fitting = [path for path, layer in linear.items() if layer.out_features == outputs]
    if not fitting:
        raise UmbelError(
            f"The model '{name}' must end in a linear layer with {outputs} outputs, as its objective asks. There is"
            " none: name its last layer with head=..."
        )
    return fitting[-1]


def _try_once(model: Model) -> None:
    """One forward pass of one zero input, so that a misfit is refused here and not inside a round."""
    try:
        out = model.logits(dict(model.module.named_parameters()), model.blank(1))
    except (RuntimeError, ValueError) as error:
        raise UmbelError(f"The model '{model.name}' does not take inputs of shape {model.shape}: {error}.") from error
    if tuple(out.shape) != (1, *model.objective.out_shape):
        raise UmbelError(
            f"The model '{model.name}' must give {_said(model.objective.out_shape)} numbers for one input."
            f" Got an output of shape {tuple(out.shape)} instead."
        )


def _said(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def build(
    name: str, shape: tuple[int, ...], objective: Objective | int, mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,), *, tokens: bool = False, levels: tuple[int, ...] = (),
) -> Model:
    """A model by its name, for inputs of `shape`.

    `levels` has a number for each column: 0 for a number, else how many levels the category has, whose codes are not
    scaled. For tokens that are classified it says at each place how many there are.
    """
    make = MODELS.find(name)
    objective = objective_of(objective)
    own = name in list(MODELS)  # one of umbel's: the others are whatever a person or a package made them
    if levels and (len(levels) != shape[-1] or len(shape) > 2 or min(levels) < 0):
        raise UmbelError("The 'levels' of inputs are one number a column, 0 for a number, else how many levels there"
                         f" are. Got {len(levels)} for inputs of shape {tuple(shape)}.")
    asked = _asked(name, make, shape, objective, tokens, levels) if own else {}
    if any(levels) and not tokens:
        mean, std = _but_codes(mean, 0.0, levels), _but_codes(std, 1.0, levels)
    model = wrap(lambda: make(shape, objective.outputs, **asked), shape, objective, name=name, mean=mean, std=std,
                 tokens=tokens)
    elsewhere = own and type(objective).__module__.startswith("umbel.")  # another process knows it by its kind
    return replace(model, recordable=own, registered=elsewhere, levels=tuple(levels))


def _asked(name: str, make: Callable[..., nn.Module], shape: tuple[int, ...], objective: Objective, tokens: bool,
           levels: tuple[int, ...]) -> dict[str, Any]:
    """What a network of umbel's wants to know beside shape and outputs; inputs that it does not take are refused."""
    if not takes(name, shape, tokens):
        if tokens:
            raise UmbelError(f"The model '{name}' takes {' or '.join(TAKES.get(name, ('numbers',)))}, and int64 inputs"
                             " are tokens: give float32, take 'gru', or a network of your own.")
        raise UmbelError(f"The model '{name}' takes {' or '.join(TAKES[name])}. Got inputs of shape {tuple(shape)}:"
                         " take 'mlp', or a network of your own.")
    known = {"levels": tuple(levels), "vocabulary": _vocabulary(name, objective, levels) if tokens else 0,
             "everywhere": len(objective.out_shape) > 1}
    return {word: value for word, value in known.items() if word in inspect.signature(make).parameters}


def _vocabulary(name: str, objective: Objective, levels: tuple[int, ...]) -> int:
    """How many tokens there are: the objective's, where they are what it foretells."""
    vocabulary = objective.vocabulary if isinstance(objective, NextToken) else max(levels, default=0)
    if not vocabulary:
        raise UmbelError(f"The model '{name}' must know how many tokens there are, and its objective does not say: give"
                         " levels, that number for each place.")
    return vocabulary


def _but_codes(given: tuple[float, ...], neutral: float, levels: tuple[int, ...]) -> tuple[float, ...]:
    """A mean or deviation for each column, one that changes nothing for a category."""
    each = given * len(levels) if len(given) == 1 else given
    return tuple(neutral if count else own for own, count in zip(each, levels, strict=True))


def admitted(name: str, thing: Any) -> Callable[[tuple[int, ...], int], nn.Module]:
    """A network that umbel did not bring: a module, or what makes one, of nothing or of (shape, outputs)."""
    if isinstance(thing, nn.Module):
        return lambda shape, outputs: copy.deepcopy(thing)
    needed = [each for each in inspect.signature(thing).parameters.values() if each.default is each.empty
              and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)] if callable(thing) else None
    if needed is None or len(needed) not in (0, 2):
        raise UmbelError("A model must be an nn.Module, or a function that makes one of nothing or of (shape, outputs)."
                         f" Got '{name}', which is not.")

    def make(shape: tuple[int, ...], outputs: int) -> nn.Module:
        made = plugins.called(name, thing, *((shape, outputs) if needed else ()))
        if not isinstance(made, nn.Module):
            raise UmbelError(f"A model must be an nn.Module. Got {type(made).__name__} from '{name}' instead.")
        return made

    return make
