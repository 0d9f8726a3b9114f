"""Stages with gathers and reductions beside their kernels."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.costs.data_parallel import DataParallelTimes
from autoplan.costs.step import BlockTime, stage_time
from autoplan.ir.overlap import SlowDown, overlapped_time
from autoplan.schedules import ActionKind
from autoplan.simulate.costs import DataParallel, Gathering, Reduction, StageCost, UnitCost, Work
from autoplan.simulate.step import simulate_step


def block(forward=1.0, gather=0.5, reduce=0.5):
    data = DataParallelTimes(gather=gather, reduce=reduce, publish=0.0, reduced=2**20)
    return BlockTime(
        forward=forward,
        backward=2 * forward,
        tp_forward=0.0,
        tp_backward=0.0,
        again=0.0,
        data_parallel=data,
    )


def stage(blocks, *, zero=3, slow_down=None, **changes):
    settings = {
        "zero": zero,
        "pipelined": False,
        "microbatches": 1,
        "shared": 0.0,
        "partial_grad": 0.0,
    }
    if slow_down is not None:
        settings["slow_down"] = slow_down
    return stage_time(blocks, **settings | changes)


def test_both_are_slowed_until_one_ends():
    # 0.5 s of gathering takes 0.75 s beside kernels, which do 0.5 s of their work meanwhile.
    time = stage([block()], slow_down=SlowDown(1.5, 1.5))
    assert time.forward == pytest.approx(0.75 + 0.5)
    assert time.backward == pytest.approx(1.5 + 1.0)
    assert time.exposed_dp == pytest.approx(0.25 + 0.5)


def test_ddp_reduction_slows_the_backward_it_hides_behind():
    blocks = [block(reduce=0.25), block(reduce=0.25)]
    assert stage(blocks, zero=0).tail_dp == pytest.approx(0.25)  # the last bucket
    slowed = stage(blocks, zero=0, slow_down=SlowDown(2.0, 1.5))
    # The first takes 0.375 s beside the backward, which does half as much in it.
    assert slowed.tail_dp == pytest.approx(0.375 / 2 + 0.25)


@given(
    forward=st.floats(0.01, 10),
    gather=st.floats(0, 10),
    reduce=st.floats(0, 10),
    compute=st.floats(1, 2),
    network=st.floats(1, 2),
    zero=st.sampled_from([0, 1, 2, 3]),
    pipelined=st.booleans(),
)
def test_slow_downs_never_help(forward, gather, reduce, compute, network, zero, pipelined):
    blocks = [block(forward, gather, reduce)] * 2
    free = stage(blocks, zero=zero, pipelined=pipelined)
    slowed = stage(blocks, zero=zero, pipelined=pipelined, slow_down=SlowDown(compute, network))
    for field in ("forward", "backward", "tail_dp"):
        assert getattr(slowed, field) >= getattr(free, field) * (1 - 1e-9)


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_fsdp_hides_from_the_threshold_on_within_one_percent(factor):
    """Forward kernels hide a gather from ``gather * network / compute`` slow-down on."""
    slow_down = SlowDown(1.0, factor)
    threshold = 0.5 * factor
    below = stage([block(0.99 * threshold)] * 4, slow_down=slow_down)
    above = stage([block(1.01 * threshold)] * 4, slow_down=slow_down)
    assert below.forward > 4 * 0.99 * threshold * (1 + 1e-6)
    assert above.forward == pytest.approx(4 * 1.01 * threshold)


@given(gather=st.floats(0.01, 3), compute=st.floats(1, 1.6), network=st.floats(1, 1.6))
def test_the_simulator_agrees_on_a_gather_beside_kernels(gather, compute, network):
    """Two units: the second is gathered while the first computes, as in a block of the cost."""
    work = {ActionKind.FORWARD: Work(1.0), ActionKind.BACKWARD: Work(1e-9)}
    units = (
        UnitCost(work=work),
        UnitCost(work=replace_forward(work, 1e-9), gather=gather),
    )
    data = DataParallel(
        gathering=Gathering.FORWARD,
        reduction=Reduction.LAST,
        compute_slow_down=compute,
        network_slow_down=network,
    )
    line = simulate_step("1f1b", [StageCost(units=units)], ranks=1, microbatches=1, data=data)
    expected = overlapped_time(1.0, gather, compute, network)
    assert line.makespan == pytest.approx(expected, rel=1e-6)


def replace_forward(work, seconds):
    return {**work, ActionKind.FORWARD: Work(seconds)}


def test_slow_down_of_a_cluster_reaches_the_price():
    from autoplan.profiles import load_cluster

    device = load_cluster("8xh100").accelerator
    assert device.slow_down == SlowDown(1.222, 1.0)
    assert replace(device, slow_down=SlowDown(1.1, 1.2)).slow_down.network == 1.2
    origin = {s.field: s.provenance for s in device.sources}
    assert origin["compute_slow_down"] == "catalogue"
    assert origin["network_slow_down"] == "default"
