"""Rules state every legal strategy worth having; what is left out has a reason."""

from __future__ import annotations

import pytest

from autoplan.rules import registry

from .engine import Sample
from .missing import described, missing_strategies
from .omitted import OMITTED, reason_for
from .samples import Sizes, call, samples, t


def _families() -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples(Sizes()):
        found.setdefault(sample.target.split(".")[1].rstrip("_0123456789"), []).append(sample)
    return found


_FAMILIES = _families()


@pytest.mark.parametrize("family", _FAMILIES)
def test_no_legal_strategy_is_missing(family: str) -> None:
    unexplained = []
    for sample in _FAMILIES[family]:
        for strategy in missing_strategies(sample):
            if reason_for(described(sample), str(strategy)) is None:
                unexplained.append(f"{described(sample)}: {strategy}")
    assert not unexplained, "state it in the rule, or say in omitted.py why not"


def test_a_missing_strategy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = call("mul.Tensor", t(4, 6), t(6))
    assert missing_strategies(sample) == []
    monkeypatch.delitem(registry._RULES, "aten.mul")
    found = set(map(str, missing_strategies(sample)))
    assert {"S(0),R -> S(0)", "S(1),S(0) -> S(1)", "P,R -> P", "R,P -> P"} <= found
    assert not {"R,S(0) -> R", "P,P -> P", "S(0),S(0) -> S(0)"} & found


def test_every_omission_has_a_reason() -> None:
    assert all(len(entry.reason.split()) > 4 for entry in OMITTED)


@pytest.mark.slow
def test_every_omission_is_needed() -> None:
    found = {
        reason_for(described(sample), str(strategy))
        for sample in samples(Sizes())
        for strategy in missing_strategies(sample)
    }
    assert [entry for entry in OMITTED if entry not in found] == []
