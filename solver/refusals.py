"""What is said when there is nothing to search, or no time to find a plan."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.errors import SolverLimitError, UsageError
from autoplan.solver.explore import Outcome
from autoplan.solver.space import Configuration, Pins

__all__ = ["no_plan_yet", "require_any"]


def require_any(
    configurations: Sequence[Configuration], pins: Pins, ranks: int, batch: int, blocks: int
) -> None:
    """Raise UsageError when no configuration of a model with ``blocks`` blocks is legal."""
    if configurations:
        return
    stages = [int(degree) for degree in pins.allowed.get("pp", ())]
    if stages and min(stages) > blocks:
        raise UsageError(
            f"--pp {min(stages)}: the model has {blocks} {'block' if blocks == 1 else 'blocks'}, "
            "and each stage needs one",
            hint=f"--pp {blocks} at most" if blocks > 1 else "leave --pp out",
        )
    fixed = ", ".join(f"--{n.replace('_', '-')} {','.join(v)}" for n, v in pins.allowed.items())
    if fixed:
        raise UsageError(
            f"no legal configuration of {ranks} ranks with global batch {batch} satisfies {fixed}",
            hint="drop one of these; dp_replicate x dp_shard must divide the global batch, "
            "--zero 1 to 3 need --dp-shard > 1, --schedule needs --pp > 1",
        )
    raise UsageError(
        f"global batch {batch} can't be divided over any mesh of {ranks} ranks",
        hint="choose a global batch that shares divisors with the number of ranks",
    )


def no_plan_yet(outcome: Outcome, time_limit: float) -> SolverLimitError:
    """Error for a deadline before the first plan."""
    return SolverLimitError(
        f"time limit of {time_limit:g} s reached before a plan was found "
        f"({outcome.enumerated} configurations, {len(outcome.overflows)} did not fit)",
        hint="raise --time-limit, or pin degrees, e.g. --tp 8",
    )
