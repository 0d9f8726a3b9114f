"""The pipeline bound against the event simulation of both schedules, memory's against prices."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from autoplan.capture import Captured, capture, load_model
from autoplan.costs.data_parallel import DataParallelTimes
from autoplan.ir.optimizer import UPDATE_RULES
from autoplan.ir.overlap import SlowDown
from autoplan.ir.recompute import Recompute
from autoplan.profiles import load_cluster
from autoplan.simulate import simulate_pipeline
from autoplan.solver.bounds import (
    model_size,
    pipeline_bound,
)
from autoplan.solver.explore import BoundLevel
from autoplan.solver.memory_bounds import kept_room, least_points, memory_bound, rank_rooms
from autoplan.solver.pricing import Priced
from autoplan.solver.space import Pins, configurations, parse_pins
from tests.search.searchers import searcher_of

ADAMW = UPDATE_RULES["adamw"]
LAYOUTS = [
    *({"pp": "4", "micro_batch_size": size} for size in ("1", "2", "8")),
    *(
        {"pp": "2", "dp_shard": "2", "zero": zero, "micro_batch_size": size}
        for zero, size in itertools.product("123", "124")
    ),
    *({"pp": "2", "dp_replicate": "2", "micro_batch_size": size} for size in "124"),
]


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


@pytest.mark.parametrize("level", Recompute)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_stages_hold_what_bounds_say(small_model: Captured, schedule: str, level) -> None:
    """With exactly a stage's bytes as the limit, its blocks' least fits by every bound."""
    searcher = searcher_of(small_model, load_cluster("4xh100"))
    found = [
        one
        for pins in LAYOUTS
        for one in configurations(
            ranks=4,
            global_batch=8,
            max_stages=5,
            pins=parse_pins({**pins, "schedule": schedule}, 4, 8),
        )
    ]
    assert len(found) >= 9  # 1F1B wants a microbatch for each stage
    for one in found:
        priced = searcher.mixed(one, [searcher.point(one, level=level)])
        assert isinstance(priced, Priced)
        size = searcher.size(one.micro_batch_size)
        no_time = DataParallelTimes(gather=0.0, reduce=0.0, publish=0.0)
        points = least_points(
            size,
            one,
            [[(0.0, kept[level])] for kept in size.kept],
            [no_time] * len(size.copies),
            searcher.itemsize,
            update=ADAMW,
        )
        graph = searcher.graph(one)
        for index, stage in enumerate(priced.stages):
            rooms = rank_rooms(size, one, stage.memory.peak, whole_inputs=True)
            ((flight,), room) = rooms[index].moments[0]
            chosen = graph.instances[stage.first : stage.last]
            held = [points[instance.block_class][0] for instance in chosen]
            assert sum(point.static + flight * point.activation for point in held) <= room
        needed = memory_bound(size, one, searcher.itemsize, levels=[level], update=ADAMW)
        assert needed <= priced.peak_memory
        kept = sum(
            count * sizes[level] for count, sizes in zip(size.copies, size.kept, strict=True)
        )
        limit = priced.peak_memory
        assert kept <= kept_room(size, one, searcher.itemsize, limit, update=ADAMW)


@pytest.mark.parametrize("slow", [(1.0, 1.0), (1.2, 1.5), (2.3, 2.0), (4.0, 4.0)])
def test_bounds_are_below_prices_however_much_overlap_costs(small_model: Captured, slow) -> None:
    cluster = load_cluster("4xv100")
    accelerator = replace(cluster.accelerator, slow_down=SlowDown(*slow))
    searcher = searcher_of(small_model, replace(cluster, accelerator=accelerator))
    space = configurations(ranks=4, global_batch=8, max_stages=5, pins=Pins({}))
    for one in space:
        priced = searcher.result(one)
        assert isinstance(priced, Priced)
        for level in BoundLevel:
            assert searcher.bound(one, level) <= priced.step_time * (1 + 1e-9), one.label()
