"""Gathers, reductions and collectives of a step: how often, how long, and what hides them."""

from __future__ import annotations

import itertools
import random

import pytest

from autoplan.errors import UsageError
from autoplan.ir.overlap import overlapped_time
from autoplan.schedules import ActionKind, Overlapped, Step, order
from autoplan.simulate import (
    COMPUTE,
    DATA,
    MODEL,
    DataParallel,
    Gathering,
    Reduction,
    StageCost,
    Tail,
    Timeline,
    UnitCost,
    Work,
    simulate_step,
)
from autoplan.simulate.windows import windows

F, B, I, W = ActionKind  # noqa: E741


def unit(
    forward: float,
    backward: float,
    *,
    exposed: float = 0.0,
    gather: float = 0.0,
    reduce: float = 0.0,
) -> UnitCost:
    """Backward halves are equal; each action waits for ``exposed`` seconds of collectives."""
    work = {
        F: Work(forward, exposed),
        B: Work(backward, exposed),
        I: Work(backward / 2, exposed),
        W: Work(backward / 2),
    }
    return UnitCost(work=work, gather=gather, reduce=reduce)


def exposed(timeline: Timeline) -> float:
    """Seconds of data-parallel collectives that rank 0's compute does not hide."""
    return timeline.awaiting_gather[0] + timeline.awaiting_reduction[0]


def _fsdp(tokens: float, rate: float, bandwidth: float, ranks: int, passes: float) -> Timeline:
    """Forward and backward of 12 equal units of bf16, sharded over the ranks.

    A unit of phi parameters takes 2 phi FLOP a token forward and ``passes`` times that backward,
    and 2 phi bytes, of which a rank lacks all but its own part, for each gather or reduction.
    """
    parameters = 10**9
    flop = 2 * parameters * tokens
    collective = 2 * parameters * (ranks - 1) / ranks / bandwidth
    one = unit(flop / rate, passes * flop / rate, gather=collective, reduce=collective)
    return simulate_step(
        "1f1b",
        [StageCost(units=(one,) * 12)],
        ranks=1,
        microbatches=1,
        data=DataParallel(gathering=Gathering.ACTION, reduction=Reduction.EACH),
    )


@pytest.mark.parametrize(
    ("rate", "bandwidth", "ranks", "tokens"),
    [(156e12, 25e9, 64, 6142), (400e12, 50e9, 64, 7875), (494.5e12, 50e9, 1024, 9880)],
)
def test_fsdp_hides_above_the_threshold_of_tokens(
    rate: float, bandwidth: float, ranks: int, tokens: int
) -> None:
    """Communication hides from ``(F / BW) (N - 1) / N`` tokens on, within 1%.

    The first gather of a step and its last reduction have nothing to hide behind; the rest is
    exposed just below and not just above.
    """
    threshold = rate / bandwidth * (ranks - 1) / ranks
    assert threshold == pytest.approx(tokens, abs=1)
    ends = 2 * 2 * 10**9 * (ranks - 1) / ranks / bandwidth
    above = _fsdp(1.01 * threshold, rate, bandwidth, ranks, 2.0)
    assert exposed(above) == pytest.approx(ends, rel=1e-9)
    below = _fsdp(0.99 * threshold, rate, bandwidth, ranks, 2.0)
    assert exposed(below) > 1.05 * ends


def test_recompute_lowers_the_threshold_of_the_backward_by_a_third() -> None:
    """Backward with recompute is 6 phi E, of the same two collectives; the forward is as before."""
    rate, bandwidth, ranks = 156e12, 25e9, 64
    threshold = rate / bandwidth * (ranks - 1) / ranks
    collective = 2 * 10**9 * (ranks - 1) / ranks / bandwidth

    def waits(tokens: float) -> tuple[float, float]:
        """Gaps of the compute stream in the forward and in the backward, and what is left over."""
        timeline = _fsdp(tokens, rate, bandwidth, ranks, 3.0)
        events = [event for event in timeline.events if event.stream == COMPUTE]
        gaps = [b.start - a.end for a, b in itertools.pairwise(events)]
        return sum(gaps[:11]), sum(gaps[12:]) + timeline.awaiting_reduction[0] - collective

    assert waits(0.675 * threshold)[1] == pytest.approx(0.0, abs=1e-9)
    assert waits(0.66 * threshold)[1] > 0.05 * collective
    assert waits(0.99 * threshold)[0] > 0.1 * collective
    assert waits(1.01 * threshold)[0] == pytest.approx(0.0, abs=1e-9)


def test_slow_down_moves_the_threshold() -> None:
    """Collectives of 0.9 of their kernels hide until they take more than 1 / 0.9 as long."""
    one = unit(1.0, 2.0, gather=0.9, reduce=0.9)
    for slow_down, hidden in ((1.0, True), (1.05, True), (1.2, False)):
        timeline = simulate_step(
            "1f1b",
            [StageCost(units=(one,) * 8)],
            ranks=1,
            microbatches=1,
            data=DataParallel(
                gathering=Gathering.ACTION,
                reduction=Reduction.EACH,
                network_slow_down=slow_down,
            ),
        )
        assert (exposed(timeline) == pytest.approx(2 * 0.9, rel=1e-9)) == hidden


def test_overlapped_time_of_the_technique() -> None:
    """Equal work, slowed by 1.3, takes 1.3 times as long; without slow-down the longer one."""
    assert overlapped_time(2.0, 2.0, 1.3, 1.3) == pytest.approx(2.6)
    assert overlapped_time(2.0, 3.0, 1.0, 1.0) == 3.0
    # 1 s of network beside compute takes 1.25 s, in which 1 s of 3 s of compute is done.
    assert overlapped_time(3.0, 1.0, 1.25, 1.25) == pytest.approx(3.25)


def test_two_streams_take_the_overlapped_time() -> None:
    rng = random.Random(1)
    for _ in range(200):
        compute, network = rng.uniform(0.1, 4), rng.uniform(0.1, 4)
        slow = rng.uniform(1, 1.6), rng.uniform(1, 1.6)
        # The reduction after the first unit's backward runs beside the second unit's.
        timeline = simulate_step(
            "1f1b",
            [StageCost(units=(unit(0.0, compute), unit(0.0, 0.0, reduce=network)))],
            ranks=1,
            microbatches=1,
            data=DataParallel(compute_slow_down=slow[0], network_slow_down=slow[1]),
        )
        expected = overlapped_time(compute, network, *slow)
        assert timeline.makespan == pytest.approx(expected, rel=1e-9)


def _overlap(start: float, end: float, others: list[tuple[float, float]]) -> float:
    return sum(max(0.0, min(end, b) - max(start, a)) for a, b in others)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved1f1b", "interleavedzerobubble"])
def test_streams_do_their_work_at_the_speed_of_the_moment(schedule: str) -> None:
    """Work is what events do alone plus what they do beside others, at the slower speed."""
    rng = random.Random(2)
    for _ in range(30):
        slow = rng.uniform(1, 1.5), rng.uniform(1, 1.5)
        stages = [
            StageCost(
                units=tuple(
                    unit(
                        rng.uniform(0.1, 1),
                        rng.uniform(0.1, 2),
                        exposed=rng.uniform(0, 0.2),
                        gather=rng.uniform(0, 1),
                        reduce=rng.uniform(0, 2),
                    )
                    for _ in range(rng.randint(1, 3))
                ),
                send_output=rng.uniform(0, 0.5),
                send_gradient=rng.uniform(0, 0.5),
            )
            for _ in range(2 if schedule == "1f1b" else 4)
        ]
        data = DataParallel(
            gathering=rng.choice(list(Gathering)),
            reduction=rng.choice(list(Reduction)),
            compute_slow_down=slow[0],
            network_slow_down=slow[1],
        )
        timeline = simulate_step(schedule, stages, ranks=2, microbatches=4, data=data)
        for rank in range(2):
            spans = {
                stream: [
                    (e.start, e.end)
                    for e in timeline.events
                    if (e.rank, e.stream) == (rank, stream)
                ]
                for stream in (COMPUTE, DATA)
            }
            kernels = [e for e in timeline.events if e.rank == rank and e.stream == COMPUTE]
            for event in kernels:
                action = event.action
                assert action is not None
                units = stages[action.stage].units
                index = int(event.label.rsplit(" ", 1)[1]) if "unit" in event.label else 0
                beside = _overlap(event.start, event.end, spans[DATA])
                done = event.end - event.start - beside + beside / slow[0]
                assert done == pytest.approx(units[index].work[action.kind].compute, rel=1e-9)
            issued = 0.0
            for start, end in spans[DATA]:
                beside = _overlap(start, end, spans[COMPUTE])
                issued += end - start - beside + beside / slow[1]
            for a, b in itertools.pairwise(spans[DATA]):
                assert a[1] <= b[0] + 1e-12
            expected = _collective_seconds(schedule, rank, stages, data)
            assert issued == pytest.approx(expected, rel=1e-9, abs=1e-12)


def _turns(steps: list[Step]) -> list[int]:
    """Stages of the actions that do not come after a backward of the stage."""
    found = []
    before: dict[int, ActionKind] = {}
    for step in steps:
        if before.get(step.stage, F) is F:
            found.append(step.stage)
        before[step.stage] = step.kind
    return found


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_gathers_at_turns_are_those_counted_in_torch(schedule: str, microbatches: int) -> None:
    """``m + 1`` of each unit: 12 and 20 of 4 units at m = 2 and 4, as torch's profiler counts."""
    units = (unit(1.0, 2.0, gather=0.25),) * 4
    timeline = simulate_step(
        schedule,
        [StageCost(units=units)] * 2,
        ranks=2,
        microbatches=microbatches,
        data=DataParallel(gathering=Gathering.TURN, joined=True),
    )
    for rank in range(2):
        gathers = [e for e in timeline.events if (e.rank, e.stream) == (rank, DATA)]
        assert len(gathers) == 4 * (microbatches + 1)


def _collective_seconds(
    schedule: str, rank: int, stages: list[StageCost], data: DataParallel
) -> float:
    """Seconds of a rank's gathers and reductions, if each runs alone."""
    steps = order(schedule, rank, 2, 4, len(stages) // 2)
    gather = [sum(unit.gather for unit in stage.units) for stage in stages]
    reduce = [sum(unit.reduce for unit in stage.units) for stage in stages]
    gathered = {
        Gathering.NEVER: [],
        Gathering.STEP: sorted({step.stage for step in steps}),
        Gathering.FORWARD: [step.stage for step in steps if step.kind is F],
        Gathering.TURN: _turns(steps),
        Gathering.ACTION: [step.stage for step in steps],
        Gathering.WINDOW: [stage for stages in windows(steps, data.window) for stage in stages],
    }[data.gathering]
    reduced = {step.stage for step in steps}
    times = 4 if data.reduction is Reduction.EACH else 1
    return sum(gather[stage] for stage in gathered) + times * sum(reduce[s] for s in reduced)


def _run(stages: list[StageCost], schedule: str = "1f1b", **data: object) -> Timeline:
    return simulate_step(
        schedule,
        stages,
        ranks=1,
        microbatches=4,
        data=DataParallel(**data),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("gathering", "count"),
    [
        (Gathering.NEVER, 0),
        (Gathering.STEP, 4),
        (Gathering.FORWARD, 4 * 4),
        (Gathering.ACTION, 4 * 2 * 4),
        (Gathering.WINDOW, 1),
    ],
)
def test_how_often_parameters_are_gathered(gathering: Gathering, count: int) -> None:
    """Four units, four microbatches; a window gathers the stage as one."""
    stage = StageCost(units=(unit(1.0, 2.0, gather=0.5, reduce=0.5),) * 4)
    timeline = _run([stage], gathering=gathering)
    gathers = [e for e in timeline.events if e.label.startswith("gather")]
    assert len(gathers) == count
    assert sum(e.end - e.start for e in gathers) == 0.5 * (4 if count == 1 else count)


@pytest.mark.parametrize(
    ("reduction", "starts"),
    [
        (Reduction.EACH, [6.0 + 12.0 * m + 2.0 * u for m in range(4) for u in range(4)]),
        (Reduction.LAST, [42.0, 44.0, 46.0, 48.0]),
        (Reduction.STAGE, [48.0]),
    ],
)
def test_when_gradients_are_reduced(reduction: Reduction, starts: list[float]) -> None:
    stage = StageCost(units=(unit(1.0, 2.0, reduce=0.5),) * 4)
    timeline = _run([stage], reduction=reduction)
    reductions = [e for e in timeline.events if e.label.startswith("reduce")]
    assert [e.start for e in reductions] == starts
    seconds = 2.0 if reduction is Reduction.STAGE else 0.5
    assert {e.end - e.start for e in reductions} == {seconds}
    assert timeline.awaiting_reduction == (seconds,)


def test_gather_is_one_unit_ahead() -> None:
    """Short gathers start with the kernels of the unit before, and not earlier."""
    stage = StageCost(units=(unit(1.0, 2.0, gather=0.25),) * 3)
    timeline = _run([stage], gathering=Gathering.ACTION)
    kernels = [e for e in timeline.events if e.stream == COMPUTE]
    gathers = [e for e in timeline.events if e.stream == DATA]
    assert [g.start for g in gathers] == [0.0] + [k.start for k in kernels[:-1]]
    assert timeline.awaiting_gather == (0.25,)


def test_breadth_first_hides_reductions_of_all_but_the_last_stage() -> None:
    """A stage's gradient is final long before the step ends (TECHNIQUES: layered accumulation)."""
    stages = [StageCost(units=(unit(1.0, 2.0, reduce=4.0),))] * 4
    looped = _run(stages, "loopedbfs")
    assert looped.makespan == 4 * 4 * 3.0 + 4.0
    joined = StageCost(units=(unit(4.0, 8.0, reduce=16.0),))
    assert _run([joined], "1f1b").makespan == 4 * 4 * 3.0 + 16.0


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize(
    ("schedule", "ranks", "per_rank", "microbatches"),
    [
        ("loopedbfs", 2, 4, 4),
        ("loopedbfs", 2, 4, 8),
        ("interleaved1f1b", 2, 4, 8),
        ("interleavedzerobubble", 4, 4, 8),
        ("zbvzerobubble", 4, 2, 9),
        ("dualpipev", 3, 2, 8),
    ],
)
def test_windows_are_those_of_torch(
    schedule: str, ranks: int, per_rank: int, microbatches: int, window: int
) -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")

    def parse(text: str) -> object:
        if "OVERLAP" not in text:
            return pipelining._Action.from_str(text)
        parts = text[1 : text.index(")")].split(";")
        return pipelining._Action(
            -1, pipelining.OVERLAP_F_B, None, tuple(pipelining._Action.from_str(p) for p in parts)
        )

    for rank in range(ranks):
        steps = order(schedule, rank, ranks, microbatches, per_rank)
        lowered = pipelining._add_unshard_reshard([parse(str(step)) for step in steps], window)
        theirs = [a.stage_index for a in lowered if a.computation_type == pipelining.UNSHARD]
        assert [stage for stages in windows(steps, window) for stage in stages] == theirs


def test_breadth_first_gathers_do_not_grow_with_microbatches() -> None:
    """``2 v - min(A, v)`` gathers of a stage, for a window of A: as counted in torch runs."""
    for window, microbatches, per_rank in itertools.product((1, 2, 3, 5), (4, 8), (1, 2, 4)):
        steps = order("loopedbfs", 0, 2, microbatches, per_rank)
        gathers = sum(len(stages) for stages in windows(steps, window))
        assert gathers == 2 * per_rank - min(window, per_rank)


def test_collectives_that_kernels_wait_for_are_a_stream_of_their_own() -> None:
    timeline = _run([StageCost(units=(unit(1.0, 2.0, exposed=0.5),) * 2)])
    assert timeline.seconds_of(COMPUTE) == (4 * 2 * 3.0,)
    assert timeline.seconds_of(MODEL) == (4 * 2 * 2 * 0.5,)
    assert timeline.busy == (4 * 2 * 4.0,) == (timeline.makespan,)


def test_pairs_side_by_side_hide_collectives_behind_kernels() -> None:
    """Collectives of each action of a pair hide behind the other's kernels; torch hides none."""
    stages = [StageCost(units=(unit(1.0, 2.0, exposed=0.75),))] * 4

    def step(**data: object) -> Timeline:
        return simulate_step(
            "dualpipev",
            stages,
            ranks=2,
            microbatches=12,
            data=DataParallel(**data),  # type: ignore[arg-type]
        )

    sequence, beside = step(), step(pairs_side_by_side=True)
    slowed = step(pairs_side_by_side=True, compute_slow_down=1.2, network_slow_down=1.2)
    assert sequence.seconds_of(COMPUTE) == beside.seconds_of(COMPUTE)
    assert beside.makespan < slowed.makespan < sequence.makespan
    pairs = [s for s in order("dualpipev", 1, 2, 12, 2) if isinstance(s, Overlapped)]
    for timeline, seconds in ((sequence, 4.5), (beside, 3.0), (slowed, 3.0 + 1.5 * 0.2)):
        kernels = {e.action: e for e in timeline.events if e.stream == COMPUTE}
        spans = [kernels[p.backward].end - kernels[p.forward].start for p in pairs]
        waits = 0.75 if timeline is sequence else 0.0
        assert min(spans) == pytest.approx(seconds - waits)


def test_update_starts_when_all_ranks_have_their_gradients() -> None:
    stages = [StageCost(units=(unit(1.0, 2.0, reduce=1.0),)), StageCost(units=(unit(1.0, 2.0),))]
    tails = [Tail(optimizer=0.5), Tail(collectives=3.0, optimizer=0.25, publish=1.0)]
    timeline = simulate_step("gpipe", stages, ranks=2, microbatches=2, tails=tails)
    # Rank 0 ends its backwards at 9 and its reduction at 10, rank 1 at 7 and 10.
    assert timeline.makespan == 10.0 + 1.25
    updates = [event for event in timeline.events if event.label == "optimizer"]
    assert [(e.rank, e.start, e.end) for e in updates] == [(0, 10.0, 10.5), (1, 10.0, 10.25)]
    assert timeline.awaiting_ranks == (0.75, 0.0)
    assert timeline.awaiting_reduction == (1.0, 0.0)
    assert timeline.busy == (6.5, 10.25)


@pytest.mark.parametrize("gathering", Gathering)
def test_parts_of_a_rank_sum_to_the_step(gathering: Gathering) -> None:
    rng = random.Random(6)
    for slow_down in (1.0, 1.25):
        stages = [
            StageCost(
                units=tuple(
                    unit(rng.uniform(0, 1), rng.uniform(0, 2), gather=rng.uniform(0, 1), reduce=1.0)
                    for _ in range(2)
                ),
                send_output=0.25,
                send_gradient=0.5,
            )
            for _ in range(6)
        ]
        timeline = simulate_step(
            "interleaved1f1b",
            stages,
            ranks=3,
            microbatches=6,
            data=DataParallel(gathering=gathering, compute_slow_down=slow_down),
            tails=[Tail(collectives=rng.uniform(0, 1), optimizer=0.5)] * 3,
        )
        for parts in zip(
            timeline.busy,
            timeline.awaiting_message,
            timeline.awaiting_gather,
            timeline.awaiting_reduction,
            timeline.awaiting_ranks,
            strict=True,
        ):
            assert sum(parts) == pytest.approx(timeline.makespan, rel=1e-12)
            assert min(parts) >= 0.0


@pytest.mark.parametrize("slow_down", [1.0, 1.3])
@pytest.mark.parametrize("gathering", [Gathering.STEP, Gathering.ACTION, Gathering.WINDOW])
def test_longer_work_never_shortens_the_step(gathering: Gathering, slow_down: float) -> None:
    rng = random.Random(8)
    for _ in range(60):
        times = [[[rng.uniform(0, 2) for _ in range(4)] for _ in range(2)] for _ in range(4)]

        def step(times: list[list[list[float]]]) -> float:
            stages = [
                StageCost(
                    units=tuple(
                        unit(forward, backward, gather=gather, reduce=reduce)
                        for forward, backward, gather, reduce in units
                    )
                )
                for units in times
            ]
            return simulate_step(
                "interleaved1f1b",
                stages,
                ranks=2,
                microbatches=4,
                data=DataParallel(
                    gathering=gathering,
                    compute_slow_down=slow_down,
                    network_slow_down=slow_down,
                ),
            ).makespan

        longer = [[list(one) for one in units] for units in times]
        longer[rng.randrange(4)][rng.randrange(2)][rng.randrange(4)] += 0.3
        assert step(longer) >= step(times) * (1 - 1e-12)


def test_wrong_factors_are_refused_with_the_number() -> None:
    with pytest.raises(UsageError, match=r"compute_slow_down is 0\.9"):
        DataParallel(compute_slow_down=0.9)
    with pytest.raises(UsageError, match="window is 0"):
        DataParallel(window=0)


def test_joined_forwards_start_their_gathers_and_end_reductions() -> None:
    # Of 14 s a microbatch, a gather before it and a reduction after it are not hidden.
    stage = StageCost(units=(unit(2.0, 4.0, gather=1.0, reduce=1.0),) * 2)
    separate, joined = (
        simulate_step(
            "1f1b",
            [stage],
            ranks=1,
            microbatches=2,
            data=DataParallel(gathering=Gathering.ACTION, reduction=Reduction.EACH, joined=joined),
            tails=[Tail(collectives=1.0, optimizer=2.0)],
        )
        for joined in (False, True)
    )
    assert separate.makespan == 1 + 2 * 12 + 1 + 3
    assert joined.makespan == 2 * (1 + 12 + 1) + 3
    assert joined.awaiting_gather == (2.0,) and joined.awaiting_reduction == (2.0,)
    assert joined.busy == (2 * 12 + 3,)
