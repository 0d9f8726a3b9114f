"""Files around the model: the training script, how to launch it, what the plan is."""

from __future__ import annotations

from autoplan.emit.text import comment
from autoplan.ir.plan import Plan
from autoplan.units import format_bytes, format_time

__all__ = ["launch_text", "readme_text", "slurm_text", "train_text"]


def train_text(plan: Plan) -> str:
    """Source of ``train.py``."""
    return _TRAIN.replace("NAME", comment(plan.graph.name))


def launch_text(plan: Plan) -> str:
    """Shell script that starts the ranks of one node with torchrun."""
    nodes, per_node = _layout(plan)
    return _LAUNCH.replace("NODES", str(nodes)).replace("PER_NODE", str(per_node))


def slurm_text(plan: Plan) -> str:
    """Slurm batch script."""
    nodes, per_node = _layout(plan)
    text = _SLURM.replace("NODES", str(nodes)).replace("PER_NODE", str(per_node))
    if _on_cpu(plan):
        return text.replace("#SBATCH --gpus-per-node=GPUS\n", "")
    return text.replace("GPUS", str(per_node))


def readme_text(plan: Plan) -> str:
    """Description of the plan and the commands that use it."""
    nodes, per_node = _layout(plan)
    mesh = plan.mesh.model_dump()
    pipeline = plan.pipeline
    memory = plan.prediction
    rows = [
        ("model", comment(plan.graph.name)),
        ("cluster", comment(plan.cluster.spec)),
        ("mesh", " x ".join(f"{axis} {degree}" for axis, degree in mesh.items())),
        ("ZeRO level", str(plan.zero)),
        ("recompute", plan.recompute_text),
        ("schedule", f"{pipeline.schedule}, {_counted(len(pipeline.stages), 'stage')}"),
        ("microbatches", f"{pipeline.microbatches} of {pipeline.micro_batch_size} a step"),
        ("global batch", _batch(plan)),
        ("predicted step time", format_time(memory.step_time)),
        (
            "predicted peak memory",
            f"{format_bytes(memory.peak_memory)} of {format_bytes(memory.memory_limit)}",
        ),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    across = (
        f"on each of the {nodes} nodes, with `MASTER_ADDR` and `NODE_RANK` set"
        if nodes > 1
        else "on one node"
    )
    return _README.format(
        name=comment(plan.graph.name), table=table, per_node=per_node, across=across
    )


def _layout(plan: Plan) -> tuple[int, int]:
    """Nodes and ranks on each."""
    mesh = plan.mesh
    ranks = mesh.pp * mesh.dp_replicate * mesh.dp_shard * mesh.tp
    per_node = min(ranks, plan.cluster.ranks_per_node)
    return -(-ranks // per_node), per_node


def _on_cpu(plan: Plan) -> bool:
    return plan.cluster.accelerator.startswith("cpu")


_TRAIN = '''"""Trains NAME by the plan beside this file: ``./launch.sh --help``."""

from __future__ import annotations

from pathlib import Path

import model
import runtime as rt

if __name__ == "__main__":
    rt.leave(rt.main(model, Path(__file__).parent))
'''

_LAUNCH = """#!/usr/bin/env bash
# Starts this node's ranks. Several nodes: run it on each with MASTER_ADDR and NODE_RANK set.
set -euo pipefail
cd "$(dirname "$0")"
nodes=NODES
# torchrun returns 1 whatever a rank returns; asking first gives the documented exit codes.
python train.py --check "$@" || exit $?
if [ "$nodes" -eq 1 ]; then
    exec torchrun --standalone --nproc-per-node PER_NODE train.py "$@"
fi
: "${MASTER_ADDR:?set it to the address of node 0}"
: "${NODE_RANK:?set it to 0 on the first node, 1 on the next, ...}"
exec torchrun --nnodes "$nodes" --nproc-per-node PER_NODE --node-rank "$NODE_RANK" \\
    --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}" train.py "$@"
"""

_SLURM = """#!/usr/bin/env bash
#SBATCH --job-name=autoplan
#SBATCH --nodes=NODES
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=GPUS
#SBATCH --exclusive
set -euo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
# Without this the submitted copy of the script, not the program's folder, would be the start.
cd "$SLURM_SUBMIT_DIR"
srun bash -c 'NODE_RANK=$SLURM_NODEID ./launch.sh "$@"' launch "$@"
"""

_README = """# {name}: training program

Written by autoplan from `plan.json`, which holds the whole plan. Needs only PyTorch.

| | |
| --- | --- |
{table}

## Run

Run `./launch.sh` {across} ({per_node} ranks a node); under Slurm: `sbatch launch.slurm`.
`./launch.sh --help` lists the options.

## Files

- `model.py`: every operator on a rank's shards, and every collective between them
- `train.py`: the training loop
- `runtime/`: collectives, parameter shards, pipeline, optimizer
- `plan.json`: the plan; `autoplan show plan.json` prints it, `autoplan verify .` proves that
  this program's loss and gradients equal the unsharded model's
"""


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _batch(plan: Plan) -> str:
    tokens = f" x {plan.workload.seq_len} tokens" if plan.workload.seq_len else ""
    return _counted(plan.workload.global_batch, "sample") + tokens
