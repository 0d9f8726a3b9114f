"""Arguments: near matches, both spellings, exit code 2, help that is instant and complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.cli.parser import COMMANDS, parse
from autoplan.errors import UsageError

SOLVE = ["solve", "gpt2", "--cluster", "8xh100", "--global-batch", "8"]


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (["slove"], "did you mean solve?"),
        ([*SOLVE, "--seqlen", "8"], "did you mean --seq-len?"),
        ([*SOLVE, "--gups", "8"], "did you mean --cluster 8xh100?"),
        ([*SOLVE, "--gpus", "8"], "did you mean --cluster 8xh100?"),
        ([*SOLVE, "--tensor-model-parallel-size", "8"], "did you mean --tp?"),
        ([*SOLVE, "--pipeline_parallel_degree=2"], "did you mean --pp?"),
        ([*SOLVE, "--zero-stage", "3"], "did you mean --zero?"),
        ([*SOLVE, "--objective", "cost"], "did you mean autoplan sweep --objective?"),
        (["sweep", "gpt2", "--objectiv", "cost"], "did you mean --objective?"),
        (["show", "plan.json", "--jsn"], "did you mean --json?"),
        (["solve", "gpt2", "--clutser", "8xh100"], "did you mean --cluster?"),
    ],
)
def test_a_typo_gets_the_nearest_name(argv: list[str], near: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert caught.value.hint == near


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["solve", "gpt2", "--global-batch", "8"], "--cluster"),
        (["solve", "gpt2", "--cluster", "8xh100"], "--global-batch"),
        ([*SOLVE, "--global-batch", "0"], "'0' is not a whole number of at least 1"),
        ([*SOLVE, "--global-batch", "8,16"], "more than one number: autoplan sweep"),
        (["solve", "gpt2", "--cluster", "1..4x8xh100"], "more than one cluster: autoplan sweep"),
        ([*SOLVE, "--tp", "-2"], "'-2' is not a whole number"),
        ([*SOLVE, "--tp", "two"], "'two' is not a whole number"),
        ([*SOLVE, "--dtype", "bf61"], "did you mean bf16?"),
        ([*SOLVE, "--recompute", "some"], "not one of none, selective, full"),
        ([*SOLVE, "--zero", "4"], "not one of 0, 1, 2, 3"),
        ([*SOLVE, "--memory-limit", "70"], "write a number and one of"),
        ([*SOLVE, "--memory-limit", "0 B"], "less than one byte"),
        ([*SOLVE, "--loader-rate", "1200"], "write a number and one of samples/s"),
        ([*SOLVE, "--loader-rate", "0 samples/s"], "not above 0"),
        (["profile", "--cluster", "cpu:2", "--loader", "a.py:b", "-o", "x"], "not allowed with"),
        ([*SOLVE, "--time-limit", "nan"], "number of seconds above 0"),
        ([*SOLVE, "--time-limit", "inf"], "number of seconds above 0"),
        ([*SOLVE, "--set", "n_layer"], "not KEY=VALUE"),
        ([*SOLVE, "extra"], "unrecognized arguments: extra"),
        (["verify", "plan", "--full", "--reduced"], "not allowed with"),
        ([*SOLVE, "--t", "8"], "unknown option --t"),
    ],
)
def test_wrong_values_say_what_is_expected(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        parse(argv)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_underscores_work_in_option_names_and_stay_in_values() -> None:
    args = parse([*SOLVE, "--micro_batch_size=2", "--seq_len", "16", "--set", "n_layer=2"])
    assert (args.micro_batch_size, args.seq_len, args.set) == ("2", 16, [("n_layer", "2")])


def test_pins_take_lists_and_auto() -> None:
    words = ["--tp", "2, 4", "--pp=auto", "--zero", "0,1", "--recompute", "none,full"]
    args = parse([*SOLVE, *words, "--pin", "*.up_proj.weight=S(0)", "--pin", "*.bias=R"])
    assert (args.tp, args.pp, args.zero, args.recompute) == ("2,4", None, "0,1", "none,full")
    assert args.pin == ["*.up_proj.weight=S(0)", "*.bias=R"]


def test_memory_limit_is_bytes() -> None:
    assert parse([*SOLVE, "--memory-limit", "70 GiB"]).memory_limit == 70 * 2**30


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_names_exit_codes_and_loads_nothing_heavy(command: str, root: Path) -> None:
    code = (
        "import sys\n"
        "from autoplan.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = {'torch', 'pydantic', 'rich', 'numpy', 'pulp', 'networkx'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    words = [command, "--help"] if command else ["--help"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for exit_code in (0, 1, 2, 3, 4, 5, 6, 7, 8, 130):
        assert re.search(rf"^  {exit_code} ", done.stdout, re.MULTILINE)
    assert max(map(len, done.stdout.splitlines())) <= 88
