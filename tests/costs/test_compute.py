"""Operator time: both sides of the roofline, gathers, and dtypes without a rate."""

from dataclasses import replace

import pytest
from handmade_blocks import HIDDEN, TOKENS, P, R, S, linear, strategy, tensor
from handmade_blocks import block as make_block

from autoplan.costs.compute import is_sharded, matmul_rate, op_time
from autoplan.errors import InputError
from autoplan.ir.graph import Op, Ref, TensorKind
from autoplan.profiles import load_cluster

H100 = load_cluster("h100").accelerator


def matmul_block(n, dtype="bfloat16"):
    return make_block(
        [linear("mm", "x", "w", "y", 2 * n**3)],
        [
            tensor("x", (n, n), TensorKind.BOUNDARY, dtype=dtype),
            tensor("w", (n, n), TensorKind.PARAMETER, dtype=dtype),
            tensor("y", (n, n), dtype=dtype),
        ],
        parameters=("w",),
    )


def time_of(made, choice, ranks=1, device=H100):
    return op_time(made.ops[0], made, choice, ranks, device)


WHOLE = strategy([R, R], [R])


def test_large_matmul_runs_at_its_rate():
    n = 8192
    time = time_of(matmul_block(n), WHOLE)
    # 2048 tiles of 128 x 256 on 132 multiprocessors, at the best rate of the sweep.
    tile = 2 * 128 * 256 * n * 132 / 719.7e12 + 1.8e-6
    assert time.forward == pytest.approx(16 * tile + 3e-6)
    # Two matmuls of the same size backward: gradient of input and of weight.
    assert time.backward == pytest.approx(2 * time.forward)


def test_float32_matmul_uses_its_own_peak():
    n = 8192
    overhead = 16 * 1.8e-6 + 3e-6  # of 16 waves of tiles, and of the kernel
    half, full = (
        time_of(matmul_block(n, d), WHOLE).forward - overhead for d in ("bfloat16", "float32")
    )
    assert full / half == pytest.approx(989 / 67)


def test_unaligned_rows_run_slower():
    n = 4096
    overhead = 4 * 1.8e-6 + 3e-6  # of 4 waves of tiles, and of the kernel
    even, odd = (time_of(matmul_block(size), WHOLE).forward - overhead for size in (n, n - 1))
    assert odd / even == pytest.approx(1 / 0.42, rel=1 / n)


def test_elementwise_is_bound_by_memory():
    op = Op(name="mul", target="aten.mul.Tensor", args=(Ref("x"), Ref("x")), outputs=("y",))
    made = make_block(
        [op],
        [tensor("x", (TOKENS, HIDDEN), TensorKind.BOUNDARY), tensor("y", (TOKENS, HIDDEN))],
    )
    choice = strategy([R, R], [R])
    # x is read once although it stands in two slots.
    moved = 2 * 2 * TOKENS * HIDDEN
    assert time_of(made, choice).forward == pytest.approx(moved / (0.866 * 3.35e12) + 3e-6)


@pytest.mark.parametrize(
    ("inputs", "outputs", "sharded"),
    [
        ([R, S(0)], [S(1)], True),
        ([S(1), S(1)], [P], True),
        ([S(0), R], [S(0)], True),
        ([R, R], [R], False),
        ([P, R], [P], False),  # each rank multiplies a whole addend
    ],
)
def test_who_divides_the_work(inputs, outputs, sharded):
    assert is_sharded(strategy(inputs, outputs)) is sharded
    curve = replace(H100.matmul_efficiency, points=((1.0, 1.0),))
    flat = replace(H100, matmul_efficiency=curve, matmul_tiles=None)
    made = matmul_block(16384)
    whole = time_of(made, WHOLE, 8, flat)
    local = time_of(made, strategy(inputs, outputs), 8, flat)
    ratio = (local.forward - 3e-6) / (whole.forward - 3e-6)
    assert ratio == pytest.approx(1 / 8 if sharded else 1)


def test_embedding_reads_rows_not_the_table():
    rows, width, tokens = 128_256, 4096, 8192
    made = make_block(
        [
            Op(
                name="embed",
                target="aten.embedding.default",
                args=(Ref("w"), Ref("x")),
                outputs=("y",),
                saved=("x",),
            )
        ],
        [
            tensor("x", (tokens,), TensorKind.INPUT, grad=False, dtype="int64"),
            tensor("w", (rows, width), TensorKind.PARAMETER),
            tensor("y", (tokens, width)),
        ],
        parameters=("w",),
    )
    time = time_of(made, WHOLE)
    bandwidth = 0.866 * 3.35e12
    moved = 2 * (2 * tokens * width) + 8 * tokens
    assert time.forward == pytest.approx(moved / bandwidth + 3e-6)
    # The gradient of the table is a whole table.
    written = 2 * rows * width + 2 * tokens * width + 8 * tokens
    assert time.backward == pytest.approx(written / bandwidth + 3e-6)


def test_no_gradient_no_backward():
    made = matmul_block(512)
    fixed = replace(made, tensors=tuple(replace(t, requires_grad=False) for t in made.tensors))
    assert time_of(fixed, WHOLE).backward == 0.0


def test_gradient_of_a_slice_is_written_whole():
    op = Op(name="slice", target="aten.slice.Tensor", args=(Ref("x"), 0, 0, 64), outputs=("y",))
    made = make_block(
        [op],
        [
            tensor("x", (TOKENS, HIDDEN), TensorKind.BOUNDARY),
            tensor("y", (64, HIDDEN), base="x"),
        ],
    )
    time = time_of(made, strategy([R], [R]))
    assert time.forward == 0.0
    moved = 2 * TOKENS * HIDDEN + 2 * 64 * HIDDEN
    assert time.backward == pytest.approx(moved / (0.866 * 3.35e12) + 3e-6)


def test_types_without_a_rate():
    v100 = load_cluster("v100").accelerator
    assert matmul_rate(v100, "bfloat16") == v100.peak("float32")
    with pytest.raises(InputError, match="no matmul rate for float64"):
        matmul_rate(v100, "float64")


def attention(causal):
    heads, length, size = 32, 8192, 128
    shape = (1, heads, length, size)
    flop = 4 * heads * length * length * size
    op = Op(
        name="sdpa",
        target="aten.scaled_dot_product_attention.default",
        args=(Ref("q"), Ref("k"), Ref("v"), None, 0.0, causal),
        outputs=("y",),
        flop=flop,
        flop_backward=5 * flop // 2,
        saved_extra=4 * heads * length,
    )
    read = [tensor(name, shape, TensorKind.BOUNDARY) for name in "qkv"]
    made = make_block([op], [*read, tensor("y", shape)])
    return time_of(made, strategy([R, R, R], [R])), flop


def test_causal_attention_skips_half():
    whole, flop = attention(causal=False)
    half, _ = attention(causal=True)
    # FlashAttention-2 on the H100: 327.9 TFLOP/s (Azure)
    assert whole.forward == pytest.approx(flop / 327.9e12, rel=0.01)
    assert half.forward / whole.forward == pytest.approx(0.5, rel=0.01)
    assert half.backward / half.forward == pytest.approx(2.5, rel=0.01)


def test_what_backward_needs_is_written_and_read():
    """Log-probabilities kept by a cross entropy are as large as the logits."""
    rows, classes = 8192, 128_256
    op = Op(
        name="loss",
        target="aten.cross_entropy_loss.default",
        args=(Ref("x"), Ref("t")),
        outputs=("y",),
        saved_extra=4 * rows * classes,
    )
    made = make_block(
        [op],
        [
            tensor("x", (rows, classes), TensorKind.BOUNDARY, dtype="float32"),
            tensor("t", (rows,), TensorKind.SHARED, grad=False, dtype="int64"),
            tensor("y", (), dtype="float32"),
        ],
    )
    time = time_of(made, strategy([R, R], [R]))
    both = 2 * 4 * rows * classes / (0.866 * 3.35e12)
    assert time.forward == pytest.approx(both, rel=0.01)
    assert time.backward == pytest.approx(both, rel=0.01)
