"""Measuring while the machine changes its speed: a clock by hand, no real time."""

import random

import pytest

from autoplan.profiles.measure.steady import NOISY, Sample, measure_steadily, sample_of


class Machine:
    """Runs tasks that take their number of seconds, times how slow it is at the moment."""

    def __init__(self, slow=lambda count: 1.0, jitter=lambda task, attempt: 0.0):
        self.slow = slow
        self.jitter = jitter
        self.count = 0
        self.attempts = {}

    def measure(self, task):
        self.count += 1
        attempt = self.attempts[task] = self.attempts.get(task, 0) + 1
        seconds = task * self.slow(self.count)
        return Sample(seconds=seconds, spread=self.jitter(task, attempt), repeats=10)

    def reference(self):
        return 0.001 * self.slow(self.count)

    def run(self, tasks):
        return measure_steadily(tasks, self.measure, self.reference)


def test_a_quiet_machine_measures_everything_once():
    machine = Machine()
    measured = machine.run([1.0, 2.0, 3.0])
    assert [one.sample.seconds for one in measured] == [1.0, 2.0, 3.0]
    assert machine.count == 3 and not any(one.in_doubt for one in measured)


def test_a_slow_spell_is_measured_again_not_averaged():
    tasks = [float(n) for n in range(1, 11)]
    machine = Machine(slow=lambda count: 2.0 if 4 <= count <= 7 else 1.0)
    measured = machine.run(tasks)
    assert [one.sample.seconds for one in measured] == tasks
    assert not any(one.in_doubt for one in measured)
    assert machine.count <= len(tasks) + 6  # only those of the spell, and its neighbours


def test_a_machine_that_stays_slow_halfway_is_told():
    tasks = [float(n) for n in range(1, 11)]
    machine = Machine(slow=lambda count: 1.6 if count > 5 else 1.0)
    measured = machine.run(tasks)
    for one in measured[:5]:
        assert (one.sample.seconds == one.what and one.pace < 1.0 + NOISY) or one.pace == 1.6
    for one in measured[5:]:
        assert one.in_doubt and one.pace == pytest.approx(1.6)
        assert one.sample.seconds == pytest.approx(1.6 * one.what)


def test_a_machine_that_starts_slow_is_found_out_later():
    tasks = [1.0, 2.0, 3.0, 4.0]
    measured = Machine(slow=lambda count: 3.0 if count < 3 else 1.0).run(tasks)
    assert [one.sample.seconds for one in measured] == tasks


def test_what_varies_is_repeated_and_the_quietest_sample_is_kept():
    def jitter(task, attempt):
        return {1.0: 0.1, 2.0: 0.9 / attempt**2, 3.0: 0.5 + 0.1 * attempt}[task]

    machine = Machine(jitter=jitter)
    one, two, three = machine.run([1.0, 2.0, 3.0])
    assert machine.attempts == {1.0: 1, 2.0: 2, 3.0: 3}
    assert not one.in_doubt and not two.in_doubt
    assert three.in_doubt and three.sample.spread == pytest.approx(0.6)


def test_tasks_may_be_left_out():
    measured = measure_steadily([1, 2], lambda task: None, lambda: 1.0)
    assert measured == ()


def test_a_sample_is_the_median_and_its_spread():
    rng = random.Random(0)
    times = [rng.uniform(0.9, 1.1) for _ in range(1000)]
    sample = sample_of(times)
    assert sample.seconds == pytest.approx(1.0, abs=0.01)
    assert sample.spread == pytest.approx(0.16, abs=0.01)
    assert sample_of([2.0]) == Sample(seconds=2.0, spread=0.0, repeats=1)


def test_an_outlier_does_not_move_it():
    sample = sample_of([1.0] * 99 + [1000.0])
    assert (sample.seconds, sample.spread) == (1.0, 0.0)
