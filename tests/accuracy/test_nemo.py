"""Terms of NeMo runs against their closed forms."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.capture import capture, load_model
from autoplan.costs.block import collectives
from autoplan.costs.collectives import collective_time
from autoplan.costs.data_parallel import GradientSync
from autoplan.costs.terms import op_term
from autoplan.ir.mesh import Mesh, spread
from autoplan.ir.optimizer import UPDATE_RULES
from autoplan.ir.placement import CollectiveKind, Shard
from autoplan.ir.recompute import Recompute
from autoplan.profiles import load_cluster
from autoplan.solver.inter import StageCut
from autoplan.solver.pricing import Appraisal
from autoplan.solver.space import Configuration
from benchmarks.accuracy.layout import megatron_point, megatron_strategies, tp_group
from benchmarks.accuracy.nemo import Extras, fp8_accelerator, interleaved_time
from benchmarks.accuracy.rows import Skip

DECODER = Path(__file__).parents[2] / "benchmarks/accuracy/decoder.py:decoder"
SIZES = {
    "vocab": 512, "hidden": 1024, "layers": 8, "heads": 8, "ffn": 4096, "flash": True,
    "tied": False, "dropout": 0.0,
}  # fmt: skip


EXPERTS = {**SIZES, "gated": True, "experts": 2, "top_k": 2}


@pytest.fixture(scope="module")
def experts():
    source = load_model(str(DECODER), overrides=EXPERTS)
    return capture(source, seq_len=2048, dtype="bfloat16").at(1)


@pytest.fixture(scope="module")
def graph():
    return capture(load_model(str(DECODER), overrides=SIZES), seq_len=2048, dtype="bfloat16").at(1)


def layer(graph, tp, extras, spec="8xh100"):
    point = megatron_point(graph, tp, load_cluster(spec), sequence=True, extras=extras)
    return max(zip(graph.classes, point.costs, strict=True), key=lambda pair: len(pair[0].ops))[1]


def test_attention_of_a_ring_sees_all_keys(graph):
    """Each further step of the ring is attention within a part once more."""
    times = [layer(graph, 1, Extras(context=n)) for n in (1, 2, 4)]
    steps = [cost.forward - times[0].forward for cost in times]
    assert steps[0] == 0.0
    assert steps[2] == pytest.approx(3 * steps[1])
    again = layer(graph, 1, Extras(attention_again=True))
    assert again.backward - times[0].backward == pytest.approx(steps[1])


def test_a_slow_ring_does_not_hide(graph):
    cluster = load_cluster("8xh100")
    slow = replace(cluster, intra=replace(cluster.intra, bandwidth=1e9, latency=0.0))
    point = megatron_point(graph, 1, slow, sequence=False, extras=Extras(context=2))
    fast = layer(graph, 1, Extras(context=2))
    step = fast.forward - layer(graph, 1, Extras()).forward
    exposed = max(cost.tp_forward for cost in point.costs)
    sent = 2 * 2048 * 1024 * 2  # keys and values, two bytes an element
    assert fast.tp_forward == 0.0
    assert exposed == pytest.approx(sent / 1e9 - step)


def test_user_buffers_leave_one_chunk(graph):
    plain, hidden = (layer(graph, 4, Extras(hides_tp=hides)) for hides in (False, True))
    assert hidden.tp_forward == max(plain.tp_forward / 4, plain.tp_forward - plain.forward)
    assert 0.0 < hidden.tp_forward < plain.tp_forward


def test_fp8_is_faster_but_for_attention_and_casts(graph):
    plain, fast = (layer(graph, 1, Extras(fp8=fp8)) for fp8 in (False, True))
    assert plain.forward / 2 < fast.forward < plain.forward
    h100 = load_cluster("8xh100").accelerator
    device = fp8_accelerator(h100)
    assert device.peak("bfloat16") == h100.peak("float8_e4m3fn")
    attention = [d.attention_efficiency * d.peak("bfloat16") for d in (h100, device)]
    assert attention[0] == pytest.approx(attention[1])
    with pytest.raises(Skip, match="no fp8 rate"):
        fp8_accelerator(load_cluster("8xa100").accelerator)


def pipelined(graph, cluster, cut, microbatches, recompute=Recompute.NONE):
    configuration = Configuration(
        mesh=Mesh(pp=len(cut.ranges), dp_replicate=1, dp_shard=1, tp=1), micro_batch_size=1,
        microbatches=microbatches, zero=0, schedule="1f1b", sync=GradientSync(),
    )  # fmt: skip
    point = megatron_point(graph, 1, cluster, sequence=False, recompute=recompute)
    appraisal = Appraisal(
        graph, configuration, point, cluster, update=UPDATE_RULES["adamw"], cut=cut
    )
    return appraisal.found(memory_limit=2**60)


def test_chunks_divide_the_bubble(graph):
    """Narayanan et al. 2021: (p - 1) / v microbatches of a rank, not p - 1."""
    cluster, ranks, microbatches = load_cluster("4xh100"), 4, 32
    cut = StageCut.given(((0, 3), (3, 5), (5, 7), (7, 10)))
    priced = pipelined(graph, cluster, cut, microbatches)
    # Equal ranks and no messages: embedding and head are not in the closed form.
    even = tuple(replace(stage, time=priced.stages[1].time) for stage in priced.stages)
    priced = replace(priced, stages=even, optimizer=0.0)
    silent = replace(cluster, intra=replace(cluster.intra, bandwidth=1e30, latency=0.0))
    seconds = interleaved_time(graph, priced, silent, cut, 2)
    time = even[0].time
    work = time.forward + time.backward
    ends = time.tail_dp + time.tail_tp
    assert seconds == pytest.approx(work * (microbatches + (ranks - 1) / 2) + ends, rel=1e-6)


def test_two_ranks_have_chunks_too(graph):
    cluster, microbatches = load_cluster("2xh100"), 8
    cut = StageCut.given(((0, 5), (5, 10)))
    priced = pipelined(graph, cluster, cut, microbatches)
    layers = min(stage.time.forward + stage.time.backward for stage in priced.stages)
    busiest = max(stage.time.forward + stage.time.backward for stage in priced.stages)
    seconds = [interleaved_time(graph, priced, cluster, cut, chunks) for chunks in (1, 4)]
    # The bubble of one rank is less than a stage, and chunks make it shorter.
    assert microbatches * busiest < seconds[1] < seconds[0] - layers / 4


def test_rows_of_experts_are_gathered_and_exchanged(experts):
    """Of each token ``top_k`` rows: gathered over tp, summed over tp, and sent over ep twice."""
    cluster = load_cluster("2x8xh100")
    block = max(experts.classes, key=lambda block: len(block.ops))
    group = tp_group(4, cluster)
    chosen = megatron_strategies(block, group, cluster, Shard(1))
    calls = collectives(block, chosen, (Shard(1),), (Shard(1),), group, cluster)
    rows = 2 * 2048 * 1024 * 2  # of a token, tokens, channels, bytes
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        sizes = [call.payload for call in calls if call.kind is kind and not call.backward]
        assert sizes == [rows // 2, rows]  # attention's, then the experts'
    plain, spread_out = (layer(experts, 4, Extras(experts=ranks), "2x8xh100") for ranks in (1, 4))
    ring = spread(4, 4, cluster.sizes, world=16)
    sent = collective_time(CollectiveKind.ALL_TO_ALL, rows // 4 * 4, ring, cluster)
    assert sent > 0
    assert spread_out.tp_forward - plain.tp_forward == pytest.approx(2 * sent)
    assert spread_out.tp_backward - plain.tp_backward == pytest.approx(2 * sent)


def test_user_buffers_do_not_hide_what_is_around_experts(experts):
    cluster = load_cluster("8xh100")
    group = tp_group(4, cluster)
    hidden = layer(experts, 4, Extras(hides_tp=True))
    around = sum(
        collective_time(kind, 2 * 2048 * 1024 * 2, group, cluster)
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    )
    plain = layer(experts, 4, Extras())
    assert hidden.tp_forward == pytest.approx(around + (plain.tp_forward - around) / 4)


def test_selected_products_run_again(graph):
    """Half of the last product alone, and every second layer of full recompute."""
    plain, again = (
        layer(graph, 1, Extras(products_again=parts)) for parts in ((), (0.0, 0.0, 0.0, 0.5))
    )
    cluster = load_cluster("8xh100")
    block = max(graph.classes, key=lambda block: len(block.ops))
    down = [op for op in block.ops if op.target.startswith("aten.linear.")][-1]
    group = tp_group(1, cluster)
    chosen = megatron_strategies(block, group, cluster, Shard(1))
    forward = op_term(down, block, chosen[down.name], group, cluster).forward
    assert again.backward - plain.backward == pytest.approx(forward / 2)
    assert again.forward == plain.forward
    whole, half = (
        layer(graph, 1, Extras(layers_again=True, part_again=part)) for part in (1.0, 0.5)
    )
    assert whole.backward - half.backward == pytest.approx(plain.forward / 2)


def test_recompute_of_layouts_given_by_hand_is_priced(graph):
    """Such points have costs alone: no solutions of blocks."""
    cut = StageCut.given(((0, 5), (5, 10)))
    none, selective, full = (
        pipelined(graph, load_cluster("2xh100"), cut, 8, recompute) for recompute in Recompute
    )
    assert none.step_time < selective.step_time < full.step_time
    assert none.peak_memory > selective.peak_memory > full.peak_memory
