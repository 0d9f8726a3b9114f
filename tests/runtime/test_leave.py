"""How a rank's process ends."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

import pytest

from autoplan.runtime.leave import leave


@pytest.mark.dist
def test_a_rank_leaves_although_gloo_still_holds_a_tensor(launch: Callable[..., str]) -> None:
    # With "exit" in place of "leave" rank 0 aborts: torch 2.13, every time.
    assert "leaving ok" in launch("ranks_leave.py", 2, "leave")


@pytest.mark.parametrize(
    ("code", "broken", "expected"), [(0, False, 0), (7, True, 7), (0, True, 1)]
)
def test_the_code_is_passed_on_unless_output_is_lost(
    monkeypatch: pytest.MonkeyPatch, code: int, broken: bool, expected: int
) -> None:
    class Stream:
        def flush(self) -> None:
            if broken:
                raise BrokenPipeError

    def end(code: int) -> None:
        raise SystemExit(code)

    ran: list[str] = []
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "stdout", Stream())
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: ran.append("atexit"))
    with pytest.raises(SystemExit) as caught:
        leave(code)
    assert caught.value.code == expected
    assert ran == ["atexit"]
