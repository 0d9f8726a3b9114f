"""Seconds of a stage: what the runtime moves around collectives and updates, and how often."""

import pytest

from autoplan.costs.data_parallel import DataParallelTimes, data_parallel_times
from autoplan.costs.step import BlockTime, stage_time, update_traffic
from autoplan.ir.mesh import Mesh
from autoplan.ir.optimizer import UPDATE_RULES
from autoplan.profiles import load_cluster

H100 = load_cluster("8xh100")


def block(**times):
    data = DataParallelTimes(**{"gather": 0.0, "reduce": 0.0, "publish": 0.0, **times})
    return BlockTime(
        forward=1.0,
        backward=2.0,
        tp_forward=0.0,
        tp_backward=0.0,
        again=0.0,
        data_parallel=data,
    )


def stage(blocks, *, zero, pipelined=False):
    return stage_time(
        blocks,
        zero=zero,
        pipelined=pipelined,
        microbatches=4,
        shared=0.0,
        partial_grad=0.0,
    )


@pytest.mark.parametrize(("zero", "forward", "backward"), [(2, 1.25, 2.5), (3, 1.25, 2.75)])
def test_fsdp_copies_what_it_gathers_and_reduces(zero, forward, backward):
    times = stage([block(unpack=0.25, pack=0.5)], zero=zero)
    assert (times.forward, times.backward) == (forward, backward)
    assert times.compute == pytest.approx(4 * (forward + backward))
    assert times.exposed_dp == pytest.approx(0.0)


def test_ddp_fills_its_buckets_once_a_step():
    times = stage([block(pack=0.5), block(pack=0.5)], zero=0)
    assert (times.forward, times.backward, times.tail_dp) == (2.0, 4.0, 1.0)


def test_a_pipeline_with_fsdp_copies_once_a_step():
    times = stage([block(unpack=0.25, pack=0.5)], zero=2, pipelined=True)
    assert (times.forward, times.backward, times.tail_dp) == (1.0, 2.0, 0.75)


def test_copies_are_those_of_whole_tensors():
    mesh = Mesh(dp_shard=8)
    times = data_parallel_times(
        numel=8 * 2**20, trainable=8 * 2**20, itemsize=2, zero=3, mesh=mesh, cluster=H100
    )
    device = H100.accelerator
    unpacked = 2**20 * (4 + 2) + 2 * 2 * 8 * 2**20
    rate = device.memory_bandwidth * device.memory_efficiency(unpacked)
    assert times.unpack == pytest.approx(unpacked / rate)


def test_an_update_moves_each_state_once():
    whole = update_traffic(1000, zero=0, dp_shard=1, itemsize=4, update=UPDATE_RULES["adamw"])
    assert whole.in_place == 4000 * (7 + 3)  # fused Adam; norm and scaling of the gradients
    assert whole.filled == 4000 * 2  # the gradients in one tensor: read, written
    shard = update_traffic(1000, zero=3, dp_shard=4, itemsize=2, update=UPDATE_RULES["sgd"])
    assert (shard.in_place, shard.filled) == (1000 * (3 + 3), 0.0)
