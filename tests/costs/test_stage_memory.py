"""Terms of a stage's memory, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.costs.memory import BlockMemory, MemorySettings, stage_memory
from autoplan.ir.optimizer import UPDATE_RULES

BLOCK = BlockMemory(
    numel=100, trainable=100, largest=60, kept=1000, forward=0, working=300, fresh=500,
    boundary_in=200, boundary_out=200, inputs=(200,), outputs=(200,), kept_inputs=(True,),
    kept_outputs=(False,), passed=(-1,),
)  # fmt: skip
PLAIN = MemorySettings(
    zero=0,
    dp_shard=1,
    itemsize=4,
    update=UPDATE_RULES["adamw"],
    pipelined=False,
    microbatches=2,
    replicated=False,
)


def memory(blocks, settings, **terms):
    given = {"in_flight": 1, "shared": 0, "resident": 0, "tied": 0, **terms}
    return stage_memory(blocks, settings, **given)


def test_last_block_runs_backward_while_all_is_kept():
    first = replace(BLOCK, working=900)
    # 1000 + 1000 + 300 before the last block's backward; 1000 + 900 before the first's.
    assert memory([first, BLOCK], PLAIN).transient == 300
    first = replace(BLOCK, working=1500)
    assert memory([first, BLOCK], PLAIN).transient == 500


def test_gradients_of_a_single_microbatch_are_born_in_its_backward():
    once = memory([BLOCK] * 3, replace(PLAIN, microbatches=1))
    state = 300 * (4 + 4 + 8)
    # At the last block's backward none exists but its own, which `fresh` has.
    assert once.peak == state - 300 * 4 + 3000 + 500


@pytest.mark.parametrize(("microbatches", "buckets"), [(1, 0), (2, 400)])
def test_buckets_of_ddp_besides_sums_of_gradients(microbatches, buckets):
    settings = replace(PLAIN, replicated=True, microbatches=microbatches)
    assert memory([BLOCK], settings).buffers == buckets


@pytest.mark.parametrize("kept_twice", [True, False])
def test_tensor_kept_by_two_blocks_counts_once(kept_twice):
    first = replace(BLOCK, kept_outputs=(kept_twice,))
    assert memory([first, BLOCK], PLAIN).activations == 2000 - 200 * kept_twice


def test_tensor_handed_through_a_block_counts_once():
    first = replace(BLOCK, inputs=(), kept_inputs=(), kept_outputs=(True,))
    through = replace(BLOCK, kept_inputs=(False,), passed=(0,))
    assert memory([first, through, BLOCK], PLAIN).activations == 3000 - 200


def test_received_tensors_are_in_the_buffers_of_a_pipeline():
    settings = replace(PLAIN, pipelined=True)
    stage = memory([BLOCK], settings, in_flight=2)
    assert stage.activations == 2 * (1000 - 200)
    assert stage.buffers == 2 * (200 + 200) + 2 * 200


def test_units_of_full_sharding():
    settings = replace(PLAIN, zero=3, dp_shard=2, replicated=True)
    small = replace(BLOCK, working=0, fresh=0, kept=0)
    # The unit, the one before it arriving, and the gradients of the one after being reduced.
    middle = 400 + 400 + 400
    # Its gradients, copied together, and this rank's half of their sum.
    reducing = 400 + 400 + 400 + 200
    assert memory([small] * 3, settings).transient == max(middle, reducing)
