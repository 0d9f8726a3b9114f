"""Streams and exit codes of `main`, whatever the command does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoplan import errors
from autoplan.cli import main as entry
from autoplan.errors import AutoplanError


def _raise(error: BaseException) -> Any:
    def command(args: object) -> object:
        raise error

    return lambda name: command


CODES = {
    "AutoplanError": 1,
    "UsageError": 2,
    "InfeasibleError": 3,
    "SolverLimitError": 4,
    "CaptureError": 5,
    "UnsupportedOpError": 5,
    "InputError": 6,
    "EnvironmentMismatchError": 7,
    "VerificationError": 8,
    "InternalError": 1,
}


def test_the_table_of_exit_codes_is_complete() -> None:
    assert CODES.keys() == set(errors.__all__)


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_errors_have_their_code_and_one_json_document(
    name: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = getattr(errors, name)("what happened", hint="what next", details={"bytes": 7})
    monkeypatch.setattr(entry, "_command", _raise(error))
    assert entry.main(["env", "--json"]) == code
    out, err = capsys.readouterr()
    body = json.loads(out)["error"]
    assert body.keys() == {"kind", "message", "hint", "details"}
    assert (body["message"], body["hint"]) == ("what happened", "what next")
    assert body["details"] == {"bytes": 7}
    assert err == "error: what happened\nhint: what next\n"


def test_kind_is_the_name_of_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "_command", _raise(errors.SolverLimitError("late")))
    entry.main(["env", "--json"])
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "solver_limit"


def test_interrupt_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "_command", _raise(KeyboardInterrupt()))
    assert entry.main(["env", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "interrupted"


@pytest.mark.parametrize("words", [["env"], ["env", "-v"], ["env", "-vv"], ["env", "-v", "-v"]])
def test_a_bug_is_one_line_and_a_traceback_only_when_asked(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "_command", _raise(RuntimeError("odd\nsecond line")))
    assert entry.main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: unexpected RuntimeError: odd\n" in err and "autoplan env" in err
    wanted = words in (["env", "-vv"], ["env", "-v", "-v"])
    assert ("Traceback" in err) == wanted


def test_libraries_cannot_write_to_stdout(root: Path) -> None:
    """Neither Python's print, nor C's buffered printf, nor a raw write reaches the result."""
    code = (
        "import ctypes, os, sys\n"
        "from autoplan.cli import main as entry\n"
        "from autoplan.cli.outcome import Outcome\n"
        "def command(args):\n"
        "    print('python noise')\n"
        "    os.write(1, b'raw noise\\n')\n"
        "    ctypes.CDLL(None).printf(b'C noise\\n')\n"
        "    return Outcome(document={'answer': 1}, render=lambda stream: None)\n"
        "entry._command = lambda name: command\n"
        "sys.exit(entry.main(['env', '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"answer": 1}
    for noise in ("python noise", "raw noise", "C noise"):
        assert noise in done.stderr


def test_a_reader_that_leaves_is_no_error(root: Path) -> None:
    command = f"{sys.executable} -m autoplan.cli hardware h100 | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_command_shows_help_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "exit codes:" in err


def test_every_error_class_can_carry_a_hint() -> None:
    for name in errors.__all__:
        error = getattr(errors, name)("text", hint="next")
        assert isinstance(error, AutoplanError) and error.hint == "next"
