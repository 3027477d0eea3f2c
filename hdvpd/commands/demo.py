"""`hdvpd demo`: simulate, train, evaluate; one phase after the other, each timed.

Each phase is a command that can be typed by hand; it is printed before it runs.
"""

import itertools
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from hdvpd.basics.errors import UserError
from hdvpd.commands.base import AbstractCommand, Group, Program
from hdvpd.commands.data import Simulate
from hdvpd.commands.evaluate import Evaluate
from hdvpd.commands.flags import flag_words, optional
from hdvpd.commands.model import Unpack
from hdvpd.commands.train import ConfigFlags, Train
from hdvpd.config import Config
from hdvpd.config.experiments import load_config

CONTROL_STEPS = 20
SEED = 0
UNSEEN_SEED = 1000
"""Of the episodes on which the model that comes with hdvpd is shown."""
SHOWN = 4
"""Of these, so that it takes three minutes; the last is evaluated."""

PHASES = Program(
    "hdvpd",
    "",
    {
        "data": Group("", {"simulate": Simulate}),
        "model": Group("", {"unpack": Unpack}),
        "train": Train,
        "eval": Evaluate,
    },
)
"""The verbs that the demo is made of."""


@dataclass(frozen=True)
class Demo(AbstractCommand):
    """Simulate, train and evaluate the small demo, all on a CPU.

    Example: hdvpd demo
    """

    data: Annotated[Path | None, optional("DIR")] = None
    """Folder of the data set, by default data/demo, with --pretrained data/unseen; a complete one
    made with the same settings is used again, any other is moved aside."""
    runs_dir: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Folder that holds the run's folder `demo`; an earlier one is moved aside."""
    experiment: Annotated[str, tyro.conf.arg(metavar="EXPERIMENT")] = "demo"
    """Experiment to train."""
    episodes: Annotated[int, optional("INT")] = 0
    """Simulated episodes, of which a tenth, or the last, is evaluated; by default 60, with
    --pretrained 4."""
    pretrained: bool = False
    """Train nothing: evaluate the model that comes with hdvpd, on episodes of another seed."""
    started: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 0.0
    """When the installation began [s since 1970], to count it among the phases; 0 leaves it out."""
    config: ConfigFlags = field(default_factory=dict)

    def run(self) -> int:
        """Run the phases one after the other, and print their times and where the results are.

        Returns:
          The exit status of the first phase that failed, or 0.

        Raises:
          UserError: another process is training in the earlier run's folder.
        """
        run, phases = self._pretrained() if self.pretrained else self._trained()
        times = {"install": time.time() - self.started} if self.started else {}
        for phase, words in phases.items():
            print(f"\n== {phase}: hdvpd {shlex.join(words)}", flush=True)
            begin = time.perf_counter()
            status = PHASES.run(words)
            times[phase] = time.perf_counter() - begin
            if status:
                return status
        print(summary(times, run))
        return 0

    def _trained(self) -> tuple[Path, dict[str, list[str]]]:
        """Return the run's folder and the words of every phase."""
        config = load_config(self.experiment, self.config)
        run, data = self.runs_dir / "demo", self.data or Path("data/demo")
        return run, {
            "simulate": _simulate(data, run, config, self.episodes or 60, SEED),
            "train": ["train", self.experiment, "--name", run.name, "--runs-dir",
                      str(self.runs_dir), "--data.path", str(data),
                      *flag_words(self.config)],
            "evaluate": ["eval", str(run)],
        }  # fmt: skip

    def _pretrained(self) -> tuple[Path, dict[str, list[str]]]:
        """Return the same for the model that comes with hdvpd, on episodes that it never saw."""
        from hdvpd.training.packed import REFERENCE, read_packed, shipped_model

        file, said = shipped_model(), flag_words(self.config)
        if said:
            words = shlex.join(said)
            raise UserError(f"--pretrained trains nothing: leave out {words}.")
        config = read_packed(file)[0]
        run, data = self.runs_dir / REFERENCE, self.data or Path("data/unseen")
        return run, {
            "simulate": _simulate(data, run, config, self.episodes or SHOWN, UNSEEN_SEED),
            "unpack": ["model", "unpack", str(file), "--out", str(run)],
            "evaluate": ["eval", str(run), "--data.path", str(data)],
        }


def _simulate(data: Path, run: Path, config: Config, episodes: int, seed: int) -> list[str]:
    """Move what is in the way; return the words that simulate what the demo needs."""
    simulation = simulation_flags(episodes, config.data.height, config.data.width, seed)
    _set_aside_other_data(data, simulation)
    _set_aside(run)
    return ["data", "simulate", "--out", str(data), *simulation, "--workers", "2"]


def simulation_flags(episodes: int, height: int, width: int, seed: int) -> list[str]:
    """Return the flags that decide the bytes of the demo's data set."""
    return [
        *("--episodes", str(episodes), "--steps", str(CONTROL_STEPS)),
        *("--tasks", "push,can,sweep", "--size", f"{height}x{width}", "--seed", str(seed)),
    ]


def summary(times: dict[str, float], run: Path) -> str:
    """Return the closing lines: the time of each phase and the paths of the results."""
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
            from hdvpd.training.run_folder import RunFolder

            with RunFolder(folder).lock():  # refuses while another process trains there
                folder.rename(aside)
        else:
            folder.rename(aside)
    except OSError as error:
        raise UserError(f"{folder} cannot be moved to {aside}: {error.strerror}.") from error
    print(f"moved the earlier {folder} to {aside}")
