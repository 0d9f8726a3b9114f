"""Measured profiles: loading, use, refusal of damaged or foreign ones."""

import json
import subprocess
import sys

import pytest

from autoplan.costs.collectives import collective_time
from autoplan.errors import AutoplanError, InputError, UsageError
from autoplan.ir.hardware import Provenance
from autoplan.ir.mesh import Group
from autoplan.ir.placement import CollectiveKind
from autoplan.profiles import MeasuredProfile, load_cluster, load_profile


def document():
    return {
        "schema_version": 2,
        "device": "cpu",
        "device_name": "Test CPU",
        "cores": 4,
        "ranks": 2,
        "threads_per_rank": 2,
        "torch": "2.13.0",
        "date": "2026-01-01",
        "memory": "16 GiB",
        "kernel_latency": "4 us",
        "matmul": [
            {"dtype": "float32", "shape": [64, 64, 64], "time": "24 us"},
            {"dtype": "float32", "shape": [1024, 1024, 1024], "time": "30 ms"},
            {"dtype": "bfloat16", "shape": [1024, 1024, 1024], "time": "10 ms"},
        ],
        "copies": [
            {"moved": "1 MiB", "time": "54 us"},
            {"moved": "64 MiB", "time": "8 ms"},
        ],
        "attention": {"dtype": "float32", "flop": 800_000_000, "time": "20.004 ms"},
        "collectives": [
            {"kind": "all_reduce", "ranks": 2, "payload": "4 KiB", "time": "200 us"},
            {"kind": "all_reduce", "ranks": 2, "payload": "1 MiB", "time": "180 us"},
            {"kind": "all_reduce", "ranks": 2, "payload": "64 MiB", "time": "100 ms"},
        ],
    }


def write(tmp_path, data):
    path = tmp_path / "profile.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_numbers_of_the_profile_replace_the_catalogue(tmp_path):
    cluster = load_cluster("cpu:2", profile=write(tmp_path, document()))
    device = cluster.accelerator
    assert device.memory == 8 * 2**30
    assert device.kernel_latency == pytest.approx(4e-6)
    assert device.peak("float32") == pytest.approx(2 * 1024**3 / 30e-3)
    assert device.peak("bfloat16") == pytest.approx(2 * 1024**3 / 10e-3)
    # A measured matmul is predicted back: latency + flop / (peak x efficiency).
    flop = 2 * 64**3
    seconds = flop / (device.peak("float32") * device.matmul_efficiency(flop))
    assert seconds + device.kernel_latency == pytest.approx(24e-6)
    size = 64 * 2**20
    seconds = size / (device.memory_bandwidth * device.memory_efficiency(size))
    assert seconds + device.kernel_latency == pytest.approx(8e-3)
    # 0.8 GFLOP in 20 ms, against the peak
    assert device.attention_efficiency == pytest.approx(800e6 / 20e-3 / device.peak("float32"))
    origin = {s.field: s.provenance for s in device.sources}
    assert origin["memory_bandwidth"] is Provenance.MEASURED
    assert origin["reserved"] is Provenance.DEFAULT


def test_measured_collectives_win_and_never_fall(tmp_path):
    cluster = load_cluster("cpu:2", profile=write(tmp_path, document()))
    group, kind = Group(2, 2), CollectiveKind.ALL_REDUCE
    assert collective_time(kind, 64 * 2**20, group, cluster) == pytest.approx(0.1)
    small, middle = (collective_time(kind, s, group, cluster) for s in (4096, 2**20))
    assert small <= middle == pytest.approx(180e-6)  # noise of the smaller one is taken out
    assert collective_time(kind, 2**30, group, cluster) > 0.1
    # A kind that was not measured uses the fit of the all_reduce.
    gathered = collective_time(CollectiveKind.ALL_GATHER, 64 * 2**20, group, cluster)
    assert gathered == pytest.approx(0.05, rel=0.01)


def test_round_trip(tmp_path):
    profile = load_profile(write(tmp_path, document()))
    again = MeasuredProfile.model_validate_json(profile.model_dump_json())
    assert again == profile


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("kernel_latency",), 4e-6, "kernel_latency: .*text with its unit"),
        (("matmul", 1, "time"), "30 parsecs", r"matmul\.1\.time"),
        (("matmul", 1, "time"), "1e999 s", r"matmul\.1\.time"),
        (("memory",), "1e999 B", "memory: .*too large"),
        (("matmul", 1, "time"), "0 s", r"matmul\.1\.time"),
        (("matmul", 0, "shape"), [64, 64], r"matmul\.0\.shape"),
        (("copies",), [], "copies"),
        (("collectives", 0, "kind"), "telepathy", r"collectives\.0\.kind"),
        (("collectives",), [], "no all_reduce"),
        (("schema_version",), 7, "schema_version"),
        (("ranks",), "two", "ranks"),
    ],
)
def test_edited_profile_is_refused_with_the_field(tmp_path, path, value, words):
    data = document()
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InputError, match=words) as caught:
        load_profile(write(tmp_path, data))
    assert "profile.json" in str(caught.value)
    assert "autoplan profile" in caught.value.hint


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("matmul", 1, "time"), "30 s", r"matmul\.1\.time: 30 s does not go with .* matmul\.0"),
        (("matmul", 0, "time"), "24 s", r"matmul\.0\.time: 24 s does not go with .* wrong unit"),
        (("copies", 1, "time"), "8 s", r"copies\.1\.time"),
        (("collectives", 0, "time"), "200 ms", r"collectives\.0\.time"),
        (("matmul", 1, "time"), "30 GB", r"matmul\.1\.time"),
        (("memory",), "16 ms", "memory"),
    ],
)
def test_a_wrong_unit_is_found(tmp_path, path, value, words):
    test_edited_profile_is_refused_with_the_field(tmp_path, path, value, words)


def test_a_noisy_timing_is_not_taken_for_a_wrong_unit(tmp_path):
    data = document()
    data["matmul"][0] |= {"time": "24 s", "spread": 40.0}
    cluster = load_cluster("cpu:2", profile=write(tmp_path, data))
    (note,) = [note for note in cluster.notes if "are noisy" in note]
    assert "1 of 9 timings are noisy, most matmul float32 64x64x64: 4000%" in note


def test_a_profile_of_the_first_version_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match="reads version 2") as caught:
        load_profile(write(tmp_path, document() | {"schema_version": 1}))
    assert "measure again" in caught.value.hint


def test_holes_are_defaults_by_name(tmp_path):
    cluster = load_cluster("cpu:2", profile=write(tmp_path, document()))
    origin = {s.field: s.provenance for s in cluster.intra.sources}
    assert origin["all_reduce on 2 ranks"] is Provenance.MEASURED
    for kind in ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"):
        assert origin[f"{kind} on 2 ranks"] is Provenance.DEFAULT
    assert any("no overlap" in note for note in cluster.notes)
    device = {s.field: s.provenance for s in cluster.accelerator.sources}
    assert device["compute_slow_down"] is Provenance.DEFAULT


def test_overlap_is_used_and_never_below_one(tmp_path):
    overlap = {
        "compute_alone": "1 ms",
        "compute_beside": "1.2 ms",
        "network_alone": "2 ms",
        "network_beside": "1.9 ms",
    }
    cluster = load_cluster("cpu:2", profile=write(tmp_path, document() | {"overlap": overlap}))
    slow_down = cluster.accelerator.slow_down
    assert (slow_down.compute, slow_down.network) == pytest.approx((1.2, 1.0))
    device = {s.field: s.provenance for s in cluster.accelerator.sources}
    assert device["network_slow_down"] is Provenance.MEASURED
    assert not any("no overlap" in note for note in cluster.notes)


def test_doubts_become_notes(tmp_path):
    data = document() | {"torch": "1.0.0"}
    data["collectives"][1]["pace"] = 1.8
    notes = load_cluster("4xcpu:2", profile=write(tmp_path, data)).notes
    assert any("profile.json: measured with torch 1.0.0, here is" in note for note in notes)
    assert any("slow spell" in n and "1.80 times its best" in n for n in notes)
    assert any("ranks were on one host" in note for note in notes)


def test_truncated_profile_is_refused(tmp_path):
    text = json.dumps(document(), indent=1)
    for damaged in (text[: len(text) // 2], "", "[" * 100_000):
        with pytest.raises(InputError, match="not valid JSON"):
            load_profile(write(tmp_path, damaged))


def test_foreign_profile_is_refused(tmp_path):
    path = write(tmp_path, document())
    with pytest.raises(InputError, match=r"profile is of cpu .* has H100-80GB-SXM"):
        load_cluster("8xh100", profile=path)
    with pytest.raises(InputError, match="measured with 2 ranks"):
        load_cluster("cpu:4", profile=path)


def test_loading_needs_no_torch():
    code = "import sys, autoplan.profiles, autoplan.costs.block; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.dist
def test_measuring_two_ranks(tmp_path):
    from autoplan.profiles.measure import measure_machine, this_machine, write_profile

    said = []
    profile = measure_machine(this_machine(2), said.append, tiny=True)
    path = tmp_path / "deep" / "profile.json"
    write_profile(profile, path)
    assert [p.name for p in path.parent.iterdir()] == ["profile.json"]
    cluster = load_cluster("cpu:2", profile=path)
    kinds = {curve.kind for curve in cluster.intra.measured}
    assert kinds == {kind.value for kind in CollectiveKind}
    assert profile.hosts == 1 and {t.level for t in profile.collectives} == {"node"}
    assert {(fit.kind, fit.ranks) for fit in profile.fits} == {(k.value, 2) for k in CollectiveKind}
    assert all(0 <= fit.rms_error <= fit.max_error for fit in profile.fits)
    assert profile.overlap is not None and profile.overlap.repeats > 0
    assert all(t.repeats >= 2 and t.pace >= 1.0 for t in profile.collectives)
    # Any computer of this century: between 10 MFLOP/s and 100 TFLOP/s a rank.
    assert 1e7 < cluster.accelerator.peak("float32") < 1e14
    assert 1e7 < cluster.accelerator.memory_bandwidth < 1e13
    assert any("all_reduce" in text for text in said)


@pytest.mark.dist
def test_measuring_one_rank_has_no_collectives():
    from autoplan.profiles.measure import measure_machine, this_machine

    profile = measure_machine(this_machine(1), tiny=True)
    assert profile.ranks == 1 and profile.collectives == ()


@pytest.mark.dist
def test_a_worker_that_fails_is_reported(monkeypatch):
    from autoplan.profiles.measure import measure_machine, this_machine

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    with pytest.raises(AutoplanError, match="measuring failed on rank"):
        measure_machine(this_machine(2), tiny=True)


def test_measuring_needs_a_sensible_count():
    from autoplan.profiles.measure import this_machine

    with pytest.raises(UsageError, match="0 ranks"):
        this_machine(0)
