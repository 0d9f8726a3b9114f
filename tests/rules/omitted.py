"""Legal strategies that rules leave out on purpose, each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["OMITTED", "Omission", "reason_for"]


@dataclass(frozen=True)
class Omission:
    """Strategies of the targets that match both patterns, and why no rule states them."""

    targets: str
    strategies: str
    reason: str


_PRODUCTS = (
    r"aten\.(linear|addmm|baddbmm|addbmm|addmv|mm|bmm|matmul|mv|dot|vdot|outer|ger|bilinear"
    r"|einsum|conv\w*)\..*"
)
_NORMS = (
    r"aten\.(layer_norm|native_layer_norm|_?\w*rms_norm|group_norm|batch_norm|instance_norm)\..*"
)
_ANY = r".*"

OMITTED = (
    Omission(
        _PRODUCTS,
        r".*P.* -> P",
        "addends through a product: every rank repeats all of it to put one sum off",
    ),
    Omission(
        r"aten\.(xlogy|special_xlog1py)\..*",
        r"P,R -> P",
        "linear in the first operand, which is a probability and no addend in any known model",
    ),
    Omission(
        _NORMS,
        r"R(,[RP])*,P(,[RP])* -> .*",
        "scale, shift and statistics are parameters or buffers, which are never addends",
    ),
    Omission(
        r"aten\.batch_norm\..*",
        r"S\(1\)(,S\(0\))+ -> S\(1\)",
        "running statistics of a slice would be written to a copy and lost",
    ),
    Omission(
        r"aten\.scaled_dot_product_attention\..*",
        r"R,R,(P|S\(\d\))(,R)? -> .*",
        "channels or addends of the values: every rank computes all scores for it",
    ),
    Omission(
        r"aten\.scaled_dot_product_attention\..* one key",
        _ANY,
        "with one key the result is its value, whatever the query is: no attention",
    ),
    Omission(
        r"aten\.embedding\..*",
        r"P,R -> P",
        "a table is a parameter, which is never an addend",
    ),
    Omission(
        r"aten\.embedding\..*",
        r"R,S\(0\) -> S\(0\)",
        "gradients scaled by frequency count all ids; drawn ones may happen to be distinct",
    ),
    Omission(
        r"aten\.(cross_entropy_loss|nll_loss|nll_loss_nd|binary_cross_entropy)\..*",
        r".*P.* -> P",
        "class weights, soft labels and log-probabilities are no addends in any known model",
    ),
    Omission(
        r"autoplan\.experts\..*",
        r"R,R,P(,R)+ -> P",
        "addends through a product: every rank repeats all of it to put one sum off",
    ),
    Omission(
        r"autoplan\.experts\..*",
        r"R,S\(1\),S\(1\)(,R)+ -> P",
        "the choices of each token split: needs all experts on each rank, as tokens split do, "
        "and a sum besides",
    ),
    Omission(
        r"aten\.(any|all|isfinite|isinf|isnan|isneginf|isposinf|logical_\w+|nan_to_num|copysign"
        r"|heaviside)\..*",
        _ANY,
        "truth values and signs that agree by chance of the values drawn",
    ),
    Omission(
        r"aten\.(_grouped_mm|unique_consecutive|masked_select|masked_scatter|prod)\..*",
        _ANY,
        "agrees by chance: the positions of other ranks' elements decide",
    ),
    Omission(
        r"aten\.(type_as|expand_as|view_as|reshape_as)\..*",
        r".*,P -> .*",
        "a tensor that is read for its shape or dtype only",
    ),
    Omission(
        r"aten\.broadcast_tensors\..*",
        r"(P,R -> P,R|R,P -> R,P)",
        "tensors of a broadcast meet in one operator, which takes addends of both or neither",
    ),
    Omission(
        r"aten\.as_strided\..*",
        r"P -> P",
        "elements by their place in memory, which a collective does not keep",
    ),
    Omission(
        r"aten\.scatter_reduce_?\..*",
        r"P,R,P -> P",
        "linear for sums and means only; models scatter addends with scatter_add",
    ),
    Omission(
        r"aten\.upsample_(linear1d|bilinear2d|trilinear3d)\..*",
        r"S\(2\) -> S\(2\)",
        "without a message only where the size is halved exactly; the rule fetches rows",
    ),
    Omission(
        r"aten\.conv_transpose[12]d\..*",
        r"S\(2\),R,R -> S\(2\)",
        "without a message only where stride, kernel and padding of the output happen to fit",
    ),
)


def reason_for(target: str, strategy: str) -> Omission | None:
    """The entry that explains why a strategy of ``target`` is left out."""
    for entry in OMITTED:
        if re.fullmatch(entry.targets, target) and re.fullmatch(entry.strategies, strategy):
            return entry
    return None
