"""What the tensors of a run folder must be: which names, shapes and types, and numbers within which range.

A description as `schema.py` is for JSON. What a method keeps beside it is its own, and is only bound to the clients.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path

import torch
from scipy.cluster import hierarchy
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import State
from umbel.errors import UmbelError
from umbel.nets.model import Model
from umbel.tree import Tree

FAR = 1e75  # of distances and scores: their squares, and sums of these, are finite
Described = dict[str, tuple[int | str, ...]]  # shapes by name; equal words are equal numbers

EVIDENCE: Described = {
    "who": ("described",), "proximity": ("measured", "measured"), "linkage": ("merges", 4), "cut": (),
    "curve": ("tried", 4), "sweep": ("tried", 4), "hopkins": (), "variation": (2,), "landmarks": (),
    "exemplars": ("exemplars",), "signature/trajectory": ("described", 2, "classes"),
    "test/looks": (), "test/absent": (), "test/shares": (), "test/enough": (), "test/by_shares": (),
    "test/contrast": (),
    "parts/vector": ("said", "parts", "numbers"), "parts/length": ("said",), "parts/kind": ("said", "parts"),
    "parts/counts": ("said", "kinds"), "parts_of": ("said",), "part_sizes": ("kinds",),
}
WITH = {  # what there is with a name, if there is any of it
    "test/": {"test/looks", "test/absent", "test/shares", "test/enough", "test/by_shares"},
    "parts": {"parts/vector", "parts/length", "parts/kind", "parts/counts", "parts_of", "part_sizes"},
}
STATE: Described = {"labels": ("clients",), "largest": (2,), "share": ("clients", "clusters")}
WHOLE = ("who", "landmarks", "exemplars", "labels", "parts/length", "parts/kind", "parts/counts", "parts_of",
         "part_sizes")


def check_evidence(leaves: Mapping[str, Tensor], clients: int, file: Path) -> None:
    """Raise where the parts of the evidence do not fit each other, or a run of so many clients."""
    sizes: dict[str, int] = {}
    _check_shapes({name: leaf for name, leaf in leaves.items() if name in EVIDENCE}, EVIDENCE, sizes, file)
    for start, names in WITH.items():
        lacking = names - set(leaves) if any(name.startswith(start) for name in leaves) else set()
        _refuse(bool(lacking), file, min(lacking, default=start), "there with the others", "nothing")
    described, measured = sizes.get("described", clients), sizes.get("measured", 0)
    many = {len(leaf) if leaf.dim() else 0 for name, leaf in leaves.items() if name.startswith("signature/")}
    wrong = bool(many - {described}) or described > clients
    _refuse(wrong, file, "signature", f"of {described} of {clients} clients", f"those of {sorted(many)}")
    rules: dict[str, Callable[[Tensor], bool]] = {
        "who": lambda who: len(set(who.tolist())) == len(who) and _within(who, 0, clients - 1),
        "exemplars": lambda who: _within(who, 0, clients - 1),
        "parts_of": lambda who: _within(who, 0, clients - 1) and len(set(who.tolist())) == len(who),
        "parts/length": lambda many: _within(many, 0, sizes.get("parts", 0)),
        "parts/kind": lambda kinds: _within(kinds, -1, sizes.get("kinds", 0) - 1),
        "landmarks": lambda many: 1 <= int(many) <= clients,
        "proximity": lambda apart: len(apart) <= described,
        "linkage": lambda links: len(links) == max(0, measured - 1) and _is_tree(links),
        "curve": lambda curve: _within(curve[:, 1], 1, clients) and _within(curve[:, 3], 0, 1),
    }
    for name, rule in {**rules, "sweep": rules["curve"]}.items():
        wrong = name in leaves and not rule(leaves[name])
        _refuse(wrong, file, name, f"of these {clients} clients", "numbers of others")


def check_state(state: State, net: Model, clients: int, whole: bool, folder: Path) -> None:
    """Raise where a state is not of this network, or of so many clients; `whole`: its models have all layers."""
    file = folder / "state.safetensors"
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    for name, value in values.items():
        wanted = Tensor if name in STATE else dict if name in ("models", "slots", "evidence") else object
        words = "a tensor" if wanted is Tensor else "a table of tensors"
        _refuse(not isinstance(value, wanted), file, name, words, "another thing")
    layers, anchor = set(net.shapes), state.evidence.get("anchor", {})
    for name, model in (("models", state.models), ("anchor", anchor)):
        _refuse(not _is_model(model, layers), file, name, "layers of the run's network", "others")
    _refuse(whole and set(state.models) != layers, file, "models", "all layers of the run's network", "others")
    counts = {leaf.shape[:1] for leaf in tree.named(state.models).values()}
    _refuse(len(counts) != 1 or counts <= {(), (0,)}, file, "models", "as many of each layer", f"{sorted(counts)}")
    clusters = int(min(counts)[0])
    sizes: dict[str, int] = {"clusters": clusters}
    _check_shapes({name: values[name] for name in STATE if name in values}, STATE, sizes, file)
    _refuse(not _within(state.labels, -1, clusters - 1), file, "labels", f"of {clusters} clusters, or -1", "others")
    _refuse(len(state.labels) > clients, file, "labels", f"of {clients} clients", str(len(state.labels)))
    _check_layers(tree.named(values), net, clusters, file)
    check_evidence(tree.named(state.evidence), len(state.labels), folder / "evidence.safetensors")


def check_memory(pages: Tree, rounds: Collection[str], net: Model, folder: Path) -> None:
    """Raise where what clients keep is not of this network."""
    file = folder / "memory.safetensors"
    _refuse(set(pages) != set(rounds), file, "clients", "those of checkpoint.json's memory_rounds", "others")
    parts = {"last": set(net.shapes), "alone": set(net.shapes), "norms": set(net.norms), "control": set(net.trained)}
    for client, page in pages.items():
        _refuse(not isinstance(page, dict), file, client, "a table of tensors", "a tensor")
        for kind in set(parts) & set(page):
            fits = _is_model(page[kind], parts[kind]) and set(page[kind]) == parts[kind]
            _refuse(not fits, file, f"{client}/{kind}", "layers of the run's network", "others")
        _check_layers(tree.named(page, f"{client}/"), net, 0, file)


def _check_shapes(leaves: Mapping[str, Tensor], described: Described, sizes: dict[str, int], file: Path) -> None:
    """Raise where a tensor is not as it is described; `sizes` are what the words there stand for."""
    for name, leaf in leaves.items():
        axes = described[name]
        fits = leaf.dim() == len(axes) and all(
            size == (sizes.setdefault(axis, size) if isinstance(axis, str) else axis)
            for axis, size in zip(axes, leaf.shape, strict=True))
        shape = ", ".join(str(sizes.get(str(axis), axis)) for axis in axes)
        _refuse(not fits, file, name, f"of the shape ({shape})", f"{tuple(leaf.shape)}")
        whole = name in WHOLE
        kind = leaf.dtype == torch.int64 if whole else leaf.dtype.is_floating_point
        _refuse(not kind, file, name, "of whole numbers" if whole else "of floating point", str(leaf.dtype))
        finite = bool((torch.isfinite(leaf) & (leaf.abs() <= FAR)).all())
        _refuse(not finite, file, name, f"of finite numbers up to {FAR:g}", "others")


def _check_layers(leaves: Mapping[str, Tensor], net: Model, clusters: int, file: Path) -> None:
    """Raise where what has the name of a layer is no such layer, or so many of them."""
    shapes = {name: tuple(leaf.shape) for name, leaf in net.shapes.items()}
    for path, leaf in leaves.items():
        like = shapes.get(path.rpartition("/")[2])
        fits = like is None or (leaf.dtype.is_floating_point and tuple(leaf.shape) in (like, (clusters, *like)))
        _refuse(not fits, file, path, f"a layer of the shape {like}", f"{tuple(leaf.shape)} of {leaf.dtype}")


def _is_model(value: object, layers: set[str]) -> bool:
    """Whether something is a table of tensors by the names of layers, of some at least."""
    return isinstance(value, dict) and set(value) <= layers and all(isinstance(leaf, Tensor) for leaf in value.values())


def _within(values: Tensor, least: int, most: int) -> bool:
    return not values.numel() or bool(((values >= least) & (values <= most)).all())


def _is_tree(links: Tensor) -> bool:
    """Whether each row merges two that are there, none of them merged before."""
    return not len(links) or bool(hierarchy.is_valid_linkage(links.double().numpy()))


def _refuse(wrong: bool, file: Path, name: str, rule: str, got: str) -> None:
    if wrong:
        raise UmbelError(f"The '{name[:60]}' in {file} must be {rule}. Got {got} instead.")
