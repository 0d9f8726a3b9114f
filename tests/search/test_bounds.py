"""The pipeline bound against the event simulation of both schedules."""

from __future__ import annotations

import random

from autoplan.capture import capture, load_model
from autoplan.simulate import simulate_pipeline
from autoplan.solver.bounds import model_size, pipeline_bound


def test_pipeline_bound_is_below_every_cut() -> None:
    rng = random.Random(7)
    for _ in range(300):
        stages, microbatches = rng.randint(1, 6), rng.randint(1, 9)
        forward = [rng.uniform(0.1, 2.0) for _ in range(stages)]
        backward = [rng.uniform(0.1, 3.0) for _ in range(stages)]
        bound = pipeline_bound(sum(forward) + sum(backward), stages, microbatches)
        for schedule in ("gpipe", "1f1b"):
            timeline = simulate_pipeline(
                schedule, forward, backward, [0.0] * (stages - 1), microbatches
            )
            assert bound <= timeline.makespan * (1 + 1e-12)


def test_pipeline_bound_is_tight_for_its_own_stage_times() -> None:
    # Stage times in the ratio (1 - 1/m)^s make every stage finish at the same instant.
    stages, microbatches = 4, 6
    times = [(1 - 1 / microbatches) ** stage for stage in range(stages)]
    finish = max(microbatches * times[stage] + sum(times[:stage]) for stage in range(stages))
    bound = pipeline_bound(sum(times), stages, microbatches)
    assert abs(bound - finish) < 1e-12


def test_parameters_that_no_block_uses_are_not_held(tmp_path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 64)\n"
        "    def forward(self, x):\n"
        "        return self.used(x).square().mean()\n"
        "def model(): return Net()\n"
        "def batch(batch_size, seq_len): return {'x': torch.randn(batch_size, 8)}\n"
    )
    graph = capture(load_model(f"{file}:model"), seq_len=8, dtype="float32").at(1)
    assert sum(p.numel for p in graph.parameters) == 72 + 576
    size = model_size(graph)
    assert size.numel == size.trainable == 72
