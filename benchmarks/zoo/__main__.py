"""Runs the zoo and writes ``docs/models.md``.

    python -m benchmarks.zoo [--only NAME ...] [--out FILE] [--no-verify] [--jobs N] [--fresh]

Results are kept in ``.zoo/``, one file an entry: a run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.zoo.entries import ROOT, Entry, zoo
from benchmarks.zoo.table import render

CACHE = ROOT / ".zoo"
Result = dict[str, Any]


def main() -> int:
    """Exit code: 1 when an entry crashed, which no model may cause, or a rule is wrong."""
    args = _arguments()
    entries = zoo()
    chosen = _chosen(entries, args.only)
    args.cache.mkdir(parents=True, exist_ok=True)
    state = _source_digest()
    todo = [e for e in chosen if args.fresh or not _finished(e, args.cache, not args.no_verify)]
    print(f"{len(entries)} entries, {len(todo)} to run", file=sys.stderr, flush=True)
    started = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        ordered = sorted(todo, key=_cost)
        running = {pool.submit(_run, entry, args, state): entry for entry in ordered}
        for done, future in enumerate(as_completed(running), 1):
            left = (time.monotonic() - started) / done * (len(todo) - done)
            print(
                f"[{done}/{len(todo)}] {running[future].name}: {future.result()}; "
                f"{left / 60:.0f} min left",
                file=sys.stderr,
                flush=True,
            )
    results = [_read(entry, args.cache) or {"entry": asdict(entry)} for entry in entries]
    if args.table_of_only:
        names = {entry.name for entry in chosen}
        results = [result for result in results if result["entry"]["name"] in names]
    states = {result["state"] for result in results if "state" in result}
    rules = None if args.no_rules else _count_rules(args.cache)
    page = render(results, states=len(states), rules=rules)
    args.out.write_text(page, encoding="utf-8")
    print(f"wrote {args.out}", file=sys.stderr)
    crashed = [r for r in results if r.get("stopped") or '"kind": "crash"' in json.dumps(r)]
    unproved = not args.no_rules and (rules is None or rules["wrong"] > 0)
    return int(bool(crashed) or unproved)


def _count_rules(cache: Path) -> Result | None:
    """What the oracle counts now; None when it does not come to an end."""
    print("running the rule oracle", file=sys.stderr, flush=True)
    path = cache / "rules.count"
    path.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "benchmarks.zoo.rules", str(path)], cwd=ROOT, check=False)
    try:
        found: Result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="run these entries")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "models.md")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of the results")
    parser.add_argument("--no-verify", action="store_true", help="capture and solve only")
    parser.add_argument("--no-rules", action="store_true", help="do not run the rule oracle")
    parser.add_argument("--jobs", type=int, default=1, help="entries at a time")
    parser.add_argument("--fresh", action="store_true", help="run finished entries again")
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds of a search")
    parser.add_argument("--entry-limit", type=float, default=400.0, help="seconds of an entry")
    parser.add_argument(
        "--table-of-only", action="store_true", help="leave other entries out of the page"
    )
    return parser.parse_args()


def _chosen(entries: tuple[Entry, ...], names: list[str]) -> list[Entry]:
    known = {entry.name for entry in entries}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return [entry for entry in entries if not names or entry.name in names]


def _cost(entry: Entry) -> tuple[bool, bool, str]:
    """Order of the run: the project's own files, then libraries, then built-in models."""
    return ".py:" not in entry.spec, bool(entry.library), entry.name


def _path(entry: Entry, cache: Path) -> Path:
    return cache / (re.sub(r"[^A-Za-z0-9.]+", "-", entry.name) + ".json")


def _read(entry: Entry, cache: Path) -> Result | None:
    """Result kept for the entry as it is defined now."""
    try:
        found: Result = json.loads(_path(entry, cache).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if found["entry"] == asdict(entry) else None


def _finished(entry: Entry, cache: Path, verified: bool) -> bool:
    found = _read(entry, cache)
    if found is None or "missing" in found:
        return False
    if found.get("stopped"):
        return False
    if "error" in found.get("capture", {}):
        return True
    return ("verify" if verified else "solve") in found and "state" in found


def _run(entry: Entry, args: argparse.Namespace, state: str) -> str:
    path = _path(entry, args.cache)
    command = [sys.executable, "-m", "benchmarks.zoo.worker", entry.name, str(path)]
    command += ["--time-limit", str(args.time_limit)] + ["--no-verify"] * args.no_verify
    fresh = path.with_suffix(".new")
    command[4] = str(fresh)
    stopped = ""
    try:
        done = subprocess.run(
            command, cwd=ROOT, timeout=args.entry_limit, capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            stopped = f"the process ended with {done.returncode}: {last}"[:400]
    except subprocess.TimeoutExpired:
        stopped = f"no result within {args.entry_limit:.0f} s"
    try:
        result: Result = json.loads(fresh.read_text(encoding="utf-8"))
        fresh.unlink()
    except (OSError, ValueError):
        result = {"entry": asdict(entry)}
    if stopped:
        step = next((s for s in ("capture", "solve") if s not in result), "verify")
        result.setdefault(step, {}).setdefault("error", stopped)
        result["stopped"] = stopped
    if "missing" in result and path.exists():
        return f"needs {result['missing']}; the result kept before stays"
    result["state"] = state
    result["run"] = {"jobs": args.jobs, "cores": _cores(), "limit": args.time_limit}
    path.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return _in_words(result)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_words(result: Result) -> str:
    if "missing" in result:
        return f"needs {result['missing']}"
    parts = []
    verify = result.get("verify", {})
    steps = [(name, result.get(name)) for name in ("capture", "solve")]
    steps += [("verify", verify if "error" in verify else None)]
    steps += [(label, verify.get(label)) for label in ("tp2", "pp2")]
    for name, found in steps:
        if found:
            worst = f" {found['worst_error']:.0e}" if "worst_error" in found else ""
            how = f"failed: {found['error']}" if "error" in found else "ok"
            parts.append(f"{name} {how}{worst} ({found.get('seconds', 0):.0f} s)")
    return ", ".join(parts)


def _source_digest() -> str:
    digest = hashlib.sha256()
    for folder in ("autoplan", "solver", "profiles"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".json") and path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
