"""What a sweep varies, from its text; what can't be is refused before torch is loaded."""

from __future__ import annotations

import re
import sys

import pytest

from autoplan.cli.axes import clusters, counts, sizes
from autoplan.cli.parser import parse
from autoplan.cli.sweep_command import run
from autoplan.errors import UsageError

SWEEP = ["sweep", "gpt2", "--cluster", "1..4x8xh100", "--global-batch", "64"]


def test_ranges_and_lists() -> None:
    assert clusters("1..64x8xh100") == tuple(f"{2**n}x8xh100" for n in range(7))
    assert clusters("1, 3x8xh100") == ("1x8xh100", "3x8xh100")
    assert clusters("1..8xh100") == ("1xh100", "2xh100", "4xh100", "8xh100")
    assert clusters("cpu:1..2") == ("cpu:1", "cpu:2")
    assert clusters("a,b/1..2.json") == ("a,b/1..2.json",)
    assert clusters("16x8xh100") == ("16x8xh100",)
    assert counts("5..5") == (5,) and counts("96") == (96,)
    assert sizes("40GB..80GB:3") == (40 * 10**9, 60 * 10**9, 80 * 10**9)
    assert sizes("16 GiB, 24 GiB") == (2**34, 3 * 2**33)


def asked(*changes: str) -> list[str]:
    """The sweep with other values of its options, or more options."""
    argv = list(SWEEP)
    for name, value in zip(changes[::2], changes[1::2], strict=True):
        if name in argv:
            argv[argv.index(name) + 1] = value
        else:
            argv += [name, value]
    return argv


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--cluster", "64..1x8xh100"], "runs backwards: write 1..64"),
        (["--cluster", "0..4x8xh100"], "'0' is not a whole number of at least 1"),
        (["--cluster", "..4x8xh100"], "'' is not a whole number of at least 1"),
        (["--cluster", "1,,2x8xh100"], "'' is not a whole number of at least 1"),
        (["--cluster", "0x8xh100"], "has no ranks"),
        (["--cluster", "1..4x8xh1000"], "no accelerator 'h1000'"),
        (["--cluster", "1..4x16xh100"], "a node has at most 8"),
        (["--cluster", "1..4x"], "is not a cluster"),
        (["--global-batch", "64..8"], "runs backwards"),
        (["--global-batch", "8,eight"], "'eight' is not a whole number"),
        (["--memory-limit", "40GB..80GB"], "does not say how many sizes"),
        (["--memory-limit", "80GB..40GB:4"], "no range from low to high"),
        (["--memory-limit", "40GB..80GB:1"], "2 to 200 sizes, 1 asked"),
        (["--memory-limit", "40GB..80GB:5000"], "2 to 200 sizes, 5000 asked"),
        (["--memory-limit", "40"], "write a number and one of"),
        (["--memory-limit", "60GB,90GB"], "exceeds the 79.6 GiB of"),
        (["--global-batch", ",".join(map(str, range(8, 88)))], "240 points: 3 clusters x 80"),
        (["--objective", "cost"], "needs a price"),
        (["--objective", "costs"], "did you mean cost?"),
        (["--objective", "knee", "--cluster", "8xh100"], "several cluster sizes"),
        (["--price-per-hour", "free"], "'free' is not a price above 0"),
        (["--price-per-hour", "-1"], "'-1' is not a price above 0"),
        (["-o", "/dev/null/x"], "not writable"),
    ],
)
def test_bad_input_is_one_line_with_a_hint(changes: list[str], message: str) -> None:
    loaded = "torch" in sys.modules
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        run(parse(asked(*changes)))
    assert caught.value.exit_code == 2
    assert caught.value.hint and "\n" not in str(caught.value)
    assert ("torch" in sys.modules) is loaded


def test_a_device_that_is_not_known_has_near_matches() -> None:
    with pytest.raises(UsageError) as caught:
        run(parse(asked("--cluster", "1..4x8xh10")))
    assert "h100" in caught.value.hint
