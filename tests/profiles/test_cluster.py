"""Cluster texts and cluster files."""

import json

import pytest

from autoplan.errors import InputError, UsageError
from autoplan.ir.hardware import Provenance
from autoplan.profiles import cluster_record, load_cluster
from autoplan.units import GB, GiB


@pytest.mark.parametrize(
    ("spec", "nodes", "per_node", "name"),
    [
        ("h100", 1, 1, "H100-80GB-SXM"),
        ("8xh100", 1, 8, "H100-80GB-SXM"),
        ("8xH100-SXM", 1, 8, "H100-80GB-SXM"),
        ("16x8xh100", 16, 8, "H100-80GB-SXM"),
        ("2 x 4 x a100-40", 2, 4, "A100-40GB-SXM"),
        ("cpu:2", 1, 2, "cpu"),
        ("cpu", 1, 1, "cpu"),
        ("72xgb200", 1, 72, "GB200-186GB"),
        ("h100:8", 1, 8, "H100-80GB-SXM"),
    ],
)
def test_spec(spec, nodes, per_node, name):
    cluster = load_cluster(spec)
    assert (cluster.nodes, cluster.ranks_per_node) == (nodes, per_node)
    assert cluster.accelerator.name == name
    assert cluster.ranks == nodes * per_node


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("0xh100", "counts start at 1"),
        ("8x0xh100", "counts start at 1"),
        ("cpu:0", "counts start at 1"),
        ("8x8xh100:2", "twice"),
        ("", "is not a cluster"),
        ("8x", "is not a cluster"),
        ("-1xh100", "is not a cluster"),
        ("9xh100", "at most 8 H100"),
        ("8xh10", "no accelerator 'h10'"),
        ("999999x8xh100", "the limit is a million"),
    ],
)
def test_bad_spec(spec, words):
    with pytest.raises(UsageError, match=words):
        load_cluster(spec)


def test_too_many_ranks_a_node_shows_the_way():
    with pytest.raises(UsageError) as caught:
        load_cluster("16xh100")
    assert "2x8xh100" in caught.value.hint


def write(tmp_path, **fields):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"schema_version": 1, "accelerator": "h100", **fields}))
    return str(path)


def test_cluster_file(tmp_path):
    spec = write(
        tmp_path,
        nodes=2,
        ranks_per_node=4,
        memory="94 GiB",
        intra={"bandwidth": "200 GB/s"},
        inter={"name": "infiniband-hdr", "latency": "7 us"},
        source="our lab",
    )
    cluster = load_cluster(spec)
    assert (cluster.nodes, cluster.ranks_per_node) == (2, 4)
    assert cluster.accelerator.memory == 94 * GiB
    assert cluster.intra.bandwidth == 200 * GB
    assert cluster.inter.name == "infiniband-hdr"
    assert cluster.inter.latency == pytest.approx(7e-6)
    origin = {s.field: s for s in cluster.accelerator.sources}
    assert "our lab" in origin["memory"].source
    assert "our lab" not in origin["memory_bandwidth"].source


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ranks_per_node": 0}, "ranks_per_node"),
        ({"ranks_per_node": 4, "memory": "80"}, "memory: .*a number and one of"),
        ({"ranks_per_node": 4, "memory": 80}, "memory: .*text with its unit"),
        ({"ranks_per_node": 4, "memory": "1 GiB"}, "memory: .*leave nothing"),
        ({"ranks_per_node": 4, "colour": "red"}, "colour"),
        ({"ranks_per_node": 4, "accelerator": "h9000"}, "no accelerator 'h9000'"),
        ({"ranks_per_node": 4, "inter": {"name": "tin cans"}}, "no network 'tin cans'"),
        ({"ranks_per_node": 4, "inter": {"latency": "7 weeks"}}, "inter.latency"),
        ({"ranks_per_node": 4, "schema_version": 2}, "schema_version"),
        ({}, "ranks_per_node"),
    ],
)
def test_bad_cluster_file(tmp_path, fields, words):
    with pytest.raises(InputError, match=words) as caught:
        load_cluster(write(tmp_path, **fields))
    assert "cluster.json" in str(caught.value)


def test_unreadable_cluster_file(tmp_path):
    with pytest.raises(InputError, match="can't read"):
        load_cluster(str(tmp_path / "none.json"))
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema_version": 1,\n "accel')
    with pytest.raises(InputError, match=r"broken\.json:2.*not valid JSON"):
        load_cluster(str(broken))
    broken.write_text("[1]")
    with pytest.raises(InputError, match="top level"):
        load_cluster(str(broken))


def test_record_has_every_source_and_stable_digests():
    one, again, more = (
        cluster_record(load_cluster(spec)) for spec in ("8xh100", "8xH100", "2x8xh100")
    )
    assert one.digest == again.digest != more.digest
    assert one.profile_digest == more.profile_digest
    assert cluster_record(load_cluster("8xh200")).profile_digest != one.profile_digest
    fields = [source.field for source in one.sources]
    assert "accelerator.memory" in fields and "inter.latency" in fields
    assert len(fields) == len(set(fields))
    assert {s.provenance for s in one.sources} == {Provenance.CATALOGUE, Provenance.DEFAULT}


def test_levels_of_a_cluster_file(tmp_path):
    path = tmp_path / "pod.json"
    pod = {
        "schema_version": 1,
        "accelerator": "h100",
        "nodes": 32,
        "ranks_per_node": 8,
        "inter": {"bandwidth": "40 GB/s"},
        "levels": [{"ranks": 64}, {"latency": "9 us", "oversubscription": 2}],
    }
    path.write_text(json.dumps(pod))
    cluster = load_cluster(str(path))
    assert cluster.sizes == (8, 64)
    assert [level.bandwidth for level in cluster.levels[1:]] == [40e9, 20e9]
    assert cluster.levels[2].latency == pytest.approx(9e-6)
    assert cluster.levels[1].latency == cluster.inter.latency
    record = cluster_record(cluster)
    origin = {source.field: source.provenance for source in record.sources}
    assert origin["levels.2.oversubscription"] == origin["levels.2.latency"] == "catalogue"
    short = dict(pod, oversubscription=2)
    del short["levels"]
    path.write_text(json.dumps(short))
    other = load_cluster(str(path))
    assert [level.bandwidth for level in other.levels[1:]] == [20e9]
    assert cluster_record(other).digest != record.digest


def test_a_rack_wide_domain(tmp_path):
    path = tmp_path / "rack.json"
    path.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "accelerator": "gb200",
                "nodes": 36,
                "ranks_per_node": 4,
                "domain": 72,
            }
        )
    )
    cluster = load_cluster(str(path))
    assert cluster.sizes == (72,) and cluster.ranks == 144


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"domain": 7}, "domain: 64 ranks are not whole domains of 7"),
        ({"levels": [{}, {}]}, r"levels\.0\.ranks: only the outermost"),
        ({"levels": [{"ranks": 12}, {}]}, r"levels\.0\.ranks: 12 ranks are not whole units of 8"),
        (
            {"levels": [{"ranks": 32}]},
            r"levels\.0\.ranks: 32, but the outermost level holds all 64",
        ),
        ({"levels": [{}], "oversubscription": 2}, "belongs to each of the levels"),
        ({"oversubscription": 0.5}, "oversubscription"),
        ({"levels": [{"name": "tin cans"}]}, "no network 'tin cans'"),
    ],
)
def test_levels_that_do_not_nest_are_refused(tmp_path, change, words):
    path = tmp_path / "pod.json"
    base = {"schema_version": 1, "accelerator": "h100", "nodes": 8, "ranks_per_node": 8}
    path.write_text(json.dumps(base | change))
    with pytest.raises(InputError, match=words):
        load_cluster(str(path))
