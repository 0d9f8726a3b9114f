"""Names and literals: what a plan file says can't become code."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.emit import text
from autoplan.errors import InputError
from autoplan.ir.graph import Const, Ref
from autoplan.ir.placement import Partial, Replicate, Shard

INJECTIONS = [
    "x; import os",
    "x\nimport os",
    "x\n",
    "__import__",
    "a b",
    "",
    "1x",
    "x)",
    "é",
]


@pytest.mark.parametrize("name", INJECTIONS)
def test_names_that_are_no_identifiers_are_rejected(name):
    with pytest.raises(InputError):
        text.identifier(name)
    with pytest.raises(InputError):
        text.keyword_text(name) if name != "__import__" else text.identifier(name)


@pytest.mark.parametrize(
    "target",
    ["os.system.default", "aten.x", "aten.a.b.c", "aten.a.b()", "aten.a.b\n", "aten.lambda.x", ""],
)
def test_targets_that_are_no_aten_operators_are_rejected(target):
    with pytest.raises(InputError):
        text.operator_call(target)


@pytest.mark.parametrize("call", ["main", "load_buffer", "x()", "", "vocab_embedding\n"])
def test_only_known_runtime_functions_can_be_called(call):
    with pytest.raises(InputError):
        text.runtime_call(call)


@pytest.mark.parametrize(
    "const",
    [
        Const("dtype", "float32)"),
        Const("dtype", "load"),
        Const("layout", "hub"),
        Const("memory_format", "ops"),
        Const("module", "os"),
    ],
)
def test_constants_outside_the_lists_are_rejected(const):
    with pytest.raises(InputError):
        text.literal(const, iter(()), "x.device")


@pytest.mark.parametrize("fqn", ["a..b", "a.b\n", 'a"', ".a", "a.b c", ""])
def test_names_of_parameters_are_checked(fqn):
    with pytest.raises(InputError):
        text.fqn_text(fqn)


@pytest.mark.parametrize("name", ["lambda", "self", "torch", "rt", "forward", "train", "tp"])
def test_names_in_use_get_an_underscore(name):
    assert text.identifier(name) == f"{name}_"


@given(st.text())
def test_any_text_is_a_literal_of_itself(value):
    assert ast.literal_eval(text.literal(value, iter(()), "")) == value
    assert text.string(value).isascii()
    assert "\n" not in text.string(value)


@given(st.text())
def test_comments_stay_on_their_line_and_in_their_docstring(value):
    made = text.comment(value)
    assert made.isascii()
    assert made.isprintable()
    assert '"' not in made
    assert "\\" not in made


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)))
def test_numbers_are_literals_of_themselves(value):
    assert eval(text.literal(value, iter(()), ""), {"float": float}) == value


def test_arguments_take_tensors_in_order():
    arg = (Ref("a"), None, (Ref("b"), 2), Const("device", ""), Const("dtype", "bool"))
    made = text.literal(arg, iter(["x", "y"]), "x.device")
    assert made == "[x, None, [y, 2], x.device, torch.bool]"


def test_states_have_different_names():
    states = [Replicate(), Replicate(True), Shard(1), Shard(0), Shard(1, 3), Shard(1, 2), Partial()]
    assert len({text.state_suffix(s) for s in states}) == len(states)


def test_long_calls_are_broken_within_the_line():
    args = [f"argument_number_{index}" for index in range(12)]
    lines = text.call_lines("result = aten.some.default", args, "[2, 3] S(1)", 8)
    assert all(len(line) <= text.LINE_LENGTH for line in lines)
    assert ast.dump(ast.parse("\n".join(line[8:] for line in lines))) == ast.dump(
        ast.parse(f"result = aten.some.default({', '.join(args)})")
    )
