"""What a captured model is made of: `inspect_graph`, as a document and as lines of text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from autoplan.ir.attention import attention_regions
from autoplan.ir.cuts import Cut, cut_candidates
from autoplan.ir.experts import experts_regions
from autoplan.ir.graph import BlockClass, Graph, dtype_size
from autoplan.rules.coverage import OpCoverage, replicated_notes, rule_coverage
from autoplan.units import format_bytes, format_count

__all__ = ["ClassSummary", "Inspection", "inspect_graph", "inspection_document", "inspection_lines"]

_LABEL = 12
_MAX_CUTS = 6
_NAME = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """One kind of block; ``flop``, ``flop_backward`` and ``saved`` bytes are of one copy."""

    name: str
    copies: int
    operators: int
    parameters: int
    flop: int
    flop_backward: int
    saved: int
    attention: tuple[str, ...]
    experts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A model at one microbatch; ``parameter_bytes`` and ``trainable`` count tied ones once."""

    name: str
    dtype: str
    micro_batch_size: int
    seq_len: int
    ranks: int
    blocks: int
    parameters: int
    parameter_bytes: int
    trainable: int
    classes: tuple[ClassSummary, ...]
    cuts: tuple[Cut, ...]
    coverage: tuple[OpCoverage, ...]
    notes: tuple[str, ...]

    @property
    def flop(self) -> int:
        """FLOP of the forward of one microbatch."""
        return sum(c.flop * c.copies for c in self.classes)

    @property
    def flop_backward(self) -> int:
        """FLOP of its backward."""
        return sum(c.flop_backward * c.copies for c in self.classes)

    @property
    def saved(self) -> int:
        """Bytes kept from forward to backward without recompute."""
        return sum(c.saved * c.copies for c in self.classes)


def inspect_graph(graph: Graph, *, seq_len: int, ranks: int) -> Inspection:
    """Summary of ``graph``, with the operators that ``ranks`` can't share."""
    copies = Counter(instance.block_class for instance in graph.instances)
    first = {instance.block_class: instance.name for instance in reversed(graph.instances)}
    numel = {p.fqn: p.numel for p in graph.parameters}
    held = {i.block_class: sum(numel[fqn] for fqn in i.parameters) for i in graph.instances}
    coverage = rule_coverage(graph, ranks)
    return Inspection(
        name=graph.name,
        dtype=graph.dtype,
        micro_batch_size=graph.micro_batch_size,
        seq_len=seq_len,
        ranks=ranks,
        blocks=len(graph.instances),
        parameters=sum(numel.values()),
        parameter_bytes=sum(p.numel * dtype_size(p.dtype) for p in graph.parameters),
        trainable=sum(p.numel for p in graph.parameters if p.trainable),
        classes=tuple(
            _class(block, first[index], copies[index], held[index])
            for index, block in enumerate(graph.classes)
            if copies[index]
        ),
        cuts=cut_candidates(graph),
        coverage=coverage,
        notes=(*graph.notes, *replicated_notes(coverage)),
    )


def _class(block: BlockClass, name: str, copies: int, parameters: int) -> ClassSummary:
    kept = {block.tensor(name).base for op in block.ops for name in op.saved}
    known = {tensor.name: tensor.size for tensor in block.tensors}
    resident = {*block.parameters, *block.buffers, *block.shared}
    extra = sum(op.saved_extra for op in block.ops)
    return ClassSummary(
        name=name,
        copies=copies,
        operators=len(block.ops),
        parameters=parameters,
        flop=sum(op.flop for op in block.ops),
        flop_backward=sum(op.flop_backward for op in block.ops),
        saved=sum(known.get(base, 0) for base in kept - resident) + extra,
        attention=tuple(map(str, attention_regions(block))),
        experts=tuple(
            f"{r.num_experts} experts, {r.top_k} a token, {r.hidden} x {r.ffn}"
            for r in experts_regions(block)
        ),
    )


def inspection_document(found: Inspection) -> dict[str, object]:
    """Document for ``--json``: FLOP and bytes of one microbatch."""
    return {
        "schema_version": 1,
        "model": {
            "name": found.name,
            "num_parameters": found.parameters,
            "num_trainable": found.trainable,
            "parameter_bytes": found.parameter_bytes,
            "dtype": found.dtype,
        },
        "workload": {"micro_batch_size": found.micro_batch_size, "seq_len": found.seq_len},
        "flop": found.flop,
        "flop_backward": found.flop_backward,
        "saved_bytes": found.saved,
        "blocks": found.blocks,
        "classes": [
            {
                "first_block": c.name,
                "copies": c.copies,
                "operators": c.operators,
                "num_parameters": c.parameters,
                "flop": c.flop,
                "flop_backward": c.flop_backward,
                "saved_bytes": c.saved,
                "attention": list(c.attention),
                "experts": list(c.experts),
            }
            for c in found.classes
        ],
        "cuts": [
            {
                "position": cut.position,
                "before": cut.before,
                "after": cut.after,
                "tensors": len(cut.tensors),
                "bytes": cut.size,
            }
            for cut in found.cuts
        ],
        "tp": found.ranks,
        "operators": [
            {
                "target": c.target,
                "calls": c.calls,
                "strategies": list(c.strategies),
                "flop": c.flop,
                "bytes": c.bytes,
                "replicated_calls": c.replicated_calls,
                "replicated_flop": c.replicated_flop,
                "replicated_bytes": c.replicated_bytes,
                "reason": c.reason,
            }
            for c in found.coverage
        ],
        "notes": list(dict.fromkeys(found.notes)),
    }


def inspection_lines(found: Inspection, *, width: int = 80) -> list[str]:
    """Lines for a terminal, the answer first; none is wider than ``width``."""
    sections = [
        _answer(found),
        list(_classes(found)),
        list(_regions(found)),
        list(_cuts(found)),
        list(_rules(found)),
        [f"{'note':<{_LABEL}}{note}" for note in dict.fromkeys(found.notes)],
    ]
    lines: list[str] = []
    for section in filter(None, sections):
        for line in section:
            row = line.startswith(" ") and not line.startswith(" " * _LABEL)
            indent = 6 if row else _LABEL
            lines += textwrap.wrap(line, width, subsequent_indent=" " * indent) or [""]
        lines.append("")
    return lines[:-1]


def _answer(found: Inspection) -> list[str]:
    frozen = found.parameters - found.trainable
    size = f"{format_count(found.parameters)} parameters, {format_bytes(found.parameter_bytes)}"
    tokens = f" x {found.seq_len} tokens" if found.seq_len else ""
    kinds = "kind" if len(found.classes) == 1 else "kinds"
    return [
        f"{'model':<{_LABEL}}{found.name}: {size} in {found.dtype}"
        + (f", {format_count(frozen)} of them frozen" if frozen else ""),
        f"{'blocks':<{_LABEL}}{found.blocks} of {len(found.classes)} {kinds}",
        f"{'microbatch':<{_LABEL}}{found.micro_batch_size} samples{tokens}: "
        f"{format_count(found.flop)} FLOP forward, {format_count(found.flop_backward)} backward, "
        f"{format_bytes(found.saved)} kept for backward",
    ]


def _classes(found: Inspection) -> Iterator[str]:
    row = "  {:>6} {:>10} {:>9} {:>9} {:>10}   {}"
    yield (
        f"{'':<{_LABEL - 6}}"
        + row.format("copies", "parameters", "forward", "backward", "kept", "first block").lstrip()
    )
    for c in found.classes:
        yield row.format(
            c.copies,
            format_count(c.parameters),
            format_count(c.flop),
            format_count(c.flop_backward),
            format_bytes(c.saved),
            c.name if len(c.name) <= _NAME else f"...{c.name[3 - _NAME :]}",
        )


def _regions(found: Inspection) -> Iterator[str]:
    for kind in ("attention", "experts"):
        texts = Counter[str]()
        for c in found.classes:
            for text in c.attention if kind == "attention" else c.experts:
                texts[text] += c.copies
        for index, (text, count) in enumerate(texts.items()):
            yield f"{kind if index == 0 else '':<{_LABEL}}{count} of {text}"


def _cuts(found: Inspection) -> Iterator[str]:
    """Cuts by what crosses them; the cheapest first."""
    groups: dict[tuple[int, int], list[Cut]] = {}
    for cut in found.cuts:
        groups.setdefault((cut.size, len(cut.tensors)), []).append(cut)
    shown = sorted(groups.items())
    for index, ((size, tensors), cuts) in enumerate(shown[:_MAX_CUTS]):
        where = f"before {cuts[0].after}"
        if len(cuts) > 1:
            where = f"{len(cuts)} places, the first {where}"
        what = "1 tensor" if tensors == 1 else f"{tensors} tensors"
        label = "stage cuts" if index == 0 else ""
        yield f"{label:<{_LABEL}}{format_bytes(size)} in {what}: {where}"
    if len(shown) > _MAX_CUTS:
        rest = sum(len(cuts) for _, cuts in shown[_MAX_CUTS:])
        yield f"{'':<{_LABEL}}and {rest} places where more crosses (--json lists all)"


def _rules(found: Inspection) -> Iterator[str]:
    flop = sum(c.flop for c in found.coverage)
    size = sum(c.bytes for c in found.coverage)
    whole = [c for c in found.coverage if c.replicated_calls]
    share = _share(sum(c.replicated_flop for c in whole), flop)
    moved = _share(sum(c.replicated_bytes for c in whole), size)
    calls = sum(c.calls for c in found.coverage)
    yield (
        f"{'rules':<{_LABEL}}{len(found.coverage)} operators in {calls} calls; on tp {found.ranks} "
        + (
            f"{share} of FLOP and {moved} of bytes can only be replicated"
            if whole
            else "all can be sharded"
        )
    )
    for c in sorted(whole, key=lambda c: (-c.replicated_flop, -c.replicated_bytes)):
        yield (
            f"  {c.target}: {c.replicated_calls} of {c.calls} calls, "
            f"{_share(c.replicated_flop, flop)} of FLOP, {_share(c.replicated_bytes, size)} of "
            f"bytes: {c.reason}"
        )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"
