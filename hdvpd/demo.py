"""`hdvpd demo`: simulate, train, evaluate; one phase after the other, each timed.

Each phase is a verb that can be typed by hand; its command is printed before it runs.
"""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hdvpd.__main__ import main
from hdvpd.errors import UserError
from hdvpd.experiments import load_config
from hdvpd.training.run_folder import lock_run

CONTROL_STEPS = 20
SEED = 0


def run_demo(
    *,
    data: Path,
    runs_dir: Path,
    experiment: str,
    episodes: int,
    started: float,
    flags: Sequence[str] = (),
    command: Callable[[Sequence[str]], int] = main,
) -> int:
    """Run all phases and print their times and where the results are.

    Args:
      data: folder of the data set; one made with other settings is moved aside.
      runs_dir: the run is written to its folder `demo`; an earlier one is moved aside.
      experiment: name or file of the experiment to train.
      episodes: to simulate.
      started: when the installation began [s since 1970]; 0 leaves that phase out.
      flags: the configuration's flags for the training.
      command: runs one `hdvpd` command line and returns its exit status.

    Returns:
      The exit status of the first phase that failed, or 0.

    Raises:
      UserError: another process is training in the earlier run's folder.
    """
    config = load_config(experiment, flags)
    run = runs_dir / "demo"
    simulation = simulation_flags(episodes, config.data.height, config.data.width)
    _set_aside_other_data(data, simulation)
    _set_aside(run)
    phases = {
        "simulate": ["data", "simulate", "--out", str(data), *simulation, "--workers", "2"],
        "train": ["train", experiment, "--name", run.name, "--runs-dir", str(runs_dir),
                  "--data.path", str(data), *flags],
        "evaluate": ["eval", str(run)],
    }  # fmt: skip
    times = {"install": time.time() - started} if started else {}
    for phase, words in phases.items():
        print(f"\n== {phase}: hdvpd {' '.join(words)}", flush=True)
        begin = time.perf_counter()
        status = command(words)
        times[phase] = time.perf_counter() - begin
        if status:
            return status
    print(summary(times, run))
    return 0


def simulation_flags(episodes: int, height: int, width: int) -> list[str]:
    """Return the flags that decide the bytes of the demo's data set.

    Args:
      episodes: to simulate.
      height: of the images [px].
      width: of the images [px].
    """
    return [
        *("--episodes", str(episodes), "--steps", str(CONTROL_STEPS)),
        *("--tasks", "push,can,sweep", "--size", f"{height}x{width}", "--seed", str(SEED)),
    ]


def summary(times: dict[str, float], run: Path) -> str:
    """Return the closing lines: the time of each phase and the paths of the results.

    Args:
      times: duration of each phase [s].
      run: the run's folder.
    """
    lines = ["", "== times"]
    lines += [f"{phase:10} {_clock(seconds)}" for phase, seconds in times.items()]
    lines += [f"{'total':10} {_clock(sum(times.values()))}", "", "== results"]
    videos = sorted((run / "eval" / "videos").glob("*.mp4"))
    named = {"report": run / "report" / "index.html", "curve": run / "eval" / "ssim.png"}
    if videos:
        named["video"] = videos[0]
    lines += [f"{name:10} {path}" for name, path in named.items()]
    if len(videos) > 1:
        lines.append(f"{'':10} and {len(videos) - 1} more beside it")
    return "\n".join(lines)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:3d} min {rest:02d} s"


def _set_aside_other_data(data: Path, simulation: Sequence[str]) -> None:
    """Keep a data set made with the same flags, complete or not; move any other out of the way."""
    try:
        source = json.loads((data / "dataset.json").read_text(encoding="utf-8"))["source"]
        words = str(source["command"]).split()
    except (OSError, ValueError, KeyError, TypeError):
        words = []
    pairs = list(itertools.pairwise(words))
    wanted = zip(simulation[::2], simulation[1::2], strict=True)
    if data.exists() and not all(pair in pairs for pair in wanted):
        _set_aside(data)


def _set_aside(folder: Path) -> None:
    """Rename a folder after the present time, so that nothing is ever overwritten."""
    if not folder.exists():
        return
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = folder.with_name(f"{folder.name}-{stamp}")
    number = 2
    while aside.exists():
        aside = folder.with_name(f"{folder.name}-{stamp}-{number}")
        number += 1
    try:
        if (folder / "config.toml").exists():
            with lock_run(folder):  # refuses while another process trains there
                folder.rename(aside)
        else:
            folder.rename(aside)
    except OSError as error:
        raise UserError(f"{folder} cannot be moved to {aside}: {error.strerror}.") from error
    print(f"moved the earlier {folder} to {aside}")
