"""Launches of several ranks, many checks in each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.dist


def test_collectives_and_calls_equal_the_whole_tensor(launch: Callable[..., str]) -> None:
    output = launch("ranks_collectives.py", 2)
    assert output.count(" ok") == 7, output


@pytest.mark.parametrize(("ranks", "count"), [(2, 12), (4, 9)])
def test_training_equals_one_process(launch: Callable[..., str], ranks: int, count: int) -> None:
    output = launch("ranks_training.py", ranks)
    assert output.count(" ok") == count, output


def test_every_update_rule_trains_sharded_with_the_bytes_predicted(
    launch: Callable[..., str],
) -> None:
    output = launch("ranks_optimizers.py", 2)
    assert output.count(" ok") == 5 * 4 + 3 * 4 + 3 * 2, output
