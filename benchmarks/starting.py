"""Starting to train, without and with what an earlier start has left on disk.

Each start is a process of its own: `hdvpd train` of one step, with the validations before and after
it, on a data set or on the analytic scene at the experiment's size. Seconds by the clock until the
first step begins, which the validation before it says, and until all is done; and of processor
time; all of Python's imports included. --code names other clones of the project, whose starts are
measured after those of this one.

Run: python benchmarks/starting.py [demo] [--data DIR] [--repeats 1] [--code DIR ...]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import analytic_batch

from hdvpd.config.experiments import load_config


def start(code: Path, experiment: str, data: Path, folder: Path, cache: Path) -> dict[str, float]:
    """Return seconds by the clock and of the processor for a run of one step."""
    # jax tells XLA's log to speak where nothing is said, here and in what is started.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TF_CPP_"))}
    environment |= {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(code)}
    environment["NUMBA_CACHE_DIR"] = str(cache / "host-code")
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    first_step = float("nan")
    with subprocess.Popen(
        [
            *(sys.executable, "-u", "-m", "hdvpd", "train", experiment, "--data.path", str(data)),
            *("--name", "start", "--runs-dir", str(folder), "--train.num-steps", "1"),
            *("--train.batch-size", "1", "--train.warmup-steps", "0"),
            *("--train.validate-every", "1"),
        ],
        env=environment, cwd=code, stdout=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("step 0:"):
                first_step = time.perf_counter() - begin
    if running.returncode:
        raise SystemExit(f"hdvpd train ended with status {running.returncode}.")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    clock = time.perf_counter() - begin
    return {"first step": first_step, "clock": clock, "processor": processor}


def main() -> None:
    """Print one row per start and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="demo")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--code", type=Path, nargs="*", default=[])
    arguments = parser.parse_args()
    data = arguments.data and arguments.data.resolve()
    if data is None:
        overrides = {"train": {"batch_size": 1}}
        data = analytic_batch(load_config(arguments.experiment, overrides))[0].path.resolve()
    rows = []
    clones = [Path(__file__).resolve().parents[1], *(code.resolve() for code in arguments.code)]
    for code in clones * arguments.repeats:
        with tempfile.TemporaryDirectory() as name:
            folder, cache = Path(name), Path(name) / "cache"
            for state in ("first", "second"):
                result = start(code, arguments.experiment, data, folder / state, cache)
                rows.append({"code": str(code), "start": state, **result})
                print(
                    f"{state:8s} {result['first step']:7.1f} s until the first step "
                    f"{result['clock']:7.1f} s by the clock "
                    f"{result['processor']:7.1f} s of processor time   {code}",
                    flush=True,
                )
    print(json.dumps({"experiment": arguments.experiment, "starts": rows}))


if __name__ == "__main__":
    main()
