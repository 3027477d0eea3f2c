"""The `hdvpd` command.

A verb is a frozen dataclass: its fields are the flags, their docstrings the help, and `run` imports
what it needs. A user's mistake ends with one line and exit status 2; `--debug` adds the traceback.
"""

import contextlib
import dataclasses
import difflib
import inspect
import io
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

import tyro

import hdvpd
from hdvpd.config import Config
from hdvpd.errors import UserError
from hdvpd.experiments import apply_overrides, load_config, nearest_key, read_toml, split_overrides
from hdvpd.members import COMPARED

ConfigFlags = Annotated[Config, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class Verb:
    """What every verb has beside its flags."""

    example: ClassVar[str]
    """A working command, shown first in the help."""

    def run(self, flags: Sequence[str]) -> int | None:
        """Do the work.

        Args:
          flags: the configuration's flags with their values; empty for verbs without any.

        Returns:
          The exit status; None is success.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Simulate(Verb):
    """Simulate the bimanual robot scene and write a data set."""

    example = "hdvpd data simulate --out data/robot --episodes 10 --steps 20 --size 96x128"

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder of the data set; an interrupted simulation continues where it stopped."""
    episodes: int = 60
    """Episodes; number 8 of every 10 is for validation, number 9 for tests."""
    steps: int = 20
    """Control steps of 0.5 s per episode; frames are one more."""
    tasks: str = "push,can,sweep"
    """Tasks, separated by commas; episodes take turns."""
    size: str = "96x128"
    """Height x width of the images [px]."""
    seed: int = 0
    """The same seed gives the same data, byte for byte."""
    workers: int = 2
    """Processes; never changes what is written."""

    def run(self, flags: Sequence[str]) -> None:
        """Simulate."""
        from hdvpd.data.simulation.bimanual import simulate

        simulate(
            self.out,
            episodes=self.episodes,
            steps=self.steps,
            tasks=tuple(task.strip() for task in self.tasks.split(",") if task.strip()),
            size=_parse_size(self.size),
            seed=self.seed,
            workers=self.workers,
        )


@dataclass(frozen=True)
class Synthetic(Verb):
    """Write a small data set of an analytic scene: exact, quick, without a simulator."""

    example = "hdvpd data synthetic --out data/debug"

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder of the data set."""
    episodes: int = 10
    """Episodes; number 8 of every 10 is for validation, number 9 for tests."""
    steps: int = 9
    """Control steps per episode; frames are one more."""
    size: str = "32x40"
    """Height x width of the images [px]."""
    seed: int = 0
    """The same seed gives the same data."""

    def run(self, flags: Sequence[str]) -> None:
        """Write the data set."""
        from hdvpd.data.simulation.synthetic import write_synthetic_dataset

        height, width = _parse_size(self.size)
        write_synthetic_dataset(
            self.out,
            episodes=self.episodes,
            steps=self.steps,
            height=height,
            width=width,
            seed=self.seed,
        )
        print(f"wrote {self.episodes} episodes to {self.out}")


@dataclass(frozen=True)
class Import(Verb):
    """Convert a data set of another format; an interrupted import continues."""

    example = "hdvpd data import robomimic demo_depth.hdf5 --out data/square --size 96x128"

    format: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FORMAT")]]
    """folder, lerobot, robotwin, maniskill, robomimic or rlbench: see docs/importing.md."""
    source: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="SOURCE")]]
    """File or folder to import."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder of the new data set."""
    episodes: Annotated[str, tyro.conf.arg(metavar="0-9,12")] = ""
    """Numbers in the order of the source; empty means all."""
    cameras: str = ""
    """Names, separated by commas; empty means all that have depth and calibration."""
    size: Annotated[str, tyro.conf.arg(metavar="HxW")] = ""
    """Height x width of the images [px]; empty keeps those of the source."""
    step: float = 0.5
    """Control step [s]; the nearest recorded frame is taken, nothing is blended."""
    calibration: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """hdvpd_calibration.json; overrides what the source says of cameras, joints and robot."""
    robot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """URDF or MJCF of the robot; without it end-effector poses stand in for links."""
    workers: int = 2
    """Processes; never changes what is written."""
    skip_bad: tyro.conf.FlagCreatePairsOff[bool] = False
    """Leave out episodes that cannot be imported, instead of stopping at the first."""
    depth_unit_m: Annotated[float | None, tyro.conf.arg(metavar="FLOAT")] = None
    """Metres per stored unit of depth; by default as the format says."""
    action: Annotated[str, tyro.conf.arg(metavar="joint-targets")] = ""
    """`joint-targets`: recorded actions are joint targets although the source does not say so."""
    channels: Annotated[str, tyro.conf.arg(metavar="rgb|bgr")] = ""
    """Order of the stored colours; by default as the format says."""
    rate: Annotated[float | None, tyro.conf.arg(metavar="HZ")] = None
    """Frames per second of a source without time stamps; by default as the format says."""
    no_check: tyro.conf.FlagCreatePairsOff[bool] = False
    """Do not prove the calibration of the first episode at the end."""

    def run(self, flags: Sequence[str]) -> None:
        """Import."""
        for flag, value, known in (("action", self.action, ("joint-targets",)),
                                   ("channels", self.channels, ("rgb", "bgr"))):  # fmt: skip
            if value and value not in known:
                raise UserError(f"--{flag} {value}: expected {' or '.join(known)}.")

        from hdvpd.data.importers.driver import import_dataset

        import_dataset(
            self.format,
            self.source,
            self.out,
            episodes=self.episodes,
            cameras=tuple(name.strip() for name in self.cameras.split(",") if name.strip()),
            size=_parse_size(self.size) if self.size else None,
            step_s=self.step,
            calibration=self.calibration,
            robot=self.robot,
            workers=self.workers,
            skip_bad=self.skip_bad,
            depth_unit_m=self.depth_unit_m,
            joint_targets=bool(self.action),
            channels=cast("Literal['rgb', 'bgr'] | None", self.channels or None),
            rate_hz=self.rate,
        )
        if not self.no_check:
            from hdvpd.data.importers.proof import prove

            prove(self.out)


@dataclass(frozen=True)
class Inspect(Verb):
    """Print what a data set holds and write a contact sheet of its images."""

    example = "hdvpd data inspect data/robot"

    path: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder of the data set."""

    def run(self, flags: Sequence[str]) -> None:
        """Inspect."""
        from hdvpd.data.inspect import inspect as inspect_dataset

        inspect_dataset(self.path)


@dataclass(frozen=True)
class Check(Verb):
    """Prove the calibration of a data set: cameras, robot, depth, colours, clocks and actions.

    The exit status is 0 if every camera passes and 1 if not; mistakes are named with their fix.
    """

    example = "hdvpd data check data/robot"

    path: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIR")]]
    """Folder of the data set."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for check.html, check.json and pictures; by default `check` inside the data set."""
    episodes: int = 8
    """Episodes to look at, evenly spread."""
    frames: int = 4
    """Frames of each that are compared in full, evenly spread."""
    search: Literal["auto", "open3d", "scipy"] = "auto"
    """Library for nearest points; auto takes Open3D where it is installed. The numbers agree."""

    def run(self, flags: Sequence[str]) -> int:
        """Check."""
        import rich.console

        from hdvpd.data.calibration.check import check
        from hdvpd.data.calibration.report import print_report, write_report

        report = check(self.path, episodes=self.episodes, frames=self.frames, backend=self.search)
        page = write_report(report, self.out or self.path / "check")
        print_report(report, rich.console.Console())
        print(f"Report with pictures: {page}")
        return 0 if report.passed else 1


@dataclass(frozen=True)
class Train(Verb):
    """Train a model, or continue a run.

    The configuration's flags below show the paper's values; the experiment's file comes before
    them, and a flag given here before the file.
    """

    example = "hdvpd train demo --name first --train.num-steps 300"

    experiment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EXPERIMENT")]] = ""
    """Name of an experiment (paper, demo, debug) or path of a TOML file. May be left out with
    --resume RUN, which then takes the run's own configuration."""
    name: Annotated[str, tyro.conf.arg(metavar="RUN")] = ""
    """Name of the run; empty means the experiment's."""
    runs_dir: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Folder that holds the runs' folders."""
    resume: Annotated[str, tyro.conf.arg(metavar="auto|RUN")] = ""
    """Continue exactly: `auto` continues the run of this name or starts it, RUN is a run's folder
    or name."""
    step: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Checkpoint to continue from; by default the newest undamaged one."""
    config: ConfigFlags = field(default_factory=Config)

    def run(self, flags: Sequence[str]) -> int | None:
        """Train."""
        config, run_dir = self._resolve(flags)
        _announce("training", run_dir)

        from hdvpd import train

        return train.main(config, run_dir=run_dir, resume=self.resume or None, step=self.step)

    def _resolve(self, flags: Sequence[str]) -> tuple[Config, Path]:
        if self.experiment:
            name = self.name or Path(self.experiment).stem
            return load_config(self.experiment, flags), self.runs_dir / name
        if not self.resume or (self.resume == "auto" and not self.name):
            raise UserError(
                "hdvpd train: name an experiment, for example `hdvpd train demo`, or continue a "
                "run with `hdvpd train --resume runs/demo` (a flag that takes a list takes every "
                "word after it: put the experiment first)."
            )
        name = self.name or Path(self.resume).name
        run = self.runs_dir / name if self.resume == "auto" else _find_run(self.resume, self)
        file = run / "config.toml"
        if not file.is_file():
            raise UserError(f"{file} does not exist: name the experiment that the run began with.")
        return apply_overrides(read_toml(file), flags, source=str(file)), run


def _announce(what: str, *runs: Path) -> None:
    # The first word within the first second: the imports that follow take longer.
    print(f"{what} {', '.join(map(str, runs))}: loading libraries, data and model ...", flush=True)


def _find_run(resume: str, train: Train) -> Path:
    here = Path(resume)
    return here if (here / "config.toml").is_file() else train.runs_dir / resume


@dataclass(frozen=True)
class Summary(Verb):
    """Count the parameters of every part and estimate the memory of a training step.

    Nothing is computed, so it works for any size on any machine. The data set is only asked for its
    cameras and kinematic points; without it two cameras and 84 points are assumed.
    """

    example = "hdvpd model summary paper --all-members"

    experiment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EXPERIMENT")]]
    """Name of an experiment (paper, demo, debug) or path of a TOML file."""
    all_members: bool = False
    """Show every member of the comparison with this experiment's settings."""
    config: ConfigFlags = field(default_factory=Config)

    def run(self, flags: Sequence[str]) -> None:
        """Print the summary."""
        config = load_config(self.experiment, flags)

        from hdvpd.summary import print_summary

        print_summary(config, all_members=self.all_members)


@dataclass(frozen=True)
class Evaluate(Verb):
    """Roll out held-out episodes and write curves, videos and a report.

    Each run's own configuration is used; flags below change it for the evaluation only.
    """

    example = "hdvpd eval runs/demo --steps 8"

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of the runs; several are compared in one plot."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where to write; by default RUN/eval. Needed for several runs."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Predicted frames per rollout; short for --eval.num-steps."""
    step: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Checkpoint; by default the newest undamaged one."""
    config: ConfigFlags = field(default_factory=Config)

    def run(self, flags: Sequence[str]) -> int | None:
        """Evaluate."""
        if not self.runs:
            raise UserError("hdvpd eval: name at least one run folder, for example runs/demo.")
        _announce("evaluating", *self.runs)

        from hdvpd import eval as evaluation

        return evaluation.main(
            list(self.runs),
            out=self.out,
            steps=self.steps,
            checkpoint_step=self.step,
            overrides=tuple(flags),
        )


@dataclass(frozen=True)
class Compare(Verb):
    """Train every member of the dynamics family alike, and compare them.

    The same command continues after an interruption; what is finished is not repeated.
    """

    example = "hdvpd compare --members grf,none --seeds 3"

    experiment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EXPERIMENT")]] = (
        "compare"
    )
    """Experiment that all members share: name or path of a TOML file."""
    members: str = ",".join(COMPARED)
    """Members, separated by commas."""
    seeds: Annotated[int, tyro.conf.arg(metavar="INT")] = 3
    """Runs per member."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/compare")
    """Folder of the results and, in `runs`, of the runs."""
    config: ConfigFlags = field(default_factory=Config)

    def run(self, flags: Sequence[str]) -> None:
        """Compare."""
        from hdvpd import compare

        members = [name.strip() for name in self.members.split(",") if name.strip()]
        compare.main(
            self.experiment,
            out=self.out,
            members=members,
            num_seeds=self.seeds,
            flags=flags,
        )


@dataclass(frozen=True)
class Demo(Verb):
    """Simulate, train and evaluate the small demo, all on a CPU."""

    example = "hdvpd demo"

    data: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("data/demo")
    """Folder of the data set; a complete one made with the same settings is used again."""
    runs_dir: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Folder that holds the run's folder `demo`; an earlier one is moved aside."""
    experiment: Annotated[str, tyro.conf.arg(metavar="EXPERIMENT")] = "demo"
    """Experiment to train."""
    episodes: int = 60
    """Simulated episodes; a tenth of them is evaluated."""
    started: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 0.0
    """When the installation began [s since 1970], to count it among the phases; 0 leaves it out."""
    config: ConfigFlags = field(default_factory=Config)

    def run(self, flags: Sequence[str]) -> int | None:
        """Run the phases one after the other."""
        from hdvpd.demo import run_demo

        return run_demo(
            data=self.data,
            runs_dir=self.runs_dir,
            experiment=self.experiment,
            episodes=self.episodes,
            started=self.started,
            flags=flags,
        )


@dataclass(frozen=True)
class Doctor(Verb):
    """Report the machine, the versions and what is missing, each with its remedy."""

    example = "hdvpd doctor"

    def run(self, flags: Sequence[str]) -> None:
        """Report."""
        from hdvpd.doctor import print_report

        print_report()


VERBS: dict[str, type[Verb]] = {
    "data simulate": Simulate,
    "data synthetic": Synthetic,
    "data import": Import,
    "data inspect": Inspect,
    "data check": Check,
    "model summary": Summary,
    "train": Train,
    "eval": Evaluate,
    "compare": Compare,
    "demo": Demo,
    "doctor": Doctor,
}


def main(args: Sequence[str] | None = None) -> int:
    """Run the `hdvpd` command.

    Args:
      args: words after `hdvpd`; by default those of the process.

    Returns:
      The exit status: 0 for success, 1 if a check failed, 2 for a mistake of the user.
    """
    # XLA alarms at a program that takes minutes to compile, and asks for a bug report: ours are
    # expected to, and the log says so. Errors reach Python as exceptions, whatever is logged.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        try:
            return _run(list(sys.argv[1:] if args is None else args))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Who read the output has enough, as in `| head`. Nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(words: list[str]) -> int:
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        if not words or words[0] in ("-h", "--help"):
            print(_overview())
            return 0
        if words[0] == "--version":
            print(f"hdvpd {hdvpd.__version__}")
            return 0
        if words[0] == "study":
            print("The studies are commands of their own; in a clone: python -m studies --help")
            return 0 if "--help" in words or "-h" in words else 2
        verb, rest = _find_verb(words)
        command, flags = _parse(verb, rest)
        return command.run(flags) or 0
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"hdvpd: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _overview() -> str:
    lines = ["Learned 3-D particle world models from robot RGB-D video.", "", "Examples:"]
    lines += [f"  {verb.example}" for verb in VERBS.values()]
    lines += ["", "Verbs:"]
    lines += [
        f"  hdvpd {name:15} {inspect.getdoc(verb).splitlines()[0]}"  # type: ignore[union-attr]
        for name, verb in VERBS.items()
    ]
    lines += ["", "`hdvpd VERB --help` lists the flags of a verb; --debug shows tracebacks."]
    return "\n".join(lines)


def _find_verb(words: Sequence[str]) -> tuple[str, list[str]]:
    for count in (2, 1):
        name = " ".join(words[:count])
        if name in VERBS:
            return name, list(words[count:])
    group = [name for name in VERBS if name.startswith(f"{words[0]} ")]
    found = " ".join(words[:2] if group else words[:1])
    if group and (len(words) == 1 or words[1] in ("-h", "--help")):
        raise UserError(f"hdvpd {words[0]}: choose one of {', '.join(group)}.")
    near = difflib.get_close_matches(found, VERBS, n=1, cutoff=0.5)
    hint = f"did you mean `hdvpd {near[0]}`?" if near else f"choose one of {', '.join(VERBS)}."
    raise UserError(f"hdvpd has no verb {found!r}; {hint}")


def _parse(name: str, words: Sequence[str]) -> tuple[Verb, list[str]]:
    verb = VERBS[name]
    fields = {f.name for f in dataclasses.fields(verb)}
    rest, flags = split_overrides(words) if "config" in fields else (list(words), [])
    _check_flags(name, rest, fields - {"config"}, with_config="config" in fields)
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            command = tyro.cli(
                verb,
                prog=f"hdvpd {name}",
                description=f"Example:\n  {verb.example}\n\n{inspect.getdoc(verb)}",
                args=rest,
            )
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        raise UserError(f"hdvpd {name}: {_one_line(message.getvalue())}") from stop
    return command, flags


def _check_flags(name: str, words: Sequence[str], fields: set[str], *, with_config: bool) -> None:
    known = {"--" + field_name.replace("_", "-") for field_name in fields} | {"--help"}
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if not flag.startswith("--") or flag in known:
            continue
        near = next(iter(difflib.get_close_matches(flag, known, n=1, cutoff=0.6)), None)
        if near is None and with_config and (key := nearest_key(flag[2:].replace("-", "_"))):
            near = "--" + key.replace("_", "-")
        hint = f"the nearest is {near}" if near else f"`hdvpd {name} --help` lists the flags"
        raise UserError(f"hdvpd {name}: unknown flag {flag}; {hint}.")


def _one_line(box: str) -> str:
    """Fold tyro's framed message: the lines before its first rule, without the frame."""
    inner = [line.strip("│ ").strip() for line in box.splitlines() if line.startswith("│")]
    body = list(iter(iter([*inner, "─"]).__next__, next((x for x in inner if "──" in x), "─")))
    return " ".join(line for line in body if line) or " ".join(box.split())


def _parse_size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) > 0 and int(width) > 0):
        raise UserError(f"--size {text}: expected height x width in pixels, for example 96x128.")
    return int(height), int(width)


def _run_as(verb: str, args: Sequence[str] | None = None) -> Any:
    """Run one verb; the launchers in the repository's root call this."""
    return main([verb, *(sys.argv[1:] if args is None else args)])


if __name__ == "__main__":
    sys.exit(main())
