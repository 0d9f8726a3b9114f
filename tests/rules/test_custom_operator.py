"""An operator of the user's own library, with a rule in the model's file: captured to verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoplan.capture import capture, load_model
from autoplan.errors import CaptureError, InputError, UnsupportedOpError, UsageError
from autoplan.ir.graph import Graph
from autoplan.rules import has_rule, library_of, registry, strategies
from autoplan.rules.coverage import replicated_notes, rule_coverage
from tests.cli.conftest import run_autoplan

LIBRARY = """
import torch

@torch.library.custom_op("{name}::gated", mutates_args=())
def gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(gate)

@gated.register_fake
def _(x, gate):
    return torch.empty_like(x)

def backward(ctx, grad):
    x, gate = ctx.saved_tensors
    s = torch.sigmoid(gate)
    return grad * s, grad * x * s * (1 - s)

gated.register_autograd(
    backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)
"""

MODEL = """
import {name}_operators
import autoplan
import torch
from autoplan import P, S
from torch import nn


def rule(op, view):
    for dim in range(len(view.shape())):
        yield view.strategy({{0: S(dim), 1: S(dim)}}, S(dim))
    yield view.strategy({{0: P}}, P)


REGISTER


class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.up = nn.Linear(1024, n)
        self.gate = nn.Linear(1024, n)
        self.down = nn.Linear(n, 10)

    def forward(self, x, y):
        hidden = torch.ops.{name}.gated(self.up(x), self.gate(x))
        return nn.functional.cross_entropy(self.down(hidden), y)


def make(width: int = 64):
    return Net(width)


def batch(batch_size, seq_len):
    return {{"x": torch.randn(batch_size, 1024), "y": torch.randint(0, 10, (batch_size,))}}
"""

RULE = 'autoplan.register_rule("{name}::gated", rule, library="{name}_operators")'


def _write(folder: Path, name: str, register: str = RULE) -> str:
    (folder / f"{name}_operators.py").write_text(LIBRARY.format(name=name))
    text = MODEL.format(name=name).replace("REGISTER", register.format(name=name))
    (folder / f"{name}_model.py").write_text(text)
    return f"{folder / f'{name}_model.py'}:make"


def _graph(spec: str) -> Graph:
    return capture(load_model(spec), seq_len=0, dtype="float32").at(4)


def test_a_rule_of_the_models_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.syspath_prepend(tmp_path)
    graph = _graph(_write(tmp_path, "alpha"))
    assert library_of("alpha.gated.default") == "alpha_operators"
    assert str(tmp_path) in registry.library_folders()
    block = next(b for b in graph.classes if any("alpha" in op.target for op in b.ops))
    op = next(op for op in block.ops if "alpha" in op.target)
    texts = list(map(str, strategies(op, block, 2)))
    assert texts == ["R,R -> R", "S(0),S(0) -> S(0)", "S(1),S(1) -> S(1)"]
    assert replicated_notes(rule_coverage(graph, 2)) == ()
    _graph(f"{tmp_path / 'alpha_model.py'}:make")  # loading the file again is no second rule


def test_without_a_rule_it_is_replicated_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    graph = _graph(_write(tmp_path, "beta", ""))
    assert not has_rule("beta.gated.default")
    (note,) = replicated_notes(rule_coverage(graph, 2))
    assert note == "replicated for want of a rule: beta.gated.default (1 calls, 0.0% of FLOP)"


def test_a_rule_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.syspath_prepend(tmp_path)
    for name, register, message in (
        ("gamma", "lambda op, view: iter([1 // 0])", "ZeroDivisionError"),
        ("delta", "lambda op, view: ['S(0)']", r"it yields str, not view.strategy"),
        ("kappa", "lambda op, view: None", "not iterable"),
    ):
        graph = _graph(
            _write(tmp_path, name, f'autoplan.register_rule("{{name}}::gated", {register})')
        )
        with pytest.raises(UsageError, match=message) as caught:
            rule_coverage(graph, 2)
        assert f"{name}.gated" in str(caught.value)
        registry._RULES.pop(f"{name}.gated")


@pytest.mark.parametrize(
    ("target", "library", "message"),
    [
        ("gated", "", "names no operator"),
        ("a::b.c.d", "", "names no operator"),
        ("mylib::gated", "os; import sys", "no name of a module"),
        ("mylib::gated", "../operators", "no name of a module"),
        ("aten::mul", "", "already has a rule"),
    ],
)
def test_bad_registrations_are_refused(target: str, library: str, message: str) -> None:
    import autoplan

    with pytest.raises(ValueError, match=message):
        autoplan.register_rule(target, library=library)
    assert not has_rule("mylib.gated.default")


def test_a_random_operator_of_a_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    spec = _write(tmp_path, "epsilon", "")
    path = tmp_path / "epsilon_operators.py"
    tags = "mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)"
    path.write_text(path.read_text().replace("mutates_args=()", tags))
    with pytest.raises(UnsupportedOpError, match="draws random numbers"):
        _graph(spec)


FORMULA = """
from torch.utils.flop_counter import register_flop_formula

@register_flop_formula(torch.ops.{name}.gated)
def formula(x, gate, *, out_shape):
    return {value}
"""


@pytest.mark.parametrize(
    ("name", "value", "flop"),
    [("theta", "3 * x[0] * gate[1]", (3 * 4 * 64, 2 * 3 * 4 * 64)), ("iota", "0", (0, 0))],
)
def test_flop_are_those_of_torchs_registry(
    name: str,
    value: str,
    flop: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.syspath_prepend(tmp_path)
    spec = _write(tmp_path, name)
    with (tmp_path / f"{name}_operators.py").open("a") as file:
        file.write(FORMULA.format(name=name, value=value))
    (op,) = (op for b in _graph(spec).classes for op in b.ops if name in op.target)
    assert (op.flop, op.flop_backward) == flop


def test_a_formula_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.syspath_prepend(tmp_path)
    spec = _write(tmp_path, "lamda")
    with (tmp_path / "lamda_operators.py").open("a") as file:
        file.write(FORMULA.format(name="lamda", value="x[7]"))
    with pytest.raises(CaptureError, match=r"FLOP formula .* lamda\.gated\.default fails: Index"):
        _graph(spec)


def test_an_operator_named_like_one_of_torchs_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps inputs and outputs for backward, and is not taken for a product."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.syspath_prepend(tmp_path)
    spec = _write(tmp_path, "mu")
    for path in tmp_path.glob("mu_*.py"):
        path.write_text(
            path.read_text().replace("mu::gated", "mu::mm").replace("mu.gated", "mu.mm")
        )
    (op,) = (op for b in _graph(spec).classes for op in b.ops if op.target == "mu.mm.default")
    assert (op.flop, op.flop_backward) == (0, 0)
    assert op.saved == (*op.inputs, *op.outputs)


_SOLVE = ("--cluster", "cpu:2", "--global-batch", "256", "--tp", "2", "--set=width=4096", "-o")


def test_a_program_needs_to_know_the_library(tmp_path: Path) -> None:
    spec = _write(tmp_path, "zeta", 'autoplan.register_rule("zeta::gated", rule)')
    done = run_autoplan("solve", spec, *_SOLVE, tmp_path / "plan")
    assert done.returncode == InputError.exit_code, done.stderr
    assert "can't call zeta::gated" in done.stderr
    assert "library=" in done.stderr
    assert not (tmp_path / "plan").exists()


@pytest.mark.dist
@pytest.mark.slow
def test_a_program_calls_the_operator_on_shards(tmp_path: Path) -> None:
    spec = _write(tmp_path, "eta")
    done = run_autoplan("solve", spec, *_SOLVE, tmp_path / "plan")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "plan" / "model.py").read_text()
    assert "\nimport eta_operators  # noqa: F401" in text
    assert "torch.ops.eta.gated.default(" in text
    assert "[256, 2048] S(1)" in text
    assert "row_parallel_linear(gated, " in text
    checked = run_autoplan("verify", tmp_path / "plan")
    assert checked.returncode == 0, checked.stderr
