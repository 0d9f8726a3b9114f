"""Emitted programs on gloo ranks: loss, every gradient, and the collectives they issue."""

import os
from collections import Counter
from pathlib import Path

import pytest

from autoplan.capture import capture, load_model
from autoplan.costs.block import collectives
from autoplan.emit import emit_program
from autoplan.errors import VerificationError
from autoplan.ir.mesh import Group, Mesh
from autoplan.ir.placement import Shard, parse_placement
from autoplan.ir.recompute import Recompute
from autoplan.ir.record import graph_from_record, strategies_from_record
from autoplan.profiles import load_cluster
from autoplan.schedules import stages_of
from autoplan.verify import verify
from autoplan.verify.compare import compare
from autoplan.verify.launch import run_programs
from autoplan.verify.reference import write_reference
from tests.plans import Setup, make_plan

pytestmark = pytest.mark.dist

SEQ_LEN = 16
MICRO_BATCH_SIZE = 2
TIED = f"{Path(__file__).parent / 'tied_model.py'}:build"

MIXED = "none", "full", "selective"  # of blocks in turn
TWO_RANKS = {
    "ddp": Setup(mesh=Mesh(dp_replicate=2), microbatches=2),
    "zero1": Setup(mesh=Mesh(dp_shard=2), zero=1, microbatches=2),
    "zero2": Setup(mesh=Mesh(dp_shard=2), zero=2, microbatches=2),
    "zero3": Setup(mesh=Mesh(dp_shard=2), zero=3, microbatches=2),
    "tp": Setup(mesh=Mesh(tp=2), microbatches=2),
    "tp_sequence": Setup(mesh=Mesh(tp=2), boundary=Shard(1)),
    "tp_recompute": Setup(mesh=Mesh(tp=2), recompute="full"),
    "tp_selective": Setup(mesh=Mesh(tp=2), recompute="selective", microbatches=2),
    "tp_sequence_selective": Setup(mesh=Mesh(tp=2), recompute="selective", boundary=Shard(1)),
    "zero3_selective": Setup(mesh=Mesh(dp_shard=2), zero=3, recompute="selective", microbatches=2),
    "1f1b_selective": Setup(
        mesh=Mesh(pp=2), schedule="1f1b", microbatches=4, recompute="selective"
    ),
    "mixed": Setup(mesh=Mesh(dp_shard=2), zero=3, microbatches=2, recompute=MIXED),
    "tp_mixed": Setup(mesh=Mesh(tp=2), microbatches=2, recompute=MIXED, boundary=Shard(1)),
    "1f1b_mixed": Setup(mesh=Mesh(pp=2), schedule="1f1b", microbatches=4, recompute=MIXED),
    "tp_random_1": Setup(mesh=Mesh(tp=2), seed=1),
    "tp_random_2": Setup(mesh=Mesh(tp=2), seed=2, boundary=Shard(2)),
    "tp_random_3": Setup(mesh=Mesh(tp=2), seed=3, boundary=Shard(0)),
    "gpipe": Setup(mesh=Mesh(pp=2), schedule="gpipe", microbatches=4),
    "1f1b": Setup(mesh=Mesh(pp=2), schedule="1f1b", microbatches=4),
    "1f1b_recompute": Setup(mesh=Mesh(pp=2), schedule="1f1b", microbatches=4, recompute="full"),
    "interleaved": Setup(
        mesh=Mesh(pp=2), schedule="interleaved1f1b", virtual_stages=2, microbatches=4
    ),
    "interleaved_mixed": Setup(
        mesh=Mesh(pp=2),
        schedule="interleaved1f1b",
        virtual_stages=2,
        microbatches=4,
        recompute=MIXED,
    ),
    "looped": Setup(mesh=Mesh(pp=2), schedule="loopedbfs", virtual_stages=2, microbatches=3),
    "zero_bubble": Setup(mesh=Mesh(pp=2), schedule="interleavedzerobubble", microbatches=4),
    "zero_bubble_loops": Setup(
        mesh=Mesh(pp=2), schedule="interleavedzerobubble", virtual_stages=2, microbatches=4
    ),
    "zero_bubble_v": Setup(
        mesh=Mesh(pp=2), schedule="zbvzerobubble", virtual_stages=2, microbatches=4
    ),
    "dual_pipe_v": Setup(mesh=Mesh(pp=2), schedule="dualpipev", virtual_stages=2, microbatches=6),
}
FOUR_RANKS = {
    "tp_pp": Setup(mesh=Mesh(pp=2, tp=2), schedule="1f1b", microbatches=4, boundary=Shard(1)),
    "tp_pp_mixed": Setup(
        mesh=Mesh(pp=2, tp=2), schedule="1f1b", microbatches=4, seed=5, recompute=MIXED
    ),
    "tp_pp_random": Setup(mesh=Mesh(pp=2, tp=2), schedule="gpipe", microbatches=2, seed=4),
    "dp_tp": Setup(mesh=Mesh(dp_replicate=2, tp=2)),
    "fsdp_tp": Setup(mesh=Mesh(dp_shard=2, tp=2), zero=3, recompute="full", boundary=Shard(1)),
    "fsdp_tp_selective": Setup(
        mesh=Mesh(dp_shard=2, tp=2), zero=3, recompute="selective", boundary=Shard(1)
    ),
    "hsdp": Setup(mesh=Mesh(dp_replicate=2, dp_shard=2), zero=2),
    "dp_interleaved": Setup(
        mesh=Mesh(dp_replicate=2, pp=2),
        schedule="interleaved1f1b",
        virtual_stages=2,
        microbatches=4,
    ),
    "zero1_zero_bubble_v": Setup(
        mesh=Mesh(dp_shard=2, pp=2),
        zero=1,
        schedule="zbvzerobubble",
        virtual_stages=2,
        microbatches=4,
    ),
    "tp_dual_pipe_v": Setup(
        mesh=Mesh(pp=2, tp=2),
        schedule="dualpipev",
        virtual_stages=2,
        microbatches=4,
        boundary=Shard(1),
    ),
    "fsdp_pp": Setup(mesh=Mesh(dp_shard=2, pp=2), zero=2, schedule="gpipe", microbatches=2),
}


@pytest.fixture(scope="module", params=["gpt2", "llama3-8b", "nanogpt", "file"])
def captured(request):
    name = request.param
    source = load_model(TIED) if name == "file" else load_model(name).reduced(layers=2, tp=2)
    assert source is not None
    found = capture(source, seq_len=SEQ_LEN, dtype="float32")
    return source, found.at(MICRO_BATCH_SIZE), found.record()


def charged(plan, rank: int, *, again: bool) -> Counter:
    """Collectives of the model axis in a step of a pipeline rank, as the cost model counts them.

    ``again``: with those that recomputation repeats.
    """
    ranks = plan.mesh.tp
    chosen = strategies_from_record(plan.graph)
    count = Counter()
    graph = graph_from_record(plan.graph)
    name = plan.pipeline.schedule
    held = (0,) if name == "none" else stages_of(name, rank, plan.mesh.pp, plan.virtual_stages)
    cuts = [plan.pipeline.stages[stage] for stage in held]
    for instance in (i for cut in cuts for i in graph.instances[cut.first : cut.last]):
        record = plan.graph.classes[instance.block_class]
        for call in collectives(
            graph.block_class(instance),
            chosen[instance.block_class],
            tuple(map(parse_placement, record.boundary_in)),
            tuple(map(parse_placement, record.boundary_out)),
            Group(ranks, ranks),
            load_cluster("cpu:2"),
        ):
            repeats = again and call.repeats(Recompute(record.recompute))
            times = plan.pipeline.microbatches * (2 if repeats else 1)
            count[call.kind.value, call.payload] += times
    return count


@pytest.mark.parametrize("setups", [TWO_RANKS, FOUR_RANKS], ids=["2_ranks", "4_ranks"])
def test_programs_equal_the_unsharded_model(captured, setups, tmp_path: Path):
    source, graph, record = captured
    plans, programs, losses = [], [], {}
    for name, setup in setups.items():
        plan = make_plan(graph, record, setup, seq_len=SEQ_LEN)
        samples = setup.samples(MICRO_BATCH_SIZE)
        reference = tmp_path / f"{samples}.pt"
        if samples not in losses:
            losses[samples] = write_reference(source, plan, reference)
        emit_program(plan, tmp_path / name)
        plans.append(plan)
        programs.append((tmp_path / name, reference))
    ranks = next(iter(setups.values())).mesh.ranks
    findings = run_programs(programs, ranks=ranks, work=tmp_path / "work", timeout=400)
    trainable = sum(p.trainable for p in graph.parameters)
    wrong = []
    for (name, setup), plan, found in zip(setups.items(), plans, findings, strict=True):
        try:
            report = compare(plan, found, losses[setup.samples(MICRO_BATCH_SIZE)])
            assert report.compared == trainable
        except VerificationError as error:
            wrong.append(f"{name}: {error}")
        for finding in found:
            place = finding.rank // (ranks // plan.mesh.pp)
            least = charged(plan, place, again=False)
            most = charged(plan, place, again=True)
            got = Counter(finding.collectives)
            # Recomputation stops at the last tensor that is needed, so a block's last
            # collectives may not be repeated.
            if not least <= got <= most:
                wrong.append(f"{name}: issued {got}, charged {least} to {most}")
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def tied_program(tmp_path_factory):
    """Folder of a sound tp 2 program of the user's file."""
    found = capture(load_model(TIED), seq_len=SEQ_LEN, dtype="float32")
    setup = Setup(mesh=Mesh(tp=2), boundary=Shard(1))
    plan = make_plan(found.at(MICRO_BATCH_SIZE), found.record(), setup, seq_len=SEQ_LEN)
    folder = tmp_path_factory.mktemp("programs") / "tied"
    emit_program(plan, folder)
    return folder


def test_verify_finds_a_missing_gradient_sum(tied_program):
    """The mutant forgets the sum of gradients that are partial."""
    path = tied_program / "model.py"
    sound = path.read_text()
    assert "partial_grad=True" in sound
    path.write_text(sound.replace("partial_grad=True", "partial_grad=False"))
    try:
        with pytest.raises(VerificationError, match=r"gradient of \S+ differs") as caught:
            verify(tied_program, timeout=200)
    finally:
        path.write_text(sound)
    assert caught.value.exit_code == 8


def test_verify_shows_the_error_of_a_rank_in_one_line(tied_program):
    path = tied_program / "model.py"
    sound = path.read_text()
    path.write_text(sound.replace("aten.layer_norm.", "aten.layer_normal."))
    try:
        with pytest.raises(VerificationError, match="has no attribute 'layer_normal'") as caught:
            verify(tied_program, timeout=200)
    finally:
        path.write_text(sound)
    assert "\n" not in str(caught.value)


def test_verify_at_reduced_size_says_so(tied_program):
    report = verify(tied_program, reduced=True, timeout=200)
    assert report.ranks == 2
    assert "reduced" in str(report)


def test_verify_ends_ranks_that_hang(tied_program):
    path = tied_program / "model.py"
    sound = path.read_text()
    mark = tied_program / "pids"
    mark.mkdir()
    hang = f"""
import os, time
(Path({str(mark)!r}) / str(os.getpid())).touch()
time.sleep(600)
"""
    path.write_text(sound + hang)
    try:
        with pytest.raises(VerificationError, match="did not finish a step on 2 ranks within"):
            verify(tied_program, timeout=25)
    finally:
        path.write_text(sound)
    pids = [int(file.name) for file in mark.iterdir()]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
