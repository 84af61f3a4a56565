import pytest
import torch
from torch import tensor

from umbel import tree
from umbel.tree import Held


def test_take_hands_each_client_its_clusters_model():
    """Row labels[i] of every leaf goes to client i."""
    models = {"w": tensor([[1.0, 2.0], [3.0, 4.0]])}
    assert tree.take(models, tensor([1, 0, 1]))["w"].tolist() == [[3, 4], [1, 2], [3, 4]]


def test_mean_by_weighs_by_size_inside_each_label():
    """Label 0: (1*1 + 3*3) / 4 = 2.5; label 1: its only model."""
    ends = {"w": tensor([[1.0], [3.0], [10.0]])}
    old = {"w": tensor([[0.0], [0.0]])}
    mean = tree.mean_by(ends, tensor([0, 0, 1]), tensor([1, 3, 7]), old)
    assert mean["w"].tolist() == [[2.5], [10.0]]


def test_an_empty_cluster_keeps_its_model():
    """Nobody holds label 1: no division by zero, no change."""
    mean = tree.mean_by({"w": tensor([[4.0]])}, tensor([0]), tensor([2]), {"w": tensor([[0.0], [9.0]])})
    assert mean["w"].tolist() == [[4.0], [9.0]]


def test_clients_without_rows_do_not_move_a_mean():
    """Size 0 weighs nothing, and a cluster of such clients keeps its model."""
    ends = {"w": tensor([[4.0], [8.0], [5.0]])}
    mean = tree.mean_by(ends, tensor([0, 0, 1]), tensor([2, 0, 0]), {"w": tensor([[0.0], [9.0]])})
    assert mean["w"].tolist() == [[4.0], [9.0]]


def test_unstack_undoes_stack():
    """One tree for each row, branches included."""
    trees = [{"a": tensor([1.0, 2.0]), "b": {"c": tensor(3)}}, {"a": tensor([4.0, 5.0]), "b": {"c": tensor(6)}}]
    again = tree.unstack(tree.stack(trees))
    assert [(one["a"].tolist(), int(one["b"]["c"])) for one in again] == [([1, 2], 3), ([4, 5], 6)]


def test_mix_is_a_matrix_product():
    """Weights (k, n) turn n models into k."""
    mixed = tree.mix({"w": tensor([[1.0, 0.0], [0.0, 2.0]])}, tensor([[0.5, 0.5], [0.0, 1.0]]))
    assert mixed["w"].tolist() == [[0.5, 1.0], [0.0, 2.0]]


def test_flat_follows_names_not_the_order_of_the_dict():
    """A model read from a file flattens as the one that was written."""
    a = {"b": tensor([[1.0]]), "a": tensor([[2.0]])}
    assert tree.flat(a).tolist() == tree.flat(dict(reversed(a.items()))).tolist() == [[2.0, 1.0]]


def test_named_and_nested_undo_each_other():
    """Path names are the one codec for files and wires."""
    values = {"model": {"fc.weight": tensor([1.0])}, "size": tensor(3)}
    assert set(tree.named(values)) == {"model/fc.weight", "size"}
    assert tree.nested(tree.named(values)) == values


def test_nbytes_counts_numbers_only():
    """Four float32 and one int64 are 24 bytes."""
    assert tree.nbytes({"model": {"w": torch.zeros(2, 2)}, "size": tensor(1)}) == 24


def test_an_unplaced_client_holds_no_model():
    """Label -1 must not silently become the last model."""
    with pytest.raises(IndexError, match="admit the client first"):
        Held({"w": torch.zeros(2, 1)}, tensor([0, -1]))
