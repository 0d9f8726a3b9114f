"""Prices published runs and compares: ``python -m benchmarks.accuracy published DIR``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from autoplan.capture import capture, load_model
from autoplan.capture.captured import Captured
from autoplan.errors import InputError
from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.optimizer import UPDATE_RULES
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.mixture import Mixture
from autoplan.solver.pricing import Appraisal, Found, Priced
from benchmarks.accuracy.layout import megatron_point
from benchmarks.accuracy.nemo import interleaved_time
from benchmarks.accuracy.rows import Row, Skip, read_rows
from benchmarks.accuracy.systems import Run, run_of

__all__ = ["Compared", "FileResult", "compare_files"]

_DECODER = Path(__file__).parent / "decoder.py"
_NO_LIMIT = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A row, its predicted seconds a step, and the bytes its memory column would show.

    ``hides_tp``: the run's tensor parallelism is beside its matmuls.
    """

    row: Row
    priced: Priced
    memory: float
    hides_tp: bool

    @property
    def time_error(self) -> float:
        """Predicted over measured step time, minus one."""
        return self.priced.step_time / self.row.step_time - 1

    @property
    def memory_error(self) -> float:
        """Predicted over printed memory, minus one."""
        return self.memory / self.row.peak_memory - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """Rows of one file: compared, and left out by (id, reason)."""

    file: str
    compared: tuple[Compared, ...]
    skipped: tuple[tuple[str, str], ...]


class _Pricer:
    """Captures each shape once, and prices each layout of it once."""

    def __init__(self) -> None:
        self._captured: dict[tuple[object, ...], Captured] = {}
        self._points: dict[tuple[object, ...], ModelPoint] = {}

    def price(self, run: Run) -> Priced:
        """Price of a run, whether it fits or not."""
        row, configuration = run.row, run.configuration
        length = row.seq_len // run.extras.context
        shape = (*sorted(run.kernels.items()), length, row.dtype)
        if shape not in self._captured:
            source = load_model(f"{_DECODER}:decoder", overrides=run.kernels)
            self._captured[shape] = capture(source, seq_len=length, dtype=row.dtype)
        graph = self._captured[shape].at(configuration.micro_batch_size)
        device = run.cluster.accelerator
        spec = (
            device.name,
            device.attention_efficiency,
            run.cluster.ranks_per_node,
            run.cluster.domain,
            run.cluster.inter,
            run.cluster.nodes > 1,  # of one node, a ring stays inside
        )
        key: tuple[object, ...] = (
            *(shape, spec, configuration.micro_batch_size, row.tp, row.sequence, run.extras),
            *(run.calls, run.scattered, run.recompute),
        )
        if key not in self._points:
            self._points[key] = megatron_point(
                graph,
                row.tp,
                run.cluster,
                sequence=row.sequence,
                recompute=run.recompute,
                calls=run.calls,
                scattered=run.scattered,
                extras=run.extras,
            )
        result = _price(graph, run, self._points[key])
        if run.extras.chunks > 1 and run.cut is not None:
            chunks = run.extras.chunks
            seconds = interleaved_time(graph, result, run.cluster, run.cut, chunks)
            result = replace(result, step_time=seconds)
        return result


def _price(graph: Graph, run: Run, point: ModelPoint) -> Priced:
    """Price of a point, cut as the row says, else as the solver would."""
    update, cluster = UPDATE_RULES["adamw"], run.cluster
    found: Found
    if run.cut is None:
        mixture = Mixture(graph, run.configuration, [point], cluster, update=update)
        found = mixture.best(_NO_LIMIT)
    else:
        appraisal = Appraisal(graph, run.configuration, point, cluster, update=update, cut=run.cut)
        found = appraisal.found(memory_limit=_NO_LIMIT)
    assert isinstance(found, Priced)
    return found


def compare_files(
    folder: Path, *, only: Iterable[str] = (), progress: Callable[[str], None] = lambda text: None
) -> tuple[FileResult, ...]:
    """Every file of measured steps in a folder, by name."""
    chosen = set(only)
    paths = [p for p in sorted(folder.glob("*.csv")) if _has_steps(p)]
    if chosen:
        paths = [p for p in paths if p.stem in chosen]
    if not paths:
        raise InputError(f"{folder}: no .csv file of measured steps", hint="give another folder")
    return tuple(_compare(path, progress) for path in paths)


def _has_steps(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        return "n_layers" in file.readline()


def _compare(path: Path, progress: Callable[[str], None]) -> FileResult:
    pricer = _Pricer()
    compared, skipped = [], []
    rows = list(read_rows(path))
    started = time.monotonic()
    for done, (name, row) in enumerate(rows):
        try:
            if isinstance(row, Skip):
                raise row
            if not row.step_time and not row.peak_memory:
                raise Skip("neither step time nor memory")
            run = run_of(row)
            priced = pricer.price(run)
        except Skip as skip:
            skipped.append((name, str(skip)))
            continue
        compared.append(
            Compared(
                row=row,
                priced=priced,
                memory=_shown(run, priced),
                hides_tp=run.extras.hides_tp,
            )
        )
        if time.monotonic() - started > 5:
            started = time.monotonic()
            progress(f"{path.stem}: {done + 1} of {len(rows)} rows")
    return FileResult(file=path.stem, compared=tuple(compared), skipped=tuple(skipped))


def _shown(run: Run, priced: Priced) -> float:
    """Bytes as the source shows them: allocated, reserved, or all that the device reports."""
    device = run.cluster.accelerator
    note = run.row.memory_note.lower()
    peak = max(_pipeline_peak(run, priced, stage) for stage in range(len(priced.stages)))
    if "allocated" in note:
        return float(peak)
    reserved = peak / (1 - device.fragmentation)
    return reserved + (device.reserved if "nvidia-smi" in note else 0)


def _pipeline_peak(run: Run, priced: Priced, stage: int) -> int:
    """Bytes of a stage whose pipeline allocates boundaries as microbatches arrive.

    torch's, which plans are priced for, allocates those of the whole step at its start. Gradients
    that are summed in a wider type than they are computed in exist in both.
    """
    first, last = priced.stages[0], priced.stages[-1]
    ends = (priced.stages[stage] is not first) + (priced.stages[stage] is not last)
    boundary = max(cost.boundary for cost in priced.point.costs)
    allocated = run.configuration.microbatches * ends * boundary
    memory = priced.stages[stage].memory
    summed, computed = run.configuration.sync.itemsize, dtype_size(run.row.dtype)
    sums = 0
    if run.configuration.zero <= 1 and summed > computed:
        sums = memory.gradients * summed // computed
    return memory.peak - allocated + sums
