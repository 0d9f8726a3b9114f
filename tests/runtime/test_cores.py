"""Cores that ranks of a host share."""

import os

import pytest

from autoplan.runtime import share_cores

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system binds no process"
)


@pytest.fixture
def host(monkeypatch):
    """Makes a host of so many cores, of which some may be used; what is bound to is a list."""
    bound = []

    def make(cores, allowed=None):
        allowed = set(range(cores)) if allowed is None else allowed
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
        monkeypatch.setattr(os, "sched_setaffinity", lambda pid, mask: bound.append(set(mask)))
        return bound

    return make


def test_ranks_share_all_cores(host):
    bound = host(7)
    parts = [share_cores(rank, 3) for rank in range(3)]
    assert parts == [{0, 1}, {2, 3}, {4, 5}]
    assert bound == parts


@pytest.mark.parametrize(
    ("cores", "allowed", "ranks"),
    [(2, None, 1), (2, None, 4), (4, {0, 1}, 2)],
    ids=["a lone rank", "more ranks than cores", "bound already"],
)
def test_what_is_left_alone(host, cores, allowed, ranks):
    bound = host(cores, allowed)
    assert share_cores(0, ranks) == frozenset()
    assert bound == []
