"""Models that can't be captured exactly are refused: module, source line, way out, exit code."""

from __future__ import annotations

import pytest
import torch

from autoplan.capture import capture, load_model
from autoplan.cli.main import main
from autoplan.errors import AutoplanError, CaptureError, InputError, UsageError

HEAD = """import torch
from torch import nn
"""
BATCH = """
def batch(batch_size, seq_len):
    return {"x": torch.randn(batch_size, 8)}
"""
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def forward(self, x):
        return self.inner(x)
"""
FACTORY = """
def model():
    return Model()
"""


def text_of(
    forward="return self.l(x).square().mean()",
    *,
    init="",
    top="",
    batch=BATCH,
    factory=FACTORY,
):
    """Source of a model whose ``inner`` has a layer ``l`` and this forward."""

    def indented(body):
        return "".join(f"        {line}\n" for line in body.splitlines())

    inner = (
        "class Inner(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.l = nn.Linear(8, 8)\n"
        + indented(init)
        + "    def forward(self, x):\n"
        + indented(forward)
    )
    return HEAD + top + "\n" + inner + MODEL + batch + factory


def write(tmp_path, text):
    file = tmp_path / "model.py"
    file.write_text(text)
    return f"{file}:model"


def failure(tmp_path, text, **overrides):
    spec = write(tmp_path, text)
    with pytest.raises(AutoplanError) as caught:
        capture(load_model(spec, overrides=overrides), seq_len=8, dtype="float32")
    error = caught.value
    assert error.hint
    assert "\n" not in str(error) and "0x7" not in str(error)
    for number, line in enumerate(text.splitlines(), 1):
        if "# here" in line:
            assert f"model.py:{number}" in str(error), error
    return error


FUNCTION = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, g):
        return 3 * g
"""
NO_META = """
@torch.library.custom_op("autoplan_test::no_meta", mutates_args=())
def no_meta(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
"""
FORWARDS = {
    # Python control flow and sizes that depend on values.
    "branch": ("y = self.l(x)\nif y.sum() > 0:  # here\n    y = y * 2\nreturn y.mean()", "inner"),
    "loop": ("y = self.l(x)\nwhile y.sum() > 0:  # here\n    y = y - 1\nreturn y.mean()", "inner"),
    "item": ("s = x.max().item()  # here\nreturn (self.l(x) / s).mean()", "depends on the values"),
    "nonzero": ("i = x[:, 0].nonzero()[:, 0]  # here\nreturn self.l(x[i]).mean()", "size depends"),
    "numpy": ("x.numpy()  # here\nreturn self.l(x).mean()", "needs the values"),
    "cond": (
        "y = torch.cond(x.sum() > 0, lambda t: t, lambda t: -t, (self.l(x),))  # here\n"
        "return y.mean()",
        "",
    ),
    "vmap": ("return torch.vmap(self.l)(x).mean()  # here", ""),
    "functional gradient": (
        "return torch.func.grad(lambda t: self.l(t).square().sum())(x).mean()",
        "torch.autograd.grad",
    ),
    # Gradients that the operators of forward don't show.
    "function": ("return Double.apply(self.l(x)).mean()  # here", "inner", FUNCTION),
    "hook": ("y = self.l(x)\ny.register_hook(lambda g: 2 * g)  # here\nreturn y.mean()", "hook"),
    "backward": ("y = self.l(x).mean()\ny.backward()  # here\nreturn y", "backward()"),
    "autograd": (
        "y = self.l(x)\ng, = torch.autograd.grad(y.sum(), y, create_graph=True)  # here\n"
        "return (y * g).mean()",
        "torch.autograd.grad",
    ),
    # State that the next step would see.
    "counter": (
        "self.calls += 1  # here\nreturn self.l(x).mean() * self.calls", "attribute calls", "",
        "self.calls = 0",
    ),
    "history": (
        "self.seen.append(1)  # here\nreturn self.l(x).mean()", "attribute seen", "",
        "self.seen = []",
    ),
    "item of a list": (
        "self.seen[0] += 1  # here\nreturn self.l(x).mean() * self.seen[0]", "attribute seen", "",
        "self.seen = [1.0]",
    ),
    "item of a table": (
        "self.set['p'] *= 1.5  # here\nreturn self.l(x).mean() * self.set['p']", "attribute set",
        "", "self.set = {'p': 0.5}",
    ),
    "object": (
        "self.state.n += 1  # here\nreturn self.l(x).mean() * self.state.n", "attribute state",
        "class State:\n    n = 0\n", "self.state = State()",
    ),
    "own generator": (
        "return self.l(x).mean() * self.rng.random()  # here", "attribute rng", "import random\n",
        "self.rng = random.Random(0)",
    ),
    "numpy's generator": (
        "return self.l(x).mean() * float(self.rng.random())  # here", "attribute rng",
        "import numpy as np\n", "self.rng = np.random.default_rng(0)",
    ),
    "buffer": (
        "self.n += 1  # here\nreturn self.l(x).mean() * self.n", "buffer inner.n", "",
        "self.register_buffer('n', torch.zeros(()))",
    ),
    "part of a buffer": (
        "self.n[0] += 1  # here\nreturn (self.l(x) * self.n).mean()", "buffer inner.n", "",
        "self.register_buffer('n', torch.zeros(8))",
    ),
    "buffer replaced": (
        "self.n = 0.9 * self.n + x.mean(0)  # here\nreturn (self.l(x) * self.n).mean()",
        "buffer inner.n", "", "self.register_buffer('n', torch.zeros(8))",
    ),
    "spectral norm": (
        "return self.s(x).mean()", "buffer inner.s", "",
        "self.s = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))",
    ),
    "python's random": (
        "import random\nk = random.random()  # here\nreturn self.l(x).mean() * k",
        "Python's random",
    ),
    "numpy's random": (
        "import numpy\nk = numpy.random.rand()\nreturn self.l(x).mean() * k",
        "Python's random",
    ),
    "parameter replaced": (
        "self.l.weight = nn.Parameter(self.l.weight * 2)  # here\nreturn self.l(x).mean()",
        "new parameter weight",
    ),
    "data replaced": (
        "self.l.weight.data = self.l.weight.data * 2  # here\nreturn self.l(x).mean()", "data",
    ),
    "data changed": ("self.l.weight.data.mul_(2)  # here\nreturn self.l(x).mean()", ""),
    # In place.
    "input in place": ("x.mul_(2)  # here\nreturn self.l(x).mean()", "writes into input x"),
    "parameter in place": (
        "with torch.no_grad():\n    self.l.weight.clamp_(-1, 1)  # here\nreturn self.l(x).mean()",
        "writes into parameter inner.l.weight",
    ),
    # What forward returns.
    "dict": ("return {'loss': self.l(x).mean()}", "returns a dict"),
    "tuple": ("return (self.l(x).mean(),)", "returns a tuple"),
    "none": ("self.l(x)", "returns a NoneType"),
    "number": ("return 3.0", "returns a float"),
    "vector": ("return self.l(x).mean(1)", "one scalar loss"),
    "detached": ("return self.l(x).detach().mean()  # here", "no gradient"),
    "unused": ("return x.mean()  # here", "no gradient"),
    "integer": ("return self.l(x).argmax()  # here", "no gradient"),
    # Operators and regions.
    "no meta kernel": ("return no_meta(self.l(x)).mean()  # here", "no meta kernel", NO_META),
    "complex": ("return torch.fft.rfft(self.l(x)).abs().mean()  # here", "complex"),
    "sparse": (
        "return torch.sparse.mm(torch.eye(8).to_sparse(), self.l(x).T).mean()  # here", "sparse",
    ),
    "nested": (
        "n = torch.nested.as_nested_tensor([x[0], x[1]], layout=torch.jagged)  # here\n"
        "return self.l(n).values().mean()",
        "nested",
    ),
    "autocast": (
        "with torch.autocast('cpu', dtype=torch.bfloat16):  # here\n    y = self.l(x)\n"
        "return y.float().mean()",
        "autocast",
    ),
    "autocast for a device that is absent": (
        "with torch.autocast('cuda'):  # here\n    y = self.l(x)\nreturn y.float().mean()",
        "autocast",
    ),
    "device": ("return self.l(x.cuda()).mean()  # here", ""),
    "shape": ("return self.l(x[:, :3]).mean()  # here", "inner"),
    "exit": ("import sys\nsys.exit(3)  # here", "SystemExit"),
    "recursion": ("return self.forward(x)  # here", "RecursionError"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARDS)
def test_forward(tmp_path, name):
    forward, expected, top, init = (*FORWARDS[name], "", "")[:4]
    error = failure(tmp_path, text_of(forward, top=top, init=init))
    assert isinstance(error, CaptureError)
    assert expected in str(error)


MODULES = {
    "backward hook": ("self.l.register_full_backward_hook(lambda *_: None)  # here", "inner.l"),
    "gradient hook": ("self.l.weight.register_hook(lambda g: g)  # here", "inner.l.weight"),
    "lazy": ("self.m = nn.LazyLinear(8)", "inner.m.weight has no shape yet"),
    "complex": (
        "self.m = nn.Parameter(torch.ones(8, dtype=torch.complex64))",
        "inner.m is complex",
    ),
    "sparse": ("self.m = nn.Parameter(torch.eye(8).to_sparse())", "inner.m is a sparse tensor"),
    "sparse buffer": ("self.register_buffer('m', torch.eye(8).to_sparse())", "buffer inner.m"),
    "double": ("self.m = nn.Linear(8, 8).double()", "inner.m.weight is float64"),
    "half": ("self.m = nn.Linear(8, 8).half()", "inner.m.weight is float16"),
    "scripted": ("self.m = torch.jit.script(nn.Linear(8, 8))", "inner.m is a scripted module"),
    "parallel": ("self.m = nn.DataParallel(nn.Linear(8, 8))", "inner.m is wrapped in DataParallel"),
    "module name": ("self.add_module('a b\\n', nn.Linear(8, 8))", "has a name"),
    "parameter name": (
        "self.register_parameter('a\\'', nn.Parameter(torch.ones(8)))",
        "has a name",
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_module(tmp_path, name):
    init, expected = MODULES[name]
    error = failure(tmp_path, text_of(init=init))
    assert isinstance(error, CaptureError)
    assert expected in str(error)


FACTORIES = {
    "raises": ("def model():\n    raise KeyError('width')  # at\n", InputError, "KeyError"),
    "exits": ("def model():\n    exit(1)\n", InputError, "SystemExit"),
    "needs an argument": ("def model(width): return Model()\n", UsageError, "width"),
    "needs a package": (
        "def model():\n    import absent_package\n", InputError, "ModuleNotFoundError",
    ),
    "gives no module": ("def model(): return nn.Linear\n", InputError, "type"),
    "gives None": ("def model(): pass\n", InputError, "NoneType"),
    "wrapped": ("def model(): return nn.DataParallel(Model())\n", CaptureError, "DataParallel"),
    "distributed": (
        "def model(): return nn.parallel.DistributedDataParallel(Model())\n", InputError,
        "process group",
    ),
    "scripted": ("def model(): return torch.jit.script(Inner())\n", CaptureError, "scripted"),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORIES)
def test_factory(tmp_path, name):
    factory, kind, expected = FACTORIES[name]
    error = failure(tmp_path, text_of(factory=factory))
    assert type(error) is kind
    assert expected in str(error)


def test_missing_argument_and_package_say_what_to_give(tmp_path):
    needs = failure(tmp_path, text_of(factory=FACTORIES["needs an argument"][0]))
    assert "--set width=" in needs.hint
    (tmp_path / "package").mkdir()
    absent = failure(tmp_path / "package", "import absent_package  # line\n" + text_of())
    assert type(absent) is InputError and "install absent_package" in absent.hint


BATCHES = {
    "none": ("return None", CaptureError, "returns NoneType"),
    "list in a dict": ("return {'x': [1.0]}", CaptureError, "list for x"),
    "number": ("return {'x': 3}", CaptureError, "int for x"),
    "too many": (
        "return torch.ones(batch_size, 8), torch.ones(batch_size)",
        CaptureError,
        "2 values",
    ),
    "other names": (
        "return {'y': torch.ones(batch_size, 8)}",
        CaptureError,
        "doesn't take the batch",
    ),
    "no batch dim": ("return {'x': torch.ones(8, batch_size)}", CaptureError, "(8, 2)"),
    "scalar": ("return {'x': torch.tensor(1.0)}", CaptureError, "shape ()"),
    "sparse": (
        "return {'x': torch.ones(batch_size, 8).to_sparse()}",
        CaptureError,
        "input x is a sparse",
    ),
    "complex": ("return {'x': torch.ones(batch_size, 8) + 1j}", CaptureError, "input x is complex"),
    "raises": ("return {}['x']", InputError, "KeyError"),
    "empty": ("return {}", CaptureError, "doesn't take the batch"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batch(tmp_path, name):
    body, kind, expected = BATCHES[name]
    batch = f"\ndef batch(batch_size, seq_len):\n    {body}\n"
    error = failure(tmp_path, text_of(batch=batch))
    assert type(error) is kind
    assert expected in str(error)


def test_batch_takes_no_size(tmp_path):
    error = failure(tmp_path, text_of(batch="\ndef batch(): return torch.ones(2, 8)\n"))
    assert type(error) is UsageError
    assert "batch_size" in error.hint


def test_overrides_reach_factory_and_batch(tmp_path):
    text = text_of(
        "return self.l(x).square().mean()",
        batch="\ndef batch(batch_size, seq_len, rows=1):\n"
        "    return {'x': torch.randn(batch_size, rows, 8)}\n",
        factory="def model(depth=1): return Model()\n",
    )
    spec = write(tmp_path, text)
    source = load_model(spec, overrides={"rows": 3, "depth": 2})
    assert source.batch(2, 0)["x"].shape == (2, 3, 8)
    with pytest.raises(UsageError, match="no parameter 'row'") as caught:
        load_model(spec, overrides={"row": 3})
    assert "rows" in caught.value.hint


EXACT = {
    "forward hook": (
        "return self.l(x).mean()",
        "self.l.register_forward_hook(lambda m, a, o: 2 * o)",
    ),
    "forward pre-hook": (
        "return self.l(x).mean()",
        "self.l.register_forward_pre_hook(lambda m, a: (2 * a[0],))",
    ),
    "checkpoint": (
        "from torch.utils.checkpoint import checkpoint\n"
        "return checkpoint(self.l, self.l(x), use_reentrant=False).mean()",
        "",
    ),
    "reentrant checkpoint": (
        "from torch.utils.checkpoint import checkpoint\n"
        "return checkpoint(self.l, self.l(x), use_reentrant=True).mean()",
        "",
    ),
    "weight norm": (
        "return self.m(x).mean()",
        "self.m = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))",
    ),
    "compiled": ("return self.m(x).mean()", "self.m = torch.compile(nn.Linear(8, 8))"),
    "compiled in place": ("return self.m(x).mean()", "self.m = nn.Linear(8, 8)\nself.m.compile()"),
    "dtype of two": (
        "y = self.l(x)\nkind = torch.promote_types(y.dtype, torch.float32)\n"
        "return y.to(kind).softmax(-1).square().mean().to(torch.result_type(y, x))",
        "",
    ),
    "no_grad": ("with torch.no_grad():\n    y = self.l(x)\nreturn self.l(y).mean()", ""),
    "assignment": ("y = self.l(x)\ny[:, 0] = 0\nreturn y.square().mean()", ""),
    "unread count": (
        "self.n += 1\nreturn self.l(x).mean()",
        "self.register_buffer('n', torch.zeros(()))",
    ),
    "tensor attribute": ("self.aux = self.l(x).mean()\nreturn self.aux * 2", "self.aux = None"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXACT)
def test_what_is_not_refused_is_exact(tmp_path, run_graph, name):
    forward, init = EXACT[name]
    source = load_model(write(tmp_path, text_of(forward, init=init)))
    graph = capture(source, seq_len=8, dtype="float32").at(4)
    torch.manual_seed(0)
    module = source.build()
    batch = source.batch(4, 8)
    expected, gradients = step(module, lambda: module(**batch))
    loss, found = step(module, lambda: run_graph(graph, module, batch))
    assert loss == pytest.approx(expected, rel=1e-6)
    assert found.keys() == gradients.keys()
    for fqn, gradient in gradients.items():
        torch.testing.assert_close(found[fqn], gradient)


def step(module, forward):
    """Loss, and the gradients by name."""
    module.zero_grad()
    loss = forward()
    loss.backward()
    gradients = {k: p.grad for k, p in module.named_parameters() if p.grad is not None}
    return loss.item(), gradients


def test_bloom_gelu_has_the_gradient_of_its_forward():
    """The tracing puts torch's operators in its place: a backward of its own can't be traced."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    x = torch.randn(64, dtype=torch.float64, requires_grad=True)
    (own,) = torch.autograd.grad(bloom.GeLUFunction.apply(x).sum(), x)
    (derived,) = torch.autograd.grad(bloom.bloom_gelu_forward(x).sum(), x)
    torch.testing.assert_close(own, derived, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (text_of(FORWARDS["branch"][0]), 5),
        (text_of(factory=FACTORIES["raises"][0]), 6),
        (text_of(factory=FACTORIES["needs an argument"][0]), 2),
    ],
)
def test_exit_codes_and_no_traceback(tmp_path, capsys, text, code):
    spec = write(tmp_path, text)
    found = main(["solve", spec, "--cluster", "cpu:2", "--global-batch", "4", "-q"])
    assert found == code
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ") and lines[1].startswith("hint: ")
    assert len(lines) == 2
