"""Runs a grid of generated programs on a few CPU ranks, beside what their plans predict."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autoplan.capture import Captured, capture, load_model
from autoplan.emit import emit_program
from autoplan.errors import AutoplanError, InputError, UsageError
from autoplan.ir.hardware import Cluster
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.profiles import load_cluster
from autoplan.solver.search import solve
from benchmarks.accuracy.grid import MODELS, RANKS, Model, Row, grid
from benchmarks.accuracy.meter import build

__all__ = ["Measured", "chosen_rows", "measure", "run_local"]

DTYPE = "float32"
SOLVE_LIMIT = 30.0
RUN_LIMIT = 200.0
MEMORY_STEPS = 2
_WORKER = Path(__file__).with_name("local_worker.py")
Measured = dict[str, Any]


class _Models:
    """Captures each model once."""

    def __init__(self, profile: Path | None) -> None:
        self._profile = profile
        self._clusters: dict[int, Cluster] = {}
        self._captured: dict[str, Captured] = {}

    def plan(self, model: Model, pins: dict[str, str], *, ranks: int = RANKS) -> Plan:
        """Plan of a model on so many ranks, with those decisions fixed."""
        if ranks not in self._clusters:
            # A profile is of the timed ranks.
            profile = self._profile if ranks == RANKS else None
            self._clusters[ranks] = load_cluster(f"cpu:{ranks}", profile=profile)
        if model.name not in self._captured:
            source = load_model(model.spec, overrides=model.overrides)
            self._captured[model.name] = capture(source, seq_len=model.seq_len, dtype=DTYPE)
        captured = self._captured[model.name]
        captured.confirm()
        workload = WorkloadRecord(
            global_batch=model.global_batch,
            seq_len=model.seq_len,
            dtype=DTYPE,
            optimizer="adamw",
        )
        return solve(captured, workload, self._clusters[ranks], pins=pins, time_limit=SOLVE_LIMIT)


def chosen_rows(only: Sequence[str]) -> tuple[Row, ...]:
    """Rows that one of the names is, or is a part of the name of; all without any."""
    rows = grid()
    for name in only:
        if not any(name in row.name for row in rows):
            raise UsageError(
                f"--only {name!r} is no part of the name of a row",
                hint=f"such as {rows[0].name}; models: {', '.join(m.name for m in MODELS)}",
            )
    return tuple(row for row in rows if not only or any(name in row.name for name in only))


def run_local(
    rows: Sequence[Row],
    *,
    steps: int,
    rounds: int,
    what: Sequence[str],
    profile: Path | None,
    output: Path | None,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Document of all rows; written to ``output`` whenever something new is known.

    Each round runs every row once, so that what slows the machine for a while meets all of
    them. A row that fails says so and the others go on.
    """
    models = _Models(profile)
    found: dict[str, Measured] = {}
    document = {"schema_version": 1, "steps": steps, "rounds": rounds, "rows": found}
    with tempfile.TemporaryDirectory() as work:
        plans: dict[str, Path] = {}
        for row in rows:
            try:
                pins = row.layout.pinned(row.model)
                plan = models.plan(row.model, pins, ranks=row.layout.ranks)
                plans[row.name] = Path(work) / row.name
                emit_program(plan, plans[row.name])
                found[row.name] = _predicted(row.model, row.layout.name, plan, row.layout.ranks)
            except AutoplanError as error:
                found[row.name] = {"model": row.model.name, "error": str(error).splitlines()[0]}
                progress(f"{row.name}: {found[row.name]['error']}")
        if "time" in what:
            for name in dict.fromkeys(row.model.name for row in rows):
                _choose(models, name, plans, found, Path(work))
        _save(document, output)
        library = _meter(Path(work)) if "memory" in what else None
        turns = [("memory", MEMORY_STEPS)] if "memory" in what else []
        turns += [("time", steps)] * rounds if "time" in what else []
        for index, (kind, count) in enumerate(turns):
            for name, folder in plans.items():
                ranks = len(found[name].get("predicted_memory", ()))
                if "error" in found[name] or (kind == "time" and ranks != RANKS):
                    continue
                progress(f"{kind}, turn {index + 1} of {len(turns)}: {name}")
                _add(found[name], measure(folder, kind, steps=count, ranks=ranks, meter=library))
                _save(document, output)
    return document


def _meter(folder: Path) -> Path:
    try:
        return build(folder)
    except RuntimeError as error:
        raise UsageError(str(error), hint="or measure step times only: --what time") from error


def measure(
    folder: Path, what: str, *, steps: int, ranks: int = RANKS, meter: Path | None = None
) -> list[Measured]:
    """What each rank of the program in ``folder`` found, or its error.

    ``meter`` is the library of the allocator that counts, which ``memory`` needs.
    """
    with tempfile.TemporaryDirectory() as output:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "AUTOPLAN_DEVICE": "cpu",
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(ranks),
            **({} if meter is None else {"AUTOPLAN_METER": str(meter)}),
        }
        paths = [Path(output) / f"{rank}.json" for rank in range(ranks)]
        command = [sys.executable, str(_WORKER), str(folder)]
        running = [
            subprocess.Popen(
                [*command, str(path), what, str(steps)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank, path in enumerate(paths)
        ]
        _await(running)
        return [_read(path) for path in paths]


def _await(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all end; when one fails or time is up, end the others."""
    waited = 0.0
    try:
        while any(rank.poll() is None for rank in ranks) and waited < RUN_LIMIT:
            if any(rank.poll() for rank in ranks):
                break
            try:
                next(r for r in ranks if r.poll() is None).wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                waited += 0.2
            except StopIteration:
                break
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


def _read(path: Path) -> Measured:
    if not path.is_file():
        return {"error": f"did not end within {RUN_LIMIT:.0f} s, or was ended for the other rank"}
    found: Measured = json.loads(path.read_text(encoding="utf-8"))
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _predicted(model: Model, layout: str, plan: Plan, ranks: int) -> Measured:
    stages = plan.prediction.stages
    return {
        "model": model.name,
        "layout": layout,
        "plan": str(plan),
        "predicted_step_time": plan.prediction.step_time,
        "predicted_memory": [
            stages[rank * plan.mesh.pp // ranks].model_dump() for rank in range(ranks)
        ],
    }


def _choose(
    models: _Models, name: str, plans: dict[str, Path], found: dict[str, Measured], work: Path
) -> None:
    """Add the plan that the solver chooses for a model by itself."""
    model = next(model for model in MODELS if model.name == name)
    chosen = f"{name}-chosen"
    try:
        plan = models.plan(model, {})
    except AutoplanError as error:
        found[chosen] = {"model": name, "error": str(error).splitlines()[0]}
        return
    plans[chosen] = work / chosen
    emit_program(plan, plans[chosen])
    found[chosen] = _predicted(model, "chosen", plan, RANKS)


def _add(row: Measured, ranks: list[Measured]) -> None:
    failed = [rank["error"] for rank in ranks if "error" in rank]
    if failed:
        # A rank that was ended for the other has less to say.
        row["error"] = min(failed, key=lambda text: text.startswith("did not end"))
        return
    if "peaks" in ranks[0]:
        row["peaks"] = [max(rank["peaks"]) for rank in ranks]
        row["resting"] = [rank["resting"] for rank in ranks]
    else:
        # A step takes as long as its slowest rank.
        both = zip(*(rank["seconds"] for rank in ranks), strict=True)
        row.setdefault("seconds", []).append([max(pair) for pair in both])


def _save(document: dict[str, Any], output: Path | None) -> None:
    if output is None:
        return
    try:
        fresh = output.with_name(output.name + ".tmp")
        fresh.write_text(json.dumps(document, indent=1), encoding="utf-8")
        fresh.rename(output)
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror}") from error
