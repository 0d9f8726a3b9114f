"""The command on a made-up file, its reasons for leaving rows out, and Megatron's layout."""

import json
import math
from dataclasses import replace

import pytest
from published_rows import DECODER, write

from autoplan.capture import capture, load_model
from autoplan.costs.block import HostCalls, collectives
from autoplan.errors import InputError
from autoplan.ir.placement import CollectiveKind, Replicate, Shard
from autoplan.profiles import load_cluster
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.layout import megatron_point, megatron_strategies, tp_group
from benchmarks.accuracy.rows import Skip, read_rows
from benchmarks.accuracy.systems import run_of


def reasons(tmp_path, *changes):
    return [str(row) for _, row in read_rows(write(tmp_path / "vtrain.csv", *changes))]


def test_command_prices_and_counts(tmp_path, capsys):
    write(tmp_path / "vtrain.csv", {}, {"tp": "4", "pp": "1"}, {"notes": "OOM in source"})
    (tmp_path / "hardware.csv").write_text("gpu,vendor\n", encoding="utf-8")
    assert main(["published", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "vtrain: 2 rows usable" in text
    assert "marked OOM" in text
    assert "made-0" in text
    output = tmp_path / "rows.json"
    assert main(["published", str(tmp_path), "--json", str(output)]) == 0
    (file,) = json.loads(output.read_text())["files"]
    assert file["usable"] == 2
    assert file["skipped"] == {"marked OOM": 1}
    assert all(0 < row["predicted_step_time"] < math.inf for row in file["rows"])


def test_an_empty_folder_says_so(tmp_path, capsys):
    assert main(["published", str(tmp_path)]) == 6
    assert "no .csv file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"notes": "TRAP: unit"}, "marked TRAP"),
        ({"n_heads": ""}, "heads not stated"),
    ],
)
def test_rows_left_out_by_reading(tmp_path, change, reason):
    assert reasons(tmp_path, change) == [reason]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "TPU"}, "no accelerator TPU"),
        ({"dp": "3"}, "ranks are not dp x tp x pp"),
        ({"global_batch": "17"}, "global batch does not divide"),
        ({"recompute": "", "n_gpus": "64", "dp": "16", "global_batch": "64"}, "not stated"),
        ({"n_layers": "5"}, "stages are uneven"),
        ({"micro_batch": ""}, "microbatch"),
        ({"cp": "2"}, "context parallelism"),
        ({"ep": "8"}, "expert parallelism"),
        ({"n_experts": "8"}, "experts"),
        ({"vpp": "2"}, "virtual stages"),
        ({"precision": "fp8"}, "precision fp8"),
    ],
)
def test_rows_left_out_by_system(tmp_path, change, reason):
    ((_, row),) = read_rows(write(tmp_path / "vtrain.csv", change))
    with pytest.raises(Skip, match=reason):
        run_of(row)


@pytest.mark.parametrize("text", ["id\nx\n", "id,model\n\xff"])
def test_a_file_of_another_kind_is_an_error(tmp_path, text):
    path = tmp_path / "vtrain.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError):
        list(read_rows(path))


def test_a_number_that_is_none_names_the_line(tmp_path):
    with pytest.raises(InputError, match=r"vtrain.csv:3: tp is 'two'"):
        list(read_rows(write(tmp_path / "vtrain.csv", {}, {"tp": "two"})))


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("NVSwitch; 800 Gb/s per 8-GPU node", 800e9 / 64 * 0.97),
        ("4x100Gb/s Omni-Path per node", 400e9 / 64 * 0.405),
        ("1600Gb/s RoCE per node", 1600e9 / 64 * 0.75),
        ("NVLink4 8-GPU + 400Gb/s per GPU", 400e9 / 8 * 0.97),
    ],
)
def test_network_as_stated(tmp_path, text, rate):
    change = {"interconnect": text, "n_gpus": "16", "gpus_per_node": "8", "dp": "4"}
    ((_, row),) = read_rows(write(tmp_path / "vtrain.csv", change))
    assert run_of(row).cluster.inter.bandwidth == pytest.approx(rate)


def test_stages_of_a_pinned_run_are_even(tmp_path):
    ((_, row),) = read_rows(write(tmp_path / "vtrain.csv", {}))
    run = run_of(row)
    assert run.cut.ranges == ((0, 3), (3, 6))  # embedding, 2 layers; 2 layers, head
    # DeepSpeed counts embedding and head as layers where layers alone don't divide.
    assert run_of(replace(row, pp=4, tp=1, layers=6)).cut.ranges == ((0, 2), (2, 4), (4, 6), (6, 8))


@pytest.fixture(scope="module")
def layer():
    sizes = {"hidden": 256, "layers": 4, "heads": 8, "ffn": 1024, "vocab": 512, "positions": 64}
    graph = capture(load_model(str(DECODER), overrides=sizes), seq_len=64, dtype="float16").at(2)
    return max(graph.classes, key=lambda block: len(block.ops))


@pytest.mark.parametrize(
    ("boundary", "forward", "backward"),
    [
        (Replicate(), {CollectiveKind.ALL_REDUCE: 2}, {CollectiveKind.ALL_REDUCE: 2}),
        (
            Shard(1),
            {CollectiveKind.ALL_GATHER: 2, CollectiveKind.REDUCE_SCATTER: 2},
            {CollectiveKind.ALL_GATHER: 2, CollectiveKind.REDUCE_SCATTER: 2},
        ),
    ],
)
def test_megatron_layer_has_its_collectives(layer, boundary, forward, backward):
    """Two all_reduces each way (arXiv 1909.08053); gathers and scatters with sequence sharding."""
    cluster = load_cluster("8xa100")
    group = tp_group(4, cluster)
    chosen = megatron_strategies(layer, group, cluster, boundary)
    calls = collectives(layer, chosen, (boundary,), (boundary,), group, cluster)
    for wanted, is_backward in ((forward, False), (backward, True)):
        kinds = [call.kind for call in calls if call.backward is is_backward]
        assert {kind: kinds.count(kind) for kind in kinds} == wanted


def test_functions_around_collectives_take_the_host_in_both_passes():
    source = load_model(f"{DECODER}", overrides={"vocab": 64, "hidden": 64, "layers": 1, "heads": 4,
                                            "ffn": 128, "positions": 16})  # fmt: skip
    graph = capture(source, seq_len=16, dtype="float16").at(1)
    cluster = load_cluster("1x2xa100")
    slow = replace(cluster, accelerator=replace(cluster.accelerator, dispatch_latency=1.0))
    plain, called = (
        megatron_point(graph, 2, slow, sequence=False, calls=calls).costs[1]
        for calls in (HostCalls(), HostCalls(functions=1))
    )
    # Two sums after rows and two before columns.
    assert called.forward == pytest.approx(plain.forward + 4)
    assert called.backward == pytest.approx(plain.backward + 4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "Deepseek V3"}, "latent attention"),
        ({"expert_ffn": ""}, "size not stated"),
        ({"etp": "1"}, "fewer tp ranks"),
        ({"ep": "3"}, "do not divide"),
    ],
)
def test_experts_that_are_left_out(tmp_path, change, reason):
    common = {"n_experts": "8", "top_k": "2", "expert_ffn": "512", "ep": "2", "dp": "2",
              "n_gpus": "8", "sp": "yes", "gpu": "H100-80GB-SXM", "recompute": "none",
              "precision": "BF16", "seq_len": "2048"}  # fmt: skip
    ((_, row),) = read_rows(write(tmp_path / "dgxc_benchmarking.csv", common))
    run = run_of(row)
    assert run.kernels["experts"] == 4  # of a rank
    assert run.extras.experts == 2
    ((_, row),) = read_rows(write(tmp_path / "dgxc_benchmarking.csv", common | change))
    with pytest.raises(Skip, match=reason):
        run_of(row)


def test_every_second_product_of_torchtitan_runs_again(tmp_path):
    common = {"pp": "1", "tp": "1", "n_gpus": "8", "dp": "8", "n_kv_heads": "2"}
    path = tmp_path / "torchtitan.csv"
    ((_, row),) = read_rows(write(path, common | {"recompute": "selective-op (SAC)"}))
    assert run_of(row).extras.products_again == (2 / 12, 1.0, 0.5, 0.0)
    second = "selective-layer (every 2nd)"
    ((_, row),) = read_rows(write(path, common | {"recompute": second}))
    assert run_of(row).extras.part_again == 0.5
