"""What a measurement keeps through a kill, and what it measures again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoplan.errors import InternalError
from autoplan.profiler import run
from autoplan.profiler.run import measure_operators, read_journal
from autoplan.profiler.targets import Target
from autoplan.profiles.measure.ranks import RankFailed
from autoplan.profiles.measure.run import Machine


class Ranks:
    """In place of worker processes: journals each target, or ends as told by its signature."""

    def __init__(self, fate: Callable[[str], str] = lambda signature: "") -> None:
        self.fate = fate
        self.measured: list[str] = []
        self.starts = 0

    def __call__(self, module: str, arguments: list[list[str]], **options: Any) -> None:
        assert module == "autoplan.profiler.worker"
        self.starts += 1
        task = json.loads(Path(arguments[0][0]).read_text())
        with Path(task["journal"]).open("a") as journal:
            for index, target in enumerate(task["targets"]):
                signature = target["signature"]
                line = json.dumps(timing(signature))
                match self.fate(signature):
                    case "killed":
                        raise self.failed(killed=True)
                    case "half":
                        journal.write(line[:-20])
                        raise self.failed(killed=True)
                    case "interrupt":
                        raise KeyboardInterrupt
                    case "failed":
                        raise self.failed(killed=False)
                self.measured.append(signature)
                journal.write(line + "\n")
                options["progress"](str(index + 1))

    @staticmethod
    def failed(*, killed: bool) -> RankFailed:
        error = RankFailed("measuring failed on rank 0")
        error.killed = killed
        return error


def timing(signature: str) -> dict[str, object]:
    return {
        "signature": signature, "forward": 1e-6, "backward": 0.0, "spread": 0.1, "repeats": 5
    }  # fmt: skip


def once(signature: str, what: str) -> Callable[[str], str]:
    left = [what]
    return lambda found: left.pop() if found == signature and left else ""


Measure = Callable[[Ranks], tuple[Any, ...]]


@pytest.fixture
def measure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: Machine, targets: list[Target]
) -> Measure:
    """Measure the targets with those ranks."""

    def go(ranks: Ranks) -> tuple[Any, ...]:
        monkeypatch.setattr(run, "run_ranks", ranks)
        return measure_operators(targets, machine, tmp_path / "j", lambda text: None)

    return go


def test_nothing_is_measured_twice(measure: Measure, targets: list[Target]) -> None:
    every = [target.signature for target in targets]
    with pytest.raises(KeyboardInterrupt):
        measure(Ranks(once(every[2], "interrupt")))
    again = Ranks()
    found = measure(again)
    assert again.measured == every[2:]
    assert [t.signature for t in found] == every
    third = Ranks()
    assert measure(third) == found
    assert third.starts == 0


def test_a_line_that_a_kill_cut_is_measured_again(
    measure: Measure, targets: list[Target], tmp_path: Path, machine: Machine
) -> None:
    signature = targets[1].signature
    cut = Ranks(once(signature, "half"))
    found = measure(cut)  # the rank is started again at once
    assert cut.starts == 2
    assert cut.measured == [t.signature for t in targets]
    assert not any(t.failure for t in found)
    assert len(read_journal(tmp_path / "j", machine)) == 4


def test_an_operator_that_kills_its_rank_is_recorded(
    measure: Measure, targets: list[Target]
) -> None:
    signature = targets[1].signature
    ranks = Ranks(lambda found: "killed" if found == signature else "")
    found = {t.signature: t for t in measure(ranks)}
    assert ranks.starts == 3
    assert "killed twice" in found[signature].failure
    assert [s for s, t in found.items() if not t.failure] == [
        t.signature for t in targets if t.signature != signature
    ]


def test_a_rank_that_fails_by_itself_is_an_error(measure: Measure, targets: list[Target]) -> None:
    ranks = Ranks(once(targets[3].signature, "failed"))
    with pytest.raises(RankFailed):
        measure(ranks)
    assert len(ranks.measured) == 3


def test_ranks_that_measure_nothing_are_no_endless_loop(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Idle(Ranks):
        def __call__(self, module: str, arguments: list[list[str]], **options: Any) -> None:
            self.starts += 1

    with pytest.raises(InternalError, match="lacks aten"):
        measure(Idle())


@pytest.mark.parametrize(
    "change", [{"torch": "2.12.1"}, {"name": "Other CPU"}, {"threads": 2}, {"ranks": 2}]
)
def test_a_journal_of_another_machine_is_not_used(
    measure: Measure, tmp_path: Path, machine: Machine, change: dict[str, Any]
) -> None:
    measure(Ranks())
    assert len(read_journal(tmp_path / "j", machine)) == 4
    assert read_journal(tmp_path / "j", replace(machine, **change)) == ()


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"signature": "aten.relu.default/9"}',
        '{"signature": "aten.relu.default/9", "forward": "fast", "backward": 0, "repeats": 1}',
        '{"signature": "aten.relu.default/9", "forward": -1.0, "backward": 0, "repeats": 1}',
        '{"signature": "aten.relu.default/9", "forward": NaN, "backward": 0, "repeats": 1}',
        "\x00\x00",
    ],
)
def test_lines_that_say_nothing_are_skipped(
    measure: Measure, tmp_path: Path, machine: Machine, line: str
) -> None:
    measure(Ranks())
    with (tmp_path / "j").open("a") as journal:
        journal.write(line + "\n")
    assert len(read_journal(tmp_path / "j", machine)) == 4


def test_a_failure_has_no_seconds(tmp_path: Path, measure: Measure, machine: Machine) -> None:
    measure(Ranks())
    with (tmp_path / "j").open("a") as journal:
        journal.write('{"signature": "aten.relu.default/9", "failure": "out of memory"}\n')
    assert read_journal(tmp_path / "j", machine)[-1].failure == "out of memory"
