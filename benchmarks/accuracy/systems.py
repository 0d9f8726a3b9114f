"""How the published systems ran a row: kernels, placements of state, stages, network.

What a row states comes from the row. What a system always does (Megatron-LM's scores in memory,
its gradients summed after the backward) is here, a rule for each file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from autoplan.costs.block import NO_CALLS, HostCalls
from autoplan.costs.data_parallel import GradientSync
from autoplan.ir.hardware import Cluster
from autoplan.ir.mesh import Mesh
from autoplan.ir.recompute import Recompute
from autoplan.profiles import load_cluster
from autoplan.solver.inter import StageCut
from autoplan.solver.space import Configuration
from benchmarks.accuracy.nemo import Extras
from benchmarks.accuracy.rows import Row, Skip

__all__ = ["Run", "run_of"]

Kernels = dict[str, int | float | bool]

# Share of the line rate that collectives reach: profiles/hardware, infiniband-ndr, ethernet-100g.
_INFINIBAND_SHARE = 0.97
_ROCE_SHARE = 0.75
# Of Omni-Path's, on the very cluster of the rows: all-reduces of 4 GB over 4 nodes of 8 A100 went
# through one adapter of 100 Gb/s and reached 40.5 Gb/s (bigscience-workshop/bigscience@358e3c8,
# experiments/bandwidth/all_reduce_bench-a100-n4.txt).
_OMNI_PATH_SHARE = 0.405
# Ranks of an NVL72 rack that runs of powers of two use: 16 of its 18 nodes of 4.
_RACK = 64
_VTRAIN_VOCAB = 50257  # vocab_size in src/config.py of VIA-Research/vTrain@f8dda84
# What Megatron-LM pads a vocabulary to, times tp (--make-vocab-size-divisible-by's default).
_VOCAB_MULTIPLE = 128
# Seconds in which the host issued an operator of Megatron's layers in 2022: OPT-175B took 95 ms
# for a token on 8 A100, 66 ms in a CUDA graph (facebookresearch/metaseq pull request 270), 96
# layers of 26 operators and 2 all-reduces (autoplan's capture of OPT-175B, its layers fused).
_MEGATRON_DISPATCH = 95e-3 / 96 / 28
# Megatron-LM's tensor parallelism wraps a collective into an autograd function that does nothing
# in the other pass (megatron/mpu/mappings.py), and its data parallelism adds gradients to
# a buffer in a hook on each parameter (megatron/model/distributed.py).
_MEGATRON_CALLS = HostCalls(functions=1, hooks=1)
_MEGATRON = ("vtrain", "bloom_prequel")
_MEGATRON_CORE = ("dgxc_benchmarking",)
_LATENT_ATTENTION = ("Deepseek", "Moonlight")
# BLOOM's runs of 320 ranks and more hung without CUDA_LAUNCH_BLOCKING=1, which was kept from then
# on (bigscience-workshop/bigscience@053adaf, train/tr11-176B-ml/chronicles-prequel.md, "dealing
# with JZ hanging on the large model"; @003b250, tr11-176B-ml.slurm).
_BLOOM_CALLS = replace(_MEGATRON_CALLS, waits=True)
_BLOOM_WAITS = 320
# llm-foundry checkpoints without reentrance, which stops when all saved tensors are there since
# torch 2.1 (torch.utils.checkpoint.set_checkpoint_early_stop). Its sweeps ran in the image of
# torch 2.1.0 (scripts/train/benchmarking/sweep.sh of mosaicml/llm-foundry@a7c7567), but the table
# of this device is older: its README (mosaicml/llm-foundry@061f2c7) leaves torch 2 to do, and
# submit_benchmarks.py of then (@12a6319) starts torch 1.13.1. Megatron's checkpoint is reentrant.
_BEFORE_TORCH_2_1 = ("A100-40GB-SXM",)
_NOT_REENTRANT = ("llm_foundry", "torchtitan")
# torchtitan checkpoints every second layer whole, or within each layer keeps attention and every
# second product (pytorch/torchtitan@5ce233ed7, torchtitan/parallelisms/parallelize_llama.py).
_EVERY_SECOND = re.compile(r"^selective-layer \(every 2nd\)")
# Part of the peak that FlashAttention 1 reaches, which llm-foundry[gpu] installed in 2023: 25 to
# 40 % on the A100 (arXiv 2307.08691, abstract). It issues the A100's instructions on the H100 too,
# as version 2 does, whose rates there are 327.9 and 179.5 TFLOP/s (profiles/hardware).
_FIRST_FLASH = {"A100": 0.325, "H100": 0.325 * 312 / 989 * 327.9 / 179.5}
# TFLOP/s of cuDNN's causal attention on an H100 by length of sequence, head of 128: arXiv
# 2407.08608, figure 5; its backward, without a mask, is 4 % slower or less (figure 6). Nothing
# is published for the GB200, which gets the same part of its peak.
_CUDNN = {2048: 484, 4096: 518, 8192: 529}
_H100_PEAK = 989
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
    recompute: Recompute
    cluster: Cluster
    cut: StageCut | None
    calls: HostCalls
    scattered: bool
    extras: Extras


def run_of(row: Row) -> Run:
    """The row's run; `Skip` where the space has no such one or the row says too little."""
    system = _SYSTEMS.get(row.file)
    if system is None:
        raise Skip("no rule for this file")
    if not row.micro_batch or not row.global_batch:
        raise Skip("microbatch or global batch not stated")
    extras = _extras(row)
    if row.ranks != row.dp * row.tp * row.pp * row.context:
        raise Skip("ranks are not dp x tp x pp x cp")
    if row.global_batch % (row.dp * row.micro_batch):
        raise Skip("global batch does not divide")
    kernels, zero, sync = system(row)
    summed = row.dp * row.context  # ranks of a sequence sum their gradients too
    if zero and summed == 1:
        zero = 0
    within = re.search(r"within (\d+)", row.zero)  # ZeRO's group; replicas around it
    replicas = max(1, summed * row.tp // int(within[1])) if within else row.replicas
    shard = summed // replicas if zero else 1
    configuration = Configuration(
        mesh=Mesh(pp=row.pp, dp_replicate=summed // shard, dp_shard=shard, tp=row.tp),
        micro_batch_size=row.micro_batch,
        microbatches=row.global_batch // (row.dp * row.micro_batch),
        zero=zero,
        schedule="none" if row.pp == 1 else "1f1b",
        sync=sync,
    )
    return Run(
        row=row,
        kernels=kernels,
        configuration=configuration,
        recompute=_recompute(row),
        cluster=_with_software(_cluster(row), row),
        cut=_cut(row),
        calls=_calls(row),
        scattered=row.file in _MEGATRON and row.tp > 1 and not row.sequence,
        extras=extras,
    )


def _calls(row: Row) -> HostCalls:
    if row.file == "bloom_prequel" and row.ranks >= _BLOOM_WAITS:
        return _BLOOM_CALLS
    return _MEGATRON_CALLS if row.file in _MEGATRON else NO_CALLS


def _extras(row: Row) -> Extras:
    """What NeMo runs, and what full recompute leaves out."""
    if row.file in _MEGATRON_CORE:
        _check_experts(row)
        if row.seq_len % row.context:
            raise Skip("sequence does not divide")
        return Extras(
            context=row.context,
            chunks=row.chunks,
            hides_tp=row.tp > 1 and row.sequence,
            fp8=row.fp8,
            attention_again=row.recompute.startswith("selective"),
            layers_again=row.recompute.startswith("full"),
            experts=row.expert_ranks,
        )
    if row.experts > 1:
        raise Skip("experts")
    if row.expert_ranks > 1:
        raise Skip("expert parallelism")
    if row.fp8:
        raise Skip(f"precision {row.precision.split()[0]}")
    if row.context > 1:
        raise Skip("context parallelism")
    if row.chunks > 1:
        raise Skip("virtual stages")
    level = _recompute(row)
    full = level is Recompute.FULL
    early = row.file in _NOT_REENTRANT and row.gpu not in _BEFORE_TORCH_2_1
    part = _EVERY_SECOND.search(row.recompute)
    queries = row.heads + 2 * row.kv_heads
    return Extras(
        layers_again=full,
        stops_early=full and early,
        part_again=0.5 if part else 1.0,
        # Every second of wq, wk, wv, wo, w1, w3, w2; the first three are one product here, w1
        # and w3 another.
        products_again=(row.kv_heads / queries, 1.0, 0.5, 0.0)
        if level is Recompute.SELECTIVE
        else (),
    )


def _check_experts(row: Row) -> None:
    """Skip experts that are not every layer's, or not spread as `nemo` prices them."""
    if row.experts <= 1:
        return
    if row.model.startswith(_LATENT_ATTENTION):
        raise Skip("experts: latent attention, dense layers among them")
    if not row.top_k or not row.expert_ffn:
        raise Skip("experts: their size not stated")
    if row.expert_tp and row.expert_tp != row.tp:
        raise Skip("experts: split over fewer tp ranks than the rest")
    if row.experts % row.expert_ranks or (row.dp * row.context) % row.expert_ranks:
        raise Skip("experts do not divide")


def _recompute(row: Row) -> Recompute:
    """Whether the layers were computed again in backward.

    The vTrain rows take the flag from the simulator's configurations, not from the measured
    runs. Those of one node ran without: a layer of hidden size 2048 takes 17 ms for 8 x 1024
    tokens (rows of 24 layers less those of 12), which with recompute would be 210 TFLOP/s on an
    A100, where Megatron-LM reaches 140 to 160 on larger layers; the simulator, too, leaves it out
    without a pipeline (VIA-Research/vTrain@f8dda84, src/predictor.py).
    """
    if row.file == "vtrain" and row.ranks <= row.ranks_per_node:
        return Recompute.NONE
    text = row.recompute.lower()
    if text.startswith("full"):
        return Recompute.FULL
    if text == "none":
        return Recompute.NONE
    if row.file == "torchtitan" and text.startswith("selective-op"):
        return Recompute.SELECTIVE
    if row.file == "torchtitan" and _EVERY_SECOND.search(text):
        return Recompute.FULL
    if row.file == "dgxc_benchmarking" and (not text or text.startswith("selective (core")):
        # Not set in the recipe: Megatron-Core's default is none. Of attention alone: `Extras`.
        return Recompute.NONE
    raise Skip(f"recompute {text.split('(')[0].strip() or 'not stated'}")


def _cut(row: Row) -> StageCut | None:
    """Even stages: of layers, or with embedding and head counted as layers (DeepSpeed)."""
    if row.pp == 1:
        return None
    stages = row.pp * row.chunks
    if row.layers % stages == 0:
        each = row.layers // row.pp
        ends = [1 + each * stage for stage in range(1, row.pp)]
    elif (row.layers + 2) % stages == 0:
        each = (row.layers + 2) // row.pp
        ends = [each * stage for stage in range(1, row.pp)]
    elif row.file == "bloom_prequel" and row.chunks == 1:
        # DeepSpeed fills stages up to the most that one must have: 12 stages of 78 layers are 11
        # of 7 and one of 1 (chronicles-prequel.md, "Re-do").
        each = -(-row.layers // row.pp)
        ends = [1 + each * stage for stage in range(1, row.pp)]
        if ends[-1] > row.layers:
            raise Skip("stages are uneven")
    else:
        raise Skip("stages are uneven")
    bounds = (0, *ends, row.layers + 2)
    return StageCut.given(tuple(itertools.pairwise(bounds)))


def _cluster(row: Row) -> Cluster:
    device = _DEVICES.get(row.gpu)
    if device is None:
        raise Skip(f"no accelerator {row.gpu}")
    per_node = min(row.ranks, row.ranks_per_node or row.ranks)
    cluster = load_cluster(f"{row.ranks // per_node}x{per_node}x{device}")
    if cluster.nodes == 1:
        return cluster
    if "NVL72" in row.interconnect:
        if row.ranks % _RACK:
            raise Skip("ranks are not whole racks")
        cluster = replace(cluster, domain=_RACK)
    bandwidth = _network(row.interconnect, row.ranks_per_node)
    if bandwidth:
        cluster = replace(cluster, inter=replace(cluster.inter, bandwidth=bandwidth))
    return cluster


def _with_software(cluster: Cluster, row: Row) -> Cluster:
    """The cluster as the row's software drives it."""
    device = cluster.accelerator
    if row.file in _MEGATRON:
        device = replace(device, dispatch_latency=_MEGATRON_DISPATCH)
    if row.file == "dgxc_benchmarking":
        device = replace(device, attention_efficiency=_cudnn(row.seq_len))
    if row.file == "llm_foundry":
        device = replace(device, attention_efficiency=_FIRST_FLASH[device.name[:4]])
    return replace(cluster, accelerator=device)


def _cudnn(seq_len: int) -> float:
    """Part of the peak that TransformerEngine's attention reaches, which is cuDNN's."""
    if seq_len not in _CUDNN:
        raise Skip("no rate of attention for this sequence")
    return _CUDNN[seq_len] / _H100_PEAK


def _network(text: str, ranks_per_node: int) -> float:
    """Bytes/s between nodes that a rank reaches by the stated line rate; 0 if none is stated."""
    shares = {"RoCE": _ROCE_SHARE, "Omni-Path": _OMNI_PATH_SHARE}
    share = next((shares[name] for name in shares if name in text), _INFINIBAND_SHARE)
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
    """Megatron-LM of 2022: scores in memory, learned positions, gradients summed at the end.

    Whether the vocabulary was padded is not stated. The rows say that it was where it is split:
    by differences of rows, embedding and head of hidden size 2048 take 7.8 ms a sample with
    tp 1, as an odd number of words would, but 2.2 ms with tp 2.
    """
    multiple = _VOCAB_MULTIPLE * row.tp if row.tp > 1 else 1
    vocab = -(-(row.vocab or _VTRAIN_VOCAB) // multiple) * multiple
    kernels = _shape(row) | {"vocab": vocab, "positions": row.seq_len, "eager_loss": True}
    kernels["fused_softmax"] = _has_fused_softmax(row)
    return kernels, 0, GradientSync(overlaps=False)


def _bloom(row: Row) -> tuple[Kernels, int, GradientSync]:
    """Megatron-DeepSpeed: the same kernels, ZeRO-1 at the end of the step.

    Gradients are all-reduced, in fp16 as they are, in bf16 in float32 (microsoft/DeepSpeed,
    runtime/engine.py: stage 1 has no contiguous gradients, so stage_1_and_2.py goes to
    `allreduce_bucket`; runtime/pipe/engine.py `_bf16_reduce_grads`). The script sets no dropout, so
    that of hidden states and scores is Megatron-LM's 0.1 (bigscience-workshop/bigscience@003b250,
    tr11-176B-ml.slurm; Megatron-DeepSpeed@007719a, megatron/arguments.py).
    """
    kernels = _shape(row) | {"positions": row.seq_len, "eager_loss": True}
    kernels["fused_softmax"] = _has_fused_softmax(row)
    itemsize = 4 if row.dtype == "bfloat16" else 2
    zero = 0 if row.zero.startswith("zero0") else 1
    return kernels, zero, GradientSync(overlaps=False, itemsize=itemsize)


def _has_fused_softmax(row: Row) -> bool:
    """Whether Megatron's kernel takes the scores (NVIDIA/Megatron-LM, fused_softmax.py)."""
    matrices = row.micro_batch * row.heads // row.tp
    return matrices % 4 == 0 and 16 < row.seq_len <= 2048


def _foundry(row: Row) -> tuple[Kernels, int, GradientSync]:
    """MPT under FSDP: no biases, flash attention; PURE reduces gradients in bfloat16.

    Around the attention it takes padding out of query, key and value and puts it back, gathers
    that copy them though no row is padding (mosaicml/llm-foundry@00ef82a, flash_attn_fn).
    """
    kernels = _shape(row) | {
        "positions": row.seq_len, "bias": False, "flash": True, "dropout": 0.0, "unpads": True,
    }  # fmt: skip
    zero = 3 if "zero3" in row.zero else 2
    return kernels, zero, GradientSync(itemsize=2 if "PURE" in row.precision else 4)


def _llama(row: Row, **kernels: bool | int) -> Kernels:
    modern: Kernels = {
        "bias": False, "flash": True, "rotary": True, "gated": True, "rms": True, "tied": False,
        "dropout": 0.0,
    }  # fmt: skip
    return _shape(row) | modern | kernels


def _internevo(row: Row) -> tuple[Kernels, int, GradientSync]:
    """InternLM: biases in attention and, close enough in cost, in the feed-forward."""
    zero = 3 if row.zero == "FSDP" else 1
    return _llama(row, bias=True), zero, GradientSync()


def _torchtitan(row: Row) -> tuple[Kernels, int, GradientSync]:
    """Llama under FSDP2."""
    return _llama(row), 3, GradientSync()


def _nemo(row: Row) -> tuple[Kernels, int, GradientSync]:
    """Megatron-Core: gradients summed beside the backward, in float32."""
    sync = GradientSync(itemsize=4)
    if row.model.startswith("Nemotron"):
        return _llama(row, gated=False, squared=True, rms=False), 1, sync
    if row.model.startswith("GPT3"):
        kernels = _shape(row) | {"positions": row.seq_len, "flash": True, "dropout": 0.0}
        return kernels, 1, sync
    if row.experts > 1:
        local = row.experts // row.expert_ranks
        return _llama(row, ffn=row.expert_ffn, experts=local, top_k=row.top_k), 1, sync
    return _llama(row), 1, sync


_SYSTEMS: dict[str, Callable[[Row], tuple[Kernels, int, GradientSync]]] = {
    "vtrain": _megatron,
    "bloom_prequel": _bloom,
    "llm_foundry": _foundry,
    "internevo": _internevo,
    "torchtitan": _torchtitan,
    "dgxc_benchmarking": _nemo,
    "megatron_bridge_skills": _nemo,
}
