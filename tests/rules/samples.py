"""Sample calls for each registered target, at sizes that tests draw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import autoplan.capture.experts  # noqa: F401, registers the operator
from autoplan.ir.elementwise import ELEMENTWISE
from autoplan.ir.graph import Const

from .array_samples import array_samples
from .engine import Sample, T
from .spatial_samples import spatial_samples

_POSITIVE = ("digamma", "erfinv", "lgamma", "log", "log10", "log1p", "log2", "logit", "pow",
             "reciprocal", "rsqrt", "special_entr", "sqrt")  # fmt: skip
_BINARY = ("atan2", "copysign", "fmax", "fmin", "fmod", "heaviside", "hypot", "logaddexp",
           "logaddexp2", "maximum", "max.other", "min.other", "minimum", "remainder",
           "special_xlog1py", "xlogy")  # fmt: skip
_TENSOR_OVERLOAD = ("copysign", "fmod", "remainder", "xlogy")
_COMPARE = ("eq", "ge", "gt", "le", "lt", "ne")
_BITS = ("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor")
_LOGIC = ("logical_and", "logical_or", "logical_xor")
_SPECIAL = ("clamp", "clamp_max", "clamp_min", "clip", "float_power", "floor_divide", "isin",
            "lerp", "masked_fill", "pow", "rsub", "threshold", "where.Scalar",
            "where.ScalarOther", "where.ScalarSelf", "where.self", "addcmul", "addcdiv",
            "acosh", "bitwise_not")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a sample: batch, sequence, heads, head size."""

    b: int = 2
    s: int = 4
    h: int = 4
    d: int = 8


def samples(z: Sizes) -> Iterator[Sample]:
    """Every sample at these sizes."""
    yield from _pointwise(z)
    yield from _linear(z)
    yield from _products(z)
    yield from _views(z)
    yield from _splits(z)
    yield from _norms(z)
    yield from _attention(z)
    yield from _ends(z)
    yield from _reductions(z)
    yield from _convolutions(z)
    yield from _pools(z)
    yield from _indexing(z)
    yield from spatial_samples(z.b, min(z.s, 4))
    yield from _experts(z)
    yield from array_samples(z.b, z.s, z.h, z.d)


def call(target: str, *args: Any, pieces: tuple[tuple[int, int], ...] = (), **kw: Any) -> Sample:
    return Sample(target=f"aten.{target}", args=args, kwargs=kw, pieces=pieces)


def t(*shape: int, dtype: str = "float64", low: float = -1.0, high: float = 1.0) -> T:
    return T(shape=shape, dtype=dtype, low=low, high=high)


def ids(*shape: int, below: int) -> T:
    return T(shape=shape, dtype="int64", below=below)


def _pointwise(z: Sizes) -> Iterator[Sample]:
    x = t(z.b, z.s, z.h * z.d)
    positive = t(z.b, z.s, z.h * z.d, low=0.1, high=0.9)
    for name in ELEMENTWISE:
        if name in _SPECIAL:
            continue
        if "." in name:
            yield call(name, positive, positive)
        elif name in (*_COMPARE, *_LOGIC):
            few = T(shape=(z.b, z.s, z.d), below=3)
            yield call(f"{name}.{'Tensor' if name in _COMPARE else 'default'}", few, few)
        elif name in _BINARY:
            overload = "Tensor" if name in _TENSOR_OVERLOAD else "default"
            other = positive if name != "heaviside" else T(shape=positive.shape, grad=False)
            first = positive if name != "heaviside" else other
            yield call(f"{name}.{overload}", first, other)
        elif name in _BITS:
            yield call(f"{name}.Tensor", ids(z.b, z.s, below=9), ids(z.b, z.s, below=9))
        else:
            yield call(f"{name}.default", positive if name in _POSITIVE else x)
    yield call("bitwise_not.default", ids(z.b, z.s, below=9))
    for name in ("clamp.default", "clamp_max.default", "clip.default", "clamp_.default"):
        yield call(name, x, 0.25)
    yield call("clamp_min.Tensor", x, t(z.h * z.d))
    yield call("acosh.default", t(z.b, z.s, low=1.5, high=2.0))
    yield call("float_power.Tensor_Scalar", positive, 1.5)
    yield call("isin.Tensor_Tensor", ids(z.b, z.s, below=9), ids(3, below=9))
    yield call("where.Scalar", T(shape=(z.b, z.s), dtype="bool"), 1.0, 0.0)
    yield call("where.ScalarOther", T(shape=(z.s, 1), dtype="bool"), x, 1.5)
    yield call("masked_fill.Scalar", x, T(shape=(z.s, 1), dtype="bool"), -2.0)
    yield call("ones_like.default", x)
    yield call("zeros_like.default", x)
    yield call("fill.Scalar", x, 2.0)
    yield call("fill_.Scalar", x, 2.0)
    yield call("full_like.default", x, 2.0)
    yield call("floor_divide.default", ids(z.b, z.s, below=9), 2)
    yield call("lerp.Tensor", x, x, t(z.s, 1))
    yield call("masked_fill.Scalar", x, T(shape=(z.s, 1), dtype="bool"), 0.0)
    yield call("masked_fill_.Scalar", x, T(shape=(z.s, 1), dtype="bool"), 0.0)
    yield call("pow.Tensor_Scalar", x, 2)
    yield call("pow_.Scalar", x, 3.0)
    yield call("rsub.Scalar", x, 1.0)
    yield call("threshold.default", x, 0.1, 0.0)
    yield call("where.self", T(shape=(z.s, 1), dtype="bool"), x, t(z.h * z.d))
    yield call("where.ScalarOther", T(shape=(z.s, 1), dtype="bool"), x, 0.0)
    yield call("where.ScalarSelf", T(shape=(z.s, 1), dtype="bool"), 0.0, x)
    yield call("addcmul.default", x, x, x, value=0.5)
    yield call("addcdiv.default", x, x, positive)
    for name in ("relu_", "sigmoid_", "silu_", "tanh_"):
        yield call(f"{name}.default", x)
    for name in ("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "neg", "positive",
                 "deg2rad", "rad2deg"):  # fmt: skip
        yield call(f"{name}.default", x)
    yield call("to.dtype", t(z.b, z.s, dtype="float32"), Const("dtype", "float64"))
    yield call("to.dtype", ids(z.b, z.s, below=9), Const("dtype", "float64"))
    yield call(
        "to.dtype_layout", x, dtype=Const("dtype", "float64"), layout=Const("layout", "strided")
    )
    yield call("to.device", x, Const("device", ""), Const("dtype", "float64"))
    yield call("_to_copy.default", x, dtype=Const("dtype", "float64"))
    yield call("type_as.default", x, t(1))
    for name in ("add", "sub", "mul", "div"):
        yield call(f"{name}.Tensor", x, x)
        yield call(f"{name}.Tensor", x, t(z.h * z.d, low=0.5))
        yield call(f"{name}.Tensor", t(z.s, 1, z.d), t(z.b, 1, z.h, z.d, low=0.5))
        yield call(f"{name}.Tensor", x, 1.5)
        yield call(f"{name}_.Tensor", x, t(z.s, 1, low=0.5))
    yield call("add.Tensor", x, x, alpha=2.0)
    yield call("div.Tensor_mode", x, positive, rounding_mode="floor")
    yield call("mul.Tensor", x, x, pieces=((z.h * z.d, z.h),))
    for name in ("tril", "triu"):
        yield call(f"{name}.default", x)
    yield call("dropout.default", x, 0.0, True)
    yield call("dropout.default", x, 0.5, False)
    yield call("dropout_.default", x, 0.0, True)
    yield call("arange.default", z.s)
    yield call("full.default", (z.s, z.d), 2.0)
    yield call("ones.default", (z.s, z.d))
    yield call("zeros.default", (z.s, z.d))
    yield call("scalar_tensor.default", 2.0)


def _linear(z: Sizes) -> Iterator[Sample]:
    n, m = z.h * z.d, 3 * z.h * z.d
    packed = ((m, 3),)
    for bias in ((), (t(m),)):
        yield call("linear.default", t(z.b, z.s, n), t(m, n), *bias, pieces=packed)
        yield call("linear.default", t(z.b * z.s, n), t(m, n), *bias, pieces=((z.b * z.s, z.b),))
        yield call("linear.default", t(n), t(m, n), *bias)
    rows = z.b * z.s
    yield call("addmm.default", t(m), t(rows, n), t(n, m), pieces=packed)
    yield call("addmm.default", t(m), t(rows, n), t(n, m), pieces=((rows, z.b),))
    yield call("addmm.default", t(rows, 1), t(rows, n), t(n, m), beta=0.5, alpha=2.0)
    yield call("addmm.default", t(rows, m), t(rows, n), t(n, m))


def _products(z: Sizes) -> Iterator[Sample]:
    yield call("mm.default", t(z.s, z.d), t(z.d, z.h), pieces=((z.d, 2),))
    yield call("bmm.default", t(z.b, z.s, z.d), t(z.b, z.d, z.h))
    yield call("matmul.default", t(z.b, z.h, z.s, z.d), t(z.b, 1, z.d, z.s))
    yield call("matmul.default", t(z.s, z.d), t(z.b, z.h, z.d, z.s))
    yield call("matmul.default", t(z.b, z.s, z.d), t(z.d, z.h))
    yield call("matmul.default", t(z.s, z.d), t(z.d))
    yield call("baddbmm.default", t(z.b, z.s, z.h), t(z.b, z.s, z.d), t(z.b, z.d, z.h))
    yield call("baddbmm.default", t(z.s, 1), t(z.b, z.s, z.d), t(z.b, z.d, z.h), beta=0.5)
    ends = T(shape=(2,), dtype="int32", values=(8, 16))
    left = t(16, 32, dtype="bfloat16")
    yield call("_grouped_mm.default", left, t(2, 32, 64, dtype="bfloat16"), ends, pieces=((64, 2),))


def _views(z: Sizes) -> Iterator[Sample]:
    n = z.h * z.d
    for name in ("view", "reshape", "_unsafe_view"):
        yield call(f"{name}.default", t(z.b, z.s, n), (z.b, z.s, -1, z.d))
        yield call(f"{name}.default", t(z.b, z.s, z.h, z.d), (z.b, z.s, -1))
        yield call(f"{name}.default", t(z.b, z.s, n), (-1, n))
        yield call(f"{name}.default", t(z.b * z.s, n), (z.b, z.s, n))
        yield call(f"{name}.default", t(z.b, z.s, 3 * n), (z.b, z.s, 3, z.h, z.d))
        yield call(f"{name}.default", t(z.b, z.s, 3 * n), (-1, 3 * n), pieces=((3 * n, 3),))
        yield call(f"{name}.default", t(z.b, 1, z.s), (-1,))
        yield call(f"{name}.default", t(z.h, z.s), (z.s, z.h))
        yield call(f"{name}.default", t(1), ())
    yield call("flatten.using_ints", t(z.b, z.h, z.s, z.d), 2)
    yield call("flatten.using_ints", t(z.b, z.s, z.d), 0, 1)
    yield call("unflatten.int", t(z.b, z.s, 3 * n), -1, (3, z.h, z.d))
    yield call("unflatten.int", t(z.b, z.s, n), 2, (z.h, -1))
    x = t(z.b, z.s, z.h, z.d)
    yield call("transpose.int", x, 1, 2)
    yield call("transpose.int", x, -2, -1)
    yield call("t.default", t(z.s, z.d))
    yield call("permute.default", x, (0, 2, 3, 1))
    yield call("unsqueeze.default", t(z.b, z.s), -1)
    yield call("squeeze.default", t(z.b, 1, z.s, 1))
    yield call("squeeze.dim", t(z.b, 1, z.s), 1)
    yield call("squeeze.dim", t(z.b, z.s), 1)
    yield call("squeeze.dims", t(z.b, 1, z.s, 1), (1, -1))
    yield call("expand.default", t(1, z.s, z.d), (z.b, -1, -1))
    yield call("expand.default", t(z.s, 1), (z.b, z.s, z.d))
    yield call("select.int", x, 1, 0)
    yield call("unbind.int", t(z.b, 3, z.s), 1)
    yield call("slice.Tensor", x, 3, z.d // 2, 9223372036854775807)
    yield call("slice.Tensor", x, 1, 0, 9223372036854775807)
    yield call("slice.Tensor", x, 1, 0, z.s, 2)
    yield call("narrow.default", x, 1, 1, 2)
    yield call("flip.default", x, (1, -1))
    yield call("roll.default", x, (1,), (2,))
    yield call("roll.default", t(z.b, z.s), (1,))
    yield call("diff.default", t(z.b, z.s), 1, -1)
    yield call("repeat.default", t(z.b, z.s), (2, 1, 3))
    yield call("repeat_interleave.self_int", t(z.b, z.s), 3, 1)
    yield call("repeat_interleave.self_int", t(z.b, z.s), 3, 1, output_size=3 * z.s)
    yield call("pad.default", t(z.b, z.s), (0, 1), "constant", -100.0)
    yield call("constant_pad_nd.default", t(z.b, z.s, z.d), (0, 0, 1, 1), 1.0)


def _splits(z: Sizes) -> Iterator[Sample]:
    x = t(z.b, z.s, 12 * z.d)
    yield call("split.Tensor", x, 4 * z.d, 2)
    yield call("split.Tensor", x, 5 * z.d, -1)
    yield call("split.sizes", x, (4 * z.d, 4 * z.d, 4 * z.d), 2)
    yield call("split_with_sizes.default", x, (6 * z.d, 6 * z.d), -1)
    yield call("split_with_sizes.default", x, (6 * z.d, 4 * z.d, 2 * z.d), -1)
    yield call("chunk.default", x, 2, -1)
    yield call("cat.default", (t(z.b, z.s, z.d), t(z.b, z.s, z.d)), -1)
    yield call("cat.default", (t(z.b, z.s, z.d), t(z.b, 1, z.d)), 1)
    yield call("cat.default", (t(z.b, z.d), t(z.b, z.d)), 1, pieces=((2 * z.d, 2),))
    yield call("stack.default", (t(z.b, z.s), t(z.b, z.s)), 1)


def _norms(z: Sizes) -> Iterator[Sample]:
    n = z.h * z.d
    x, w, b = t(z.b, z.s, n), t(n), t(n)
    yield call("layer_norm.default", x, (n,), w, b, 1e-5, False)
    yield call("layer_norm.default", t(z.b, z.s, z.d), (z.s, z.d))
    yield call("native_layer_norm.default", x, (n,), w, b, 1e-5)
    yield call("rms_norm.default", x, (n,), w, 1e-6)
    yield call("_fused_rms_norm.default", x, (n,), w, 1e-6)
    yield call("group_norm.default", t(z.b, 8, z.s), 4, t(8), t(8), 1e-5)
    yield call("group_norm.default", t(z.b, 8, z.s), 1, t(8), t(8))
    mean = T(shape=(8,), grad=False)
    var = T(shape=(8,), low=0.5, grad=False)
    yield call("batch_norm.default", t(4, 8, z.s), t(8), t(8), None, None, True, 0.1, 1e-5, False)
    for training in (True, False):
        args = (t(8), t(8), mean, var, training, 0.1, 1e-5, False)
        yield call("batch_norm.default", t(4, 8, z.s), *args)
    yield call(
        "instance_norm.default", t(4, 8, z.s), t(8), t(8), None, None, True, 0.1, 1e-5, False
    )
    for name in ("softmax.int", "log_softmax.int"):
        yield call(name, t(z.b, z.h, z.s), -1)
    for name in ("_softmax.default", "_log_softmax.default"):
        yield call(name, t(z.b, z.h, z.s), 1, False)


def _attention(z: Sizes) -> Iterator[Sample]:
    q, half = t(z.b, z.h, z.s, z.d), t(z.b, z.h // 2, z.s, z.d)
    name = "scaled_dot_product_attention.default"
    yield call(name, q, q, q, None, 0.0, True, scale=0.125)
    yield call(name, q, q, q)
    yield call(name, q, half, half, None, 0.0, True, enable_gqa=True)
    for shape in ((z.s, z.s), (1, 1, z.s, z.s), (z.b, 1, 1, z.s), (z.b, z.h, z.s, z.s)):
        yield call(name, q, q, q, t(*shape))
    yield call(name, q, q, q, attn_mask=T(shape=(z.b, 1, z.s, z.s), dtype="float64", high=0.0))
    yield call(name, t(z.b, z.s, z.d), t(z.b, z.s + 1, z.d), t(z.b, z.s + 1, z.d))
    yield call(name, t(z.b, z.s, z.d), t(z.b, z.s, z.d), t(z.b, z.s, z.d), None, 0.0, True)
    for heads, groups in ((4, 1), (8, 2), (12, 3), (12, 6)):  # groups whole, cut, cut unevenly
        many, few = t(z.b, heads, z.s, z.d), t(z.b, groups, z.s, z.d)
        for causal in (True, False):
            yield call(name, many, few, few, None, 0.0, causal, scale=0.3, enable_gqa=True)
        yield call(name, many, few, few, t(1, heads, z.s, z.s), enable_gqa=True)
    yield call(name, q, t(z.b, 1, z.s, z.d), t(z.b, 1, z.s, z.d))
    yield call(name, q, t(1, z.h, z.s, z.d), t(1, z.h, z.s, z.d), None, 0.0, True)
    yield call(name, q, q, t(z.b, z.h, z.s, z.d + 3), None, 0.0, True)
    for keys in (z.s + 3, max(z.s - 1, 1), 1):
        other = t(z.b, z.h, keys, z.d)
        yield call(name, q, other, other, is_causal=True)
        yield call(name, q, other, other)
    yield call(name, t(z.b, z.h, 1, z.d), q, q)
    yield call(name, q, q, q, t(z.h, z.s, z.s))
    yield call(name, q, q, q, t(z.b, 1, z.s, 1))
    yield call("reshape.default", t(z.b, 4, 2, z.s, z.d), (z.b, 8, z.s, z.d))
    yield call("expand.default", t(z.b, 4, 1, z.s, z.d), (z.b, 4, 2, z.s, z.d))


def _ends(z: Sizes) -> Iterator[Sample]:
    yield call("embedding.default", t(16, z.d), ids(z.b, z.s, below=16))
    yield call("embedding.default", t(16, z.d), ids(z.b, z.s, below=16), 3)
    yield call("embedding.default", t(16, z.d), ids(z.s, below=16), -1, True)
    yield call("embedding.default", t(16, z.d), ids(z.s, below=16), -1, False, True)
    yield from _bags(z)
    yield from _losses(z)
    rows = z.b * z.s
    labels = T(shape=(8,), dtype="int64", values=(1, -100, 5, 0, 15, -100, 7, 8))
    yield call("cross_entropy_loss.default", t(8, 16), labels)
    yield call("cross_entropy_loss.default", t(8, 16), labels, None, 2)
    yield call("cross_entropy_loss.default", t(rows, 16), ids(rows, below=16), None, 0)
    yield call("cross_entropy_loss.default", t(8, 16), labels, T(shape=(16,), low=0.5, grad=False))
    yield call("cross_entropy_loss.default", t(rows, 16), ids(rows, below=16), None, 1, -100, 0.1)
    weight = T(shape=(16,), low=0.5, grad=False)
    flat = call("cross_entropy_loss.default", t(8, 16), labels, pieces=((8, 2),))
    yield flat  # rows of two samples: S(0,2)
    yield call("cross_entropy_loss.default", t(8, 16), labels, weight, 1, -100, 0.1)
    yield call("cross_entropy_loss.default", t(8, 16), ids(8, below=16), weight, 2, 5)
    yield call("cross_entropy_loss.default", t(rows, 6), T(shape=(rows, 6), low=0.0, grad=False))
    pixels = t(z.b, 5, z.s, z.d)
    for reduction in (0, 1, 2):
        yield call("cross_entropy_loss.default", pixels, ids(z.b, z.s, z.d, below=5), None,
                   reduction)  # fmt: skip
        yield call("nll_loss.default", t(rows, 5), ids(rows, below=5), None, reduction, 2)
        yield call("nll_loss_nd.default", pixels, ids(z.b, z.s, z.d, below=5),
                   T(shape=(5,), low=0.5, grad=False), reduction, 2)  # fmt: skip


def _losses(z: Sizes) -> Iterator[Sample]:
    x, y = t(4 * z.b, z.h), t(4 * z.b, z.h)
    sign = T(shape=(4 * z.b,), values=tuple((-1) ** i for i in range(4 * z.b)), grad=False)
    signs = T(shape=(4 * z.b, z.h), grad=False,
              values=tuple((-1) ** (i // 3) for i in range(4 * z.b * z.h)))  # fmt: skip
    likely = t(4 * z.b, z.h, low=0.1, high=0.9)
    for reduction in (0, 1, 2):
        yield call("cosine_embedding_loss.default", x, y, sign, 0.1, reduction)
        yield call("triplet_margin_loss.default", x, y, t(4 * z.b, z.h), 0.5, 2, 1e-6, False,
                   reduction)  # fmt: skip
        yield call("hinge_embedding_loss.default", x, signs, 0.5, reduction)
        yield call("margin_ranking_loss.default", x, y, signs, 0.1, reduction)
        yield call("huber_loss.default", x, y, reduction, 0.5)
        yield call("kl_div.default", x, likely, reduction)
        yield call("soft_margin_loss.default", x, signs, reduction)
        yield call("binary_cross_entropy.default", likely, likely, None, reduction)
    weight = T(shape=(z.h,), low=0.1, grad=False)
    yield call("binary_cross_entropy.default", likely, likely, weight, 1)


def _bags(z: Sizes) -> Iterator[Sample]:
    count = 4 * z.b
    indices = ids(3 * count, below=12)
    even = T(shape=(count,), dtype="int64", values=tuple(range(0, 3 * count, 3)))
    uneven = (*sorted(min(i * i // 2, 3 * count) for i in range(count)), 3 * count)
    last = T(shape=(count + 1,), dtype="int64", values=uneven)
    table = t(12, 4 * z.h)
    for mode in (0, 1, 2):
        yield Sample(target="aten.embedding_bag.default", args=(table, indices, even, False, mode),
                     read=1)  # fmt: skip
        tail = (False, mode, False, None, True, 5)
        yield Sample(target="aten.embedding_bag.padding_idx", args=(table, indices, last, *tail),
                     read=1)  # fmt: skip
    weighted = (table, indices, even, False, 0, False, t(3 * count))
    yield Sample(target="aten._embedding_bag.default", args=weighted, read=1)
    yield Sample(target="aten._embedding_bag.default", args=(table, indices, even, True), read=1)


def _reductions(z: Sizes) -> Iterator[Sample]:
    x = t(z.b, z.s, z.d, low=0.1)
    yield call("sum.default", x)
    yield call("sum.dim_IntList", x, (1,))
    yield call("sum.dim_IntList", x, (-1,), True)
    yield call("mean.default", x)
    yield call("mean.dim", x, (-1,), True)
    yield call("mean.dim", x, (0, 1))
    for name in ("amax", "amin", "logsumexp"):
        yield call(f"{name}.default", x, (1,))
    for name in ("var.correction", "std.correction"):
        yield call(name, x, (1,), correction=1)
    for name in ("var.dim", "std.dim"):
        yield call(name, x, (2,), True, True)
    for name in ("max.dim", "min.dim", "prod.dim_int", "any.dim", "all.dim"):
        yield call(name, x, 1)
    for name in ("argmax.default", "argmin.default"):
        yield call(name, x, -1)
    yield call("linalg_vector_norm.default", x, 2, (1,), True)
    yield call("norm.ScalarOpt_dim", x, 2, (1,))
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        yield call(f"{name}.default", x, 1)


def _convolutions(z: Sizes) -> Iterator[Sample]:
    for n in (1, 2, 3):
        x = t(z.b, 8, *(5,) * n)
        for bias in (None, t(4)):
            yield call(f"conv{n}d.default", x, t(4, 8, *(3,) * n), bias, (2,) * n, (1,) * n)
        grouped = ((1,) * n, (0,) * n, (1,) * n)
        yield call(f"conv{n}d.default", x, t(8, 1, *(3,) * n), t(8), *grouped, 8)
        yield call(f"conv{n}d.default", x, t(16, 2, *(3,) * n), None, *grouped, 4)
        name = f"conv_transpose{n}d." + ("default" if n == 1 else "input")
        yield call(name, x, t(8, 4, *(3,) * n), None, (2,) * n)
        args = ((1,) * n, (0,) * n, (0,) * n)
        yield call(name, x, t(8, 2, *(3,) * n), t(8), *args, 4)
    rest = ((1, 1), (1, 1), (1, 1), False, (0, 0))
    yield call("convolution.default", t(z.b, 8, 5, 5), t(4, 8, 3, 3), None, *rest, 1)
    yield call("convolution.default", t(z.b, 8, 5, 5), t(8, 2, 3, 3), t(8), *rest, 4)


def _pools(z: Sizes) -> Iterator[Sample]:
    for n in (1, 2, 3):
        x, two = t(z.b, z.h, *(6,) * n), (2,) * n
        for kind in ("avg", "max"):
            yield call(f"{kind}_pool{n}d.default", x, two, two)
            yield call(f"adaptive_{kind}_pool{n}d.default", x, two)
        if n > 1:
            yield call(f"max_pool{n}d_with_indices.default", x, two, two)
        yield call(f"upsample_nearest{n}d.default", x, (12,) * n)
    yield call("upsample_bilinear2d.default", t(z.b, z.h, 6, 6), (12, 12), False)
    yield call("upsample_trilinear3d.default", t(z.b, z.h, 3, 3, 3), (6, 6, 6), False)


def _indexing(z: Sizes) -> Iterator[Sample]:
    x, at = t(z.b, z.s, z.d), ids(z.b, 3, z.d, below=z.s)
    yield call("gather.default", x, 1, at)
    for name in ("scatter.src", "scatter_.src", "scatter_add.default", "scatter_add_.default"):
        one = T(shape=(z.b, 1, z.d), dtype="int64", below=z.s)
        yield call(name, x, 1, one, t(z.b, 1, z.d))
    for name in ("scatter.value", "scatter_.value"):
        yield call(name, x, 1, at, 2.0)
    yield call("index.Tensor", x, (ids(z.h, below=z.b),))
    yield call("index.Tensor", x, (ids(z.h, below=z.b), ids(z.h, below=z.s)))
    yield call("index.Tensor", x, (None, ids(z.h, below=z.s)))
    yield call("index.Tensor", x, (ids(z.h, below=z.b), None, ids(z.h, below=z.d)))
    yield call("index.Tensor", x, (ids(z.h, 2, below=z.b), ids(2, below=z.s)))
    yield call("index_select.default", x, 1, ids(z.h, below=z.s))
    yield call("sort.default", x)
    yield call("sort.stable", x, stable=True, dim=1)
    yield call("argsort.default", x, 1)
    yield call("topk.default", x, 2)
    yield call("topk.default", x, 2, 1)
    yield call("one_hot.default", ids(z.b, z.s, below=4), 4)
    yield call("histc.default", t(z.s), 4, -1, 1)
    yield call("bincount.default", ids(z.s, below=4))
    yield call("nonzero.default", ids(z.s, below=4))
    yield call(
        "searchsorted.Tensor", T(shape=(3,), dtype="int64", values=(1, 3, 5)), ids(z.s, below=6)
    )
    for name in ("index_put.default", "index_put_.default"):
        yield call(name, x, (T(shape=(1,), dtype="int64", values=(0,)),), t(1, z.s, z.d))


def _experts(z: Sizes) -> Iterator[Sample]:
    tokens, width, inner = z.b * z.s, 2 * z.h, z.d
    for layout in ("plain", "concatenated", "interleaved", "separate"):
        for transposed in (False, True):
            for biased in (False, True):
                packed = inner * (2 if layout in ("concatenated", "interleaved") else 1)

                def weight(rows: int, columns: int, swap: bool = transposed) -> T:
                    return t(z.h, columns, rows) if swap else t(z.h, rows, columns)

                gate = weight(inner, width) if layout == "separate" else None
                up_bias, down_bias = (t(z.h, packed), t(z.h, width)) if biased else (None, None)
                gate_bias = t(z.h, inner) if biased and gate is not None else None
                clamped = layout == "interleaved"
                yield Sample(
                    target="autoplan.experts.default",
                    args=(
                        t(tokens, width), ids(tokens, 2, below=z.h), t(tokens, 2),
                        weight(packed, width), weight(width, inner),
                        gate, up_bias, down_bias, gate_bias,
                        "swiglu_oai" if clamped else "silu", layout, transposed,
                    ),
                    kwargs={"alpha": 1.7, "limit": 0.6} if clamped else {},
                    pieces=((tokens, z.b),),
                )  # fmt: skip
