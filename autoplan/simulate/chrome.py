"""A timeline in the trace event format that chrome://tracing and Perfetto open."""

from __future__ import annotations

from autoplan.simulate.timeline import COMPUTE, DATA, MODEL, Timeline

__all__ = ["chrome_trace"]

_FIRST = (COMPUTE, MODEL, DATA)


def chrome_trace(timeline: Timeline) -> list[dict[str, object]]:
    """Events for ``json.dump``: times in microseconds, ranks as processes, streams as threads.

    Format: Google's "Trace Event Format", complete ("X") and metadata ("M") events.
    """
    streams = sorted(
        {(rank, stream) for rank, stream, *_ in timeline.records},
        key=lambda pair: (pair[0], _FIRST.index(pair[1]) if pair[1] in _FIRST else 3, pair[1]),
    )
    threads: dict[tuple[int, str], int] = {}
    trace: list[dict[str, object]] = []
    for rank in range(len(timeline.busy)):
        trace.append(_name("process_name", rank, 0, f"rank {rank}"))
    for rank, stream in streams:
        thread = sum(1 for of, _ in threads if of == rank)
        threads[rank, stream] = thread
        trace.append(_name("thread_name", rank, thread, stream))
    for event in timeline.events:
        category = event.action.kind.name.lower() if event.action else "step"
        trace.append(
            {
                "ph": "X",
                "name": event.label,
                "cat": category,
                "pid": event.rank,
                "tid": threads[event.rank, event.stream],
                "ts": event.start * 1e6,
                "dur": (event.end - event.start) * 1e6,
            }
        )
    return trace


def _name(what: str, rank: int, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}
