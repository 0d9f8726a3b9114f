from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from autoplan.rules import strategies

from .engine import Sample, check_strategy, prepare, threaded_reductions


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Tensors here are tiny: threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # The math library chooses its kernels at the first call, which ranks would make at once.
    torch.ones(64, dtype=torch.float64).exp()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sample, int], list[str]]:
    """Check every strategy of a sample on some ranks; returns their texts."""
    threaded_reductions(monkeypatch)

    def check(sample: Sample, ranks: int) -> list[str]:
        prepared = prepare(sample)
        found = strategies(prepared.op, prepared.block, ranks)
        for strategy in found:
            check_strategy(prepared, strategy, ranks)
        return list(map(str, found))

    return check
