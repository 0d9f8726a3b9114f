"""Tiles and waves, against the products that were measured."""

import statistics

import pytest
from handmade_blocks import P, R, S, linear, strategy, tensor
from handmade_blocks import block as make_block

from autoplan.costs.matmul import Product, local_products, tiled_time
from autoplan.ir.graph import Op, Ref, TensorKind
from autoplan.ir.hardware import MatmulTiles
from autoplan.profiles import load_cluster
from autoplan.profiles.catalogue import accelerator_file

LAUNCH = 3e-6
# TFLOP/s, Azure/AI-benchmarking-guide@8fd0c6e1bd0f: (m, n, k) on ND A100 v4 (fp16) and
# ND H100 v5 (fp8). The mean error allowed is the one that the catalogue states.
A100 = {
    (1024, 1024, 1024): 119.4, (2048, 2048, 2048): 221.8, (4096, 4096, 4096): 228.0,
    (8192, 8192, 8192): 253.7, (16384, 16384, 16384): 256.5, (1024, 2145, 1024): 132.8,
    (6144, 12288, 12288): 250.8, (802816, 192, 768): 157.8,
}  # fmt: skip
H100 = {
    (1024, 1024, 1024): 274.1, (2048, 2048, 2048): 1011.3, (4096, 4096, 4096): 1216.9,
    (8192, 8192, 8192): 1290.1, (16384, 16384, 16384): 1377.3, (32768, 32768, 32768): 1382.2,
    (1024, 2145, 1024): 410.7, (6144, 12288, 12288): 1351.4, (802816, 192, 768): 663.8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sweep", "best", "mean"), [("a100", A100, 256.5, 0.05), ("h100", H100, 1410, 0.028)]
)
def test_measured_products(name, sweep, best, mean):
    tiles = load_cluster(name).accelerator.matmul_tiles
    errors = []
    for (m, n, k), rate in sweep.items():
        seconds = tiled_time(Product(1, m, n, k), best * 1e12, tiles) + LAUNCH
        errors.append(abs(2 * m * n * k / seconds / (rate * 1e12) - 1))
    assert statistics.fmean(errors) <= mean
    assert accelerator_file(name).matmul_tiles.source


def test_a_tile_more_than_the_units_is_a_wave_more():
    tiles = MatmulTiles(multiprocessors=10, overhead=1.0)
    one = Product(1, 1280, 256, 64)
    assert tiled_time(one, 1e30, tiles) == pytest.approx(1.0)
    assert tiled_time(Product(1, 1281, 256, 64), 1e30, tiles) == pytest.approx(2.0)
    assert tiled_time(Product(1, 2561, 256, 64), 1e30, tiles) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("choice", "product"),
    [
        (strategy([R, R], [R]), Product(1, 96, 64, 32)),
        (strategy([R, S(0)], [S(1)]), Product(1, 96, 16, 32)),
        (strategy([S(1), S(1)], [P]), Product(1, 96, 64, 8)),
        (strategy([S(0), R], [S(0)]), Product(1, 24, 64, 32)),
    ],
)
def test_products_of_a_linear(choice, product):
    made = make_block(
        [linear("mm", "x", "w", "y", 2 * 96 * 64 * 32)],
        [
            tensor("x", (96, 32), TensorKind.BOUNDARY),
            tensor("w", (64, 32), TensorKind.PARAMETER),
            tensor("y", (96, 64)),
        ],
        parameters=("w",),
    )
    ranks = 1 if choice.outputs == (R,) else 4
    forward, backward = local_products(made.ops[0], made, choice, ranks)
    assert forward == (product,)
    m, n, k = product.m, product.n, product.k
    assert backward == (Product(1, m, k, n), Product(1, k, n, m))


def test_products_of_attention_scores():
    op = Op(name="s", target="aten.matmul.default", args=(Ref("q"), Ref("k")), outputs=("y",))
    made = make_block(
        [op],
        [
            tensor("q", (2, 16, 128, 64), TensorKind.BOUNDARY),
            tensor("k", (2, 16, 64, 128), TensorKind.BOUNDARY),
            tensor("y", (2, 16, 128, 128)),
        ],
    )
    forward, backward = local_products(op, made, strategy([S(1), S(1)], [S(1)]), 4)
    assert forward == (Product(8, 128, 128, 64),)
    assert [product.flop for product in backward] == [forward[0].flop] * 2
