"""What counts as equal, and which words say that it isn't."""

import math

import pytest

from autoplan.errors import VerificationError
from autoplan.verify.compare import TOLERANCE, compare
from autoplan.verify.launch import Finding

NAMES = ("stem.x", "mlp.up.weight", "mlp.down.weight")


def findings(*, errors=None, loss=2.0, first=("stem.x",), second=NAMES[1:]):
    base = dict.fromkeys(NAMES, 1e-7) | (errors or {})
    return [
        Finding(rank=r, loss=loss, errors={n: base[n] for n in names if n in base}, held=names)
        for r, names in enumerate((first, second))
    ]


def test_equal_programs_are_reported(plan):
    report = compare(plan, findings(errors={"mlp.up.weight": 2e-6}), 2.0)
    assert report.compared == 3
    assert (report.worst_parameter, report.worst_error) == ("mlp.up.weight", 2e-6)
    assert "mlp.up.weight" in str(report)
    assert "2.0e-06" in str(report)


@pytest.mark.parametrize("error", [TOLERANCE * 1.01, 1.0, math.inf])
def test_one_wrong_gradient_fails_and_is_named(plan, error):
    with pytest.raises(VerificationError, match=r"mlp.down.weight.*1 of 3") as caught:
        compare(plan, findings(errors={"mlp.down.weight": error}), 2.0)
    assert caught.value.exit_code == 8


@pytest.mark.parametrize("loss", [2.0001, math.nan, math.inf])
def test_a_wrong_loss_fails(plan, loss):
    with pytest.raises(VerificationError, match="the loss is"):
        compare(plan, findings(loss=loss), 2.0)


def test_the_loss_of_every_rank_counts(plan):
    one, two = findings()
    with pytest.raises(VerificationError, match="the loss is 3"):
        compare(plan, [one, findings(loss=3.0)[1]], 2.0)
    assert compare(plan, [one, two], 2.0).loss == 2.0


def test_a_parameter_without_gradient_fails(plan):
    one, two = findings()
    lacking = Finding(rank=1, loss=2.0, errors={"mlp.up.weight": 0.0}, held=two.held)
    with pytest.raises(VerificationError, match=r"1 of 3 .* first mlp.down.weight"):
        compare(plan, [one, lacking], 2.0)


def test_a_rank_without_a_gradient_that_another_rank_has_fails(plan):
    one, two = findings()
    lacking = Finding(rank=2, loss=2.0, errors={"mlp.up.weight": 0.0}, held=two.held)
    with pytest.raises(VerificationError, match=r"first mlp\.down\.weight"):
        compare(plan, [one, two, lacking], 2.0)


def test_reduced_size_is_said_plainly(plan):
    report = compare(plan, findings(), 2.0, reduced="verified at reduced size: tp 2 of 8")
    assert str(report).endswith("verified at reduced size: tp 2 of 8")
