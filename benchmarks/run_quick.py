"""Run the quick benchmarks one after the other; write their numbers as one JSON and one table.

A benchmark takes part by a line of `QUICK` and a line of JSON among what it prints, the last of
which counts. One that fails is named, and the others still run.

Run: make bench, or python benchmarks/run_quick.py [--out runs/bench] [--only NAME ...]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QUICK = {
    "gpu_model": ("--json",),
    "floor": ("demo", "--repeats", "3"),
    "neighbors": ("--repeats", "5"),
    "images": ("--repeats", "3"),
    "starting": ("demo",),
    "step_parts": ("demo", "--repeats", "2"),
}
"""Arguments of the benchmarks that take a few minutes at most, by the name of the script."""

HERE = Path(__file__).parent


def run(name: str) -> dict[str, Any]:
    """Run one benchmark.

    Args:
      name: key of `QUICK`.

    Returns:
      Its command, its seconds, and its numbers or what went wrong.
    """
    words = [f"benchmarks/{name}.py", *QUICK[name]]
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], cwd=HERE.parent, capture_output=True, text=True, check=False
    )
    result: dict[str, Any] = {
        "command": "python " + " ".join(words),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        error = (done.stderr.strip().splitlines() or ["no numbers were printed"])[-1]
        return result | {"error": error}
    return result | {"numbers": json.loads(lines[-1])}


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of a tree with a name; the rows of a list are named by their words."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{name} / {key}" if name else key)
    elif isinstance(value, list):
        for row in value:
            words = [x for x in row.values() if isinstance(x, str)] if isinstance(row, dict) else []
            yield from numbers(row, " / ".join(filter(None, [name, *words])))


def to_markdown(results: dict[str, dict[str, Any]]) -> str:
    """Return one table of all numbers.

    Args:
      results: of `run`, by name.
    """
    lines = ["| benchmark | quantity | value |", "|---|---|---|"]
    for name, result in results.items():
        if "error" in result:
            lines.append(f"| {name} | failed | {result['error']} |")
        for quantity, value in numbers(result.get("numbers", {})):
            lines.append(f"| {name} | {quantity} | {value:.4g} |")
        lines.append(f"| {name} | duration [s] | {result['seconds']} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, print and write; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--only", nargs="+", choices=QUICK, default=list(QUICK))
    arguments = parser.parse_args()
    results = {}
    for name in arguments.only:
        print(f"benchmarks/{name}.py ...", flush=True)
        results[name] = run(name)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    written = json.dumps({"machine": machine, "benchmarks": results}, indent=1)
    (arguments.out / "bench.json").write_text(written + "\n")
    table = to_markdown(results)
    (arguments.out / "bench.md").write_text(table)
    print(f"\n{table}\nwritten to {arguments.out / 'bench.json'} and bench.md")
    return int(any("error" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
