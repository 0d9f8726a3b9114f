"""Sample calls of products by letters, reductions, scans, positions, patches and losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .engine import Sample, T

__all__ = ["array_samples"]

_ALL = 9223372036854775807


def _call(target: str, *args: Any, pieces: tuple[tuple[int, int], ...] = (), **kw: Any) -> Sample:
    return Sample(target=f"aten.{target}", args=args, kwargs=kw, pieces=pieces)


def _t(*shape: int, low: float = -1.0, high: float = 1.0, grad: bool = True) -> T:
    return T(shape=shape, low=low, high=high, grad=grad)


def _ids(*shape: int, below: int) -> T:
    return T(shape=shape, dtype="int64", below=below)


def array_samples(b: int, s: int, h: int, d: int) -> Iterator[Sample]:
    """Samples at batch ``b``, sequence ``s``, heads ``h`` and head size ``d``."""
    yield from _products(b, s, h, d)
    yield from _reductions(b, s, d)
    yield from _views(b, s, h, d)
    yield from _patches(b, s, h)
    yield from _positions(b, s, h, d)
    yield from _losses(b, s, d)
    yield from _created(b, s, d)


def _products(b: int, s: int, h: int, d: int) -> Iterator[Sample]:
    q, k = _t(b, h, s, d), _t(b, h, s + 1, d)
    yield _call("einsum.default", "bhsd,bhtd->bhst", (q, k))
    yield _call("einsum.default", "bshd,hdo->bso", (_t(b, s, h, d), _t(h, d, 6)))
    yield _call("einsum.default", "...i,oi", (_t(b, s, d), _t(h, d)))
    yield _call("einsum.default", "...ij,...jk->...ik", (_t(b, h, s, d), _t(1, d, s)))
    yield _call("einsum.default", "i,j->ij", (_t(s), _t(d)), pieces=((s, 2),))
    yield _call("einsum.default", "ii->i", (_t(s, s),))
    yield _call("einsum.default", "bij,bjk,bkl->bil", (_t(b, s, d), _t(b, d, h), _t(b, h, s)))
    yield _call("mv.default", _t(s, d), _t(d))
    yield _call("dot.default", _t(d), _t(d))
    yield _call("vdot.default", _t(d), _t(d))
    yield _call("outer.default", _t(s), _t(d))
    yield _call("ger.default", _t(s), _t(d))
    yield _call("bilinear.default", _t(b, s, d), _t(b, s, 6), _t(h, d, 6))
    yield _call("bilinear.default", _t(b, d), _t(b, 6), _t(h, d, 6), _t(h))
    yield _call("matmul.default", _t(d), _t(d, h))
    yield _call("matmul.default", _t(d), _t(b, d, h))
    yield _call("matmul.default", _t(b, h, s, d), _t(d))
    yield _call("addbmm.default", _t(s, h), _t(b, s, d), _t(b, d, h), beta=0.5)
    yield _call("addbmm.default", _t(h), _t(b, s, d), _t(b, d, h), alpha=2.0)
    yield _call("addmv.default", _t(s), _t(s, d), _t(d), beta=0.5, alpha=2.0)


def _reductions(b: int, s: int, d: int) -> Iterator[Sample]:
    x = _t(b, s, d, low=0.1)
    for name in ("max", "min", "any", "all"):
        yield _call(f"{name}.default", x)
    yield _call("prod.default", _t(b, s, d, low=0.8, high=1.2))
    for name in ("any", "all"):
        yield _call(f"{name}.dims", T(shape=(b, s, d), below=2), (0, 2))
    for name in ("var", "std"):
        yield _call(f"{name}.default", x, False)
        yield _call(f"{name}_mean.dim", x, (1,))
        yield _call(f"{name}_mean.correction", x, (1,), correction=0, keepdim=True)
    yield _call("mean.dim", x, (1, 2), dtype=None)
    yield _call("median.dim", x, 1)
    yield _call("aminmax.default", x, dim=1)
    yield _call("norm.Scalar", x, 2)
    yield _call("argmax.default", x)
    for name in ("count_nonzero.dim_IntList", "count_nonzero.default"):
        yield _call(name, T(shape=(b, s, d), below=2), *(((1,),) if "dim" in name else ()))
    for name in ("cummax", "cummin"):
        yield _call(f"{name}.default", x, 1)
    yield _call("cumsum.default", x, -1)
    yield _call("cumsum.default", _ids(b * s, d, below=9), 0)
    yield _call("masked_select.default", x, T(shape=(d,), dtype="bool"))


def _views(b: int, s: int, h: int, d: int) -> Iterator[Sample]:
    x = _t(b, s, h, d)
    yield _call("movedim.int", x, 1, -1)
    yield _call("movedim.intlist", x, (0, 3), (2, 0))
    yield _call("swapaxes.default", x, 1, 2)
    yield _call("swapdims.default", x, 0, -1)
    for name in ("mT", "mH", "adjoint"):
        yield _call(f"{name}.default", x)
    yield _call("numpy_T.default", _t(b, s, d))
    yield _call("matrix_H.default", _t(s, d))
    yield _call("broadcast_to.default", _t(s, 1), (b, s, d))
    yield _call("expand_as.default", _t(s, 1), _t(b, s, d))
    yield _call("view_as.default", _t(b, s, h * d), _t(b, s, h, d))
    yield _call("reshape_as.default", _t(b, s, h, d), _t(b, s, h * d))
    yield _call("slice.Tensor", x, 3, 0, _ALL, 2)
    yield _call("slice.Tensor", x, 3, 1, _ALL, 2)
    for start in (0, d):
        yield _call("slice.Tensor", _t(b, 2 * d), 1, start, start + d, pieces=((2 * d, 2),))
        yield _call("narrow.default", _t(b, 2 * d), 1, start, d, pieces=((2 * d, 2),))
    yield _call("slice.Tensor", x, 3, -2, _ALL)
    yield _call("tensor_split.sections", _t(b, 2 * d), 2, 1)
    yield _call("unsafe_chunk.default", _t(b, 2 * d), 2, 1)
    yield _call("unsafe_split.Tensor", _t(b, 2 * d), d, 1)
    yield _call("tile.default", _t(s, d), (2, 1, 3))
    yield _call("repeat.default", _t(s, d), (1, 3), pieces=((3 * d, 3),))
    yield _call("pad.default", _t(b, s), (0, 1))
    yield _call("pad.default", _t(b, s, d), (1, 1), "reflect")
    yield _call("pad.default", _t(b, s, d), (1, 1), "replicate")
    yield _call("pad.default", _t(b, s, d), (1, 1), "circular")
    yield _call("constant_pad_nd.default", _t(b, s), (1, 0))
    yield _call("diagonal.default", _t(b, s, s, d), 0, 1, 2)
    yield _call("diag_embed.default", _t(b, s))
    yield _call("meshgrid.indexing", (_t(s), _t(d)), indexing="ij")
    yield _call("meshgrid.indexing", (_t(s), _t(d)), indexing="xy")
    yield _call("meshgrid.default", (_t(s), _t(d)))
    yield _call("as_strided.default", _t(s, d), (d, s), (1, d))
    yield _call("squeeze.dim", _t(2, 1, s), 1)
    yield _call("glu.default", _t(b, 2 * d), 1)
    yield _call("glu.default", _t(2 * s, d), 0, pieces=((2 * s, 2),))


def _patches(b: int, s: int, h: int) -> Iterator[Sample]:
    image = _t(b, h, 2 * s, 4)
    yield _call("unfold.default", _t(b, 4 * s, h), 1, 2, 2)
    yield _call("unfold.default", _t(b, 4 * s, h), 1, 3, 1)
    two, one, none = (2, 2), (1, 1), (0, 0)
    yield _call("im2col.default", image, two, one, none, two)
    yield _call("im2col.default", image, (3, 3), one, one, one)
    yield _call("im2col.default", _t(h, 2 * s, 4), two, one, none, two)
    yield _call("col2im.default", _t(b, 4 * h, 2 * s), (2 * s, 4), two, one, none, two)
    yield _call("pixel_shuffle.default", _t(b, 4 * h, s, 2), 2)
    yield _call("pixel_unshuffle.default", image, 2)
    for sizes in ((s,), (s, 2), (s, 2, 2)):
        yield _call("channel_shuffle.default", _t(b, 2 * h, *sizes), 2)


def _positions(b: int, s: int, h: int, d: int) -> Iterator[Sample]:
    x = _t(b, s, d)
    yield _call("gather.default", x, 1, _ids(b, 4, d, below=s))
    yield _call("take_along_dim.default", x, _ids(b, 4, d, below=s), 1)
    yield _call("take_along_dim.default", x, _ids(4, below=b * s * d))
    yield _call("scatter_add.default", _t(b, s, d), 1, _ids(b, 8, d, below=s), _t(b, 8, d))
    yield _call("scatter_add.default", _t(s, d), 0, _ids(4 * h, d, below=s), _t(4 * h, d))
    for name in ("scatter_reduce.two", "scatter_reduce_.two"):
        yield _call(name, _t(s, d), 0, _ids(8, d, below=s), _t(8, d), "amax")
        yield _call(name, _t(s, d), 0, _ids(8, d, below=s), _t(8, d), "mean", include_self=False)
    for name in ("index_add", "index_add_"):
        yield _call(f"{name}.default", _t(b, s, d), 1, _ids(8, below=s), _t(b, 8, d), alpha=0.5)
    yield _call("index_add.default", _t(s, d), 0, _ids(4 * h, below=s), _t(4 * h, d))
    some = T(shape=(2,), dtype="int64", values=(2, 0))
    for name in ("index_copy", "index_copy_"):
        yield _call(f"{name}.default", _t(b, s, d), 1, some, _t(b, 2, d))
    for name in ("index_fill", "index_fill_"):
        yield _call(f"{name}.int_Scalar", _t(b, s, d), 1, some, 0.0)
    yield _call("index_fill.int_Scalar", _t(b, s, d), 1, some, 1.5)
    yield _call("index_reduce.default", _t(s, d), 0, _ids(8, below=s), _t(8, d), "amax")
    put = (_ids(8, below=s),)
    yield _call("index_put.default", _t(s, d), put, _t(8, d), True)
    yield _call("index_put.default", _t(s, h, d), put, _t(d), True)
    yield _call("index_put.default", _t(s, d, h), (_ids(8, below=s), _ids(8, below=d)), _t(8, h),
                True)  # fmt: skip
    yield _call("index_put.default", _t(s, d), (some,), _t(2, d))
    yield _call("msort.default", x)
    yield _call("argsort.stable", x, stable=True, dim=1)
    yield _call("kthvalue.default", x, 2, 1)
    yield _call("unique_consecutive.default", _ids(s, below=3))
    yield _call("masked_scatter.default", x, T(shape=(b, s, d), dtype="bool"), _t(b, s, d))
    row = T(shape=(3,), dtype="int64", values=(1, 3, 5))
    yield _call("bucketize.Tensor", _ids(b, s, below=6), row)
    sorted_rows = T(shape=(2, 3), dtype="int64", values=(1, 3, 5, 0, 2, 4))
    yield _call("searchsorted.Tensor", sorted_rows, _ids(2, s, below=6))


def _losses(b: int, s: int, d: int) -> Iterator[Sample]:
    x, y, p = _t(b, s, d), _t(b, s, d), _t(b, s, d, low=0.1, high=0.9)
    other = _t(b, s, d, low=0.1, high=0.9, grad=False)
    for kind in (0, 1, 2):
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
            yield _call(f"{name}.default", x, y, kind)
        yield _call("soft_margin_loss.default", x, other, kind)
        yield _call("kl_div.default", x, other, kind)
        yield _call("binary_cross_entropy.default", p, other, None, kind)
        name = "binary_cross_entropy_with_logits.default"
        yield _call(name, x, other, None, _t(d, low=0.5, grad=False), kind)
        yield _call(name, x, other, None, None, kind)
    yield _call("smooth_l1_loss.default", x, y, 1, 0.5)


def _created(b: int, s: int, d: int) -> Iterator[Sample]:
    x = _t(s, d)
    for name in ("new_zeros", "new_ones"):
        yield _call(f"{name}.default", x, (b, s))
    yield _call("new_full.default", x, (b, s), 2.0)
    yield _call("eye.default", s)
    yield _call("linspace.default", 0.0, 1.0, s)
    yield _call("tril_indices.default", s, s)
    yield _call("triu_indices.default", s, s)
    yield _call("hann_window.default", s)
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"):
        yield _call(f"{name}.default", _t(b, s, d), 0.5, False)
        yield _call(f"{name}_.default", _t(b, s, d), 0.0, True)
