"""Terms of a stage's memory, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.costs.memory import (
    BlockMemory,
    MemorySettings,
    born_late,
    stage_memory,
    update_bytes,
)
from autoplan.ir.optimizer import UPDATE_RULES

BLOCK = BlockMemory(
    numel=100, trainable=100, largest=60, kept=1000, forward=0, working=300, fresh=500,
    boundary_in=200, boundary_out=200, inputs=(200,), outputs=(200,), kept_inputs=(True,),
    read_inputs=(True,), kept_outputs=(False,), passed=(-1,),
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


@pytest.mark.parametrize(
    ("zero", "microbatches", "replicated", "pipelined", "late"),
    [
        (0, 1, False, False, True),
        (0, 1, False, True, True),
        (0, 2, False, False, False),  # the second adds to those of the first
        (1, 1, True, False, False),  # they live in DDP's buckets
        (3, 1, True, False, True),
        (3, 2, True, False, False),
        (2, 1, True, True, False),  # a pipeline reduces them when all is over
    ],
)
def test_gradients_are_born_in_the_only_backward(zero, microbatches, replicated, pipelined, late):
    settings = replace(
        PLAIN,
        zero=zero,
        microbatches=microbatches,
        replicated=replicated,
        pipelined=pipelined,
        dp_shard=2 if zero else 1,
    )
    assert born_late(settings) is late


def test_gradients_in_buckets_exist_before_the_only_backward():
    once = memory([BLOCK] * 3, replace(PLAIN, microbatches=1, replicated=True))
    assert once.peak == 300 * (4 + 4 + 8) + 3000 + 300


def test_first_backward_of_a_pipeline_finds_no_gradients_and_later_ones_less():
    # GPipe, two microbatches: 2 x 3000 without gradients and its own 500, or 3000 with 1200.
    settings = replace(PLAIN, pipelined=True)
    blocks = [replace(BLOCK, boundary_in=0, boundary_out=0)] * 3
    assert memory(blocks, settings, in_flight=2).peak == 300 * (4 + 8) + 6000 + 500
    # 1F1B holds one at any time, so the second backward finds as much and the gradients.
    assert memory(blocks, settings, in_flight=1).peak == 300 * (4 + 4 + 8) + 3000 + 300


def test_tied_parameters_of_full_sharding_stay_gathered():
    settings = replace(PLAIN, zero=3, dp_shard=2, replicated=True)
    plain, tied = (memory([BLOCK] * 2, settings, tied=count) for count in (0, 25))
    assert tied.buffers - plain.buffers == 25 * 4


def test_the_update_counts_where_nothing_else_does():
    small = replace(BLOCK, kept=0, working=0, fresh=0, outputs=(0,), inputs=(0,))
    # The elements that a rank owns, laid out, and the temporaries of their update.
    settings = replace(PLAIN, microbatches=2)
    assert memory([small], settings).transient == update_bytes(100, settings)


PIPELINED = replace(PLAIN, pipelined=True, microbatches=4)
FIRST = replace(
    BLOCK, boundary_in=0, inputs=(), kept_inputs=(), read_inputs=(), kept_outputs=(True,)
)


def test_gradients_of_outputs_are_in_the_buffers_of_a_pipeline():
    reads = replace(BLOCK, working=900, fresh=900)
    alone = memory([reads], PLAIN).transient
    # Of 900, 200 are the gradient of the output, which the next stage sent.
    assert memory([reads], PIPELINED).transient == alone - 200 + 200  # and one sent before
    passes = replace(BLOCK, working=0, fresh=0, kept=0, kept_inputs=(False,), passed=(0,))
    through = replace(passes, read_inputs=(False,))
    # What a block hands on unread has the gradient that arrived; else a sum of two, a new tensor.
    first = replace(FIRST, working=900)
    assert memory([first, through], PIPELINED).transient == 900 - 200
    assert memory([first, passes], PIPELINED).transient == 900


def test_a_tensor_that_was_kept_before_counts_once_in_a_forward():
    later = replace(BLOCK, forward=700, working=0, fresh=0, kept_inputs=(False,))
    assert memory([FIRST, later], PLAIN).transient == 700 - 200
    assert memory([replace(FIRST, kept_outputs=(False,)), later], PLAIN).transient == 700


@pytest.mark.parametrize(
    ("in_flight", "stays", "left"),
    [
        (1, True, 200),  # the gradient of what it received, which was sent back
        (2, False, 200),
        (2, True, 400),  # and what it sent of the first microbatch
        (3, True, 200),  # of the second it sent that later: then only two are in flight
    ],
)
def test_messages_of_a_backward_stay_in_the_next(in_flight, stays, left):
    settings = replace(PIPELINED, host=stays)
    block = replace(BLOCK, fresh=0, working=500, kept=2000)
    stage = memory([block], settings, in_flight=in_flight)
    assert stage.transient == 500 - 200 + left
