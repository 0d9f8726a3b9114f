"""What a run prints and writes: one line a step beside the plan's prediction, and a summary."""

from __future__ import annotations

import json
import resource
import statistics
from pathlib import Path
from typing import TextIO

import torch

from .planfile import ProgramPlan
from .step import StepResult

__all__ = ["StepLog", "peak_memory"]


def peak_memory(device: torch.device) -> int:
    """Bytes this rank has used at most: of the device's allocator, or of the process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


class StepLog:
    """Lines on ``stream`` and records (SI units) in a JSONL file, from one rank."""

    def __init__(self, plan: ProgramPlan, stream: TextIO, path: Path | None) -> None:
        self._plan, self._stream, self._path = plan, stream, path
        # On the CPU only the whole process can be asked, Python and torch included.
        on_cpu = plan.accelerator.startswith("cpu")
        self._held = "process memory" if on_cpu else "memory"
        self._times: list[float] = []
        if path is not None:
            path.write_text("", encoding="utf-8")

    def step(self, step: int, result: StepResult, seconds: float, rate: float, memory: int) -> None:
        """Report one step; ``seconds`` it took, ``memory`` is the peak so far in bytes."""
        plan = self._plan
        self._times.append(seconds)
        unit = "tokens" if plan.seq_len else "samples"
        speed = plan.global_batch * (plan.seq_len or 1) / seconds
        mfu = plan.mfu * plan.step_time / seconds
        self._print(
            f"step {step:>4}  loss {result.loss:.4f}  norm {result.grad_norm:.3g}  "
            f"{_time(seconds)} (plan {_time(plan.step_time)})  {speed:,.0f} {unit}/s  "
            f"MFU {mfu:.1%}  {self._held} {memory / 2**30:.2f} GiB "
            f"(plan {plan.peak_memory / 2**30:.2f} GiB)"
        )
        if self._path is not None:
            record = {
                "plan": plan.digest,
                "ranks": plan.ranks,
                "step": step,
                "loss": result.loss,
                "grad_norm": result.grad_norm,
                "step_time": seconds,
                "predicted_step_time": plan.step_time,
                f"{unit}_per_second": speed,
                "mfu": mfu,
                "peak_memory": memory,
                "predicted_peak_memory": plan.peak_memory,
                "learning_rate": rate,
            }
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def summary(self) -> None:
        """Median step time against the plan; the first step, which warms up, doesn't count."""
        if not self._times:
            return
        median = statistics.median(self._times[1:] or self._times)
        predicted = self._plan.step_time
        self._print(
            f"median step time {_time(median)}, predicted {_time(predicted)}, "
            f"measured / predicted {median / predicted:.2f}"
        )

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)
