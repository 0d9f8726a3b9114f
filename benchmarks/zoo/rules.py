"""What the rule oracle proves, counted: ``python -m benchmarks.zoo.rules RESULT.json``.

Each strategy that a rule states for a sample of its operator is run on simulated ranks, forward
and backward in float64, and put together it must equal the operator on whole tensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autoplan.rules import registered_targets, strategies
from tests.rules.engine import check_strategy, prepare, threaded_reductions
from tests.rules.samples import Sizes, samples

RANKS = (2, 4)


def main(path: Path) -> int:
    """Exit code: 1 when a strategy is wrong."""
    torch.set_num_threads(1)
    # The math library chooses its kernels at the first call, which ranks would make at once.
    torch.ones(64, dtype=torch.float64).exp()
    with pytest.MonkeyPatch.context() as patch:
        threaded_reductions(patch)
        found = _count()
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return int(found["wrong"] > 0)


def _count() -> dict[str, Any]:
    proved = wrong = 0
    distinct: set[tuple[str, str]] = set()
    names: set[str] = set()
    for sample in samples(Sizes()):
        prepared = prepare(sample)
        names.add(sample.target)
        for ranks in RANKS:
            for strategy in strategies(prepared.op, prepared.block, ranks):
                try:
                    check_strategy(prepared, strategy, ranks)
                except (AssertionError, RuntimeError, ValueError) as error:
                    print(f"{sample.target} {strategy}: {error}", file=sys.stderr)
                    wrong += 1
                    continue
                proved += 1
                distinct.add((sample.target, str(strategy)))
    return {
        "rules": len(registered_targets()),
        "operators": len(names),
        "ranks": list(RANKS),
        "proved": proved,
        "distinct": len(distinct),
        "wrong": wrong,
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
