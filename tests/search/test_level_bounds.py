"""What bounds say of a block, against the seconds and bytes of strategies that the solver finds."""

from __future__ import annotations

import random
import time

import pytest

from autoplan.capture import Captured, capture, load_model
from autoplan.ir.recompute import Recompute
from autoplan.profiles import load_cluster
from autoplan.solver.blocks import BlockPricer, Question
from autoplan.solver.candidates import GraphFamily
from autoplan.solver.frames import Frame
from autoplan.solver.recompute import corners

LEVELS = tuple(Recompute)
LLAMA = {
    "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 352,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 512,
}  # fmt: skip


@pytest.fixture(scope="module", params=["nanogpt", "llama3-8b"])
def model(request: pytest.FixtureRequest, small_model: Captured) -> Captured:
    if request.param == "nanogpt":
        return small_model
    return capture(load_model(request.param, overrides=LLAMA), seq_len=128, dtype="bfloat16")


@pytest.mark.parametrize("tp", [2, 4])
def test_no_strategies_are_below_the_lines(model: Captured, tp: int) -> None:
    pricer = BlockPricer(GraphFamily(model.at), load_cluster("4xh100"))
    deadline = time.monotonic() + 300
    question = Question(
        size=2, tp=tp, recompute=Recompute.NONE, spread=4**20, alpha=0.0, state_ratio=4.0
    )
    compared = 0
    for boundary, lines in pricer.level_bounds(question, LEVELS, deadline):
        for level in LEVELS:
            for alpha in (0.0, 0.1, 0.5, 2.0, 30.0):
                asked = Question(
                    size=2, tp=tp, recompute=level, spread=1, alpha=alpha, state_ratio=4.0
                )
                point = pricer.point(asked, deadline, Frame(boundary))
                for cost, block in zip(point.costs, lines, strict=True):
                    held = cost.held.at(level)
                    handed = zip(cost.held.outputs, held.kept_outputs, strict=True)
                    kept = held.kept - sum(size for size, here in handed if here)
                    for line in block[level]:
                        compared += 1
                        held_bytes = kept + line.state_ratio * cost.parameter_bytes
                        reached = cost.seconds(level) + line.weight * held_bytes
                        assert reached >= line.least * (1 - 1e-9)
    assert compared > 200


def test_corners_are_where_the_lines_say() -> None:
    rng = random.Random(5)
    for _ in range(200):
        lines = [(0.0, rng.uniform(1, 2))]
        for _ in range(rng.randint(0, 3)):
            slope = lines[-1][0] + rng.uniform(0.01, 0.2)
            lines.append((slope, lines[-1][1] + rng.uniform(0.1, 4.0)))
        least = rng.randint(0, 30)
        found = corners(lines, least)
        assert found[-1][1] == least
        for seconds, size in found:
            highest = max(bound - slope * size for slope, bound in lines)
            # A byte less than where two lines cross.
            assert highest - lines[-1][0] <= seconds <= highest * (1 + 1e-12)
        for size in range(least, 120):
            over = max(bound - slope * size for slope, bound in lines)
            below = [s for s, b in found if b <= size]
            assert min(below) >= 0 and over >= min(_between(found, size)) * (1 - 1e-12)


def _between(points: list[tuple[float, int]], size: float) -> list[float]:
    """Seconds at ``size`` bytes of all segments between two points, and of points below it."""
    times = [seconds for seconds, least in points if least <= size]
    for t1, b1 in points:
        for t2, b2 in points:
            if b1 < size < b2:
                times.append(t1 + (t2 - t1) * (size - b1) / (b2 - b1))
    return times
