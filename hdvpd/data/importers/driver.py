"""`hdvpd data import`: any source to a native data set, episode by episode.

An episode of the result is a pure function of the source, the options and its number, which is its
place in the source's own list. So episodes are written in any order by any number of processes, the
same command completes an interrupted import with the same bytes, and a selection can grow later.
Until an import has ended, `incomplete.json` makes readers refuse the data set.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.console

from hdvpd.basics.errors import UserError
from hdvpd.data import episode_pool, metadata, schema, store, writer
from hdvpd.data.adding_robot import misfits
from hdvpd.data.calibration.recording import spread
from hdvpd.data.importers import (
    base,
    conversions,
    describe,
    joint_limits,
    readings,
    source_class,
)
from hdvpd.data.importers.describe import Job
from hdvpd.data.importers.episode import check_depth, import_episode
from hdvpd.data.importers.faults import BadEpisodeError
from hdvpd.data.importers.prepare import Prepared, Settings, prepare
from hdvpd.data.importers.robot_model import read_robot_file
from hdvpd.data.importers.sidecar import Sidecar, read_sidecar
from hdvpd.data.metadata import read_json
from hdvpd.data.robot import ROBOT_FILE, with_base_moved

QUARANTINE = "quarantine.json"
OTHERS_TRIED = 3
"""Episodes that are looked at to see whether a fault is one of the whole source."""


def import_dataset(
    format: str,
    path: str | Path,
    out: str | Path,
    *,
    episodes: str = "",
    cameras: Sequence[str] = (),
    size: tuple[int, int] | None = None,
    step_s: float = 0.5,
    calibration: str | Path | None = None,
    robot: str | Path | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    depth_unit_m: float | None = None,
    joint_targets: bool = False,
    channels: base.Channels | None = None,
    rate_hz: float | None = None,
) -> None:
    """Convert a data set of another format, or complete an import that was interrupted.

    The arguments are the flags of `hdvpd data import`; `size` is height and width [px].

    Raises:
      UserError: a flag is impossible, `out` holds something else, nothing can be imported, or an
        episode is bad and `skip_bad` is off. Finished episodes are kept.
    """
    source_class(format)  # before anything else is asked for: an unknown format explains the rest
    flags = {"--step": step_s, "--workers": workers, "--rate": rate_hz}
    _require_positive({**flags, "--depth-unit-m": depth_unit_m})
    sidecar = Sidecar() if calibration is None else read_sidecar(Path(calibration))
    robot_file = None if robot is None else Path(robot)
    robot_text = "" if robot_file is None else read_robot_file(robot_file)
    options = base.Options(tuple(cameras), sidecar, depth_unit_m, joint_targets, channels, rate_hz)
    settings = Settings(step_s, size, robot_file, robot_text)
    job = Job(format, Path(path), Path(out), options, settings)
    planned = _Import(job, episodes, skip_bad)
    with writer.only_writer(job.out):
        planned.run(workers)


def _require_positive(flags: Mapping[str, float | None]) -> None:
    for name, value in flags.items():
        if value is not None and not (np.isfinite(value) and value > 0):
            raise UserError(f"{name} = {value} should be positive.")


class _Import:
    """One run of the command."""

    def __init__(self, job: Job, episodes: str, skip_bad: bool) -> None:
        self._job, self._source = job, job.source()
        if job.options.joint_targets and not self._source.has_actions:
            raise UserError(
                f"--action joint-targets: format {job.format} has no actions beside its joint "
                "targets; leave the flag out."
            )
        self._listed = self._source.episodes()
        self._chosen = _select(episodes, len(self._listed))
        self._skip_bad, self._bad = skip_bad, dict[int, str]()
        self._kinematics: Mapping[str, Any] | None = None
        self._console = rich.console.Console(soft_wrap=True, highlight=False, markup=False)

    def run(self, workers: int) -> None:
        """Write what is missing."""
        out, console = self._job.out, self._console
        done = set(writer.finished_episodes(out))
        missing = [number for number in self._chosen if number not in done]
        description = self._begin(missing)
        missing = [number for number in missing if number not in self._bad]
        if done and missing:
            console.print(f"{out} has {len(done)} episodes; importing {len(missing)} more.")
        work = functools.partial(import_episode, self._job, description, self._skip_bad)
        try:
            items = [(number, self._listed[number]) for number in missing]
            results = episode_pool.run_episodes(work, items, workers=workers, out=out)
            for number, reason in episode_pool.report_progress(
                results, len(missing), console, doing="importing", done="imported"
            ):
                self._note(number, reason)
        except BadEpisodeError as error:
            raise self._stopped(error) from error
        except KeyboardInterrupt:
            console.print(
                f"Interrupted: {len(writer.finished_episodes(out))} episodes of {out} are finished "
                "and kept; the same command continues."
            )
            raise
        self._end()

    def _begin(self, missing: Sequence[int]) -> Mapping[str, Any]:
        """Write dataset.json from the first good episode, or check the one that is there."""
        file = self._job.out / "dataset.json"
        if file.is_file():
            found = metadata.read_json(file)
            schema.parse_dataset(found, file)
            self._read_poses_as(readings.recorded(self._source, found))
            describe.require_same(
                found, describe.provenance(self._job, self._source, len(self._listed)), file
            )
            description = found
        else:
            if _is_in_use(self._job.out):
                raise UserError(
                    f"{self._job.out} exists and is no data set (dataset.json is missing). Choose "
                    "another --out, or remove it."
                )
            description = self._describe_first(missing)
            # What readers would refuse is refused before anything is written, as the source's.
            schema.parse_dataset(description, self._job.path)
        writer.make_dataset(self._job.out)
        if missing:
            writer.write_json(self._job.out / writer.INCOMPLETE, {"import": "under way"})
        if not file.is_file():
            if self._kinematics is not None:  # first, so that no data set is ever without it
                writer.write_json(self._job.out / ROBOT_FILE, self._kinematics)
            writer.write_json(file, description)
        writer.clear_partial_episodes(self._job.out)
        return description

    def _describe_first(self, missing: Sequence[int]) -> Mapping[str, Any]:
        for number in missing:
            episode = self._listed[number]
            try:
                reading, decided = readings.decide(self._job, episode)
                self._read_poses_as(reading)
                with self._source.open(episode) as recording:
                    prepared = prepare(recording, episode.place, self._job.settings)
                    made = describe.provenance(self._job, self._source, len(self._listed))
                    description = describe.describe(
                        self._source, recording, prepared, made, decided
                    )
                self._report(episode, description["source"]["fields"], recording, prepared)
                if prepared.kinematics is not None:
                    base_motion = self._source.options.sidecar.corrections.robot
                    self._kinematics = with_base_moved(prepared.kinematics, base_motion)
                return description
            except BadEpisodeError as error:
                if not self._skip_bad:
                    raise UserError(f"{error} {self._advice(error)}") from error
                self._note(number, str(error))
        reasons = f"; the first: {next(iter(self._bad.values()))}" if self._bad else ""
        raise UserError(f"{self._job.path}: no episode can be imported{reasons}")

    def _read_poses_as(self, reading: conversions.PoseReading | None) -> None:
        options = dataclasses.replace(self._job.options, extrinsics=reading)
        self._job = dataclasses.replace(self._job, options=options)
        self._source = self._job.source()

    def _report(
        self,
        episode: base.SourceEpisode,
        fields: Mapping[str, str],
        recording: base.Recording,
        prepared: Prepared,
    ) -> None:
        console, size = self._console, self._job.settings.size
        console.print(
            f"{self._job.path}: {len(self._listed)} episodes of format {self._job.format}. Read as "
            f"(from {episode.name}):"
        )
        for field, meaning in fields.items():
            console.print(f"  {field}: {meaning}")
        for name, camera in recording.cameras.items():
            view, new = camera.view, prepared.sizes[name]
            old = view.size
            scaled = "" if size is None or old == new else f", resized to {new[0]}x{new[1]}"
            console.print(f"  {name}: {old[0]}x{old[1]}{scaled}, mounted on {view.link}")
        for line in (*prepared.report, *recording.warnings):
            console.print(f"  {line}")

    def _note(self, number: int, reason: str) -> None:
        if reason:
            self._bad[number] = reason
            self._console.print(f"left out: {reason}")

    def _stopped(self, error: BadEpisodeError) -> UserError:
        finished = len(writer.finished_episodes(self._job.out))
        if not finished:
            self._discard()
            return UserError(f"{error} {self._advice(error)}")
        return UserError(
            f"{error} {finished} episodes of {self._job.out} are finished, but the import is "
            f"incomplete. {_REPAIR}{_LEAVE_OUT}"
        )

    def _advice(self, error: BadEpisodeError) -> str:
        """Say what to do about an episode: to leave it out helps only if others are good."""
        others = [self._listed[n] for n in self._chosen if self._listed[n].name != error.episode]
        tried = [others[k] for k in spread(OTHERS_TRIED, len(others))] if others else []
        if any(map(self._is_good, tried)):
            return _REPAIR + _LEAVE_OUT
        names = ", ".join(episode.name for episode in tried)
        too = f" The others that were tried ({names}) cannot be imported either." if tried else ""
        return f"{_REPAIR}.{too}"

    def _is_good(self, episode: base.SourceEpisode) -> bool:
        try:
            with self._source.open(episode) as recording:
                row = int(prepare(recording, episode.place, self._job.settings).rows[0])
                for name, image in next(recording.frames([row])).items():
                    check_depth(image, name, episode.place, row)
        except UserError:
            return False
        return True

    def _discard(self) -> None:
        """Leave nothing of an import without a single episode."""
        for name in ("dataset.json", ROBOT_FILE, writer.INCOMPLETE, QUARANTINE):
            (self._job.out / name).unlink(missing_ok=True)
        for folder in (self._job.out / "episodes", self._job.out):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _end(self) -> None:
        out, console = self._job.out, self._console
        finished = writer.finished_episodes(out)
        if not set(finished) & set(self._chosen):
            if finished:  # by earlier imports
                (out / writer.INCOMPLETE).unlink(missing_ok=True)
            else:
                self._discard()
            kept = f" {out} keeps its {len(finished)} finished before." if finished else ""
            raise UserError(
                f"{self._job.path}: no episode can be imported; the first: "
                f"{next(iter(self._bad.values()))}{kept}"
            )
        listed = sorted(self._left_out(finished), key=lambda entry: entry["number"])
        (out / QUARANTINE).unlink(missing_ok=True)
        if listed:
            writer.write_json(out / QUARANTINE, {"episodes": listed})
        (out / writer.INCOMPLETE).unlink(missing_ok=True)
        dataset = store.Dataset(out)
        console.print(*self._beyond_limits(dataset), *misfits(dataset), sep="", end="")
        counts = ", ".join(f"{len(dataset.split(s))} {s}" for s in schema.SPLITS)
        left_out = f"; {len(listed)} left out, see {out / QUARANTINE}" if listed else ""
        console.print(f"{out}: {len(dataset.episodes)} episodes ({counts}){left_out}.")

    def _beyond_limits(self, dataset: store.Dataset) -> list[str]:
        folders = (writer.episode_folder(dataset.path, e.number) for e in dataset.episodes)
        described = [read_json(folder / "episode.json") for folder in folders]
        return joint_limits.summarise({e["source"]: e.get("warnings", ()) for e in described})

    def _left_out(self, finished: Sequence[int]) -> list[dict[str, Any]]:
        """List the bad episodes of this import, and of earlier ones those that were not tried."""
        file, tried = self._job.out / QUARANTINE, {*self._chosen, *finished}
        earlier = read_json(file)["episodes"] if file.is_file() else []
        return [entry for entry in earlier if entry["number"] not in tried] + [
            {"number": number, "name": self._listed[number].name, "reason": reason}
            for number, reason in self._bad.items()
        ]


_REPAIR = "Repair it and run the same command again"
_LEAVE_OUT = ", or leave bad episodes out with --skip-bad."


def _is_in_use(out: Path) -> bool:
    """Whether a folder without dataset.json holds anything but the start of an import."""
    return writer.is_in_use(out, {"episodes", ROBOT_FILE, writer.INCOMPLETE})


def _select(text: str, count: int) -> list[int]:
    """Read a selection such as "0-9,12"."""
    if not text.strip():
        return list(range(count))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"--episodes {text}: expected numbers such as 0-9,12.")
        begin, end = int(first), int(last or first)
        if begin <= end < count:
            chosen |= set(range(begin, end + 1))
        else:
            raise UserError(
                f"--episodes {text}: {part.strip()} lies outside 0-{count - 1}, the episodes of "
                "the source."
            )
    return sorted(chosen)
