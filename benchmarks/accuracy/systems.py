"""How the published systems ran a row: kernels, placements of state, stages, network.

What a row states comes from the row. What a system always does (Megatron-LM's scores in memory,
its gradients summed after the backward) is here, a rule for each file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from autoplan.costs.data_parallel import GradientSync
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Mesh
from autoplan.profiles import load_cluster
from autoplan.solver.inter import StageCut
from autoplan.solver.space import Configuration
from benchmarks.accuracy.rows import Row, Skip

__all__ = ["Run", "run_of"]

Kernels = dict[str, int | float | bool]

# Share of the line rate that collectives reach: profiles/hardware, infiniband-ndr, ethernet-100g.
_INFINIBAND_SHARE = 0.97
_ROCE_SHARE = 0.75
_VTRAIN_VOCAB = 50257  # vocab_size in src/config.py of VIA-Research/vTrain@f8dda84
# Seconds in which the host issued an operator of Megatron's layers in 2022: OPT-175B took 95 ms
# for a token on 8 A100, 66 ms in a CUDA graph (facebookresearch/metaseq pull request 270), 96
# layers of 26 operators and 2 all-reduces (autoplan's capture of OPT-175B, its layers fused).
_MEGATRON_DISPATCH = 95e-3 / 96 / 28
_DEVICES = {
    "A100-80GB-SXM": "a100-80gb",
    "A100-40GB-SXM": "a100-40gb",
    "H100-80GB-SXM": "h100",
    "H200-141GB-SXM": "h200",
    "GB200": "gb200",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row as it can be priced."""

    row: Row
    kernels: Kernels
    configuration: Configuration
    cluster: Cluster
    cut: StageCut | None


def run_of(row: Row) -> Run:
    """The row's run; `Skip` where the space has no such one or the row says too little."""
    system = _SYSTEMS.get(row.file)
    if system is None:
        raise Skip("no rule for this file")
    if not row.micro_batch or not row.global_batch:
        raise Skip("microbatch or global batch not stated")
    if row.ranks != row.dp * row.tp * row.pp:
        raise Skip("ranks are not dp x tp x pp")
    if row.global_batch % (row.dp * row.micro_batch):
        raise Skip("global batch does not divide")
    kernels, zero, sync = system(row)
    if zero and row.dp // row.replicas == 1:
        zero = 0
    shard = row.dp // row.replicas if zero else 1
    configuration = Configuration(
        mesh=Mesh(pp=row.pp, dp_replicate=row.dp // shard, dp_shard=shard, tp=row.tp),
        micro_batch_size=row.micro_batch,
        microbatches=row.global_batch // (row.dp * row.micro_batch),
        zero=zero,
        recompute=_recompute(row) and not row.id.startswith("vt-s"),
        schedule="none" if row.pp == 1 else "1f1b",
        sync=sync,
    )
    return Run(
        row=row,
        kernels=kernels,
        configuration=configuration,
        cluster=_with_host(_cluster(row), row),
        cut=_cut(row),
    )


def _recompute(row: Row) -> bool:
    text = row.recompute.lower()
    if text.startswith("full"):
        return True
    if text == "none":
        return False
    raise Skip(f"recompute {text.split('(')[0].strip() or 'not stated'}")


def _cut(row: Row) -> StageCut | None:
    """Even stages: of layers, or with embedding and head counted as layers (DeepSpeed)."""
    if row.pp == 1:
        return None
    if row.layers % row.pp == 0:
        each = row.layers // row.pp
        ends = [1 + each * stage for stage in range(1, row.pp)]
    elif (row.layers + 2) % row.pp == 0:
        each = (row.layers + 2) // row.pp
        ends = [each * stage for stage in range(1, row.pp)]
    else:
        raise Skip("stages are uneven")
    bounds = (0, *ends, row.layers + 2)
    return StageCut(
        ranges=tuple(zip(bounds, bounds[1:], strict=False)),
        objective=0.0, peak_memory=0, shortfall=0,
    )  # fmt: skip


def _cluster(row: Row) -> Cluster:
    device = _DEVICES.get(row.gpu)
    if device is None:
        raise Skip(f"no accelerator {row.gpu}")
    per_node = min(row.ranks, row.ranks_per_node or row.ranks)
    cluster = load_cluster(f"{row.ranks // per_node}x{per_node}x{device}")
    if cluster.nodes == 1:
        return cluster
    bandwidth = _network(row.interconnect, row.ranks_per_node)
    if bandwidth:
        cluster = replace(cluster, inter=replace(cluster.inter, bandwidth=bandwidth))
    return cluster


def _with_host(cluster: Cluster, row: Row) -> Cluster:
    if row.file not in ("vtrain", "bloom_prequel"):
        return cluster
    device = replace(cluster.accelerator, dispatch_latency=_MEGATRON_DISPATCH)
    return replace(cluster, accelerator=device)


def _network(text: str, ranks_per_node: int) -> float:
    """Bytes/s between nodes that a rank reaches by the stated line rate; 0 if none is stated."""
    share = _ROCE_SHARE if "RoCE" in text else _INFINIBAND_SHARE
    several = re.search(r"(\d+)x(\d+) ?Gb/s", text)
    single = re.search(r"(\d+) ?Gb/s", text)
    if several:
        rate = int(several[1]) * int(several[2]) / ranks_per_node
    elif single:
        rate = int(single[1]) / (1 if "per GPU" in text else ranks_per_node)
    else:
        return 0.0
    return rate * 1e9 / 8 * share


def _shape(row: Row) -> Kernels:
    return {
        "vocab": row.vocab,
        "hidden": row.hidden,
        "layers": row.layers,
        "heads": row.heads,
        "kv_heads": row.kv_heads,
        "ffn": row.ffn,
    }


def _megatron(row: Row) -> tuple[Kernels, int, GradientSync]:
    """Megatron-LM of 2022: scores in memory, learned positions, gradients summed at the end."""
    vocab = -(-(row.vocab or _VTRAIN_VOCAB) // row.tp) * row.tp
    kernels = _shape(row) | {"vocab": vocab, "positions": row.seq_len}
    kernels["fused_softmax"] = _has_fused_softmax(row)
    return kernels, 0, GradientSync(overlaps=False)


def _bloom(row: Row) -> tuple[Kernels, int, GradientSync]:
    """Megatron-DeepSpeed: the same kernels, ZeRO-1 at the end of the step."""
    kernels = _shape(row) | {"positions": row.seq_len, "dropout": 0.0}
    kernels["fused_softmax"] = _has_fused_softmax(row)
    itemsize = 4 if row.dtype == "bfloat16" else 2
    zero = 0 if row.zero.startswith("zero0") else 1
    return kernels, zero, GradientSync(overlaps=False, itemsize=itemsize)


def _has_fused_softmax(row: Row) -> bool:
    """Whether Megatron's kernel takes the scores (NVIDIA/Megatron-LM, fused_softmax.py)."""
    matrices = row.micro_batch * row.heads // row.tp
    return matrices % 4 == 0 and 16 < row.seq_len <= 2048


def _foundry(row: Row) -> tuple[Kernels, int, GradientSync]:
    """MPT under FSDP: no biases, flash attention; PURE reduces gradients in bfloat16."""
    kernels = _shape(row) | {
        "positions": row.seq_len, "bias": False, "flash": True, "dropout": 0.0,
    }  # fmt: skip
    zero = 3 if "zero3" in row.zero else 2
    return kernels, zero, GradientSync(itemsize=2 if "PURE" in row.precision else 4)


_SYSTEMS: dict[str, Callable[[Row], tuple[Kernels, int, GradientSync]]] = {
    "vtrain": _megatron,
    "bloom_prequel": _bloom,
    "llm_foundry": _foundry,
}
