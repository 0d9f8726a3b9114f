"""What counts as equal, and which words say that it isn't."""

import math

import pytest

from autoplan.errors import VerificationError
from autoplan.verify.compare import TOLERANCE, compare
from autoplan.verify.launch import Finding
from autoplan.verify.reference import ExactGradient

NAMES = ("stem.x", "mlp.up.weight", "mlp.down.weight")


def findings(*, errors=None, sizes=None, loss=2.0, first=("stem.x",), second=NAMES[1:]):
    base = dict.fromkeys(NAMES, 1e-7) | (errors or {})
    size = dict.fromkeys(NAMES, 1.0) | (sizes or {})
    return [
        Finding(
            rank=r,
            loss=loss,
            errors={n: base[n] for n in names},
            sizes={n: size[n] for n in names},
            held=names,
        )
        for r, names in enumerate((first, second))
    ]


def in_float64(plan):
    return plan.model_copy(update={"graph": plan.graph.model_copy(update={"dtype": "float64"})})


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


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reference_that_is_not_finite_is_no_reference(plan, value):
    wrong = findings(errors={"mlp.up.weight": math.inf}, sizes={"mlp.up.weight": value})
    for subject in (plan, in_float64(plan)):
        with pytest.raises(VerificationError, match=r"gradient of mlp.up.weight .* itself is"):
            compare(subject, wrong, 2.0)
        with pytest.raises(VerificationError, match="the loss of the unsharded model itself is"):
            compare(subject, findings(loss=value), value)
    exact = {"mlp.up.weight": ExactGradient(size=1.0, rounding=value)}
    with pytest.raises(VerificationError, match=r"float64 gradient of mlp.up.weight"):
        compare(plan, findings(errors={"mlp.up.weight": 1.0}), 2.0, exact=exact)


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
    lacking = Finding(
        rank=1, loss=2.0, errors={"mlp.up.weight": 0.0}, sizes={"mlp.up.weight": 1.0}, held=two.held
    )
    with pytest.raises(VerificationError, match=r"1 of 3 .* first mlp.down.weight"):
        compare(plan, [one, lacking], 2.0)


def test_a_rank_without_a_gradient_that_another_rank_has_fails(plan):
    one, two = findings()
    lacking = Finding(
        rank=2, loss=2.0, errors={"mlp.up.weight": 0.0}, sizes={"mlp.up.weight": 1.0}, held=two.held
    )
    with pytest.raises(VerificationError, match=r"first mlp\.down\.weight"):
        compare(plan, [one, two, lacking], 2.0)


def test_reduced_size_is_said_plainly(plan):
    report = compare(plan, findings(), 2.0, reduced="verified at reduced size: tp 2 of 8")
    assert str(report).endswith("verified at reduced size: tp 2 of 8")


def test_errors_are_relative_to_the_largest_element(plan):
    small = {"sizes": {"mlp.up.weight": 1e-3}}
    assert compare(plan, findings(errors={"mlp.up.weight": 9e-9}, **small), 2.0).compared == 3
    with pytest.raises(VerificationError, match=r"mlp\.up\.weight differs by 1\.10e-05"):
        compare(plan, findings(errors={"mlp.up.weight": 1.1e-8}, **small), 2.0)


def test_float64_programs_have_a_smaller_tolerance(plan):
    errors = dict.fromkeys(NAMES, 9e-11)
    assert compare(in_float64(plan), findings(errors=errors), 2.0).tolerance == 1e-10
    with pytest.raises(VerificationError, match="tolerance 1e-10"):
        compare(in_float64(plan), findings(errors=errors | {NAMES[2]: 2e-10}), 2.0)


def test_a_gradient_that_is_zero_in_mathematics_is_held_against_the_median(plan):
    zero = {"sizes": {"mlp.up.weight": 1e-16}}
    found = findings(errors=dict.fromkeys(NAMES, 1e-11) | {"mlp.up.weight": 3e-16}, **zero)
    report = compare(in_float64(plan), found, 2.0)
    assert report.zero == ("mlp.up.weight",)
    assert report.worst_error == 1e-11
    assert "1 zero up to rounding: mlp.up.weight" in str(report)
    with pytest.raises(VerificationError, match=r"mlp\.up\.weight"):
        wrong = dict.fromkeys(NAMES, 1e-11) | {"mlp.up.weight": 2e-10}
        compare(in_float64(plan), findings(errors=wrong, **zero), 2.0)


def test_in_float32_the_exact_gradients_tell_which_are_zero(plan):
    noise = {"errors": {"mlp.up.weight": 2e-9}, "sizes": {"mlp.up.weight": 1e-9}}
    with pytest.raises(VerificationError, match=r"differs by 2\.00e\+00"):
        compare(plan, findings(**noise), 2.0)
    exact = {name: ExactGradient(size=1.0, rounding=1e-7) for name in NAMES}
    exact["mlp.up.weight"] = ExactGradient(size=1e-17, rounding=1e-9)
    report = compare(plan, findings(**noise), 2.0, exact=exact)
    assert (report.zero, report.rounded) == (("mlp.up.weight",), ())
    assert report.worst_error == 1e-7
    exact["mlp.up.weight"] = ExactGradient(size=1e-9, rounding=1e-10)
    with pytest.raises(VerificationError, match=r"mlp\.up\.weight"):
        compare(plan, findings(**noise), 2.0, exact=exact)


def test_rounding_of_the_unsharded_model_is_allowed_and_told(plan):
    exact = {name: ExactGradient(size=1.0, rounding=1e-5) for name in NAMES}
    report = compare(plan, findings(errors={"mlp.up.weight": 3e-5}), 2.0, exact=exact)
    assert report.rounded == ("mlp.up.weight",)
    assert report.worst_error == 1e-7
    with pytest.raises(VerificationError, match=r"mlp\.up\.weight"):
        compare(plan, findings(errors={"mlp.up.weight": 5e-5}), 2.0, exact=exact)
