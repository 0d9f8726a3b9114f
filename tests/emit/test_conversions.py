"""The call of each edge of the placement algebra, and of parameters."""

import pytest

from autoplan.emit.conversions import conversion_call, parameter_call
from autoplan.errors import InputError
from autoplan.ir.graph import Tensor, TensorKind
from autoplan.ir.placement import Partial, Replicate, Shard

R, RP, P = Replicate(), Replicate(True), Partial()
PAD = Shard(1, pad=True)


def tensor(kind=TensorKind.ACTIVATION, *, grad=True):
    return Tensor(name="x", shape=(4, 12), dtype="float32", kind=kind, requires_grad=grad, base="x")


def written(call):
    return None if call is None else f"{call.function}(x, {', '.join(call.args)})"


@pytest.mark.parametrize(
    ("produced", "required", "text", "without_gradient"),
    [
        (R, R, None, None),
        (R, RP, "partial_grad(x, tp)", None),
        (R, Shard(1), "shard(x, tp, dim=1)", "shard(x, tp, dim=1)"),
        (R, Shard(1, 3), "shard(x, tp, dim=1, blocks=3)", "shard(x, tp, dim=1, blocks=3)"),
        (Shard(1), Shard(1), None, None),
        (
            Shard(1),
            R,
            'all_gather(x, tp, dim=1, backward="slice")',
            'all_gather(x, tp, dim=1, backward="slice")',
        ),
        (
            Shard(1, 3),
            RP,
            "all_gather(x, tp, dim=1, blocks=3)",
            'all_gather(x, tp, dim=1, blocks=3, backward="slice")',
        ),
        (P, R, "all_reduce(x, tp)", "all_reduce(x, tp)"),
        (P, RP, 'all_reduce(x, tp, backward="all_reduce")', "all_reduce(x, tp)"),
        (P, Shard(0), "reduce_scatter(x, tp, dim=0)", "reduce_scatter(x, tp, dim=0)"),
        (P, P, None, None),
        (R, PAD, "shard(x, tp, dim=1, pad=True)", "shard(x, tp, dim=1, pad=True)"),
        (PAD, PAD, None, None),
        (
            PAD,
            R,
            'all_gather(x, tp, dim=1, size=12, backward="slice")',
            'all_gather(x, tp, dim=1, size=12, backward="slice")',
        ),
        (
            PAD,
            RP,
            "all_gather(x, tp, dim=1, size=12)",
            'all_gather(x, tp, dim=1, size=12, backward="slice")',
        ),
        (
            P,
            PAD,
            "reduce_scatter(x, tp, dim=1, pad=True)",
            "reduce_scatter(x, tp, dim=1, pad=True)",
        ),
        (
            Shard(0),
            Shard(1),
            "all_to_all(x, tp, from_dim=0, to_dim=1)",
            "all_to_all(x, tp, from_dim=0, to_dim=1)",
        ),
    ],
)
def test_each_edge_is_one_call(produced, required, text, without_gradient):
    assert written(conversion_call(tensor(), produced, required, "tp")) == text
    plain = conversion_call(tensor(grad=False), produced, required, "tp")
    assert written(plain) == without_gradient


@pytest.mark.parametrize(
    ("produced", "required"),
    [
        (R, P),
        (Shard(0), P),
        (Shard(1), Shard(1, 3)),
        (Shard(1, 3), Shard(0)),
        (PAD, P),
        (PAD, Shard(0)),
        (Shard(0), PAD),
        (Shard(1), PAD),
    ],
)
def test_edges_that_do_not_exist_are_rejected(produced, required):
    with pytest.raises(InputError, match="can't go from"):
        conversion_call(tensor(), produced, required, "tp")


def parameter(stored, required, *, partial=False, grad=True):
    weight = tensor(TensorKind.PARAMETER, grad=grad)
    return written(parameter_call(weight, stored, required, "tp", partial=partial))


def test_parameters_are_used_as_stored():
    assert parameter(R, R) is None
    assert parameter(Shard(1, 3), Shard(1, 3)) is None
    assert parameter(PAD, PAD) is None
    assert parameter(R, RP, partial=True) is None


@pytest.mark.parametrize(
    ("stored", "required"), [(R, Shard(0)), (Shard(0), R), (Shard(0), Shard(1)), (Shard(0), RP)]
)
def test_parameters_are_never_converted(stored, required):
    with pytest.raises(InputError, match="is stored as"):
        parameter(stored, required)


def test_a_whole_gradient_counts_once_in_the_sum_of_partial_ones():
    assert parameter(R, R, partial=True) == "share_grad(x, tp)"
    assert parameter(R, R, partial=True, grad=False) is None


def test_a_partial_gradient_that_nobody_sums_is_rejected():
    with pytest.raises(InputError, match="gradient is whole"):
        parameter(R, RP, partial=False)
