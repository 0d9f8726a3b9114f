"""Kernels and bytes that torch's inductor counts for one block of a program.

``python inductor_counts.py PROGRAM BLOCK`` prints, for forward and backward, every kernel that
inductor generates (products, attention and other calls into libraries are none): its bytes, and
for each loop nest of it the lines of the program's ``model.py`` that ask for what it stores.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx as compile_fx
from torch._inductor.graph import GraphLowering

FOLDER, BLOCK = Path(sys.argv[1]), int(sys.argv[2])
sys.path.insert(0, str(FOLDER))

import model  # noqa: E402
import runtime as rt  # noqa: E402
from runtime.data import batch, batch_inputs  # noqa: E402
from runtime.mesh import build_mesh  # noqa: E402
from runtime.planfile import read_plan  # noqa: E402
from runtime.step import Trainer  # noqa: E402

_LINE = re.compile(r'model\.py", line (\d+), in forward')


def line_of(node: Any) -> int:
    """Line of the block's forward that a node, or the one it is the gradient of, is from."""
    found = _LINE.findall((node.meta.get("stack_trace") or "") if node is not None else "")
    return int(found[-1]) if found else 0


def nest(part: Any) -> dict[str, Any]:
    stored = part.node.get_origin_node()
    return {
        "line": line_of(stored),
        "stores": str(stored.target) if stored is not None else "",
        "lines": sorted({line_of(origin) for origin in part.node.origins} - {0}),
        "computes": sorted({str(origin.target) for origin in part.node.origins}),
    }


def main() -> None:
    found: dict[str, list[dict[str, Any]]] = {"forward": [], "backward": []}
    count = GraphLowering.count_bytes

    def counting(graph: Any) -> Any:
        result = count(graph)
        for node, _ in result[1]:
            if not type(node).__name__.startswith(("Extern", "Nop")):
                size = node.get_read_write_buffers_sizes()
                side = "backward" if graph.is_backward else "forward"
                nests = [nest(part) for part in node.get_nodes()]
                found[side].append({"bytes": int(size), "nests": nests})
        return result

    GraphLowering.count_bytes = counting  # type: ignore[method-assign]
    # Inductor counts when it is to log what it counted.
    compile_fx.inductor_metrics_log.setLevel(logging.INFO)
    compile_fx.inductor_metrics_log.propagate = False
    torch._inductor.config.force_disable_caches = True
    rt.set_dropout(False)
    plan = read_plan(FOLDER / "plan.json")
    device = torch.device("cpu")
    axes = build_mesh(plan, device)
    trainer = Trainer(model, plan, axes, device)
    block = trainer.stages[0].blocks[BLOCK]
    block.forward = torch.compile(block.forward, dynamic=False)
    inputs = batch_inputs(plan)
    trainer.forward_backward(batch(inputs, plan, step=0, dp_rank=0, seed=0, tokens=None))
    print(json.dumps(found))


main()
