"""Prices of configurations: the fastest strategies where they fit, else a mixture of choices.

What is asked of the blocks of one configuration is kept, as are prices. Whatever neither the
batch nor the memory limit changes is in `Answers`, which many problems may share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autoplan.costs.data_parallel import DataParallelTimes
from autoplan.costs.memory import state_bytes
from autoplan.errors import SolverLimitError
from autoplan.ir.graph import Graph, dtype_size
from autoplan.ir.hardware import Cluster
from autoplan.ir.optimizer import UpdateRule
from autoplan.ir.placement import Placement
from autoplan.ir.recompute import Recompute
from autoplan.schedules import SPLIT
from autoplan.solver.blocks import BlockPricer, ModelPoint, Question
from autoplan.solver.bounds import ModelSize, Roofline, model_size, roofline
from autoplan.solver.frames import Frame, class_counts
from autoplan.solver.mixture import Mixture
from autoplan.solver.pricing import Found, Overflow, Priced, Slower, better, parameter_time
from autoplan.solver.space import Configuration
from autoplan.solver.sweep import Ranges
from autoplan.solver.timing import Simulator

__all__ = ["Answers", "Candidates", "GraphFamily", "Problem"]

_LEAN = 30.0
"""Weight of memory at which strategies hold next to the least."""

_MOST_WEIGHTS = 3

_SAMPLE = 10**6
_WORTHWHILE = 1e-3  # of the step: what another answer must be able to save


class GraphFamily(dict[int, Graph]):
    """Graphs by microbatch size, made on first use."""

    def __init__(self, make: Callable[[int], Graph]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, size: int) -> Graph:
        self[size] = self._make(size)
        return self[size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is asked: graphs, machine, batch, bytes a rank, and a monotonic ``deadline``.

    ``levels`` are the recompute levels that blocks may take, the least first. ``stored`` are
    placements of parameters, by FQN, and ``stages`` those of every configuration, where fixed.
    """

    graphs: GraphFamily
    cluster: Cluster
    global_batch: int
    update: UpdateRule
    memory_limit: int
    deadline: float
    levels: tuple[Recompute, ...] = tuple(Recompute)
    gap: float = 0.0
    stored: Mapping[str, Placement] = field(default_factory=dict)
    stages: Ranges = ()


class Answers:
    """What is known of some graphs on a machine, whatever the batch and the memory limit.

    Each is the answer of a function of nothing else, so problems that share them are solved as
    they would be alone.
    """

    def __init__(self, graphs: GraphFamily, cluster: Cluster, update: UpdateRule) -> None:
        self._graphs, self._cluster, self._update = graphs, cluster, update
        self.blocks = BlockPricer(graphs, cluster)
        self.simulator = Simulator(cluster, update)
        self.sizes: dict[int, ModelSize] = {}
        self.rooflines: dict[int, Roofline] = {}
        self.data_times: dict[object, list[DataParallelTimes]] = {}
        self._mixtures: dict[tuple[Configuration, tuple[int, ...], Ranges], Mixture] = {}

    def serves(self, problem: Problem) -> bool:
        """Whether a problem is about the same graphs, machine and optimizer."""
        return (
            problem.graphs is self._graphs
            and problem.update == self._update
            and problem.cluster == self._cluster
        )

    def mixture(
        self, configuration: Configuration, points: Sequence[ModelPoint], stages: Ranges = ()
    ) -> Mixture:
        """Prices of a configuration with those points of a frame, and stages if they are given."""
        # A mixture holds its points, so their ids stay their own.
        key = (configuration, tuple(map(id, points)), stages)
        if key not in self._mixtures:
            self._mixtures[key] = Mixture(
                self._graphs[configuration.micro_batch_size],
                configuration,
                points,
                self._cluster,
                update=self._update,
                stages=stages,
            )
        return self._mixtures[key]


class Candidates:
    """Sizes, points and prices of one problem's configurations, each worked out once."""

    def __init__(self, problem: Problem, answers: Answers | None = None) -> None:
        self.problem = problem
        self.answers = answers or Answers(problem.graphs, problem.cluster, problem.update)
        self.blocks = self.answers.blocks.storing(problem.stored)
        self._results: dict[Configuration, Priced | Overflow] = {}

    @property
    def itemsize(self) -> int:
        """Bytes of an element in the compute dtype."""
        return dtype_size(self.problem.graphs[1].dtype)

    def graph(self, configuration: Configuration) -> Graph:
        """Model at the configuration's microbatch size."""
        return self.problem.graphs[configuration.micro_batch_size]

    def size(self, micro_batch_size: int) -> ModelSize:
        """Whole-model sums at that microbatch size."""
        sizes = self.answers.sizes
        if micro_batch_size not in sizes:
            sizes[micro_batch_size] = model_size(self.problem.graphs[micro_batch_size])
        return sizes[micro_batch_size]

    def levels(self, configuration: Configuration) -> tuple[Recompute, ...]:
        """Recompute levels that its blocks may take: none where it would run twice a backward."""
        levels = self.problem.levels
        return levels[:1] if configuration.schedule in SPLIT else levels

    def sized(self, micro_batch_size: int) -> bool:
        """Whether those sums were worked out before."""
        return micro_batch_size in self.answers.sizes

    def roofline(self, micro_batch_size: int) -> Roofline:
        """Least work of the model at that microbatch size."""
        rooflines = self.answers.rooflines
        if micro_batch_size not in rooflines:
            rooflines[micro_batch_size] = roofline(
                self.problem.graphs[micro_batch_size], self.problem.cluster.accelerator
            )
        return rooflines[micro_batch_size]

    def result(self, configuration: Configuration, enough: float = math.inf) -> Found:
        """Price of a configuration, or that no price of it is below ``enough`` seconds."""
        known = self._results.get(configuration)
        if known is None:
            found = self._price(configuration, enough)
            if isinstance(found, Slower):
                return found
            known = self._results[configuration] = found
        return known

    def point(
        self,
        configuration: Configuration,
        *,
        level: Recompute = Recompute.NONE,
        weight: float = 0.0,
        once: float = 0.0,
        frame: Frame | None = None,
    ) -> ModelPoint:
        """Strategies of every class at one level of recompute and one weight of memory."""
        question = self.question(configuration, level=level, weight=weight, once=once)
        return self.blocks.point(question, self.problem.deadline, frame)

    def question(
        self,
        configuration: Configuration,
        *,
        level: Recompute = Recompute.NONE,
        weight: float = 0.0,
        once: float = 0.0,
    ) -> Question:
        """What a configuration asks of its blocks."""
        mesh, microbatches = configuration.mesh, configuration.microbatches
        # A stage holds on average about half of the pipeline's microbatches in flight.
        flight = min(microbatches, (mesh.pp + 1) / 2) if configuration.pipelined else 1
        itemsize = self.itemsize
        settings = configuration.memory_settings(itemsize, update=self.problem.update)
        state = sum(state_bytes(_SAMPLE, _SAMPLE, settings)) / (_SAMPLE * itemsize)
        shared = microbatches * itemsize / configuration.gradient_bytes(itemsize)
        return Question(
            size=configuration.micro_batch_size,
            tp=mesh.tp,
            recompute=level,
            spread=max(1, math.ceil(shared)),
            alpha=weight,
            state_ratio=state / flight,
            once=once,
        )

    def _price(self, configuration: Configuration, enough: float) -> Found:
        """The fastest strategies if they fit, else the best mixture that does."""
        levels = self.levels(configuration)
        fastest = self.point(configuration, level=levels[0])
        found = self.mixed(configuration, [fastest], enough, only_fastest=True)
        if isinstance(found, Priced):
            return self._with_fewer_parameters(configuration, found)
        if isinstance(found, Slower):
            return found
        if configuration.mesh.tp == 1:
            return self._levelled(configuration, self._at_levels(configuration, 0.0, None), enough)
        leanest = self.point(configuration, level=levels[-1], weight=_LEAN)
        if not self._fits(configuration, [leanest]):
            return self.mixed(configuration, [leanest], enough)
        found = self._with_weights(configuration, fastest.frame, enough)
        if leanest.frame == fastest.frame:
            return found
        return better(found, self._with_weights(configuration, leanest.frame, enough))

    def _with_weights(self, configuration: Configuration, frame: Frame, enough: float) -> Found:
        """Best mixture of a frame's points at several weights of memory.

        Between two points, the weight to try is that at which both are worth the same: there a
        third one may be worth more.
        """
        fast = self._at_levels(configuration, 0.0, frame)
        lean = self._at_levels(configuration, _LEAN, frame)
        points = [*fast, *lean]
        if self._fits(configuration, fast):
            lean = fast
        for _ in range(_MOST_WEIGHTS):
            weight = self._fair_weight(configuration, fast[0], lean[-1])
            if not 0.0 < weight < _LEAN:
                break
            between = self._at_levels(configuration, weight, frame)
            points += between
            if self._fits(configuration, between):
                lean = between
            else:
                fast = between
        return self._levelled(configuration, points, enough)

    def _levelled(
        self, configuration: Configuration, points: Sequence[ModelPoint], enough: float
    ) -> Found:
        """Best mixture of points, no slower than one level of recompute for all that fits."""
        best = self.mixed(configuration, points, enough)
        for point in points[: len(self.levels(configuration))]:
            if isinstance(best, Priced):
                enough = min(enough, best.step_time)
            alike = self.mixed(configuration, [point], enough, only_fastest=True)
            if not isinstance(alike, Slower):
                best = better(best, alike)
        return best

    def _fits(self, configuration: Configuration, points: Sequence[ModelPoint]) -> bool:
        return not isinstance(self.mixed(configuration, points, 0.0), Overflow)

    def _fair_weight(
        self, configuration: Configuration, fast: ModelPoint, lean: ModelPoint
    ) -> float:
        question = self.question(configuration)
        counts = class_counts(self.graph(configuration))
        times, sizes = [], []
        for point in (fast, lean):
            blocks = list(zip(counts, point.costs, point.levels, strict=True))
            times.append(sum(n * cost.seconds(level) for n, cost, level in blocks))
            held = (
                n * (question.state_ratio * cost.parameter_bytes + cost.kept(level))
                for n, cost, level in blocks
            )
            sizes.append(sum(held))
        if sizes[1] >= sizes[0]:
            return 0.0
        rate = (times[1] - times[0]) / (sizes[0] - sizes[1])
        return self.blocks.weight_at(question, rate)

    def _at_levels(
        self, configuration: Configuration, weight: float, frame: Frame | None
    ) -> list[ModelPoint]:
        """Points of a frame at every level."""
        return [
            self.point(configuration, level=level, weight=weight, frame=frame)
            for level in self.levels(configuration)
        ]

    def mixed(
        self,
        configuration: Configuration,
        points: Sequence[ModelPoint],
        enough: float = math.inf,
        *,
        only_fastest: bool = False,
    ) -> Found:
        """Best price of a configuration whose blocks each take one of those points of a frame."""
        mixture = self.answers.mixture(configuration, points, self.problem.stages)
        return mixture.best(self.problem.memory_limit, enough=enough, only_fastest=only_fastest)

    def _with_fewer_parameters(self, configuration: Configuration, fastest: Priced) -> Priced:
        """The faster of a plan and of that for strategies which mind the end of the step.

        Its strategies are best for a microbatch. Where they leave parameters whole that could
        be sharded, the update and the sum of the gradients may cost more than that gains.
        """
        itemsize, mesh = self.itemsize, configuration.mesh
        update = self.problem.update
        once = parameter_time(configuration, itemsize, self.problem.cluster, update=update)
        size = self.size(configuration.micro_batch_size)
        held = fastest.local_parameters(class_counts(fastest.graph))
        spare = held - size.numel / mesh.tp
        if once * itemsize * spare / mesh.pp < _WORTHWHILE * fastest.step_time:
            return fastest
        try:
            point = self.point(
                configuration,
                level=self.levels(configuration)[0],
                once=once / configuration.microbatches,
            )
            other = self.mixed(configuration, [point], fastest.step_time)
        except SolverLimitError:
            return fastest
        return other if isinstance(other, Priced) else fastest

    def extend_deadline(self, deadline: float) -> None:
        """Let later questions be asked until ``deadline`` (monotonic seconds)."""
        self.problem = dataclasses.replace(self.problem, deadline=deadline)
