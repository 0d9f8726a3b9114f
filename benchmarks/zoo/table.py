"""``docs/models.md`` from the results of the entries."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autoplan._version import __version__

__all__ = ["render"]

Result = dict[str, Any]
LIBRARIES = ("torch", "transformers", "diffusers", "peft", "timm", "torchvision")
COMMAND = "python -m benchmarks.zoo"

HEAD = f"""# Models

Written by `{COMMAND}`; do not edit. Every built-in model and every file of
`examples/models`, each in a process of its own, {{jobs}} at a time on {{cores}} CPU cores."""

SOLVED = """## Captured and solved, at the real size

- **captured**: in bfloat16, without weights: seconds and the peak memory of the process.
- **blocks (classes)**: repeated parts of the model, and how many different ones.
- **left whole**: share of the model's FLOP in operators that no rule divides on two ranks, so
  that every rank of a tensor-parallel group would do them.
- **solved**: a global batch of 256 samples (64 or 1024 for some files, see
  `benchmarks/zoo/entries.py`), all decisions free on the cluster named; **gap** is the proved
  distance to the best possible plan. The search had {limit} s; one that ends by its limit shows
  the gap reached. The step time is predicted, not measured."""

VERIFIED = """## Verified, at a small size

The same model, narrow and a few layers deep where it has settings for that, or a smaller model
of its library, which is named; solved with the degree fixed, its program written, and one step
of it run on two gloo ranks. The program and the unsharded model both compute in
float64, so that rounding hides nothing: the loss and every gradient must agree to 1e-10.

The cluster they are solved for has ranks so slow beside their network, and so little memory,
that the plan divides all it can. **in shards** counts the parameters that no rank holds whole,
**FLOP divided** is the share in operators of which each rank does a part. **zero** counts
gradients that are zero in mathematics, such as that of a bias of attention's keys or before a
batch norm: they have no relative error and must be below 1e-10 of the model's median gradient.

Not covered: the real sizes (overflow, a dimension that is odd only there), other degrees than
2, half precision, and speed. Inputs and weights are random, and weights that start constant
get noise, since zeros would hide wrong gradients. While comparing, nothing is drawn by chance,
since two ranks can't draw one rank's numbers: dropout is off, stochastic depth skips no sample,
no label is dropped, and noise of a diffusion step is an input."""


def render(results: Sequence[Result], *, states: int, rules: Result | None) -> str:
    """The page. ``states`` is how many states of the source the results come from.

    ``rules`` is what the oracle counted, None when it did not run to its end.
    """
    head = HEAD.format(jobs=_each(results, "jobs"), cores=_each(results, "cores"))
    solved = SOLVED.format(limit=_each(results, "limit"))
    lines = [head, "", _summary(results), "", solved, ""]
    lines += [
        "| model | parameters | tokens | blocks (classes) | captured | left whole | cluster "
        "| degrees | step | gap | solved |",
        "| --- | ---: | ---: | ---: | --- | ---: | --- | --- | ---: | ---: | ---: |",
        *_rows(results, _solved_row, 11),
    ]
    lines += ["", VERIFIED, ""]
    lines += [
        "| model | parameters | tp 2: worst error | in shards | FLOP divided "
        "| pp 2: worst error | zero |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *_rows([r for r in results if _ok(r, "capture")], _verified_row, 7),
    ]
    lines += ["", "## Refused or failed", "", *(_reasons(results) or ["None."])]
    lines += ["", "## Rules", "", *_rules(rules), "", *_whole(results)]
    lines += ["", "## Versions, and how to run it again", "", *_versions(states)]
    return "\n".join(lines) + "\n"


def _each(results: Sequence[Result], key: str) -> str:
    """Value that the runs of all results had, or the several they had."""
    found = sorted({result["run"][key] for result in results if "run" in result})
    return " or ".join(f"{value:g}" for value in found) or "?"


def _rows(
    results: Sequence[Result], row: Callable[[Result], list[str]], width: int
) -> Iterator[str]:
    family = ""
    for result in results:
        if result["entry"]["family"] != family:
            family = result["entry"]["family"]
            yield f"| **{family}** " + "| " * (width - 1) + "|"
        cells = [_name(result), *row(result)]
        cells += [""] * (width - len(cells))
        yield "| " + " | ".join(cells) + " |"


def _ok(result: Result, *path: str) -> bool:
    found: Any = result
    for key in path:
        found = found.get(key, {})
    return bool(found) and "error" not in found


def _summary(results: Sequence[Result]) -> str:
    captured = sum(_ok(r, "capture") for r in results)
    solved = sum(_ok(r, "solve") for r in results)
    done = {
        label: [r for r in results if "worst_error" in r.get("verify", {}).get(label, {})
                and "error" not in r["verify"][label]]
        for label in ("tp2", "pp2")
    }  # fmt: skip
    both = sum(r in done["pp2"] for r in done["tp2"])
    shards = sum(r["verify"]["tp2"]["sharded"] > 0 for r in done["tp2"])
    return (
        f"{len(results)} models: {captured} captured, {solved} solved, {len(done['tp2'])} "
        f"verified under tp 2 ({shards} of them with parameters in shards), {len(done['pp2'])} "
        f"under pp 2, {both} under both."
    )


def _name(result: Result) -> str:
    entry = result["entry"]
    name = str(entry["name"])
    if ".py:" in entry["spec"]:
        name = f"[{name}](../{entry['spec'].partition(':')[0]})"
    return name


def _solved_row(result: Result) -> list[str]:
    tokens = str(result["entry"]["seq_len"] or "")
    if "missing" in result:
        return ["", tokens, "", f"needs {result['missing']}"]
    if "capture" not in result:
        return ["", tokens, "", "not run"]
    capture = result["capture"]
    if "error" in capture:
        return ["", tokens, "", "refused"]
    return [
        _count(capture["parameters"]),
        tokens,
        f"{capture['blocks']} ({capture['classes']})",
        f"{capture['capture_seconds']:.0f} s, {capture['peak_memory'] / 2**30:.1f} GiB",
        f"{capture['replicated_flop']:.1%}",
        *_solved(result.get("solve")),
    ]


def _count(number: int) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:,}"


def _solved(solve: Result | None) -> list[str]:
    if not solve:
        return ["not run"]
    if "error" in solve:
        return ["failed"]
    degrees = ", ".join(f"{axis} {n}" for axis, n in solve["degrees"].items()) or "1 rank"
    return [
        solve["cluster"],
        degrees,
        f"{solve['step_time']:.3g} s",
        f"{solve['gap']:.0%}",
        f"{solve['seconds']:.0f} s",
    ]


def _verified_row(result: Result) -> list[str]:
    verify = result.get("verify")
    if not verify:
        return ["", "not run"]
    if "parameters" not in verify:
        return ["", "failed"]
    tp, pp = verify.get("tp2", {}), verify.get("pp2", {})
    shards = f"{tp['sharded']} of {tp['parameters']}" if "sharded" in tp else ""
    divided = f"{tp['divided_flop']:.0%}" if "divided_flop" in tp else ""
    zero = max(len(found.get("zero", [])) for found in (tp, pp))
    # A library's smaller model may stand for one that has no sizes to choose.
    entry = result["entry"]
    instead = entry["small"].get("name", entry["overrides"].get("name", ""))
    named = f" ({instead})" if instead != entry["overrides"].get("name", "") else ""
    size = _count(verify["parameters"]) + named
    return [size, _error(tp), shards, divided, _error(pp), str(zero or "")]


def _error(found: Result) -> str:
    if "error" in found:
        return "failed"
    return f"{found['worst_error']:.0e}" if "worst_error" in found else "no result"


def _reasons(results: Sequence[Result]) -> list[str]:
    lines = []
    for result in results:
        name = result["entry"]["name"]
        if "missing" in result:
            lines.append(f"- {name}: {result['missing']} was not installed.")
            continue
        if "capture" not in result:
            lines.append(f"- {name}: not run yet.")
            continue
        stages = [
            ("capture", result["capture"]),
            ("solve", result.get("solve", {})),
            ("verification", result.get("verify", {})),
            ("tp 2", result.get("verify", {}).get("tp2", {})),
            ("pp 2", result.get("verify", {}).get("pp2", {})),
        ]
        for stage, found in stages:
            if "error" in found:
                hint = f" ({found['hint']})" if found.get("hint") else ""
                lines.append(f"- {name}, {stage}: {_plain(found['error'] + hint)}")
    return lines


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")


def _rules(rules: Result | None) -> list[str]:
    if rules is None:
        return ["Not counted in this run."]
    return [
        f"{rules['rules']} operators have a rule. The oracle runs every strategy that they state "
        f"for samples of them on {' and '.join(map(str, rules['ranks']))} simulated ranks, forward "
        f"and backward in float64, and compares with the whole operator: {rules['proved']} are "
        f"proved ({rules['distinct']} distinct ones), {rules['wrong']} are wrong.",
        "",
        "Operators that some model calls in a form that no rule divides, so that all ranks do "
        "them whole:",
    ]


def _whole(results: Sequence[Result]) -> list[str]:
    share: dict[str, list[tuple[float, str, str]]] = {}
    for result in results:
        for target, (flop, reason) in result.get("capture", {}).get("replicated", {}).items():
            share.setdefault(target, []).append((flop, result["entry"]["name"], reason))
    if not share:
        return ["None."]
    lines = ["| operator | models | most FLOP in a model | why |", "| --- | ---: | --- | --- |"]
    for target, found in sorted(share.items(), key=lambda item: (-max(item[1])[0], item[0])):
        flop, name, reason = max(found)
        most = f"{flop:.1%} ({name})" if flop else "0"
        lines.append(f"| `{target}` | {len(found)} | {most} | {_plain(reason)} |")
    return lines


def _versions(states: int) -> list[str]:
    found = [f"autoplan {__version__}"]
    for name in LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name).partition('+')[0]}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} not installed")
    lines = [", ".join(found) + "."]
    if states > 1:
        lines += [
            "",
            f"The rows come from {states} states of the source; `--fresh` runs all again.",
        ]
    lines += [
        "",
        "```sh",
        "pip install -e '.[hf,zoo]'",
        f"{COMMAND}                      # all; finished entries are kept and not run again",
        f"{COMMAND} --only gpt2 DLRM     # these, then the page with everything known",
        f"{COMMAND} --fresh --jobs 2     # everything again, two at a time",
        "```",
    ]
    return lines
