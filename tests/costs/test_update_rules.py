"""Bytes of update rules, by hand."""

from __future__ import annotations

import pytest

from autoplan.costs.memory import MemorySettings, state_bytes, update_bytes
from autoplan.ir.optimizer import UPDATE_CHUNK, UPDATE_RULES, update_rule


def settings(name: str, *, zero: int, itemsize: int, master: bool = True) -> MemorySettings:
    return MemorySettings(
        zero=zero,
        dp_shard=4,
        itemsize=itemsize,
        update=update_rule(name, master=master),
        pipelined=False,
        microbatches=1,
        replicated=True,
    )


@pytest.mark.parametrize(
    ("name", "zero", "itemsize", "master", "each"),
    [
        ("sgd", 0, 4, True, 0.0),
        ("sgd", 0, 2, True, 4.0),
        ("sgd-momentum", 1, 2, True, 8.0 / 4),
        ("adamw", 0, 2, True, 12.0),
        ("adamw", 0, 2, False, 8.0),
        ("adamw", 3, 2, True, 8.0 / 4),
        ("adamw-bf16", 1, 2, True, 8.0 / 4),
        ("adamw-bf16", 2, 2, True, 4.0 / 4),
        ("adamw-8bit", 0, 2, True, 6 + 8 / 256),
        ("adamw-8bit", 1, 2, False, (2 + 8 / 256) / 4),
        ("adamw-8bit", 3, 2, True, (2 + 8 / 256) / 4),
    ],
)
def test_state_of_an_element(
    name: str, zero: int, itemsize: int, master: bool, each: float
) -> None:
    numel = 2**20
    chosen = settings(name, zero=zero, itemsize=itemsize, master=master)
    assert state_bytes(numel, numel, chosen)[2] == each * numel


def test_a_scale_is_kept_for_a_block_that_is_not_full() -> None:
    assert UPDATE_RULES["adamw-8bit"].moment_bytes(257) == 2 * (257 + 2 * 4)


def test_small_moments_need_the_temporaries_of_a_chunk_only() -> None:
    numel = 16 * UPDATE_CHUNK
    own = update_bytes(4 * numel, settings("adamw-8bit", zero=2, itemsize=2))
    assert 0 < own == update_bytes(8 * numel, settings("adamw-8bit", zero=3, itemsize=2))
    assert update_bytes(numel, settings("adamw", zero=0, itemsize=2)) == 4 * numel
    assert update_bytes(numel, settings("adamw", zero=3, itemsize=2)) == 0
    bare = update_bytes(numel, settings("adamw-8bit", zero=0, itemsize=2, master=False))
    assert bare == own + 2 * numel


def test_traffic_of_torchs_optimizers_is_each_tensor_once() -> None:
    streams = {"sgd": 3, "sgd-momentum": 5, "adamw": 7}
    for name, count in streams.items():
        rule = UPDATE_RULES[name]
        assert rule.streamed_bytes(10, 4, cast=True) == 10 * 4 * count
        assert rule.streamed_bytes(10, 2, cast=True) == 10 * (4 * count + 2 + 4)
        assert rule.streamed_bytes(10, 2, cast=False) == 10 * 4 * count
