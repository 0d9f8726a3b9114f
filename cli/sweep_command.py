"""``autoplan sweep``: plans over cluster sizes, memory limits and batches, compared."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from autoplan._version import __version__
from autoplan.cli.axes import MAX_POINTS
from autoplan.cli.outcome import Outcome, Progress
from autoplan.cli.planning import Planning, pins_of
from autoplan.cli.writable import require_own_folder
from autoplan.errors import InfeasibleError, SolverLimitError, UsageError
from autoplan.ir.plan import Plan
from autoplan.ir.sweep import PointRecord, SweepRecord
from autoplan.units import format_bytes

if TYPE_CHECKING:
    from autoplan.solver.grid import Answer, End, GridPoint, Refusal

__all__ = ["run"]

SUMMARY = "sweep.json"


def run(args: argparse.Namespace) -> Outcome:
    """Solve every point, and write their plans when ``-o`` is given."""
    progress = Progress(quiet=args.quiet, verbose=args.verbose > 0)
    points = _points(args)
    _check_objective(args, points)
    if args.output is not None:
        require_own_folder(args.output, SUMMARY)
    sweep = _Sweep(args, points, progress)
    try:
        end = sweep.solve()
        record = sweep.record(end)
        if all(point.status == "refused" for point in record.points):
            raise UsageError(
                f"no point has a legal configuration; the first: {record.points[0].message}",
                hint="choose batches that share divisors with the ranks, or fix less",
            )
        if args.output is not None:
            _write(record, args.output / SUMMARY)
    finally:
        progress.close()
    where = "" if args.output is None else str(args.output)
    took = [("capture", sweep.planning.capture_time), ("solve", sweep.solve_time)]

    def render(stream: TextIO) -> None:
        from autoplan.report.sweep import print_sweep

        print_sweep(record, stream, where=where, took=took)

    document = record.model_dump(mode="json")
    document |= {f"{name}_time": seconds for name, seconds in took} | {"output": where or None}
    return Outcome(document=document, render=render, exit_code=_exit_code(record))


def _points(args: argparse.Namespace) -> list[GridPoint]:
    from autoplan.profiles import load_cluster
    from autoplan.solver.grid import GridPoint
    from autoplan.solver.prepare import usable_memory

    limits: Sequence[int | None] = args.memory_limit or (None,)
    number = len(args.cluster) * len(args.global_batch) * len(limits)
    if number > MAX_POINTS:
        raise UsageError(
            f"{number} points: {len(args.cluster)} clusters x {len(args.global_batch)} batches x "
            f"{len(limits)} memory limits; the limit is {MAX_POINTS}",
            hint="vary one thing at a time, or give fewer values",
        )
    clusters = [load_cluster(spec, profile=args.profile) for spec in args.cluster]
    for cluster in clusters:
        for limit in limits:
            usable_memory(cluster, limit)  # refuses more than the device has
    return [
        GridPoint(cluster=cluster, global_batch=batch, memory_limit=limit)
        for cluster in clusters
        for batch in args.global_batch
        for limit in limits
    ]


def _check_objective(args: argparse.Namespace, points: Sequence[GridPoint]) -> None:
    if args.objective == "cost" and args.price_per_hour is None:
        raise UsageError(
            "--objective cost needs a price", hint="--price-per-hour 2.5, of one device"
        )
    ranks, batches, limits = (
        {(p.cluster.ranks, p.global_batch, p.memory_limit)[i] for p in points} for i in range(3)
    )
    if args.objective == "knee" and len(ranks) == 1 and (len(batches) > 1 or len(limits) == 1):
        raise UsageError(
            "--objective knee is of several cluster sizes, or of several memory limits alone",
            hint="--cluster 1..16x8xh100",
        )


class _Sweep:
    """Points on their way to a record."""

    def __init__(
        self, args: argparse.Namespace, points: Sequence[GridPoint], progress: Progress
    ) -> None:
        self._args, self._points, self._progress = args, points, progress
        self._where = ""
        self._records: list[PointRecord] = []
        self._provenance: dict[str, int] = {}
        self.planning = Planning(args, points[0].cluster, self._tell)
        self.solve_time = 0.0

    def solve(self) -> End:
        """Plans of the points, each written as soon as it is found."""
        from autoplan.solver.grid import solve_points

        self.planning.capture()
        self._records = [self._unsolved(point) for point in self._points]
        started = time.perf_counter()
        try:
            return solve_points(
                len(self._points),
                self._plan,
                time_limit=self._args.time_limit,
                found=self._found,
            )
        finally:
            self.solve_time = time.perf_counter() - started

    def record(self, end: End) -> SweepRecord:
        """The sweep with the best point marked."""
        from autoplan.solver.objectives import judged

        args = self._args
        model, parameters = self.planning.model
        return SweepRecord(
            autoplan_version=__version__,
            model=model,
            num_parameters=parameters,
            accelerator=self._points[0].cluster.accelerator.name,
            seq_len=self.planning.seq_len,
            dtype=self.planning.dtype,
            optimizer=args.optimizer,
            pins=pins_of(args),
            objective=args.objective,
            price_per_hour=args.price_per_hour,
            termination=end,
            provenance=self._provenance,
            points=judged(self._records, args.objective),
        )

    def _plan(self, index: int, seconds: float) -> Plan:
        point = self._points[index]
        self._where = f"point {index + 1} of {len(self._points)}: "
        return self.planning.plan(
            point.cluster,
            global_batch=point.global_batch,
            memory_limit=point.memory_limit,
            time_limit=seconds,
            suggest=False,
        )

    def _tell(self, message: str) -> None:
        self._progress(self._where + message)

    def _unsolved(self, point: GridPoint) -> PointRecord:
        return PointRecord(
            cluster=point.cluster.spec,
            nodes=point.cluster.nodes,
            ranks_per_node=point.cluster.ranks_per_node,
            global_batch=point.global_batch,
            memory_limit=self.planning.usable_memory(point.cluster, point.memory_limit),
            status="not_reached",
        )

    def _found(self, index: int, answer: Answer) -> None:
        from autoplan.report.summary import provenance_counts
        from autoplan.solver.objectives import with_plan

        record = self._records[index]
        if not isinstance(answer, Plan):
            self._records[index] = _without_plan(record, answer)
            return
        self._provenance = self._provenance or provenance_counts(answer)
        record = with_plan(record, answer, self._args.price_per_hour)
        if self._args.output is not None:
            record = record.model_copy(update={"plan": self._file_name(index)})
            _write(answer, self._args.output / record.plan)
        self._records[index] = record
        if self._args.output is not None:
            # Should this process be killed, what it leaves says what is there.
            _write(self.record("interrupted"), self._args.output / SUMMARY)

    def _file_name(self, index: int) -> str:
        """Name from numbers alone, the same for the same point of the same sweep."""
        record = self._records[index]
        digits = len(str(len(self._points)))
        parts = [f"{index + 1:0{digits}}", f"{record.nodes}x{record.ranks_per_node}"]
        parts += [f"batch{record.global_batch}", format_bytes(record.memory_limit).replace(" ", "")]
        return "-".join(parts) + ".json"


def _without_plan(point: PointRecord, error: Refusal) -> PointRecord:
    update: dict[str, object] = {"message": " ".join(str(error).split())[:2000]}
    if isinstance(error, UsageError):
        update["status"] = "refused"
    elif isinstance(error, SolverLimitError):
        update["status"] = "time_limit"
    else:
        update["status"] = "infeasible"
        needed = error.details.get("needed")
        if isinstance(needed, int):
            update |= {"needed": needed, "shortfall": needed - point.memory_limit}
    return point.model_copy(update=update)


def _write(record: Plan | SweepRecord, path: Path) -> None:
    from autoplan.profiles.schema import write_record

    write_record(record, path)


def _exit_code(sweep: SweepRecord) -> int:
    """0 with a plan; else that of the error which says why there is none."""
    statuses = {point.status for point in sweep.points}
    if "solved" in statuses:
        return 0
    if sweep.termination == "interrupted":
        return 130
    if statuses & {"time_limit", "not_reached"}:
        return SolverLimitError.exit_code
    return InfeasibleError.exit_code
