"""One entry of the zoo in its own process: what was measured, as JSON, after each step.

python -m benchmarks.zoo.worker NAME RESULT.json [--no-verify] [--time-limit SECONDS]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from autoplan.capture import Captured, ModelSource, capture, load_model
from autoplan.errors import AutoplanError, VerificationError
from autoplan.ir.plan import WorkloadRecord
from autoplan.profiles import load_cluster
from autoplan.rules.coverage import rule_coverage
from autoplan.solver.search import solve
from benchmarks.zoo.entries import ROOT, Entry, zoo
from benchmarks.zoo.small import PINS, capture_small, solve_pinned, verify_plans

# Bytes of training state (parameters, gradients, two moments) that a cluster should hold.
CLUSTERS = (("8xh100", 2.5e11), ("4x8xh100", 1e12), ("16x8xh100", 5e12), ("64x8xh100", 1e15))
STATE_BYTES = 16
LAYERS = 4
Result = dict[str, Any]


def main() -> int:
    """Run the entry named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("output", type=Path)
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--time-limit", type=float, default=60.0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    entry = next(entry for entry in zoo() if entry.name == args.name)
    result: Result = {"entry": asdict(entry)}
    save(result, args.output)
    if entry.library and importlib.util.find_spec(entry.library) is None:
        result["missing"] = entry.library
        save(result, args.output)
        return 0
    if captured := step(result, "capture", lambda: capture_real(entry)):
        save(result, args.output)
        step(result, "solve", lambda: solve_real(entry, captured, args.time_limit))
        save(result, args.output)
        if not args.no_verify:
            step(result, "verify", lambda: verify_small(entry, result, args.output))
    save(result, args.output)
    return 0


def save(result: Result, path: Path) -> None:
    """Write what is known so far, all or nothing."""
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(result, indent=1), encoding="utf-8")
    fresh.rename(path)


def step(result: Result, name: str, work: Callable[[], tuple[Result, Any]]) -> Any:
    """Second part of what ``work`` gives; the first, or the error, goes to ``result``."""
    started = time.perf_counter()
    kept = None
    try:
        result[name], kept = work()
    except AutoplanError as error:
        result[name] = failure(error)
    except Exception as error:
        # A crash is a result too: the table must show it, and the next entries must run.
        result[name] = {"error": f"{type(error).__name__}: {error}"[:400], "kind": "crash"}
    result[name]["seconds"] = round(time.perf_counter() - started, 1)
    return kept


def failure(error: AutoplanError) -> Result:
    """What the table shows of an error."""
    text = " ".join(str(error).split()).replace(f"{ROOT}/", "")
    return {"error": text[:400], "hint": error.hint, "kind": type(error).__name__}


def source_of(entry: Entry, overrides: Mapping[str, Any]) -> ModelSource:
    """Source of the entry at the size that ``overrides`` give."""
    spec = f"{ROOT}/{entry.spec}" if "/" in entry.spec else entry.spec
    return load_model(spec, overrides=dict(overrides))


def capture_real(entry: Entry) -> tuple[Result, Captured]:
    """Capture at real size in bfloat16, and the share of FLOP that the rules can't divide."""
    started = time.perf_counter()
    captured = capture(source_of(entry, entry.overrides), seq_len=entry.seq_len, dtype="bfloat16")
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    graph = captured.at(2)
    coverage = rule_coverage(graph, 2)
    total = sum(record.flop for record in coverage)
    moved = sum(record.bytes for record in coverage)
    whole = sorted(
        (record for record in coverage if record.replicated_calls),
        key=lambda record: (-record.replicated_flop, -record.replicated_bytes, record.target),
    )
    return {
        "capture_seconds": round(seconds, 1),
        "peak_memory": peak,
        "parameters": captured.num_parameters,
        "blocks": len(graph.instances),
        "classes": len(graph.classes),
        "operators": len(coverage),
        "replicated_flop": sum(r.replicated_flop for r in whole) / max(total, 1),
        "replicated_bytes": sum(r.replicated_bytes for r in whole) / max(moved, 1),
        "replicated": {
            r.target: [r.replicated_flop / max(total, 1), r.reason] for r in whole
        },
        "notes": list(graph.notes),
    }, captured  # fmt: skip


def solve_real(entry: Entry, captured: Captured, time_limit: float) -> tuple[Result, None]:
    """Solve at real size on the entry's cluster."""
    state = captured.num_parameters * STATE_BYTES
    cluster = entry.cluster or next(name for name, limit in CLUSTERS if state < limit)
    workload = WorkloadRecord(
        global_batch=entry.global_batch, seq_len=entry.seq_len, dtype="bfloat16",
        optimizer="adamw",
    )  # fmt: skip
    plan = solve(captured, workload, load_cluster(cluster), pins={}, time_limit=time_limit)
    degrees = {axis: n for axis, n in plan.mesh.model_dump().items() if n > 1}
    return {
        "cluster": cluster,
        "degrees": degrees,
        "zero": plan.zero,
        "recompute": plan.recompute,
        "step_time": plan.prediction.step_time,
        "gap": plan.prediction.gap,
        "termination": plan.prediction.termination,
        "peak_memory": plan.prediction.peak_memory,
    }, None


def verify_small(entry: Entry, result: Result, path: Path) -> tuple[Result, None]:
    """Solve the small model with tp 2 and with pp 2, and compare one step of each."""
    started = time.perf_counter()
    source = small_source(entry)
    captured = capture_small(source, entry.small_seq_len)
    found: Result = {
        "parameters": captured.num_parameters,
        "capture_seconds": round(time.perf_counter() - started, 1),
    }
    result["verify"] = found
    plans = {}
    for label, pins in PINS.items():
        plan = step(found, label, partial(solve_pinned, captured, entry.small_seq_len, pins))
        if plan is not None:
            plans[label] = plan
        save(result, path)
    started = time.perf_counter()
    for label, compared in verify_plans(source, plans).items():
        found[label] |= compared
    found["run_seconds"] = round(time.perf_counter() - started, 1)
    return found, None


def small_source(entry: Entry) -> ModelSource:
    """The entry at the size that two ranks of this machine can run."""
    if entry.small:
        return source_of(entry, entry.small)
    source = source_of(entry, entry.overrides).reduced(layers=LAYERS, tp=2)
    if source is None:
        raise VerificationError(f"{entry.name} has no reduced form", hint="give it small sizes")
    return source


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Without what libraries print."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


if __name__ == "__main__":
    with silent():
        code = main()
    sys.exit(code)
