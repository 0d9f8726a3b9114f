"""From a cluster's text or file to a `Cluster`.

Text: ``h100`` (one rank), ``8xh100`` (one node), ``16x8xh100`` (nodes x ranks a node),
``cpu:2`` (two ranks on this machine). File: a `ClusterFile` as JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from autoplan.errors import InputError, UsageError
from autoplan.ir.hardware import Accelerator, Cluster, Level, Link, Provenance, Source
from autoplan.ir.plan import ClusterRecord, SourceRecord
from autoplan.profiles.applied import apply_profile
from autoplan.profiles.calibration import load_residual_file
from autoplan.profiles.catalogue import accelerator_file, find_link, to_accelerator
from autoplan.profiles.measured import MeasuredProfile
from autoplan.profiles.schema import (
    AcceleratorFile,
    ClusterFile,
    LevelFile,
    LinkOverride,
    read_record,
)

__all__ = ["cluster_record", "load_cluster"]

_SPEC = re.compile(
    r"^(?:(\d+)\s*x\s*)?(?:(\d+)\s*x\s*)?([a-z][a-z0-9 _.+-]*)(?::(\d+))?$", re.IGNORECASE
)
_FORMS = "write 8xh100 (one node), 16x8xh100 (nodes x ranks a node), cpu:2, or a .json file"


def load_cluster(spec: str, *, profile: Path | None = None) -> Cluster:
    """Cluster of a text or file, with the numbers of a measured profile when there is one."""
    cluster = _from_file(Path(spec)) if spec.lower().endswith(".json") else _from_text(spec)
    if profile is None:
        return cluster
    file = load_residual_file(profile)
    if not isinstance(file, MeasuredProfile):  # residuals of runs, no numbers of the hardware
        return cluster
    return apply_profile(cluster, file, path=profile)


def _from_text(spec: str) -> Cluster:
    match = _SPEC.match(spec.strip())
    if match is None:
        raise UsageError(f"{spec!r} is not a cluster", hint=_FORMS)
    first, second, name, suffix = match.groups()
    if suffix is not None and second is not None:
        raise UsageError(f"{spec!r} gives the ranks of a node twice", hint=_FORMS)
    if suffix is not None:
        nodes, ranks_per_node = int(first or 1), int(suffix)
    elif second is not None:
        nodes, ranks_per_node = int(first), int(second)
    else:
        nodes, ranks_per_node = 1, int(first or 1)
    if nodes < 1 or ranks_per_node < 1:
        raise UsageError(f"{spec!r} has no ranks: counts start at 1", hint=_FORMS)
    if nodes * ranks_per_node > 1_000_000:
        raise UsageError(f"{spec!r} has {nodes * ranks_per_node} ranks; the limit is a million")
    file = accelerator_file(name)
    _check_node(spec, file, ranks_per_node)
    return Cluster(
        spec=spec.strip(),
        accelerator=to_accelerator(file),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        intra=find_link(file.intra),
        inter=find_link(file.inter),
    )


def _check_node(spec: str, file: AcceleratorFile, ranks_per_node: int) -> None:
    limit = file.max_ranks_per_node
    if ranks_per_node <= limit.value:
        return
    device = file.aliases[0] if file.aliases else file.name.lower()
    nodes = -(-ranks_per_node // limit.value)
    raise UsageError(
        f"{spec!r}: a node has at most {limit.value} {file.name} ({limit.source})",
        hint=f"write nodes x ranks a node, e.g. {nodes}x{limit.value}x{device}",
    )


def _from_file(path: Path) -> Cluster:
    file = read_record(path, ClusterFile, "cluster file")
    said = f"cluster file {path.name}" + (f": {file.source}" if file.source else "")
    try:
        base = accelerator_file(file.accelerator)
        cluster = Cluster(
            spec=path.name,
            accelerator=to_accelerator(base),
            nodes=file.nodes,
            ranks_per_node=file.ranks_per_node,
            intra=_link(file.intra, base.intra, said),
            inter=_link(file.inter, base.inter, said),
            domain=file.domain or 0,
            outer=_outer(file, base.inter, said),
        )
    except UsageError as error:
        raise InputError(f"{path}: {error}", hint=error.hint) from error
    return replace(cluster, accelerator=_override(cluster.accelerator, file, said, path))


def _outer(file: ClusterFile, default: str, said: str) -> tuple[Level, ...]:
    world = file.nodes * file.ranks_per_node
    if file.oversubscription is not None:
        return (Level(ranks=world, oversubscription=file.oversubscription),)
    return tuple(
        Level(
            ranks=level.ranks or world,
            link=_level_link(level, file.inter, default, said),
            oversubscription=level.oversubscription,
        )
        for level in file.levels
    )


def _level_link(level: LevelFile, inter: LinkOverride, default: str, said: str) -> Link | None:
    """Link of a level with figures of its own; None where they are those of ``inter``."""
    if level.name:
        return _link(level, default, said)
    if level.latency is None and level.bandwidth is None:
        return None
    between = _link(inter, default, said)
    given = tuple(f for f in ("latency", "bandwidth") if getattr(level, f) is not None)
    return replace(
        between,
        latency=level.latency or between.latency,
        bandwidth=level.bandwidth or between.bandwidth,
        sources=_replace_sources(between.sources, given, said),
    )


def _override(accelerator: Accelerator, file: ClusterFile, said: str, path: Path) -> Accelerator:
    given = tuple(f for f in ("memory", "memory_bandwidth") if getattr(file, f) is not None)
    if file.memory is not None and file.memory <= accelerator.reserved:
        raise InputError(
            f"{path}: memory: {file.memory} bytes leave nothing after the {accelerator.reserved} "
            f"bytes that context and libraries take on {accelerator.name}"
        )
    return replace(
        accelerator,
        memory=file.memory if file.memory is not None else accelerator.memory,
        memory_bandwidth=file.memory_bandwidth or accelerator.memory_bandwidth,
        sources=_replace_sources(accelerator.sources, given, said),
    )


def _link(override: LinkOverride, default: str, said: str) -> Link:
    link = find_link(override.name or default)
    given = tuple(f for f in ("latency", "bandwidth") if getattr(override, f) is not None)
    return replace(
        link,
        latency=override.latency or link.latency,
        bandwidth=override.bandwidth or link.bandwidth,
        sources=_replace_sources(link.sources, given, said),
    )


def _replace_sources(
    sources: tuple[Source, ...], fields: tuple[str, ...], said: str
) -> tuple[Source, ...]:
    return tuple(
        Source(source.field, Provenance.CATALOGUE, said) if source.field in fields else source
        for source in sources
    )


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _level_sources(cluster: Cluster) -> Iterator[tuple[str, tuple[Source, ...]]]:
    said = f"cluster file {cluster.spec}"
    if cluster.domain:
        yield "", (Source("domain", Provenance.CATALOGUE, said),)
    for index, level in enumerate(cluster.outer, start=1):
        prefix = f"levels.{index}."
        if level.link is not None:
            yield prefix, level.link.sources
        for field in ("ranks", "oversubscription"):
            yield prefix, (Source(field, Provenance.CATALOGUE, said),)


def cluster_record(cluster: Cluster) -> ClusterRecord:
    """Record of a cluster for the plan: counts, memory, sources and digests.

    ``profile_digest`` covers the numbers of one rank and of the links; ``digest`` covers
    the counts too. What runs corrected is in neither: a plan stays the same plan.
    """
    usable = cluster.accelerator.usable_memory
    if cluster.uncorrected is not None:
        compiled = cluster.accelerator.compiled
        cluster = cluster.uncorrected
        cluster = replace(cluster, accelerator=replace(cluster.accelerator, compiled=compiled))
    device = asdict(cluster.accelerator)
    numbers: dict[str, object] = {
        "accelerator": device,
        "intra": asdict(cluster.intra),
        "inter": asdict(cluster.inter),
    }
    if not cluster.accelerator.compiled:
        del device["compiled"]  # as before there were others
    shape = {"nodes": cluster.nodes, "ranks_per_node": cluster.ranks_per_node}
    if cluster.domain:
        shape["domain"] = cluster.domain
    if cluster.outer:
        numbers["outer"] = [asdict(level) for level in cluster.outer]
    sources = [
        SourceRecord(
            field=prefix + source.field,
            provenance=source.provenance.value,
            source=source.source,
        )
        for prefix, origin in (
            ("accelerator.", cluster.accelerator.sources),
            ("intra.", cluster.intra.sources),
            ("inter.", cluster.inter.sources),
            *_level_sources(cluster),
        )
        for source in origin
    ]
    return ClusterRecord(
        spec=cluster.spec,
        accelerator=cluster.accelerator.name,
        nodes=cluster.nodes,
        ranks_per_node=cluster.ranks_per_node,
        memory=cluster.accelerator.memory,
        usable_memory=usable,
        digest=_digest({**numbers, **shape}),
        profile_digest=_digest(numbers),
        sources=tuple(sources),
    )
