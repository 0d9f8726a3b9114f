"""The main job, on this machine: plan, run, compare. Started by ``make demo``.

Four parts: measure this CPU, plan GPT-2 for two ranks of it, plan Llama-3-8B for 8 x H100
from the catalogue, then run a generated program on two ranks and on one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
OUT = ROOT / "build" / "demo"
GPT2 = ROOT / "autoplan" / "capture" / "architectures" / "gpt2.json"
STEPS = 6

# What is smaller than GPT-2 in the program that is run here (12 layers, 768 wide, 50257 words,
# 12 heads, sequences of 1024): a step on a small machine must take a second, not a minute.
REDUCED = {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 4096}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
WORKLOAD = ("--global-batch", "8", "--seq-len", "128")


def main() -> None:
    """Run the four parts; a failing command ends the demo with its exit code."""
    started = time.perf_counter()
    OUT.mkdir(parents=True, exist_ok=True)
    profile = OUT / "cpu.json"

    title("1. Measure this machine: matmul, memory and gloo rates of 1 and 2 ranks")
    autoplan("profile", "--cluster", "cpu:2", "--quick", "-o", profile)

    alone = OUT / "cpu1.json"
    autoplan("profile", "--cluster", "cpu:1", "--quick", "-o", alone)

    title("2. Plan GPT-2 (124 M parameters, from its config.json) for these 2 ranks")
    autoplan("solve", GPT2, "--cluster", "cpu:2", "--profile", profile, *WORKLOAD)

    title("3. Plan Llama-3-8B for 8 x H100, from published numbers")
    llama = ("--cluster", "8xh100", "--global-batch", "64", "--seq-len", "4096")
    autoplan("solve", "llama3-8b", *llama)

    title(f"4. Run a generated program for {STEPS} steps, on 2 ranks and on 1")
    print("Reduced for this run, stated plainly: GPT-2's architecture and code paths with")
    print(", ".join(f"{key}={value}" for key, value in REDUCED.items()) + ", dropout off, seq 128.")
    print("One seed gives both runs the same weights and the same batches.\n")
    settings = [f"--set={key}={value}" for key, value in (REDUCED | NO_DROPOUT).items()]
    two, one = OUT / "two", OUT / "one"
    measured = ("--profile", profile)
    autoplan("solve", GPT2, *settings, "--cluster", "cpu:2", *measured, *WORKLOAD, "-o", two)
    single = ("--cluster", "cpu:1", "--profile", alone)
    autoplan("solve", GPT2, *settings, *single, *WORKLOAD, "-o", one, "-q", "--json")
    compare(train(two, ranks=2), train(one, ranks=1))
    print(f"\ndemo took {time.perf_counter() - started:.0f} s; everything is in {shown(OUT)}")


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def shown(path: Path) -> str:
    """Path as seen from the root of the repository."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def run(command: list[str], *, quiet: bool = False, threads: int | None = None) -> None:
    """Run a command, shown as a user would type it; with ``quiet`` its stdout is dropped."""
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL if quiet else None,
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)


def autoplan(*arguments: str | Path) -> None:
    """Run an autoplan command."""
    words = [shown(item) if isinstance(item, Path) else item for item in arguments]
    quiet = "--json" in words
    print("$ autoplan " + " ".join(words) + (" > /dev/null" if quiet else "") + "\n", flush=True)
    run([str(BIN / "autoplan"), *words], quiet=quiet)


def train(program: Path, *, ranks: int) -> list[dict[str, float]]:
    """Records of the steps of a program, one a step."""
    log = program / "steps.jsonl"
    words = ["--standalone", "--nproc-per-node", str(ranks), shown(program / "train.py")]
    words += ["--steps", str(STEPS), "--log-file", shown(log)]
    print("\n$ torchrun " + " ".join(words), flush=True)
    threads = max(1, (os.cpu_count() or ranks) // ranks)
    run([str(BIN / "torchrun"), *words], threads=threads)
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def compare(two: list[dict[str, float]], one: list[dict[str, float]]) -> None:
    """Print losses side by side, and predicted against measured step time."""
    print(f"\n{'step':>4}  {'loss, 2 ranks':>14}  {'loss, 1 process':>15}  {'difference':>10}")
    worst = 0.0
    for a, b in zip(two, one, strict=True):
        difference = abs(a["loss"] - b["loss"]) / abs(b["loss"])
        worst = max(worst, difference)
        print(f"{a['step']:>4}  {a['loss']:>14.6f}  {b['loss']:>15.6f}  {difference:>10.1e}")
    measured = statistics.median(record["step_time"] for record in two[1:])
    predicted = two[0]["predicted_step_time"]
    print(
        f"\nstep time on 2 ranks: predicted {predicted * 1e3:.1f} ms, measured "
        f"{measured * 1e3:.1f} ms (median of {len(two) - 1}), "
        f"measured / predicted {measured / predicted:.2f}"
    )
    if worst > 1e-4:
        sys.exit(f"the losses differ by {worst:.1e} relative: more than rounding explains")
    print(f"losses agree within {worst:.1e} relative")


if __name__ == "__main__":
    main()
