"""``docs/models.md`` from the results of the entries."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

from autoplan._version import __version__

__all__ = ["render"]

Result = dict[str, Any]
LIBRARIES = ("torch", "transformers", "diffusers", "peft", "timm", "torchvision")
COMMAND = "python -m benchmarks.zoo"

HEAD = f"""# Models

Written by `{COMMAND}`; do not edit. Every built-in model and every file of `examples/models`,
each in its own process on two CPU cores:

- **captured**: at its real size in bfloat16, without weights: parameters, blocks and how many
  kinds of them, seconds, and the peak memory of the process.
- **whole**: share of the model's FLOP in operators that no rule can divide on two ranks, so
  that every rank of a tensor-parallel group would do them.
- **solved**: at its real size on the cluster named, all decisions free: the degrees found, the
  proved distance to the best possible plan, seconds. A search that ends by its time limit shows
  its gap, nothing more.
- **tp 2**, **pp 2**: at reduced width and depth, solved with that degree fixed, the program
  written and one step of it run on two gloo ranks in float32: the worst relative error of a
  gradient, and for tp how many parameters are held in shards. Messages are priced as nearly
  free there, so that even small layers are worth dividing.

What the last two columns prove: for the reduced model, the loss and every gradient of the
program equal those of the unsharded model to 1e-5. Gradients that are sums which cancel, such
as that of a bias of attention's keys (zero but for rounding) or of a convolution before a batch
norm, have no such relative error: they must lie within four times the float32 rounding of the
unsharded model itself, and their number is marked `r`. The reduced model has the operators of
the real one, not its sizes: an error that shows only at a real size (overflow, a dimension that
is odd only there), other degrees than 2, and speed are not covered. Random inputs and weights;
dropout and stochastic depth off.
"""


def render(results: Sequence[Result], *, states: int) -> str:
    """The page. ``states`` is how many states of the source the results come from."""
    lines = [HEAD, _summary(results), ""]
    lines += [
        "| model | parameters | blocks (kinds) | captured | whole | solved | tp 2 | pp 2 |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- | --- |",
    ]
    family = ""
    for result in results:
        if result["entry"]["family"] != family:
            family = result["entry"]["family"]
            lines.append(f"| **{family}** | | | | | | | |")
        lines.append(_row(result))
    lines += ["", "## Refused or failed", "", *(_reasons(results) or ["None."])]
    lines += ["", "## Operators left whole", "", *_whole(results)]
    lines += ["", "## Versions, and how to run it again", "", *_versions(states)]
    return "\n".join(lines) + "\n"


def _ok(result: Result, *path: str) -> bool:
    found: Any = result
    for key in path:
        found = found.get(key, {})
    return bool(found) and "error" not in found


def _summary(results: Sequence[Result]) -> str:
    captured = sum(_ok(r, "capture") for r in results)
    solved = sum(_ok(r, "solve") for r in results)
    tp, pp = (sum(_ok(r, "verify", label) for r in results) for label in ("tp2", "pp2"))
    divided = sum(_ok(r, "verify", "tp2") and r["verify"]["tp2"]["sharded"] > 0 for r in results)
    both = sum(_ok(r, "verify", "tp2") and _ok(r, "verify", "pp2") for r in results)
    return (
        f"{len(results)} models: {captured} captured, {solved} solved, {tp} verified under tp 2, "
        f"{pp} under pp 2, {both} under both.\nOf those under tp 2, {divided} hold parameters in "
        "shards; the others divide activations only, or nothing."
    )


def _row(result: Result) -> str:
    entry = result["entry"]
    name = entry["name"]
    if ".py:" in entry["spec"]:
        file = entry["spec"].partition(":")[0]
        name = f"[{name}](../{file})"
    if "missing" in result:
        return f"| {name} | | | needs {result['missing']} | | | | |"
    if "capture" not in result:
        return f"| {name} | | | not run | | | | |"
    capture = result["capture"]
    if "error" in capture:
        return f"| {name} | | | refused | | | | |"
    cells = [
        name,
        _count(capture["parameters"]),
        f"{capture['blocks']} ({capture['classes']})",
        f"{capture['capture_seconds']:.0f} s, {capture['peak_memory'] / 2**30:.1f} GiB",
        f"{capture['replicated_flop']:.1%}",
        _solved(result.get("solve")),
        *(_verified(result.get("verify"), label) for label in ("tp2", "pp2")),
    ]
    return "| " + " | ".join(cells) + " |"


def _count(number: int) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:,}"


def _solved(solve: Result | None) -> str:
    if not solve:
        return "not run"
    if "error" in solve:
        return "failed"
    degrees = ", ".join(f"{axis} {n}" for axis, n in solve["degrees"].items()) or "1 rank"
    return f"{solve['cluster']}: {degrees}; gap {solve['gap']:.0%}; {solve['seconds']:.0f} s"


def _verified(verify: Result | None, label: str) -> str:
    if not verify:
        return "not run"
    if "error" in verify:
        return "failed"
    found = verify.get(label)
    if not found:
        return "no result"
    if "error" in found:
        return "failed"
    text = f"{found['worst_error']:.0e}"
    if found["rounded"]:
        text += f" and {len(found['rounded'])} r"
    if label == "tp2":
        text += f", {found['sharded']} of {found['parameters']} in shards"
    return text


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


def _whole(results: Sequence[Result]) -> list[str]:
    share: dict[str, list[tuple[float, str, str]]] = {}
    for result in results:
        for target, (flop, reason) in result.get("capture", {}).get("replicated", {}).items():
            share.setdefault(target, []).append((flop, result["entry"]["name"], reason))
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
