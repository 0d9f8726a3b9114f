"""Layers that differ in numbers alone share a class, at reduced depth as at full."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from autoplan.capture import capture, load_model
from autoplan.capture.numbers import Followed, settled
from autoplan.ir.graph import Bound, is_bindable, numbers_read
from autoplan.ir.record import graph_from_record, graph_to_record
from autoplan.rules import strategies

MODELS = Path(__file__).with_name("number_models.py")


def captured(factory="rated", *, reduce_depth=True, **settings):
    source = load_model(f"{MODELS}:{factory}", overrides=settings)
    return capture(source, seq_len=0, dtype="float32", reduce_depth=reduce_depth)


def layers(graph):
    return [i for i in graph.instances if i.name.startswith("layers.")]


# Settings, whether the stack is shortened, and how many classes its layers have.
CASES = [
    ({}, True, 2),
    ({"kind": "bernoulli"}, True, 2),
    ({"first": 0.1}, True, 1),
    ({"rate": 0.0}, True, 1),
    ({"scaled": False}, True, 2),
    ({"depth": 11, "first": 0.2, "scaled": False, "kind": "bernoulli"}, True, 1),
    ({"ends": -2}, True, 2),
    ({"ends": "first"}, True, 2),
    # Known by its place, the layer is another where the stack is short.
    ({"ends": -3}, False, 2),
    ({"ends": 2}, False, 2),
    ({"ends": 3}, False, 2),
    ({"ends": "third"}, False, 2),
]


@pytest.mark.parametrize(("settings", "is_short", "classes"), CASES)
def test_reduced_equals_full(settings, is_short, classes):
    short, full = captured(**settings), captured(**settings, reduce_depth=False)
    assert bool(short._stacks) is is_short
    assert not full._stacks
    assert short.at(5) == full.at(5)
    assert len({i.block_class for i in layers(full.at(5))}) == classes


@pytest.mark.parametrize("ends", [2, -2])
def test_unused_frozen_layers_are_traced(ends):
    """No gradient shows how many of them the loss uses."""
    short = captured("frozen", ends=ends)
    assert not short._stacks
    assert short.at(2) == captured("frozen", ends=ends, reduce_depth=False).at(2)


def test_numbers_are_those_of_the_layers():
    graph = captured(depth=6, first=0.1, rate=0.6).at(2)
    for place, instance in enumerate(layers(graph)):
        rate, scale = 0.1 + 0.5 * place / 5, 0.25 + place / 16
        assert set(instance.numbers) == {rate, 1 - rate, scale}
        given = {
            op.target.split(".")[1]: [instance.numbers[n] for n in numbers_read(op.args)]
            for op in graph.block_class(instance).ops
        }
        assert given["dropout"] == [rate]
        assert given["div"] == [1 - rate]
        assert given["mul"] == [scale]


def test_special_numbers_are_no_numbers_of_a_class():
    """A rate of 0, a scale of 1 and an integer stay literals, in classes of their own."""
    rates = [0.1, 0.2, 0.0, 0.3, 0.1, 0.2]
    graph = captured("listed", rates=rates, scales=[0.5, 0.5, 0.5, 1.0, 2, 0.5]).at(2)
    kinds = [i.block_class for i in layers(graph)]
    assert kinds[0] == kinds[1] == kinds[5]
    assert len(set(kinds)) == 4
    assert not is_bindable(True) and not is_bindable(math.nan)


@pytest.mark.parametrize("order", [[0.1, 0.2, 0.3], [0.3, 0.1, 0.2]])
def test_class_does_not_depend_on_the_order(order):
    scales = [0.25 + rate for rate in order]
    graph = captured("listed", rates=order, scales=scales).at(2)
    blocks = {i.block_class for i in layers(graph)}
    (block,) = (graph.classes[index] for index in blocks)
    same = captured("listed", rates=[0.1, 0.2, 0.3], scales=[0.35, 0.45, 0.55]).at(2)
    assert block == same.classes[layers(same)[0].block_class]


def test_graph_computes_what_the_model_does(run_graph):
    found = captured(rate=0.0, depth=5)
    module, batch = found.source.build(), found.source.batch(2, 0, seed=0, device="cpu")
    assert any(i.numbers for i in found.at(2).instances)
    assert_close(run_graph(found.at(2), module, batch), module(**batch), rtol=1e-6, atol=1e-6)


def test_record_round_trip():
    graph = captured().at(3)
    record = graph_to_record(graph)
    assert graph_from_record(type(record).model_validate_json(record.model_dump_json())) == graph


def test_broken_numbers_are_found():
    graph = captured().at(2)
    place = next(k for k, i in enumerate(graph.instances) if i.numbers)
    for numbers in ((), (math.nan,) * 3, (0.0,) * 3, (math.inf,) * 3, (0.5,) * 9):
        broken = list(graph.instances)
        broken[place] = replace(broken[place], numbers=numbers)
        with pytest.raises(ValueError, match=r"layers\.1"):
            replace(graph, instances=tuple(broken)).validate()


def test_settled_binds_each_sequence_once():
    graph = captured(depth=4, first=0.1, rate=0.4).at(2)
    index = layers(graph)[0].block_class
    read = [
        number for op in graph.classes[index].ops for arg in op.args for number in numbers_read(arg)
    ]
    assert sorted(set(read)) == list(range(graph.classes[index].number_count))
    assert settled(graph.classes, graph.instances) == (
        list(graph.classes), list(graph.instances)
    )  # fmt: skip
    assert len(read) > len(set(read))
    assert Bound(0) != Bound(1)


def test_followed_numbers():
    known = {0: [0.5, 0.1], 9: [0.5, 0.9]}
    log = {0: [0.1, 0.5, 0.1], 4: [0.4, 0.5, 0.4], 9: [0.9, 0.5, 0.9]}
    assert Followed(known, log).at(4) == [0.5, 0.4]
    # Two places agree where it is known and not where it is not: a doubt.
    assert Followed(known, {**log, 4: [0.4, 0.5, 0.3]}).at(4) is None
    assert Followed(known, {**log, 4: [0.4, 0.0, 0.4]}).at(4) is None
    assert Followed(known, {**log, 4: [0.4, 0.5]}).at(4) is None
    assert Followed({0: [0.7]}, {0: [0.1], 1: [0.2]}).at(1) is None
    assert Followed({0: [0.7]}, {0: [0.1], 1: [0.1]}).at(1) == [0.7]


def test_random_draws_are_seeded_alike():
    before = torch.random.get_rng_state()
    captured(kind="bernoulli")
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_bound_numbers_shard_as_literals_do(ranks):
    for kind in ("floor", "bernoulli"):
        graph = captured(kind=kind, first=0.1).at(4)
        block = graph.classes[layers(graph)[0].block_class]
        for op in block.ops:
            plain = replace(op, args=tuple(0.3 if isinstance(a, Bound) else a for a in op.args))
            assert strategies(op, block, ranks) == strategies(plain, block, ranks)
