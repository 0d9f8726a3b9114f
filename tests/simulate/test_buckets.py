"""Sums of gradients in DDP's buckets, beside the backward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir.buckets import BucketedBlock, exposed_reduction
from autoplan.ir.overlap import NO_SLOW_DOWN, SlowDown
from autoplan.schedules import ActionKind
from autoplan.simulate.costs import (
    DataParallel,
    Gathering,
    Reduction,
    StageCost,
    UnitCost,
    Work,
)
from autoplan.simulate.step import simulate_step

MiB = 2**20


def test_a_large_bucket_waits_for_its_last_gradient():
    # The first MiB is summed after an eleventh of the work, the other ten after all of it.
    blocks = [BucketedBlock(1.0, MiB, 0.1)] * 11
    assert exposed_reduction(blocks, NO_SLOW_DOWN) == pytest.approx(1.0)


def test_a_block_of_many_buckets_is_summed_while_it_computes():
    # 1 + 4 x 25 MiB: the last 25 are left at the end, the others fit in beside the work.
    assert exposed_reduction(
        [BucketedBlock(101.0, 101 * MiB, 50.5)], NO_SLOW_DOWN
    ) == pytest.approx(12.5)


def test_blocks_without_gradients_hide_what_came_before():
    frozen = BucketedBlock(2.0, 0.0, 0.0)
    assert exposed_reduction([BucketedBlock(1.0, 2 * MiB, 1.0), frozen], NO_SLOW_DOWN) == 0.5
    assert exposed_reduction([frozen], NO_SLOW_DOWN) == 0.0


@given(
    backward=st.lists(st.floats(0.1, 5), min_size=1, max_size=6),
    reduce=st.floats(0.1, 5),
    slow=st.tuples(st.floats(1, 1.5), st.floats(1, 1.5)),
)
def test_the_simulator_agrees_where_buckets_are_units(backward, reduce, slow):
    """The first MiB and then 25 MiB a block: each block is a bucket, and a unit of FSDP2."""
    sizes = [MiB] + [25 * MiB] * (len(backward) - 1)
    blocks = [BucketedBlock(b, s, reduce) for b, s in zip(backward, sizes, strict=True)]
    exposed = exposed_reduction(blocks, SlowDown(*slow))
    assert exposed == pytest.approx(
        simulated(blocks, SlowDown(*slow), bucketed=False), rel=1e-6, abs=1e-9
    )


def simulated(blocks, slow_down, *, bucketed=True):
    """Seconds by which sums outlast the backward: in the simulator's buckets, or after blocks."""
    units = [
        UnitCost(
            work={ActionKind.FORWARD: Work(0.0), ActionKind.BACKWARD: Work(block.backward)},
            reduce=block.reduce,
            reduced=block.size if bucketed else 0.0,
        )
        for block in reversed(blocks)
    ]
    line = simulate_step(
        "1f1b",
        [StageCost(units=tuple(units))],
        ranks=1,
        microbatches=1,
        data=DataParallel(
            reduction=Reduction.LAST,
            compute_slow_down=slow_down.compute,
            network_slow_down=slow_down.network,
        ),
    )
    return line.makespan - sum(block.backward for block in blocks)


@given(
    blocks=st.lists(
        st.builds(
            BucketedBlock,
            st.floats(0.1, 5),
            st.floats(0.1, 80).map(lambda size: size * MiB),
            st.floats(0, 5),
        ),
        min_size=1,
        max_size=5,
    ),
    slow=st.tuples(st.floats(1, 1.5), st.floats(1, 1.5)),
)
def test_the_simulator_fills_the_same_buckets(blocks, slow):
    assert simulated(blocks, SlowDown(*slow)) == pytest.approx(
        exposed_reduction(blocks, SlowDown(*slow)), rel=1e-6, abs=1e-8
    )


def test_the_last_bucket_alone_outlasts_the_backward():
    blocks = [BucketedBlock(10.0, MiB, 0.1), BucketedBlock(100.0, 100 * MiB, 50.0)]
    assert simulated(blocks, NO_SLOW_DOWN) == pytest.approx(12.5)


def test_without_streams_everything_is_waited_for():
    unit = UnitCost(
        work={ActionKind.FORWARD: Work(1.0), ActionKind.BACKWARD: Work(2.0)}, gather=0.5, reduce=0.3
    )
    data = DataParallel(gathering=Gathering.ACTION, reduction=Reduction.EACH, blocking=True)
    line = simulate_step("1f1b", [StageCost(units=(unit,) * 3)], ranks=1, microbatches=2, data=data)
    assert line.makespan == pytest.approx(2 * 3 * (1.0 + 2.0 + 2 * 0.5 + 0.3))
    assert line.awaiting_gather[0] == pytest.approx(2 * 3 * 2 * 0.5)
    assert line.awaiting_reduction[0] == pytest.approx(2 * 3 * 0.3)
