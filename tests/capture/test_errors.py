"""Bad models and bad names end in one clear line, with the documented exit code."""

from __future__ import annotations

import json
import sys

import pytest

from autoplan.capture import capture, load_model
from autoplan.errors import AutoplanError, CaptureError, InputError, UsageError

HEAD = """import torch
from torch import nn
def batch(batch_size, seq_len):
    return {"x": torch.randn(batch_size, 8)}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def forward(self, x):
        return self.inner(x)
class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8, 8))
"""


def write(tmp_path, forward, head=HEAD, factory="def model(): return Model()\n"):
    file = tmp_path / "model.py"
    file.write_text(head + forward + factory)
    return f"{file}:model"


def failure(spec, **settings):
    with pytest.raises(AutoplanError) as caught:
        capture(load_model(spec, **settings), seq_len=8, dtype="float32")
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "        if x.sum() > 0:\n            x = x * 2\n        return (x @ self.w).mean()\n",
            "16",
        ),
        ("        y = x[x > 0]\n        n = int(y.sum())\n        return y[:n].mean()\n", "17"),
        ("        return (x @ self.w.tolist()[0][0]).mean()\n", "16"),
    ],
)
def test_data_dependent_names_module_and_line(tmp_path, body, expected):
    error = failure(write(tmp_path, "    def forward(self, x):\n" + body))
    assert isinstance(error, CaptureError)
    assert f"inner at model.py:{expected}" in str(error)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("    def forward(self, x):\n        return x @ self.w\n", "scalar loss"),
        ("    def forward(self, x):\n        return (x @ self.w.T[:3]).mean()\n", "model.py:16"),
        (
            "    def forward(self, x):\n        x[:, 0] = 0\n        y = x @ self.w\n"
            "        return y.mean()\n",
            "model.py:16",
        ),
    ],
)
def test_uncapturable(tmp_path, body, expected):
    error = failure(write(tmp_path, body))
    assert isinstance(error, CaptureError)
    assert expected in str(error)


def test_batch_does_not_fit_forward(tmp_path):
    head = HEAD.replace('{"x"', '{"y"')
    error = failure(write(tmp_path, "    def forward(self, x): return x.mean()\n", head))
    assert isinstance(error, CaptureError)
    assert "y" in str(error)


@pytest.mark.parametrize(
    ("spec", "overrides", "kind", "text", "hint"),
    [
        ("gpt3", {}, UsageError, "gpt3", "gpt2"),
        ("gpt2", {"n_layers": 2}, UsageError, "n_layers", "n_layer"),
        ("nanogpt", {"n_layers": 2}, UsageError, "n_layers", "n_layer"),
        ("missing.py:model", {}, InputError, "missing.py", "factory"),
        ("missing/config.json", {}, InputError, "does not exist", "config.json"),
        ("gpt2", {"n_head": 7}, InputError, "", "--set"),
    ],
)
def test_bad_names(spec, overrides, kind, text, hint):
    error = failure(spec, overrides=overrides)
    assert type(error) is kind
    assert text in str(error)
    assert hint in error.hint


@pytest.mark.parametrize(
    ("name", "content", "kind", "text"),
    [
        ("config.json", "{", InputError, ":1: not JSON"),
        ("config.json", "[]", InputError, "no model configuration"),
        ("config.json", json.dumps({"model_type": "gpt22"}), UsageError, "gpt22"),
        ("config.json", json.dumps({"model_type": "clip_text_model"}), UsageError, "no head"),
        (
            "config.json",
            json.dumps({"model_type": "gpt2", "auto_map": {"AutoConfig": "x.Y"}}),
            UsageError,
            "auto_map",
        ),
        ("notes.txt", "hello", InputError, "is no model"),
    ],
)
def test_bad_files(tmp_path, name, content, kind, text):
    file = tmp_path / name
    file.write_text(content)
    error = failure(str(file))
    assert type(error) is kind
    assert text in str(error)


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        ("def model(:\n", InputError, "line 1"),
        ("1 / 0\n", InputError, "line 1: ZeroDivisionError"),
        ("def other(): pass\n", UsageError, "no function 'model'"),
        ("def model(): pass\n", UsageError, "no function batch"),
        ("def model(): return 3\ndef batch(batch_size, seq_len): pass\n", InputError, "int"),
        ("def model():\n    1 / 0\ndef batch(batch_size, seq_len): pass\n", InputError, "line 2"),
    ],
)
def test_bad_python_files(tmp_path, content, kind, text):
    file = tmp_path / "model.py"
    file.write_text(content)
    error = failure(f"{file}:model")
    assert type(error) is kind
    assert text in str(error)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    error = failure("gpt2")
    assert type(error) is UsageError
    assert "autoplan-torch[hf]" in error.hint


def test_in_place_activation_becomes_functional(tmp_path, run_graph):
    """``relu_`` on a tensor that is read again later: later readers see the new value."""
    body = (
        "    def forward(self, x):\n        y = x @ self.w\n        z = y.relu_()\n"
        "        y += 1\n        return (y * z).mean()\n"
    )
    source = load_model(write(tmp_path, body))
    graph = capture(source, seq_len=8, dtype="float32").at(4)
    module, batch = source.build(), source.batch(4, 8)
    loss = run_graph(graph, module, batch)
    assert loss.item() == pytest.approx(module(**batch).item())
    assert not any(op.target.split(".")[1].endswith("_") for op in graph.classes[0].ops)
