"""Capture of deep models from a few of their layers, against capture of all of them.

    python -m benchmarks.capture_time [MODEL ...]

Each capture runs in a process of its own, imports included. The last column says whether both
gave the same graph.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time

MODELS = ("llama3-405b", "deepseek-v3")
SEQ_LEN = 4096


def main() -> int:
    """Print a line a model: seconds, memory and their ratio; 1 when the graphs differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--child", choices=("reduced", "full"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(_capture(args.models[0], reduce_depth=args.child == "reduced")))
        return 0
    print(f"{'model':<16}{'blocks':>8}{'classes':>9}{'reduced':>18}{'full':>18}{'ratio':>8}  equal")
    status = 0
    for model in args.models:
        short, whole = (_child(model, kind) for kind in ("reduced", "full"))
        equal = short["digest"] == whole["digest"]
        status = status if equal else 1
        ratio = whole["seconds"] / short["seconds"]
        print(
            f"{model:<16}{short['blocks']:>8}{short['classes']:>9}{_cost(short):>18}"
            f"{_cost(whole):>18}{ratio:>8.1f}  {'yes' if equal else 'NO'}",
            flush=True,
        )
    return status


def _cost(result: dict[str, float]) -> str:
    return f"{result['seconds']:.1f} s {result['memory'] / 2**30:.2f} GiB"


def _child(model: str, kind: str) -> dict[str, float]:
    start = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.capture_time", model, "--child", kind]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(out)
    return {**result, "seconds": time.perf_counter() - start}


def _capture(model: str, *, reduce_depth: bool) -> dict[str, object]:
    from autoplan.capture import capture, load_model
    from autoplan.ir.record import graph_to_record

    source = load_model(model)
    captured = capture(source, seq_len=SEQ_LEN, dtype="bfloat16", reduce_depth=reduce_depth)
    graph = captured.at(1)
    text = graph_to_record(graph).model_dump_json()
    return {
        "blocks": len(graph.instances),
        "classes": len(graph.classes),
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    sys.exit(main())
