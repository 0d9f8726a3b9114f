"""Bytes of FSDP2's units in a pipeline, by hand and along torch's orders of actions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.costs.memory import BlockMemory, MemorySettings, stage_memory
from autoplan.costs.sharded import Moment, ShardedStage, Unit
from autoplan.ir.optimizer import UPDATE_RULES
from autoplan.schedules import ActionKind, order, single_actions

UNIT = Unit(
    whole=100, flat=0, gradients=100, shard=50, born=100, largest=60, kept=1000,
    forward=30, working=70, fresh=90, arriving=8,
)  # fmt: skip
WIDE = replace(UNIT, whole=700, gradients=700, shard=350, born=700, kept=10, forward=5, working=20)
STAGE = ShardedStage(
    units=(WIDE, UNIT), reshards=True, narrow=False, host=False, in_flight=2, microbatches=4, sent=0
)


def peak(units=STAGE.units, **changes):
    return replace(STAGE, units=units, **changes).fullest()


def test_later_backward_holds_units_as_it_comes_to_them():
    # Two microbatches, all gradients, the last unit gathered and the first arriving.
    assert peak() == Moment(2020, 100, 800, 700 + 70)
    # Level 2 has gathered both, and nothing arrives.
    assert peak(reshards=False) == Moment(2020, 800, 800, 70)


def test_gradients_are_born_unit_by_unit():
    # GPipe with two: at the first backward no gradient exists, at the second one microbatch less.
    assert peak(microbatches=2) == Moment(2020, 100, 0, 700 + 90)
    # With the wide unit last, its gradients are there when the other is copied out of its buffer,
    # with the gradient of that one's output.
    assert peak((UNIT, WIDE), microbatches=2) == Moment(2010, 800, 700, 100 + 8)


def test_host_gathers_into_a_copy():
    # While the first unit arrives the last one waits with the gradient of its output.
    assert peak(host=True) == Moment(2020, 100, 800, 8 + 2 * 700)


def test_gradients_of_a_narrow_dtype_are_made_anew_by_every_backward():
    narrow = [
        replace(u, whole=u.whole // 2, flat=u.whole // 4, born=u.born // 2) for u in STAGE.units
    ]
    # Conversion of this rank's part of the first unit, while that is being gathered.
    assert peak(narrow, narrow=True) == Moment(2020, 50, 800, 8 + 350 + 175)
    plain = [replace(u, flat=0) for u in narrow]
    assert peak(plain, narrow=True) == Moment(2020, 50, 800, 350 + 90)
    # At the end of the first unit's all of its were made, and a host converts one before it adds.
    for host, converted in ((False, 0), (True, 60)):
        moments = replace(STAGE, units=narrow, narrow=True, host=host).moments()
        assert Moment(1010, 400, 800, 350 + converted) in list(moments)


@pytest.mark.parametrize(("host", "expected"), [(False, 700), (True, 1400)])
def test_reduction_copies_the_gradients_of_a_unit_into_one_tensor(host, expected):
    units = [replace(u, kept=0, fresh=0, forward=0, working=0, arriving=0) for u in STAGE.units]
    moments = list(replace(STAGE, units=units, host=host).moments())
    reduction = moments[-4:]
    assert reduction[0] == Moment(0, 100, 800, 700)
    assert reduction[1] == Moment(0, 100, 100 + 350, expected)
    assert reduction[2] == Moment(0, 0, 100 + 350, 100)
    assert reduction[3] == Moment(0, 0, 350 + 50, 100 * (1 + host))


def test_parts_of_a_stage_are_those_of_its_fullest_moment():
    block = BlockMemory(
        numel=100, trainable=100, largest=60, kept=1000, forward=0, working=300, fresh=500,
        boundary_in=200, boundary_out=200, inputs=(200,), outputs=(200,), kept_inputs=(True,),
        kept_outputs=(False,), passed=(-1,),
    )  # fmt: skip
    settings = MemorySettings(
        zero=3, dp_shard=2, itemsize=4, update=UPDATE_RULES["adamw"], pipelined=True,
        microbatches=4, replicated=True,
    )  # fmt: skip
    stage = stage_memory([block] * 2, settings, in_flight=2, shared=7, resident=40, tied=0)
    assert (stage.parameters, stage.optimizer) == (2 * 200, 2 * 400)
    # What the stage received is in its buffers, as is what it is sent back; its outputs are not.
    assert stage.activations == 2 * (800 + 1000 + 200)
    assert stage.gradients == 2 * 400
    assert stage.transient == 400 + 300
    assert stage.buffers == 400 + 2 * 7 + 40 + 4 * (200 + 200)


SIZES = st.integers(0, 1000)
UNITS = st.lists(
    st.builds(
        Unit, whole=SIZES, flat=SIZES, gradients=SIZES, shard=SIZES, born=SIZES, largest=SIZES,
        kept=SIZES, forward=SIZES, working=SIZES, fresh=SIZES, arriving=SIZES,
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@given(
    units=UNITS,
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    ranks=st.integers(1, 4),
    more=st.integers(0, 4),
    stage=st.integers(0, 3),
    reshards=st.booleans(),
    sent=SIZES,
)
def test_peak_is_that_of_torchs_order(units, schedule, ranks, more, stage, reshards, sent):
    """Followed action by action: which units are there, and which gradients, is never assumed."""
    stage, microbatches = stage % ranks, ranks + more
    actions = list(single_actions(order(schedule, stage, ranks, microbatches)))
    flight = microbatches if schedule == "gpipe" else min(microbatches, ranks - stage)
    made = ShardedStage(
        units=units, reshards=reshards, narrow=False, host=False, in_flight=flight,
        microbatches=microbatches, sent=sent,
    )  # fmt: skip
    assert made.fullest().total == walked(units, actions, reshards=reshards, sent=sent)


def walked(units, actions, *, reshards, sent):
    """Most bytes of a step without conversions and copies."""
    there, born = set(), set()
    kept, most = 0, 0

    def see(extra):
        nonlocal most
        held = sum(units[i].whole for i in there) + sum(units[i].gradients for i in born)
        most = max(most, kept + held + extra)

    for action in actions:
        arrived = 0
        if action.kind is ActionKind.FORWARD:
            for index, unit in enumerate(units):
                if index not in there:
                    see(arrived + unit.whole + unit.flat)
                    arrived = unit.whole
                    there.add(index)
                kept += unit.kept
                see(arrived + unit.forward)
                there -= {index} if reshards else set()
            kept += sent
            continue
        for index in reversed(range(len(units))):
            unit = units[index]
            if index not in there:
                if not arrived:
                    see(unit.arriving + unit.whole + unit.flat)
                    arrived = unit.whole
                there.add(index)
                see(unit.arriving + arrived)
            arrived = 0
            if index and index - 1 not in there:
                before = units[index - 1]
                see(unit.arriving + before.whole + before.flat)
                arrived = before.whole
            see(arrived + (unit.working if index in born else unit.fresh))
            kept -= unit.kept
            born.add(index)
            see(arrived)
        kept -= sent
    assert kept == 0 and born == there == {*range(len(units))}
    shards = 0
    for index, unit in enumerate(units):
        there.remove(index)
        see(shards + unit.gradients)
        born.remove(index)
        shards += unit.shard
        see(shards + unit.gradients)
    return most
