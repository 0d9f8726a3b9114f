"""Stages with gathers and reductions beside their kernels."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.costs.data_parallel import DataParallelTimes
from autoplan.costs.step import BlockTime, stage_time, unit_time
from autoplan.ir.overlap import NO_SLOW_DOWN, GatherWaits, SlowDown, overlapped_time
from autoplan.schedules import ActionKind
from autoplan.simulate.costs import (
    DataParallel,
    Gathering,
    Messages,
    Reduction,
    StageCost,
    UnitCost,
    Work,
)
from autoplan.simulate.pipeline import simulate_pipeline
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
    # The first gather is waited for. That of the backward takes 0.75 s beside the forward, which
    # does 0.5 s of its work meanwhile; the reduction has nothing to hide behind.
    time = stage([block()], slow_down=SlowDown(1.5, 1.5))
    assert time.forward == pytest.approx(0.5 + 0.75 + 0.5)
    assert time.backward == pytest.approx(2.0 + 0.5)
    assert time.exposed_dp == pytest.approx(0.5 + 0.25 + 0.5)


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
    seconds = [
        t.forward + t.backward + t.gathering.forward + t.gathering.beside + t.tail_dp
        for t in (free, slowed)
    ]
    assert seconds[1] >= seconds[0] * (1 - 1e-9) or 1 / compute + 1 / network < 1


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_fsdp_hides_from_the_threshold_on_within_one_percent(factor):
    """Forward kernels hide a gather from ``gather * network / compute`` slow-down on."""
    slow_down = SlowDown(1.0, factor)
    threshold = 0.5 * factor
    below = stage([block(0.99 * threshold)] * 4, slow_down=slow_down)
    above = stage([block(1.01 * threshold)] * 4, slow_down=slow_down)
    # Nothing hides the first gather; the last forward hides the first gather of the backward.
    assert below.forward > 0.5 + 4 * 0.99 * threshold * (1 + 1e-6)
    assert above.forward == pytest.approx(0.5 + 4 * 1.01 * threshold)


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


SECONDS = st.floats(0, 2)
UNITS = st.lists(
    st.builds(
        BlockTime,
        forward=st.floats(0.01, 2),
        backward=st.floats(0.01, 2),
        tp_forward=SECONDS,
        tp_backward=SECONDS,
        again=SECONDS,
        data_parallel=st.builds(
            DataParallelTimes,
            gather=SECONDS,
            reduce=SECONDS,
            publish=st.just(0.0),
            accumulate=SECONDS,
            unpack=SECONDS,
            pack=SECONDS,
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(
    blocks=UNITS,
    zero=st.sampled_from([2, 3]),
    microbatches=st.integers(1, 4),
    synchronous=st.booleans(),
    slow=st.tuples(st.floats(1, 1.5), st.floats(1, 1.5)),
)
def test_closed_form_of_fsdp_is_the_simulated_step(blocks, zero, microbatches, synchronous, slow):
    slow_down = NO_SLOW_DOWN if synchronous else SlowDown(*slow)
    time = stage(
        blocks,
        zero=zero,
        microbatches=microbatches,
        slow_down=slow_down,
        synchronous=synchronous,
    )
    data = DataParallel(
        gathering=Gathering.ACTION if zero == 3 else Gathering.FORWARD,
        reduction=Reduction.EACH,
        joined=True,
        blocking=synchronous,
        compute_slow_down=slow_down.compute,
        network_slow_down=slow_down.network,
    )
    stages = [StageCost(units=simulated_units(blocks, zero, microbatches, pipelined=False))]
    line = simulate_step("1f1b", stages, ranks=1, microbatches=microbatches, data=data)
    assert time.tail_dp == 0.0
    assert microbatches * (time.forward + time.backward) == pytest.approx(line.makespan, rel=1e-9)
    # Each rank's kernels and each of its collectives take place: what lower bounds count.
    kernels = sum(b.forward + b.backward + b.again for b in blocks)
    network = sum((zero - 1) * b.data_parallel.gather + b.data_parallel.reduce for b in blocks)
    least = kernels + network if synchronous else max(kernels, network)
    assert time.forward + time.backward >= least * (1 - 1e-9)


@given(
    stages=st.lists(UNITS, min_size=2, max_size=3),
    zero=st.sampled_from([2, 3]),
    microbatches=st.integers(1, 4),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
)
def test_a_pipelined_stage_waits_for_its_gathers_as_often_as_torch(
    stages, zero, microbatches, schedule
):
    """Without streams: ``m + 1`` gathers of each unit at ZeRO 3, one at ZeRO 2."""
    data = DataParallel(
        gathering=Gathering.TURN if zero == 3 else Gathering.STEP,
        reduction=Reduction.STAGE,
        joined=True,
        blocking=True,
    )
    costs = [
        StageCost(units=simulated_units(blocks, zero, microbatches, pipelined=True))
        for blocks in stages
    ]
    line = simulate_step(schedule, costs, ranks=len(stages), microbatches=microbatches, data=data)
    for rank, blocks in enumerate(stages):
        time = stage(blocks, zero=zero, pipelined=True, microbatches=microbatches, synchronous=True)
        once = sum(b.data_parallel.unpack + b.data_parallel.pack for b in blocks)
        closed = microbatches * (time.forward + time.backward) + time.tail_dp - once
        waits = line.awaiting_reduction[rank]
        assert line.busy[rank] + waits == pytest.approx(closed, rel=1e-9)
        gathers = microbatches + 1 if zero == 3 else 1
        each = sum(b.data_parallel.gather for b in blocks)
        assert time.gathering == GatherWaits(forward=each, backward=each)
        assert line.awaiting_gather[rank] == pytest.approx(gathers * each)


@given(
    stages=st.lists(UNITS, min_size=2, max_size=4),
    send=st.lists(SECONDS, min_size=3, max_size=3),
    zero=st.sampled_from([2, 3]),
    more=st.integers(0, 3),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    messages=st.sampled_from(Messages),
    synchronous=st.booleans(),
    slow=st.tuples(st.floats(1, 1.5), st.floats(1, 1.5)),
)
def test_closed_form_of_a_sharded_pipeline_is_the_simulated_step(
    stages, send, zero, more, schedule, messages, synchronous, slow
):
    """Block by block, and by stages that only know what their gathers add to each pass."""
    count, microbatches = len(stages), len(stages) + more
    send = send[: count - 1]
    slow_down = NO_SLOW_DOWN if synchronous else SlowDown(*slow)
    gathering = Gathering.TURN if zero == 3 else Gathering.STEP
    data = DataParallel(
        gathering=gathering,
        reduction=Reduction.STAGE,
        joined=True,
        blocking=synchronous,
        compute_slow_down=slow_down.compute,
        network_slow_down=slow_down.network,
    )
    costs = [
        StageCost(
            units=simulated_units(blocks, zero, microbatches, pipelined=True),
            send_output=output,
            send_gradient=gradient,
        )
        for blocks, output, gradient in zip(stages, [*send, 0.0], [0.0, *send], strict=True)
    ]
    line = simulate_step(
        schedule, costs, ranks=count, microbatches=microbatches, data=data, messages=messages
    )
    times = [
        stage(
            blocks,
            zero=zero,
            pipelined=True,
            microbatches=microbatches,
            slow_down=slow_down,
            synchronous=synchronous,
        )
        for blocks in stages
    ]
    closed = simulate_pipeline(
        schedule,
        [time.forward for time in times],
        [time.backward for time in times],
        send,
        microbatches,
        messages=messages,
        gather=[time.gathering for time in times],
        gathering=gathering,
    )
    assert closed.end_of_stage == pytest.approx(line.end_of_stage, rel=1e-9)


def test_first_gather_of_a_backward_runs_beside_the_forward_before():
    long = stage([block(2.0, 1.0)] * 2, zero=3, pipelined=True)
    # Only the forward's first gather has nothing to hide behind.
    assert long.gathering == GatherWaits(forward=1.0)
    short = stage([block(0.25, 1.0)] * 2, zero=3, pipelined=True)
    # Gathers end at 1, 2 and 3, forwards at 1.25 and 2.25. The backward's first unit computes for
    # half a second, and its second waits as long again.
    assert short.gathering == GatherWaits(forward=1.75, backward=0.5, left=0.75)
    slowed = stage([block(0.25, 1.0)] * 2, zero=3, pipelined=True, slow_down=SlowDown(2.0, 1.0))
    # Forwards end at 1.5 and 2.5, without the third gather at 2.25.
    assert slowed.gathering == GatherWaits(forward=1.75, backward=0.5, beside=0.25, left=0.5)


def simulated_units(blocks, zero, microbatches, *, pipelined):
    units = []
    for block in blocks:
        time = unit_time(block, zero=zero, pipelined=pipelined, microbatches=microbatches)
        work = {
            ActionKind.FORWARD: Work(time.forward, time.tp_forward),
            ActionKind.BACKWARD: Work(time.backward, time.tp_backward),
        }
        times = block.data_parallel
        units.append(UnitCost(work=work, gather=times.gather, reduce=times.reduce))
    return tuple(units)
