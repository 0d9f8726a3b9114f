"""CPU seconds to place one GPT-2 and one Llama block: a program for each question, and kept ones.

Run: ``python benchmarks/intra.py``. The questions are those of a search: degrees, placements
at the block's ends and levels of recompute, each at several worths of memory. They are asked of a
program built for the question and handed over by PuLP, of one handed over as arrays, and of
programs that are kept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autoplan.capture import capture, load_model
from autoplan.ir.graph import BlockClass
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Placement, Replicate, Shard
from autoplan.ir.recompute import Recompute
from autoplan.profiles import load_cluster
from autoplan.solver.intra import BlockProgram, BlockPrograms, BlockSolution, Setting
from autoplan.solver.lp import Handover
from autoplan.solver.problem import Weights

MODELS = (("gpt2", 1024), ("llama3-8b", 4096))
RANKS = (2, 4, 8)
HELD = (0.0, 1e-13, 1e-12, 1e-11)
STORED = (0.0, 1e-13)
SPREAD = (1, 16)


@dataclass(frozen=True, slots=True)
class Question:
    """A setting of a block's program, and weights."""

    group: Group
    setting: Setting
    weights: Weights


def main() -> None:
    cluster = load_cluster("8xh100")
    print("block                through   questions  ms each   ratio  LP integral  programs    MiB")
    for model, seq_len in MODELS:
        graph = capture(load_model(model), seq_len=seq_len, dtype="bfloat16").at(1)
        block = max(graph.classes, key=lambda block: len(block.ops))
        programs = BlockPrograms(cluster)

        def kept(
            question: Question,
            block: BlockClass = block,
            programs: BlockPrograms = programs,
        ) -> BlockSolution:
            return programs.solve(
                block, question.group, question.setting, question.weights, _deadline()
            )

        def alone(
            question: Question, handover: Handover, block: BlockClass = block
        ) -> BlockSolution:
            program = BlockProgram(block, question.group, cluster, question.setting)
            return program.solve(question.weights, deadline=_deadline(), handover=handover)

        questions = list(_questions(block))
        for question in questions:
            alone(question, Handover.ARRAYS)  # prices of strategies are found once
        reference = _row(block, "PuLP", questions, lambda q: alone(q, Handover.PULP))
        for name, ask in (("arrays", lambda q: alone(q, Handover.ARRAYS)), ("kept", kept)):
            _row(block, name, questions, ask, reference)
        print(f"{programs.built:>74}{programs.size / 2**20:>8.1f}")


def _questions(block: BlockClass) -> Iterator[Question]:
    ends: tuple[Placement, ...] = (Replicate(), Shard(1))
    for ranks, end, level, held, stored, spread in itertools.product(
        RANKS, ends, Recompute, HELD, STORED, SPREAD
    ):
        setting = Setting(
            boundary_in=(end,) * len(block.inputs),
            boundary_out=(end,) * len(block.outputs),
            fixed=(),
            recompute=level,
            keeps=held > 0,
        )
        yield Question(Group(ranks, ranks), setting, Weights(stored, 1e-12 / spread, held))


def _row(
    block: BlockClass,
    name: str,
    questions: list[Question],
    ask: Callable[[Question], BlockSolution],
    reference: float | None = None,
) -> float:
    start = time.process_time()
    answers = [ask(question) for question in questions]
    seconds = (time.process_time() - start) / len(questions)
    integral = sum(answer.relaxation_integral for answer in answers) / len(answers)
    ratio = seconds / (reference or seconds)
    print(
        f"{block.name:<21}{name:<10}{len(questions):>9}{seconds * 1e3:>9.2f}{ratio:>8.3f}"
        f"{integral:>13.1%}",
        flush=True,
    )
    return seconds


def _deadline() -> float:
    return time.monotonic() + 60


if __name__ == "__main__":
    main()
