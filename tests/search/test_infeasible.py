"""What is said when nothing fits: bytes by hand, and changes that do fit when made."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from autoplan.capture import Captured, capture, load_model
from autoplan.errors import InfeasibleError
from autoplan.ir.mesh import Mesh
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.profiles import load_cluster
from autoplan.profiles.catalogue import find_accelerator, larger_accelerators
from autoplan.solver.changes import fitting_changes
from autoplan.solver.infeasible import block_shares
from autoplan.solver.pricing import Overflow
from autoplan.solver.search import solve
from autoplan.solver.space import Configuration, Pins
from tests.search.searchers import searcher_of

WORKLOAD = WorkloadRecord(global_batch=8, seq_len=32, dtype="bfloat16", optimizer="adamw")
CLUSTER = load_cluster("2xh100")
ONE = Configuration(
    mesh=Mesh(dp_replicate=2), micro_batch_size=1, microbatches=4, zero=0, schedule="none"
)


def planned(model: Captured, pins: dict[str, str], limit: int | None = None) -> Plan:
    return solve(model, WORKLOAD, CLUSTER, pins=pins, memory_limit=limit)


def test_blocks_hold_the_state_of_their_parameters(small_model: Captured) -> None:
    searcher = searcher_of(small_model, CLUSTER, limit=1)
    found = searcher.result(ONE)
    assert isinstance(found, Overflow)
    shares = {share.name: share for share in block_shares(found, searcher.problem)}
    graph = small_model.at(1)
    layer = graph.instances[1]
    assert set(shares) == {graph.instances[0].name, "h.*", graph.instances[-1].name}
    # Two layer norms, attention's two matrices and the MLP's two, of width 64: AdamW in bf16
    # with masters takes 16 bytes for each.
    elements = 2 * 2 * 64 + 4 * 64 * 64 + 8 * 64 * 64
    assert sum(graph.parameter(fqn).numel for fqn in layer.parameters) == elements
    assert (shares["h.*"].blocks, shares["h.*"].state) == (3, 3 * 16 * elements)
    parts = found.memory.parameters + found.memory.gradients + found.memory.optimizer
    numel = sum(parameter.numel for parameter in graph.parameters)
    assert sum(share.state for share in shares.values()) == 16 * numel
    assert parts >= 16 * numel  # with gradients of several microbatches, DDP's buckets
    assert sum(share.kept for share in shares.values()) <= found.memory.activations


def test_blocks_of_all_stages_of_the_fullest_rank_count(small_model: Captured) -> None:
    one = Configuration(
        mesh=Mesh(pp=2), micro_batch_size=1, microbatches=8, zero=0,
        schedule="interleaved1f1b", virtual_stages=2,
    )  # fmt: skip
    searcher = searcher_of(small_model, CLUSTER, limit=1)
    found = searcher.result(one)
    assert isinstance(found, Overflow)
    shares = block_shares(found, searcher.problem)
    held = [last - first for first, last in found.ranges]
    assert sum(share.blocks for share in shares) in (held[0] + held[2], held[1] + held[3])


PINS = {"zero": "0", "micro_batch_size": "4", "tp": "1", "pp": "1", "recompute": "none"}


def pins_of(pins: dict[str, str]) -> Pins:
    return Pins({name: (value,) for name, value in pins.items()})


def test_each_change_fits_when_it_is_made(small_model: Captured) -> None:
    smaller = {**PINS, "micro_batch_size": "1"}
    needed, lean = (planned(small_model, p).prediction.peak_memory for p in (PINS, smaller))
    assert lean < needed
    limit = (needed + lean) // 2
    tried = fitting_changes(searcher_of(small_model, CLUSTER, limit=limit), pins_of(PINS))
    times = [change.priced.step_time for change in tried.fitting]
    assert times == sorted(times)
    found = {change.text: change.priced for change in tried.fitting}
    assert not tried.untried
    roomier = [text for text in found if text == "without --memory-limit" or "--cluster" in text]
    assert len(roomier) == 2
    for text, priced in found.items():
        assert (priced.peak_memory > limit) == (text in roomier)
    assert found["without --memory-limit"].peak_memory == needed
    without = {name: value for name, value in PINS.items() if name != "micro_batch_size"}
    remade = planned(small_model, without, limit=limit)
    assert remade.prediction.peak_memory <= limit
    priced = found["without --micro-batch-size 4"]
    assert priced.configuration.micro_batch_size == remade.pipeline.micro_batch_size < 4

    with pytest.raises(InfeasibleError) as raised:
        planned(small_model, PINS, limit=limit)
    assert tried.fitting[0].text in raised.value.hint
    details = raised.value.details
    memory, blocks = details["memory"], details["blocks"]
    assert isinstance(memory, dict) and isinstance(blocks, list) and isinstance(blocks[0], dict)
    assert details["needed"] == needed
    assert details["shortfall"] == needed - limit
    assert sum(int(str(size)) for size in memory.values()) == needed
    largest = max(memory, key=lambda part: int(str(memory[part])))
    assert f"most of it {largest} " in str(raised.value)
    assert f"in {blocks[0]['name']} " in str(raised.value)


@pytest.fixture(scope="module")
def wide_model() -> Captured:
    """A nanoGPT whose states are gigabytes, and its activations little."""
    source = load_model(
        "nanogpt",
        overrides={"n_layer": 2, "n_embd": 2048, "n_head": 4, "vocab_size": 64, "block_size": 16},
    )
    return capture(source, seq_len=16, dtype="bfloat16")


def test_smaller_states_are_offered_where_they_save_enough(wide_model: Captured) -> None:
    pins = {**PINS, "micro_batch_size": "1"}
    needed = planned(wide_model, pins).prediction.peak_memory
    numel = sum(parameter.numel for parameter in wide_model.at(1).parameters)
    option = "--optimizer adamw-8bit"
    fixed = pins_of(pins)
    # Of 12 bytes an element, moments of 8 bits save 6 bar 8 / 256 of scales. The runtime's own
    # Adam takes 32 bytes for each of 2**22 elements at once.
    expected = needed - numel * (6 - 8 / 256) + 32 * 2**22
    searcher = searcher_of(wide_model, CLUSTER, limit=int(expected * 1.01))
    found = {change.text: change.priced for change in fitting_changes(searcher, fixed).fitting}
    assert found[option].peak_memory == pytest.approx(expected, rel=1e-2)
    assert "--master-weights none" in found
    searcher = searcher_of(wide_model, CLUSTER, limit=found[option].peak_memory - 1)
    assert option in fitting_changes(searcher, fixed).failing


def test_no_time_leaves_changes_untried(small_model: Captured) -> None:
    searcher = searcher_of(small_model, CLUSTER, limit=1)
    started = time.monotonic()
    tried = fitting_changes(searcher, Pins({"tp": ("1",)}), budget=0.0)
    assert time.monotonic() - started < 60
    assert not tried.fitting and not tried.failing
    assert "without --tp 1" in tried.untried


def test_larger_devices_have_more_memory_in_order() -> None:
    own = find_accelerator("h100")
    found = [find_accelerator(name) for name in larger_accelerators(own.name)]
    sizes = [device.usable_memory for device in found]
    assert sizes == sorted(sizes) and sizes[0] >= 1.2 * own.usable_memory
    assert any(device.name.startswith("H200") for device in found)
    assert larger_accelerators("my own device") == ()
    assert larger_accelerators(load_cluster("cpu:2").accelerator.name) == ()
    biggest = found[-1]
    assert larger_accelerators(replace(biggest).name) == ()
