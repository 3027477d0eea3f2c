"""Train an experiment for a few minutes, time its parts and render rollouts: one command.

Meant for a borrowed accelerator: the training stops by itself in time (SIGTERM, which saves),
and running the command again continues from the last checkpoint. Leaves in OUT the run's metrics,
`step_parts.json`, and the evaluation with its curve, pictures and videos.

Run: python benchmarks/train_for.py paper --data data/robot --out OUT [--minutes 6] [flags ...]
"""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SAVED_BY_SIGTERM = 143
HERE = Path(__file__).parent


def train(command: list[str], seconds: float) -> None:
    """Run a training and end it with SIGTERM when its time is up."""
    process = subprocess.Popen(command)
    try:
        status = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        status = process.wait()
    if status not in (0, SAVED_BY_SIGTERM):
        raise SystemExit(f"training ended with status {status}")


def main() -> None:
    """Train, time, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=6.0, help="of training")
    parser.add_argument("--episodes", type=int, default=3, help="evaluated episodes")
    parser.add_argument("--no-parts", action="store_true", help="skip the timing of the parts")
    arguments, flags = parser.parse_known_args()
    started = time.monotonic()
    hdvpd = [sys.executable, "-m", "hdvpd"]
    name = Path(arguments.experiment).stem
    run = arguments.out / name
    shared = ["--data.path", str(arguments.data)]
    train(
        [*hdvpd, "train", arguments.experiment, "--runs-dir", str(arguments.out), "--name", name,
         "--resume", "auto", *shared, *flags],
        60 * arguments.minutes,
    )  # fmt: skip
    if not arguments.no_parts:
        parts = [sys.executable, str(HERE / "step_parts.py"), arguments.experiment, *flags]
        output = subprocess.run(parts, check=True, capture_output=True, text=True).stdout
        print(output)
        (arguments.out / "step_parts.json").write_text(output.splitlines()[-1] + "\n")
    limits = ["--eval.num-episodes", str(arguments.episodes), "--eval.num-videos", "2"]
    subprocess.run([*hdvpd, "eval", str(run), *limits], check=True)
    for wanted in ("metrics.jsonl", "timing.jsonl", "eval/ssim.png", "eval/metrics.json"):
        shutil.copy(run / wanted, arguments.out / Path(wanted).name)
    print(f"{(time.monotonic() - started) / 60:.1f} minutes; results in {arguments.out}")


if __name__ == "__main__":
    main()
