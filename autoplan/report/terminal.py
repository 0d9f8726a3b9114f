"""The report of a plan for a terminal: the answer first, then why.

80 columns; plain ASCII where the stream can't show more; colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from autoplan.ir.levels import level_runs
from autoplan.ir.plan import Plan
from autoplan.report.sharding import BlockSharding, block_shardings, padded_parameters
from autoplan.report.summary import input_message, pin_cost_message, provenance_counts
from autoplan.report.text import ASCII, UNICODE, Glyphs, joined, print_lines, row
from autoplan.report.timeline import stage_waits
from autoplan.schedules import ranks_of_stages
from autoplan.units import format_bytes, format_count, format_time

__all__ = ["print_report", "report_lines"]

_MAX_CANDIDATES = 8
_BAR = 30
_NOTHING = 1e-9  # of a step: rounding, no time at all

_TIME_PARTS = {
    "compute": "compute",
    "recompute": "recompute",
    "exposed_tp": "tensor-parallel collectives",
    "exposed_dp": "gradient and parameter sync",
    "exposed_pp": "pipeline transfers",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer",
}
_WAITS = {
    "busy": "busy",
    "messages": "messages",
    "gathers": "gathers",
    "reductions": "reductions",
    "other_ranks": "other ranks",
}
_MEMORY_PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "transient": "transient",
    "buffers": "buffers",
}


def print_report(
    plan: Plan,
    stream: TextIO,
    *,
    where: str = "",
    capture_time: float | None = None,
    solve_time: float | None = None,
) -> None:
    """Write the report of ``plan``; ``where`` is the plan's file or folder if it has one."""

    def lines(width: int, glyphs: Glyphs) -> list[str]:
        return report_lines(
            plan,
            width=width,
            unicode=glyphs is UNICODE,
            where=where,
            capture_time=capture_time,
            solve_time=solve_time,
        )

    print_lines(stream, lines)


def report_lines(
    plan: Plan,
    *,
    width: int = 80,
    unicode: bool = True,
    where: str = "",
    capture_time: float | None = None,
    solve_time: float | None = None,
) -> list[str]:
    """Lines of the report, none wider than ``width``."""
    glyphs = UNICODE if unicode else ASCII
    sections: list[Iterable[str]] = [
        _title(plan, glyphs),
        _answer(plan, glyphs, capture_time, solve_time),
        _mesh(plan, glyphs),
        _time(plan, glyphs),
        _waits(plan),
        _memory(plan, glyphs),
        _stages(plan),
        _recompute(plan),
        _considered(plan, glyphs),
        _sharding(plan),
        _notes(plan),
        _next(plan, where),
    ]
    return joined(sections, width)


def _title(plan: Plan, glyphs: Glyphs) -> list[str]:
    cluster, workload = plan.cluster, plan.workload
    ranks = cluster.nodes * cluster.ranks_per_node
    nodes = f"{cluster.nodes} node" + ("s" if cluster.nodes > 1 else "")
    parts = [
        plan.graph.name,
        f"{ranks} {glyphs.times} {cluster.accelerator}",
        nodes,
        f"seq {workload.seq_len}" if workload.seq_len else "",
        f"global batch {workload.global_batch}",
    ]
    return [f"autoplan    {f' {glyphs.dot} '.join(part for part in parts if part)}"]


def _answer(
    plan: Plan, glyphs: Glyphs, capture_time: float | None, solve_time: float | None
) -> list[str]:
    prediction, step_time = plan.prediction, plan.effective_step_time
    ratio = step_time / prediction.step_time
    rate = (
        f"{format_count(prediction.tokens_per_second / ratio)} tokens/s"
        if plan.workload.seq_len
        else f"{format_count(prediction.samples_per_second / ratio)} samples/s"
    )
    peak = format_bytes(plan.expected_peak_memory)
    took = " + ".join(
        f"{what} {format_time(seconds)}"
        for what, seconds in (("capture", capture_time), ("solve", solve_time))
        if seconds is not None
    )
    bound = format_time(prediction.lower_bound)
    if prediction.gap <= 0:
        optimality = f"no better plan in this search space (bound {bound})"
    else:
        optimality = (
            f"within {prediction.gap:.1%} of the best plan in this search space (bound {bound})"
        )
    ended = {
        "optimal": "",
        "time_limit": "stopped at the time limit",
        "interrupted": "stopped by an interrupt",
    }[prediction.termination]
    return [
        row(
            "step time",
            format_time(step_time),
            rate,
            f"MFU {prediction.mfu / ratio:.1%}",
        ),
        *_calibrated(plan),
        *_input(plan),
        row("memory", f"{peak} of {format_bytes(prediction.memory_limit)} on the fullest rank"),
        row("optimality", optimality),
        *([row("", ended)] if ended else []),
        *([row("took", took)] if took else []),
    ]


def _calibrated(plan: Plan) -> list[str]:
    calibration = plan.calibration
    if calibration is None:
        return []
    runs = "1 run" if calibration.runs == 1 else f"{calibration.runs} runs"
    alone = f"the model alone says {format_time(plan.prediction.step_time)}"
    lines = [row("", f"calibrated x{calibration.step_time_ratio:.3g} from {runs}; {alone}")]
    if calibration.memory_ratio is not None:
        alone = f"the model alone says {format_bytes(plan.prediction.peak_memory)}"
        lines.append(row("", f"memory x{calibration.memory_ratio:.3g} too; {alone}"))
    return lines


def _input(plan: Plan) -> list[str]:
    message = input_message(plan)
    return [row("input", message)] if message else []


def _mesh(plan: Plan, glyphs: Glyphs) -> list[str]:
    degrees = [f"{axis} {size}" for axis, size in plan.mesh.model_dump().items() if size > 1]
    pipeline = plan.pipeline
    plural = "" if pipeline.microbatches == 1 else "es"
    schedule = "" if pipeline.schedule == "none" else f"schedule {pipeline.schedule}"
    if plan.virtual_stages > 1:
        schedule += f", {plan.virtual_stages} stages a rank"
    return [
        row("mesh", f" {glyphs.times} ".join(degrees) or "1 rank"),
        row(
            "settings",
            f"{pipeline.microbatches} microbatch{plural} of {pipeline.micro_batch_size}",
            schedule,
            f"ZeRO {plan.zero}",
            f"recompute {plan.recompute_text}",
            plan.workload.dtype,
            _update(plan),
            "compiled" if plan.workload.compile else "",
        ),
        *_pins(plan),
    ]


def _pins(plan: Plan) -> list[str]:
    """Decisions of the user, a row for each that was priced."""
    costs = [(f"{pin.name} {pin.value}", pin_cost_message(plan, pin)) for pin in plan.pins]
    priced = [f"{text} (by the user) {cost}" for text, cost in costs if cost]
    others = ", ".join(text for text, cost in costs if not cost)
    rows = [*([f"{others} (by the user)"] if others else []), *priced]
    return [row("" if index else "fixed", text) for index, text in enumerate(rows)]


def _update(plan: Plan) -> str:
    """Optimizer, where it isn't the default with float32 masters."""
    workload = plan.workload
    name = "" if workload.optimizer == "adamw" else workload.optimizer
    masters = "" if workload.master_weights == "float32" else "no float32 masters"
    return ", ".join(part for part in (name, masters) if part)


def _time(plan: Plan, glyphs: Glyphs) -> list[str]:
    prediction = plan.prediction
    lines = [f"{'where the time goes':<31}{format_time(prediction.step_time):>9}"]
    for part, seconds in prediction.time.model_dump().items():
        if seconds <= 0:
            continue
        share = seconds / prediction.step_time if prediction.step_time else 0.0
        bar = glyphs.bar * round(share * _BAR)
        name = _TIME_PARTS.get(part, part)
        lines.append(f"  {name:<28} {format_time(seconds):>9} {share:>7.1%}  {bar}")
    return lines


def _waits(plan: Plan) -> list[str]:
    """A row for each pipeline rank: it works, then waits for what the columns say."""
    rows = stage_waits(plan)
    if not rows:
        return []
    step = plan.prediction.step_time
    lines = [f"a rank's step, by {_place(plan)}: busy, then waiting for"]
    lines.append(f"  {'':<4}" + "".join(f"{name:>14}" for name in _WAITS.values()))
    for index, waits in enumerate(rows):
        cells = []
        for part in _WAITS:
            seconds = getattr(waits, part)
            none = seconds < _NOTHING * step
            cells.append("-" if none else f"{format_time(seconds)} {seconds / step:>4.0%}")
        lines.append(f"  {index:<4}" + "".join(f"{cell:>14}" for cell in cells))
    return lines


def _memory(plan: Plan, glyphs: Glyphs) -> list[str]:
    stages = plan.prediction.stages
    if not stages:
        return []
    index = max(range(len(stages)), key=lambda i: stages[i].peak)
    where = f" ({_place(plan)} {index})" if len(stages) > 1 else ""
    peak = stages[index].peak
    lines = [f"{'memory per rank' + where:<31}{format_bytes(peak):>9}".rstrip()]
    for part, name in _MEMORY_PARTS.items():
        size = getattr(stages[index], part)
        if not size:
            continue
        share = size / peak if peak else 0.0
        bar = glyphs.bar * round(share * _BAR)
        lines.append(f"  {name:<28} {format_bytes(size):>9} {share:>7.1%}  {bar}")
    return lines


def _stages(plan: Plan) -> list[str]:
    if len(plan.pipeline.stages) < 2:
        return []
    lines = ["stages"]
    for index, stage in enumerate(plan.pipeline.stages):
        first, last = plan.graph.instances[stage.first], plan.graph.instances[stage.last - 1]
        names = first.name if stage.last - stage.first == 1 else f"{first.name} to {last.name}"
        count = stage.last - stage.first
        blocks = f"{count} block" + ("s" if count > 1 else "")
        lines.append(f"  {index:<4} {blocks:<10} {_held(plan, index):>9}   {names}")
    return lines


def _held(plan: Plan, stage: int) -> str:
    """Memory of the stage's rank; with several stages a rank, which rank it is."""
    if plan.virtual_stages == 1:
        return format_bytes(plan.prediction.stages[stage].peak)
    ranks = ranks_of_stages(plan.pipeline.schedule, plan.mesh.pp, plan.virtual_stages)
    return f"rank {ranks[stage]}"


def _place(plan: Plan) -> str:
    """What a pipeline rank is called."""
    return "stage" if plan.virtual_stages == 1 else "pipeline rank"


def _recompute(plan: Plan) -> list[str]:
    """The level of each block, where they differ."""
    if plan.recompute != "mixed":
        return []
    lines = ["recompute by block"]
    for level, first, last in level_runs(plan.graph.levels):
        lines.append(f"  {level:<9} {_span(plan, first, last)}")
    return lines


def _span(plan: Plan, first: int, last: int) -> str:
    """Names of the blocks ``first`` to ``last`` (exclusive), and how many they are."""
    instances = plan.graph.instances
    if last - first == 1:
        return instances[first].name
    return f"{instances[first].name} to {instances[last - 1].name} ({last - first} blocks)"


def _considered(plan: Plan, glyphs: Glyphs) -> list[str]:
    shown = plan.considered[:_MAX_CANDIDATES]
    rows = [(c.label, c.step_time, c.peak_memory, c.reason) for c in shown]
    lines = _table("considered", rows, plan, glyphs)
    hidden = len(plan.considered) - len(shown)
    if hidden:
        lines.append(f"    and {hidden} more in the plan file")
    rows = [(b.name, b.step_time, b.peak_memory, b.reason) for b in plan.baselines]
    return lines + _table("baselines", rows, plan, glyphs)


def _table(
    title: str,
    rows: Sequence[tuple[str, float | None, int | None, str]],
    plan: Plan,
    glyphs: Glyphs,
) -> list[str]:
    if not rows:
        return []
    width = min(42, max(len(name) for name, *_ in rows))
    lines = [title]
    best = plan.prediction.step_time
    for name, seconds, memory, reason in rows:
        if seconds is None:
            mark = " " if reason.startswith("at least") else glyphs.refused
            lines.append(f"  {mark} {name:<{width}}  {reason or 'not priced'}")
            continue
        mark = glyphs.chosen if reason == "chosen" else " "
        change = f"{seconds / best - 1:+.1%}" if reason != "chosen" else ""
        size = "" if memory is None else format_bytes(memory)
        row = f"  {mark} {name:<{width}}  {format_time(seconds):>9}  {size:>9}"
        lines.append(f"{row}  {change or reason}")
    return lines


def _sharding(plan: Plan) -> list[str]:
    lines = [line for block in block_shardings(plan) for line in _block_sharding(block)]
    for fqn, dim, size, padded in padded_parameters(plan) if lines else ():
        lines.append(f"  {'padding':<8} {fqn}: dim {dim} of {size:,} to {padded:,}")
    return lines


def _block_sharding(block: BlockSharding) -> list[str]:
    copies = f" (1 of {block.copies} alike)" if block.copies > 1 else ""
    lines = [f"tensor parallel in {block.name}{copies}"]
    for text, names in _grouped(block.sharded).items():
        lines.append(f"  {text:<8} {', '.join(names)}")
    if block.replicated:
        others = "the other " if block.sharded else "all "
        lines.append(f"  {'R':<8} {others}{block.replicated} parameters")
    if block.partial:
        lines.append(
            f"  {'step':<8} gradients of {block.partial} whole parameters, partial on each rank, "
            "are summed once"
        )
    for name, counts in (("forward", block.forward), ("backward", block.backward)):
        words = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no collective"
        lines.append(f"  {name:<8} {words} for each microbatch")
    return lines


def _grouped(placed: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, text in placed:
        groups.setdefault(text, []).append(name)
    return groups


def _notes(plan: Plan) -> list[str]:
    counts = provenance_counts(plan)
    numbers = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    lines = [row("numbers", f"of the hardware: {numbers or 'none recorded'}")]
    if not counts["measured"]:
        lines.append(row("", "none is measured, so expect step times to be off"))
    return lines + [row("note", note) for note in dict.fromkeys(plan.notes)]


def _next(plan: Plan, where: str) -> list[str]:
    if not where:
        return [row("next", "add  -o DIR  to write the plan and its program")]
    per_node = plan.cluster.ranks_per_node
    nodes = "--standalone" if plan.cluster.nodes == 1 else f"--nnodes {plan.cluster.nodes}"
    return [
        row("plan", where),
        row("next", f"autoplan verify {where}"),
        row("", f"torchrun {nodes} --nproc-per-node {per_node} {where}/train.py"),
    ]
