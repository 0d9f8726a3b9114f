"""Every strategy of every rule: ranks together equal the whole, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autoplan import runtime
from autoplan.emit.text import CALLS
from autoplan.ir.placement import Placement, parse_placement
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import registered_targets, strategies

from .engine import Sample, check_strategy, execute, on_ranks, prepare
from .samples import Sizes, call, ids, samples, t
from .test_random import CASES

# The values of ``empty`` are whatever memory holds; those that are drawn are in test_random.
_UNDEFINED = {"aten.empty", "aten.empty_like", "aten.new_empty"}
_DRAWN = {
    "aten.bernoulli", "aten.exponential.default", "aten.multinomial.default",
    "aten.normal.float_float", "aten.rand.default", "aten.rand_like", "aten.randint.default",
    "aten.randint.low", "aten.randint_like", "aten.randn.default", "aten.randn_like",
    "aten.randperm.default", "aten.uniform.default",
}  # fmt: skip

Oracle = Callable[[Sample, int], list[str]]


def _rule_of(sample: Sample) -> str:
    exact = sample.target in registered_targets()
    return sample.target if exact else sample.target.rpartition(".")[0]


def _by_rule(sizes: Sizes) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples(sizes):
        found.setdefault(_rule_of(sample), []).append(sample)
    return found


_SAMPLES = _by_rule(Sizes())
_COMPARED = sorted(set(_SAMPLES) - _UNDEFINED)


def test_every_rule_has_a_sample() -> None:
    assert set(registered_targets()) - _UNDEFINED - _DRAWN - set(_SAMPLES) == set()


def test_every_sample_has_a_rule() -> None:
    assert set(_SAMPLES) - set(registered_targets()) == set()


@pytest.mark.parametrize("target", _COMPARED)
def test_ranks_equal_the_whole(target: str, oracle: Oracle) -> None:
    for sample in _SAMPLES[target]:
        for ranks in (2, 4):
            oracle(sample, ranks)


_SIZES = st.builds(
    Sizes,
    b=st.integers(1, 4),
    s=st.sampled_from((3, 4, 6, 8)),
    h=st.sampled_from((2, 4, 6, 8)),
    d=st.sampled_from((2, 4, 6)),
)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sizes=_SIZES, target=st.sampled_from(_COMPARED), ranks=st.sampled_from((2, 3, 4)))
# A rank's one row: the sum that is the weight's gradient has nothing to add.
@example(sizes=Sizes(b=1, s=3, h=2, d=2), target="aten.layer_norm.default", ranks=2)
def test_ranks_equal_the_whole_at_any_size(
    sizes: Sizes, target: str, ranks: int, oracle: Oracle
) -> None:
    for sample in _by_rule(sizes)[target]:
        oracle(sample, ranks)


@pytest.mark.parametrize(
    ("sample", "inputs", "outputs"),
    [
        (call("relu.default", t(4, 4)), "P", "P"),
        (call("add.Tensor", t(4, 4), t(4, 4)), "P R", "P"),
        (call("add.Tensor", t(4, 4), 1.0), "P", "P"),
        (call("mul.Tensor", t(4, 4), t(4, 4)), "P P", "P"),
        (call("mean.dim", t(4, 4), (0,)), "S(0)", "P"),
        (call("linear.default", t(4, 4), t(4, 4), t(4)), "S(1) S(1) R", "P"),
        (call("linear.default", t(4, 8), t(8, 8)), "S(1,2) S(1)", "P"),
        (call("softmax.int", t(4, 4), 1), "S(1)", "S(1)"),
        (call("cumsum.default", t(4, 4), 0), "S(0)", "S(0)"),
        (call("view.default", t(2, 4), (8,)), "S(1)", "S(0)"),
        (call("cross_entropy_loss.default", t(4, 4), ids(4, below=4)), "S(0) S(0)", "P"),
        (call("embedding.default", t(4, 4), ids(4, below=4)), "S(0) R", "P"),
    ],
)
def test_the_oracle_refuses_wrong_facts(sample: Sample, inputs: str, outputs: str) -> None:
    wrong = OpStrategy(inputs=_placements(inputs), outputs=_placements(outputs))
    prepared = prepare(sample)
    with pytest.raises((AssertionError, RuntimeError, IndexError, ValueError)):
        check_strategy(prepared, wrong, 2)


def _placements(text: str) -> tuple[Placement, ...]:
    return tuple(map(parse_placement, text.split()))


def test_dropout_masks_agree_exactly_where_values_are_replicated() -> None:
    prepared = prepare(call("dropout.default", t(8, 64, low=0.5), 0.5, True))
    (x,) = prepared.inputs
    seed = torch.get_rng_state()
    for strategy in strategies(prepared.op, prepared.block, 2):

        def body(axis: runtime.Axis, strategy: OpStrategy = strategy) -> torch.Tensor:
            torch.set_rng_state(seed)
            local = x.detach().chunk(2, 0)[0].clone().requires_grad_()
            (y,) = execute(prepared.op, [local], strategy.call, axis)
            mask = (y != 0).double()
            (grad,) = torch.autograd.grad(y.sum(), local)
            torch.testing.assert_close(y, local * mask * 2)
            torch.testing.assert_close(grad, mask * 2)
            return mask

        masks = [body(runtime.Axis(group=object(), rank=r, size=2)) for r in range(2)]  # type: ignore[arg-type]
        same = torch.equal(*masks)
        assert same == (strategy.call == "replicated_dropout"), str(strategy)


def test_calls_are_functions_of_the_runtime() -> None:
    named = set()
    attend = t(2, 4, 4, 8)
    extra = [
        *(case for case, _, _ in CASES.values()),
        call("scaled_dot_product_attention.default", attend, attend, attend, None, 0.5),
    ]
    for sample in (*samples(Sizes()), *extra):
        prepared = prepare(sample)
        named |= {s.call for s in strategies(prepared.op, prepared.block, 2)} - {""}
    assert named <= set(runtime.__all__)
    assert named <= CALLS


def test_attention_with_dropout_names_its_call() -> None:
    q = t(2, 4, 4, 8)
    sample = call("scaled_dot_product_attention.default", q, q, q, None, 0.1, True)
    prepared = prepare(sample)
    calls = [(str(s.outputs[0]), s.call) for s in strategies(prepared.op, prepared.block, 2)]
    sharded = [("S(0)", "sharded_attention"), ("S(1)", "sharded_attention")]
    assert calls == [("R", "replicated_attention"), *sharded, ("S(2)", "row_attention")]


def test_threads_reduce_over_ranks(oracle: Oracle) -> None:
    def body(axis: runtime.Axis) -> torch.Tensor:
        x = torch.tensor([float(axis.rank)])
        torch.distributed.all_reduce(x, group=axis.group)
        return x

    assert [float(x) for x in on_ranks(4, body)] == [6.0] * 4
