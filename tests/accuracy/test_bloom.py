"""Rules of the BLOOM runs: what their source says, and pairs of plans in the wrong order."""

from dataclasses import replace

import pytest
from published_rows import DECODER, write

from autoplan.capture import capture, load_model
from autoplan.costs.collectives import collective_time
from autoplan.ir.mesh import MeshAxis
from autoplan.ir.placement import CollectiveKind
from autoplan.solver.between import send_times
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.layout import megatron_point
from benchmarks.accuracy.plans import discordant, noise_of
from benchmarks.accuracy.published import compare_files
from benchmarks.accuracy.rows import Skip, read_rows
from benchmarks.accuracy.systems import run_of

FP16 = {
    "vocab": "512",
    "interconnect": "4x100Gb/s Omni-Path per node",
    "zero_stage_or_fsdp": "zero1",
}


def run(tmp_path, **changes):
    ((_, row),) = read_rows(write(tmp_path / "bloom_prequel.csv", FP16 | changes))
    return run_of(row)


def test_large_runs_wait_for_each_launch(tmp_path):
    large = {"n_gpus": "320", "dp": "80", "global_batch": "160"}
    assert run(tmp_path, **large).calls.waits
    assert not run(tmp_path).calls.waits


def test_gradients_are_summed_in_float32_only_in_bf16(tmp_path):
    wide = {"precision": "bf16 (fp32 grad accumulation)"}
    sizes = [run(tmp_path, **change).configuration.sync.itemsize for change in ({}, wide)]
    assert sizes == [2, 4]


def test_stages_are_filled_as_deepspeed_fills_them(tmp_path):
    """The source: of 78 layers 11 stages have 7 and the last has 1."""
    changes = {"n_layers": "78", "pp": "12", "n_gpus": "24", "tp": "2"}
    ranges = run(tmp_path, **changes).cut.ranges
    layers = [last - first for first, last in ranges]
    assert layers == [1 + 7, *[7] * 10, 1 + 1]
    with pytest.raises(Skip, match="uneven"):  # 2 layers each would leave none for the last two
        run(tmp_path, n_layers="9", pp="6", n_gpus="12")


def test_a_scattered_message_is_sent_in_parts(tmp_path):
    priced = run(tmp_path, n_gpus="16", dp="4", tp="2", pp="2")
    assert priced.scattered
    cluster, configuration = priced.cluster, priced.configuration
    graph = capture(
        load_model(str(DECODER), overrides=priced.kernels), seq_len=128, dtype="float16"
    ).at(2)
    point = megatron_point(graph, 2, cluster, sequence=False)
    whole, parts = (
        send_times(graph, configuration, replace(point, scattered=scattered), cluster)[1]
        for scattered in (False, True)
    )
    size = 2 * 128 * 256 * 2  # batch, tokens, channels, bytes
    pair = configuration.mesh.group(MeshAxis.PP, cluster.sizes).pair()
    peers = configuration.mesh.group(MeshAxis.TP, cluster.sizes)
    assert whole == collective_time(CollectiveKind.P2P, size, pair, cluster)
    assert parts == collective_time(CollectiveKind.P2P, size / 2, pair, cluster) + collective_time(
        CollectiveKind.ALL_GATHER, size, peers, cluster
    )


def test_pairs_in_the_wrong_order_are_listed(tmp_path, capsys):
    """Four plans of one model; the second is said to be slower than the first by a tenth."""
    common = {**FP16, "n_gpus": "8", "tp": "1", "pp": "1", "dp": "8", "notes": "02-21"}
    batches = [("1", "8"), ("2", "16"), ("4", "32"), ("8", "64")]
    write(
        tmp_path / "bloom_prequel.csv",
        *(
            common | {"micro_batch": micro, "global_batch": batch, "step_time_s": seconds}
            for (micro, batch), seconds in zip(batches, ("0.8", "1.76", "2.4", "4.0"), strict=True)
        ),
        common | {"micro_batch": "1", "global_batch": "8", "step_time_s": "0.808"},
    )
    (result,) = compare_files(tmp_path)
    times = [row.priced.step_time / row.row.global_batch for row in result.compared]
    assert times[0] > times[1] > times[2] > times[3]  # a larger microbatch fills the device
    (pair,) = discordant(result.compared)
    assert [run.row.id for run in pair.fast.runs] == ["made-0", "made-4"]
    assert pair.measured == pytest.approx(0.11 / 0.1005 - 1)
    assert pair.predicted == pytest.approx(times[1] / times[0] - 1)
    assert pair.differs == "mb 1 : 2, batch 8 : 16"
    assert noise_of(result.compared) == pytest.approx(0.01 / 2**0.5, rel=0.01)
    assert main(["published", str(tmp_path), "--pairs"]) == 0
    text = capsys.readouterr().out
    assert "wrong order in GPT tiny, A100-80GB-SXM, period 1" in text
    assert "at best" in text
