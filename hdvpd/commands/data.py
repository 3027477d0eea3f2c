"""`hdvpd data`: make, import, look at and check data sets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hdvpd.commands.base import AbstractCommand
from hdvpd.commands.flags import Names, Seed, Size, optional
from hdvpd.data.calibration import Backend

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
Format = Literal["folder", "lerobot", "robotwin", "maniskill", "robomimic", "rlbench"]


@dataclass(frozen=True)
class Simulate(AbstractCommand):
    """Simulate the bimanual robot scene and write a data set.

    Example: hdvpd data simulate --out data/robot --episodes 10 --steps 20 --size 96x128
    """

    out: Folder
    """Folder of the data set; an interrupted simulation continues where it stopped."""
    episodes: int = 60
    """Episodes; number 8 of every 10 is for validation, number 9 for tests."""
    steps: int = 20
    """Control steps of 0.5 s per episode; frames are one more."""
    tasks: Names = ("push", "can", "sweep")
    """Tasks, separated by commas; episodes take turns."""
    size: Size = (96, 128)
    """Height x width of the images [px]."""
    seed: Seed = 0
    """The same seed gives the same data, byte for byte."""
    workers: int = 2
    """Processes; never changes what is written."""

    def run(self) -> None:
        """Simulate."""
        from hdvpd.data.simulation.bimanual import simulate

        simulate(**vars(self))


@dataclass(frozen=True)
class Synthetic(AbstractCommand):
    """Write a small data set of an analytic scene: exact, quick, without a simulator.

    Example: hdvpd data synthetic --out data/debug
    """

    out: Folder
    """Folder of the data set."""
    episodes: int = 10
    """Episodes; number 8 of every 10 is for validation, number 9 for tests."""
    steps: int = 9
    """Control steps per episode; frames are one more."""
    size: Size = (32, 40)
    """Height x width of the images [px]."""
    seed: Seed = 0
    """The same seed gives the same data."""

    def run(self) -> None:
        """Write the data set."""
        from hdvpd.data.simulation.synthetic import write_synthetic_dataset

        height, width = self.size
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
class Import(AbstractCommand):
    """Convert a data set of another format; an interrupted import continues.

    Example: hdvpd data import robomimic demo_depth.hdf5 --out data/square --size 96x128
    """

    format: tyro.conf.Positional[Format]
    """Format of the source: see docs/importing.md."""
    source: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="SOURCE")]]
    """File or folder to import."""
    out: Folder
    """Folder of the new data set."""
    episodes: Annotated[str, optional("0-9,12")] = ""
    """Numbers in the order of the source; empty means all."""
    cameras: Annotated[Names, optional("A,B")] = ()
    """Names, separated by commas; empty means all that have depth and calibration."""
    size: Annotated[Size | None, optional("HxW")] = None
    """Height x width of the images [px]; by default those of the source."""
    step: float = 0.5
    """Control step [s]; the nearest recorded frame is taken, nothing is blended."""
    calibration: Annotated[Path | None, optional("FILE")] = None
    """hdvpd_calibration.json; overrides what the source says of cameras, joints and robot."""
    robot: Annotated[Path | None, optional("FILE")] = None
    """URDF or MJCF of the robot; without it end-effector poses stand in for links."""
    workers: int = 2
    """Processes; never changes what is written."""
    skip_bad: tyro.conf.FlagCreatePairsOff[bool] = False
    """Leave out episodes that cannot be imported, instead of stopping at the first."""
    depth_unit_m: Annotated[float | None, optional("FLOAT")] = None
    """Metres per stored unit of depth; by default as the format says."""
    action: Annotated[
        Literal["joint-targets"] | None, optional("joint-targets"), tyro.conf.DisallowNone
    ] = None
    """`joint-targets`: recorded actions are joint targets although the source does not say so."""
    channels: Annotated[
        Literal["rgb", "bgr"] | None, optional("rgb|bgr"), tyro.conf.DisallowNone
    ] = None
    """Order of the stored colours; by default as the format says."""
    rate: Annotated[float | None, optional("HZ")] = None
    """Frames per second of a source without time stamps; by default as the format says."""
    no_check: tyro.conf.FlagCreatePairsOff[bool] = False
    """Do not prove the calibration of the first episode at the end."""

    def run(self) -> None:
        """Import."""
        from hdvpd.data.importers.driver import import_dataset
        from hdvpd.data.importers.proof import prove

        import_dataset(
            self.format,
            self.source,
            self.out,
            episodes=self.episodes,
            cameras=self.cameras,
            size=self.size,
            step_s=self.step,
            calibration=self.calibration,
            robot=self.robot,
            workers=self.workers,
            skip_bad=self.skip_bad,
            depth_unit_m=self.depth_unit_m,
            joint_targets=self.action is not None,
            channels=self.channels,
            rate_hz=self.rate,
        )
        if not self.no_check:
            prove(self.out)


@dataclass(frozen=True)
class AddRobot(AbstractCommand):
    """Add the robot's model to a data set that has none, so that its models take your own actions.

    The model is accepted if it puts every stored link where the data have it.

    Example: hdvpd data robot data/robot --robot arm.urdf
    """

    path: tyro.conf.Positional[Folder]
    """Folder of the data set."""
    robot: Annotated[Path | None, optional("FILE")] = None
    """URDF or MJCF; not needed for simulated data."""
    calibration: Annotated[Path | None, optional("FILE")] = None
    """hdvpd_calibration.json: its 'joints' say which joints of the model those of the data move."""

    def run(self) -> None:
        """Add the model."""
        from hdvpd.data.adding_robot import add_robot

        for line in add_robot(self.path, self.robot, self.calibration):
            print(line)


@dataclass(frozen=True)
class Inspect(AbstractCommand):
    """Print what data sets hold and write a contact sheet of the images of each.

    Example: hdvpd data inspect data/robot
    """

    path: tyro.conf.Positional[Annotated[tuple[str, ...], optional("DIR")]]
    """Folder of the data set, or its address: gs://, s3://, https://. Of several, all."""
    out: Annotated[Path | None, optional("DIR")] = None
    """Folder of the contact sheet, of several data sets a folder in it for each; by default the
    data set itself, or the current folder if that is remote."""

    def run(self) -> None:
        """Inspect."""
        from hdvpd.data.inspect import inspect_all

        inspect_all(self.path, self.out)


@dataclass(frozen=True)
class Index(AbstractCommand):
    """List the episodes of a local data set in one file, before it is put into a remote store.

    Example: hdvpd data index data/robot
    """

    path: tyro.conf.Positional[Folder]
    """Folder of the data set."""

    def run(self) -> None:
        """Write the index."""
        from hdvpd.data.metadata import INDEX, write_index
        from hdvpd.data.store import Dataset

        dataset = Dataset(self.path)  # says what is wrong with one that is damaged
        count = write_index(dataset.path)
        print(f"{self.path / INDEX} lists {count} episodes; upload it with all other files.")


@dataclass(frozen=True)
class _Look(AbstractCommand):
    """What is looked at of a data set's calibration."""

    path: tyro.conf.Positional[Folder]
    """Folder of the data set."""
    episodes: int = 8
    """Episodes to look at, evenly spread."""
    frames: int = 4
    """Frames of each that are compared in full, evenly spread."""
    search: Backend = "auto"
    """Library for nearest points; auto takes Open3D where it is installed. The numbers agree."""


@dataclass(frozen=True)
class Check(_Look):
    """Prove the calibration of a data set: cameras, robot, depth, colours, clocks and actions.

    The exit status is 0 if the verdict is PASS and 1 if not; mistakes are named with their fix.

    Example: hdvpd data check data/robot
    """

    out: Annotated[Path | None, optional("DIR")] = None
    """Folder for check.html, check.json and pictures; by default `check` inside the data set."""

    def run(self) -> int:
        """Check."""
        import rich.console

        from hdvpd.data.calibration.check import check
        from hdvpd.data.calibration.report import print_report, write_report
        from hdvpd.data.remote import require_local

        if self.out is None:
            require_local(self.path)
        report = check(self.path, episodes=self.episodes, frames=self.frames, backend=self.search)
        page = write_report(report, self.out or self.path / "check")
        print_report(report, rich.console.Console())
        print(f"Report with pictures: {page}")
        return 0 if report.passed else 1


@dataclass(frozen=True)
class Calibrate(_Look):
    """Correct the calibration of a data set as far as its own images prove what is wrong.

    Writes corrections.json into the data set, which every reader applies; arrays stay as they are.
    Nothing is written unless the check fails without the corrections and its cameras agree with
    them; the exit status is 1 if it fails and no correction helps.

    Example: hdvpd data calibrate data/robot
    """

    out: Annotated[Path | None, optional("DIR")] = None
    """New folder for a corrected copy, instead of corrections.json."""

    def run(self) -> int:
        """Calibrate."""
        from hdvpd.data.calibration.calibrate import calibrate, lines

        result = calibrate(
            self.path,
            self.out,
            episodes=self.episodes,
            frames=self.frames,
            backend=self.search,
        )
        for line in lines(result, self.path, self.out):
            print(line)
        return 1 if result.reason and result.before.verdict == "fail" else 0
