"""Lower bounds on what the ranks of a configuration hold, before pricing it.

Training state and saved activations as if everything divided evenly over tp and the stages:
below what any strategies, levels and cut need.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.costs.data_parallel import DataParallelTimes
from autoplan.costs.memory import MemorySettings, born_late, bucket_bytes, state_bytes
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.recompute import Recompute
from autoplan.schedules import held_by_stages, held_moments
from autoplan.solver.bounds import ModelSize
from autoplan.solver.chain import Point
from autoplan.solver.chain_bound import RankRoom
from autoplan.solver.recompute import Floor, room_of_stages
from autoplan.solver.space import Configuration

__all__ = ["kept_room", "least_points", "memory_bound", "rank_rooms", "state_ratio"]

_SAMPLE = 10**6


def memory_bound(
    size: ModelSize,
    configuration: Configuration,
    itemsize: int,
    *,
    levels: Sequence[Recompute],
    update: UpdateRule,
) -> int:
    """Bytes that the fullest rank needs at least, at the best of those recompute levels."""
    mesh = configuration.mesh
    settings = configuration.memory_settings(itemsize, update=update)
    parts = mesh.tp * mesh.pp
    held, late = _held_and_late(
        size.numel // parts, size.trainable // parts, settings, looped=configuration.looped
    )
    held += configuration.microbatches * size.batch
    kept = size.least_kept(levels) // parts
    if not configuration.pipelined:
        kept += size.first_gradient // mesh.tp
    return held + max(late, kept)


def _held_and_late(
    numel: int, trainable: int, settings: MemorySettings, *, looped: bool
) -> tuple[int, int]:
    """Bytes of training state beside kept activations, and of what may come when those end.

    At ZeRO 0 and 1 a later backward of several finds gradients: see `_sure_flights`. Of a rank's
    several stages each has its own first backward.
    """
    state = state_bytes(numel, trainable, settings)
    late = state[1] if looped or born_late(settings) else 0
    if settings.zero >= 2 and settings.pipelined:
        # Gradients are born in the first backward, and level 3 has gathered all when it ends.
        late = state[1] + (state[3] if settings.zero == 3 else 0)
    return sum(state) + bucket_bytes(trainable, settings) - late, late


def _sure_flights(configuration: Configuration) -> list[int]:
    """Microbatches that each pipeline rank holds beside what `_held_and_late` says is held."""
    microbatches = configuration.microbatches
    if configuration.looped:
        mesh, each = configuration.mesh, configuration.virtual_stages
        return [
            held_by_stages(configuration.schedule, rank, mesh.pp, microbatches, each)
            for rank in range(mesh.pp)
        ]
    flights = configuration.flights()
    if configuration.zero >= 2 or microbatches == 1:
        return flights
    # All of them are held by a stage only before the first backward, which finds no gradients.
    return [min(flight, microbatches - 1) for flight in flights]


def state_ratio(
    size: ModelSize, configuration: Configuration, itemsize: int, *, update: UpdateRule
) -> float:
    """Bytes of state for a byte of parameters, by each microbatch that a stage holds at most."""
    settings = configuration.memory_settings(itemsize, update=update)
    trainable = _SAMPLE if size.trainable == size.numel else 0
    held, _ = _held_and_late(_SAMPLE, trainable, settings, looped=configuration.looped)
    return held / (_SAMPLE * itemsize) / max(1, *_sure_flights(configuration))


def kept_room(
    size: ModelSize, configuration: Configuration, itemsize: int, limit: int, *, update: UpdateRule
) -> float:
    """Most bytes that ranks of all stages can keep of a microbatch, with ``limit`` bytes each."""
    mesh = configuration.mesh
    settings = configuration.memory_settings(itemsize, update=update)
    held, _ = _held_and_late(
        size.numel // mesh.tp, size.trainable // mesh.tp, settings, looped=configuration.looped
    )
    limit -= configuration.microbatches * size.batch
    if not configuration.pipelined:
        limit -= size.first_gradient // mesh.tp
    return room_of_stages(limit, held, _sure_flights(configuration))


def least_points(
    size: ModelSize,
    configuration: Configuration,
    floors: Sequence[Sequence[Floor]],
    data: Sequence[DataParallelTimes],
    itemsize: int,
    *,
    update: UpdateRule,
) -> list[list[Point]]:
    """Points of each class in a pipeline that no strategies are below, of what a copy may be."""
    tp = configuration.mesh.tp
    settings = configuration.memory_settings(itemsize, update=update)
    later = 1.0 - 1.0 / configuration.microbatches
    found = []
    for options, elements, times in zip(floors, size.parameters, data, strict=True):
        numel, trainable = (count // tp for count in elements)
        held, _ = _held_and_late(numel, trainable, settings, looped=configuration.looped)
        found.append(
            [
                Point(
                    forward=seconds + later * times.accumulate,
                    backward=0.0,
                    static=held,
                    activation=kept,
                    transient=0,
                )
                for seconds, kept in options
            ]
        )
    return found


def rank_rooms(
    size: ModelSize, configuration: Configuration, limit: int, *, whole_inputs: bool
) -> list[RankRoom]:
    """Stages of each pipeline rank, and the bytes that their blocks have when most is held.

    A stage has buffers for all microbatches that it receives and sends. What it has received is
    in the points of its first block too, if that keeps it.
    """
    mesh, microbatches = configuration.mesh, configuration.microbatches
    left = limit - microbatches * size.batch
    handed_on = size.handed_on // (1 if whole_inputs else mesh.tp)
    found = []
    for rank in range(mesh.pp):
        stages = tuple(s for s, on in enumerate(configuration.ranks_of_stages) if on == rank)
        sent = microbatches * sum(stage < configuration.stages - 1 for stage in stages)
        moments = []
        for held in _sure_moments(configuration, rank):
            received = sum(
                microbatches - count for stage, count in zip(stages, held, strict=True) if stage
            )
            moments.append((held, left - (received + sent) * handed_on))
        found.append(RankRoom(stages, tuple(moments)))
    return found


def _sure_moments(configuration: Configuration, rank: int) -> Sequence[tuple[int, ...]]:
    """Microbatches that the stages of a rank hold at moments with what `_held_and_late` says."""
    if not configuration.looped:
        return [(_sure_flights(configuration)[rank],)]
    return held_moments(
        configuration.schedule,
        rank,
        configuration.mesh.pp,
        configuration.microbatches,
        configuration.virtual_stages,
    )
