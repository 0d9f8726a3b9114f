"""The trace of a timeline: complete, on its ranks and streams, in microseconds."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from autoplan.simulate import (
    DataParallel,
    Gathering,
    Tail,
    chrome_trace,
    simulate_pipeline,
    simulate_step,
    stage_of_times,
)


def test_trace_has_every_event_once_in_microseconds() -> None:
    timeline = simulate_pipeline("zbvzerobubble", [1e-3] * 4, [2e-3] * 4, [1e-4] * 3, 4, ranks=2)
    trace = json.loads(json.dumps(chrome_trace(timeline)))
    spans = [entry for entry in trace if entry["ph"] == "X"]
    assert len(spans) == len(timeline.events)
    for span, event in zip(spans, timeline.events, strict=True):
        assert (span["name"], span["pid"]) == (event.label, event.rank)
        assert span["ts"] == event.start * 1e6
        assert span["dur"] == (event.end - event.start) * 1e6
    end = max(span["ts"] + span["dur"] for span in spans)
    assert end == pytest.approx(timeline.makespan * 1e6, rel=1e-12)
    kinds = Counter(span["cat"] for span in spans if not span["name"].startswith("result"))
    assert kinds == {"forward": 16, "backward_input": 16, "backward_weight": 16}


def test_processes_are_ranks_and_threads_are_streams() -> None:
    stages = [stage_of_times(1.0, 2.0, send_output=0.5, send_gradient=0.5)] * 2
    timeline = simulate_step(
        "gpipe",
        stages,
        ranks=2,
        microbatches=2,
        data=DataParallel(gathering=Gathering.NEVER),
        tails=[Tail(collectives=1.0, optimizer=1.0)] * 2,
    )
    trace = chrome_trace(timeline)
    names = {
        (entry["pid"], entry["tid"]): entry["args"]
        for entry in trace
        if entry["name"] == "thread_name"
    }
    assert names == {
        (0, 0): {"name": "compute"},
        (0, 1): {"name": "tp, cp and ep collectives"},
        (0, 2): {"name": "send to rank 1"},
        (1, 0): {"name": "compute"},
        (1, 1): {"name": "tp, cp and ep collectives"},
        (1, 2): {"name": "send to rank 0"},
    }
    assert [e["args"] for e in trace if e["name"] == "process_name"] == [
        {"name": "rank 0"},
        {"name": "rank 1"},
    ]
    assert {entry["tid"] for entry in trace if entry["name"] == "optimizer"} == {0}
    assert {str(e["name"]).split()[0] for e in trace if e["ph"] == "X"} >= {"result", "0F0"}
