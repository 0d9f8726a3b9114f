"""Programs whose blocks of one class have numbers of their own."""

import re
from pathlib import Path

import pytest

from autoplan.capture import capture, load_model
from autoplan.emit import emit_program
from autoplan.errors import InputError, VerificationError
from autoplan.ir.mesh import Mesh
from autoplan.ir.placement import Shard
from autoplan.plan_file import read_plan
from autoplan.verify import verify
from tests.plans import Setup, make_plan

MODELS = Path(__file__).parents[1] / "capture" / "number_models.py"
SETUPS = {
    "pp": Setup(mesh=Mesh(pp=2), schedule="1f1b", microbatches=2),
    "tp": Setup(mesh=Mesh(tp=2), boundary=Shard(1), recompute="full"),
}


def program(folder, setup, **settings):
    source = load_model(f"{MODELS}:rated", overrides={"depth": 5, "first": 0.1, **settings})
    found = capture(source, seq_len=0, dtype="float32")
    plan = make_plan(found.at(2), found.record(), SETUPS[setup], seq_len=0)
    emit_program(plan, folder)
    return plan


@pytest.mark.dist
@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("kind", ["floor", "bernoulli"])
def test_each_block_computes_with_its_own(setup, kind, tmp_path):
    """Rates of dropped layers divide what is kept, so both they and the scales are seen."""
    plan = program(tmp_path, setup, kind=kind)
    numbers = [i.numbers for i in plan.graph.instances if i.numbers]
    assert len(set(numbers)) == 5
    assert len({i.block_class for i in plan.graph.instances}) == 3
    assert verify(tmp_path, timeout=200).compared > 0


@pytest.mark.dist
@pytest.mark.parametrize("index", [1, 2])
def test_wrong_binding_is_found(index, tmp_path):
    """Two blocks swap one number. The first, the rate of plain dropout, is off in `verify`."""
    plan = program(tmp_path, "tp")
    values = [i.numbers for i in plan.graph.instances if i.numbers]
    file = tmp_path / "model.py"
    text = file.read_text()
    head, table, tail = re.split(r"(NUMBERS = \{.*?\n\})", text, maxsplit=1, flags=re.DOTALL)
    one, other = repr(values[1][index]), repr(values[3][index])
    assert table.count(one) == table.count(other) == 1
    swapped = table.replace(one, "SWAP").replace(other, one).replace("SWAP", other)
    file.write_text(head + swapped + tail)
    with pytest.raises(VerificationError, match="differs"):
        verify(tmp_path, timeout=200)


def test_text_of_a_block_with_numbers(tmp_path):
    plan = program(tmp_path, "pp")
    text = (tmp_path / "model.py").read_text()
    assert "number_0: float" in text
    assert "self.number_0 = number_0" in text
    assert text.count("NUMBERS = {") == 1
    compile(text, "model.py", "exec")
    for instance in plan.graph.instances:
        assert all(repr(number) in text for number in instance.numbers)


def test_plan_with_a_number_too_few_is_refused(tmp_path):
    plan = program(tmp_path / "program", "pp")
    instances = list(plan.graph.instances)
    place = next(k for k, instance in enumerate(instances) if instance.numbers)
    for numbers in ((), (0.0, 0.5, 0.5), (float("nan"),) * 3):
        instances[place] = instances[place].model_copy(update={"numbers": numbers})
        graph = plan.graph.model_copy(update={"instances": tuple(instances)})
        with pytest.raises(InputError, match="graph is broken"):
            emit_program(plan.model_copy(update={"graph": graph}), tmp_path / "other")
    with pytest.raises(InputError):
        read_plan_text(tmp_path, plan, "NaN")
    assert read_plan_text(tmp_path, plan, "0.3125").graph == plan.graph


def read_plan_text(folder, plan, number):
    text = plan.model_dump_json()
    assert text.count("0.3125") == 1
    (folder / "plan.json").write_text(text.replace("0.3125", number))
    return read_plan(folder / "plan.json")
