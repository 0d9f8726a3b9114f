"""Events a second of the step simulator, at a size and at twice as many microbatches.

    python -m benchmarks.simulate_time

The last column is the time of the larger step over that of the smaller: 2 when it is linear.
"""

from __future__ import annotations

import statistics
import sys
import time

from autoplan.simulate import simulate_pipeline

STAGES, MICROBATCHES, REPEATS = 16, 256, 5
SCHEDULES = ("gpipe", "1f1b", "loopedbfs", "interleavedzerobubble", "zbvzerobubble", "dualpipev")


def main() -> int:
    """Print a line a schedule."""
    print(f"{'schedule':<24}{'events':>9}{'events/s':>12}{'twice / once':>14}")
    for schedule in SCHEDULES:
        (small, _), (large, events) = (_measure(schedule, MICROBATCHES * k) for k in (1, 2))
        print(f"{schedule:<24}{events:>9}{events / large:>12,.0f}{large / small:>14.2f}")
    return 0


def _measure(schedule: str, microbatches: int) -> tuple[float, int]:
    several = schedule not in ("gpipe", "1f1b")
    ranks = STAGES // 2 if several else STAGES
    times, events = [], 0
    for _ in range(REPEATS):
        start = time.perf_counter()
        timeline = simulate_pipeline(
            schedule, [1.0] * STAGES, [2.0] * STAGES, [0.1] * (STAGES - 1), microbatches, ranks
        )
        times.append(time.perf_counter() - start)
        events = len(timeline.records)
    return statistics.median(times), events


if __name__ == "__main__":
    sys.exit(main())
