"""Models in float64 throughout, and programs against them."""

import pytest
import torch

from autoplan.capture import capture, load_model
from autoplan.cli.main import main
from autoplan.emit import emit_program
from autoplan.errors import UsageError
from autoplan.ir.mesh import Mesh
from autoplan.verify import verify
from autoplan.verify.exact import in_float64
from tests.plans import Setup, make_plan

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip


def test_casts_and_new_tensors_are_wide():
    x = torch.ones(3, dtype=torch.float64)
    with in_float64():
        assert x.float().dtype == torch.float64
        assert torch.softmax(x, 0, dtype=torch.float32).dtype == torch.float64
        assert torch.zeros(2, dtype=torch.bfloat16).dtype == torch.float64
        assert torch.tensor(0.1).item() == 0.1
        assert torch.tensor(96, dtype=torch.float).sqrt().item() == 96**0.5
        assert torch.tensor(96).dtype == torch.int64
        assert torch.arange(3).dtype == torch.int64
        assert (torch.arange(3) / 2).dtype == torch.float64
    assert x.float().dtype == torch.float32


def test_grouped_products_and_their_gradients():
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 8, 4, dtype=torch.float64, requires_grad=True)
    with in_float64():
        y = torch._grouped_mm(x, w, offs=ends)
        found = torch.autograd.grad(y.square().sum(), (x, w))
    want = torch.cat([x[:2] @ w[0], x[2:] @ w[2]])
    expected = torch.autograd.grad(want.square().sum(), (x, w))
    assert torch.equal(y, want)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-14, atol=1e-14)


def program(folder, name, sizes):
    source = load_model(name, overrides=sizes)
    found = capture(source, seq_len=8, dtype="bfloat16")
    plan = make_plan(found.at(1), found.record(), Setup(mesh=Mesh(tp=2)), seq_len=8)
    emit_program(plan, folder)


@pytest.mark.dist
def test_a_program_in_half_precision_is_verified_in_float64(tmp_path):
    program(tmp_path, "llama3-8b", SIZES)
    report = verify(tmp_path, dtype="float64", timeout=200)
    assert report.worst_error < 1e-12
    assert report.tolerance == 1e-10
    assert "float64" in report.reduced


def test_other_dtypes_are_refused(tmp_path):
    program(tmp_path, "llama3-8b", SIZES)
    with pytest.raises(UsageError, match="bfloat16"):
        verify(tmp_path, dtype="bfloat16")
    assert main(["verify", str(tmp_path), "--dtype", "float16"]) == 2
