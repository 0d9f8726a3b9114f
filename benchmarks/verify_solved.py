"""Solved, emitted and verified: worst relative errors of small GPT-2, Llama and tied models.

    python benchmarks/verify_solved.py

Each row pins degrees, solves, writes the program and runs one step of it on gloo ranks in
float32 without dropout. The ratio printed is the worst gradient error over the tolerance:
below 1 the program equals the unsharded model. Messages are priced as nearly free, which makes
sharded weights the solver's own choice for small layers.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from autoplan.capture import capture, load_model
from autoplan.emit import emit_program
from autoplan.ir.hardware import Cluster
from autoplan.ir.plan import Plan, WorkloadRecord
from autoplan.profiles import load_cluster
from autoplan.solver.search import solve
from autoplan.verify.compare import TOLERANCE, compare
from autoplan.verify.launch import run_programs
from autoplan.verify.reference import write_reference

SEQ_LEN = 8
AXES = ("dp_replicate", "dp_shard", "tp", "pp")
MODELS = {
    "gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256},
    "llama3-8b": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
    },
    f"{Path(__file__).parents[1] / 'tests/verify/tied_model.py'}:build": {},
}
CASES = {
    "dp 2 (DDP)": {"dp_replicate": "2"},
    "FSDP2, zero 2": {"dp_shard": "2", "zero": "2"},
    "FSDP2, zero 3": {"dp_shard": "2", "zero": "3"},
    "zero 1": {"dp_shard": "2", "zero": "1"},
    "tp 2": {"tp": "2"},
    "pp 2, gpipe": {"pp": "2", "schedule": "gpipe"},
    "pp 2, 1f1b": {"pp": "2", "schedule": "1f1b"},
    "pp 2, 1f1b, recompute": {"pp": "2", "schedule": "1f1b", "recompute": "full"},
    "tp 2 x pp 2": {"tp": "2", "pp": "2", "schedule": "1f1b"},
    "dp 2 x tp 2": {"dp_replicate": "2", "tp": "2"},
    "FSDP2 2 x tp 2": {"dp_shard": "2", "tp": "2", "zero": "3"},
}


def main() -> int:
    """Print the table; 1 when a program differs."""
    worst_ratio = 0.0
    for spec, overrides in MODELS.items():
        source = load_model(spec, overrides=overrides)
        captured = capture(source, seq_len=SEQ_LEN, dtype="float32")
        print(f"\n{source.name}: {captured.num_parameters:,} parameters", flush=True)
        for ranks in (2, 4):
            with tempfile.TemporaryDirectory() as name:
                work = Path(name)
                rows: list[tuple[str, Plan, Path, Path, float]] = []
                for label, pins in CASES.items():
                    if math.prod(int(pins.get(axis, "1")) for axis in AXES) != ranks:
                        continue
                    workload = WorkloadRecord(
                        global_batch=4, seq_len=SEQ_LEN, dtype="float32", optimizer="adamw"
                    )
                    plan = solve(
                        captured,
                        workload,
                        fast_network(ranks),
                        pins={**pins, "micro_batch_size": "1"},
                    )
                    folder = work / f"program{len(rows)}"
                    emit_program(plan, folder)
                    reference = work / f"reference{len(rows)}.pt"
                    loss = write_reference(source, plan, reference)
                    rows.append((label, plan, folder, reference, loss))
                programs = [(folder, reference) for _, _, folder, reference, _ in rows]
                found = run_programs(programs, ranks=ranks, work=work / "runs", timeout=600)
                for (label, plan, _, _, loss), findings in zip(rows, found, strict=True):
                    report = compare(plan, findings, loss)
                    ratio = report.worst_error / TOLERANCE
                    worst_ratio = max(worst_ratio, ratio, report.loss_error / TOLERANCE)
                    print(
                        f"  {label:24} loss {report.loss_error:.1e}  {report.compared} gradients, "
                        f"worst {report.worst_error:.1e}  ratio {ratio:.3f}  "
                        f"{_sharded(plan)} sharded parameters",
                        flush=True,
                    )
    print(f"\nworst error / tolerance: {worst_ratio:.3f}")
    return int(worst_ratio > 1.0)


def fast_network(ranks: int) -> Cluster:
    """CPU ranks priced with nearly free messages, so that dividing small layers pays."""
    cluster = load_cluster(f"cpu:{ranks}")
    link = replace(cluster.intra, latency=1e-9, bandwidth=1e12)
    accelerator = replace(cluster.accelerator, kernel_latency=1e-9)
    return replace(cluster, intra=link, inter=link, accelerator=accelerator)


def _sharded(plan: Plan) -> int:
    return sum(parameter.placement != "R" for parameter in plan.graph.parameters)


if __name__ == "__main__":
    sys.exit(main())
