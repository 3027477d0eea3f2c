"""What recorded camera poses mean, where a source leaves it open: the pictures decide.

Every reading is tried on the first episode. Under the right one the surfaces that two cameras see
coincide, or the robot lies where a camera sees something; under the others, nothing does.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.data.arrays import LINKS
from hdvpd.data.calibration.agreement import Evidence, PairEvidence, RobotEvidence, measure
from hdvpd.data.calibration.clouds import choose_indexer
from hdvpd.data.calibration.recording import MAX_PIXELS, spread
from hdvpd.data.calibration.views import Moment, View, thin
from hdvpd.data.importers import base
from hdvpd.data.importers.conversions import PoseReading
from hdvpd.data.importers.describe import Job
from hdvpd.data.importers.prepare import prepare
from hdvpd.data.importers.sidecar import FILE_NAME
from hdvpd.data.kinematics import kinematic_points
from hdvpd.data.schema import parse_robot

MOMENTS = 4
"""Frames of the episode that are compared."""


def recorded(source: base.AbstractSource, description: Mapping[str, Any]) -> PoseReading | None:
    """Return the reading that an earlier run of the import decided on; None if nothing was open."""
    name = description.get("source", {}).get("options", {}).get("extrinsics")
    return {str(reading): reading for reading in source.readings()}.get(name)


def decide(job: Job, episode: base.SourceEpisode) -> tuple[PoseReading | None, Mapping[str, str]]:
    """Choose a reading by the pictures of an episode.

    Args:
      job: the import; its `options.extrinsics` is not looked at.
      episode: to try the readings on.

    Returns:
      The reading, and the numbers that decided, for people; None and nothing if nothing is open.

    Raises:
      UserError: no reading fits, or several do.
      BadEpisodeError: the episode cannot be imported.
    """
    _, index = choose_indexer()
    found: dict[PoseReading, Evidence] = {}
    for reading in job.source().readings():
        options = dataclasses.replace(job.options, extrinsics=reading)
        tried = dataclasses.replace(job, options=options)
        found[reading] = measure(list(_moments(tried, episode)), index)
    if not found:
        return None, {}
    chosen = choose(found)
    numbers = "; ".join(f"{reading}: {_numbers(found[reading])}" for reading in found)
    if chosen is None:
        raise UserError(
            f"{job.path}: recorded camera poses may be {', or '.join(map(str, found))}, and the "
            f"pictures of {episode.name} do not decide it ({numbers}). Say it in {FILE_NAME}: "
            '{"version": 1, "extrinsics": {"direction": "world-to-camera", "axes": "opencv"}}, or '
            "give the cameras there (docs/importing.md)."
        )
    return chosen, {"extrinsics": f"{chosen}, decided by {episode.name} ({numbers})"}


def choose(found: Mapping[PoseReading, Evidence]) -> PoseReading | None:
    """Choose the only reading that fits, by other views and else by the robot; None without one."""
    left = list(found)
    for measured in (_views, _robots):
        fitting = [reading for reading in left if _fits(measured(found[reading]))]
        if len(fitting) == 1:
            return fitting[0]
        left = fitting or left
    return None


def _views(evidence: Evidence) -> Sequence[PairEvidence]:
    return evidence.pairs


def _robots(evidence: Evidence) -> Sequence[RobotEvidence]:
    return list(evidence.robots.values())


def _fits(measured: Sequence[PairEvidence | RobotEvidence]) -> bool:
    verdicts = {one.status for one in measured}
    return "pass" in verdicts and "fail" not in verdicts


def _numbers(evidence: Evidence) -> str:
    parts = [
        f"{' and '.join(pair.cameras)} {_distance(pair, 'apart')}" for pair in _views(evidence)
    ]
    parts += [f"{robot.camera} {_distance(robot, 'from the robot')}" for robot in _robots(evidence)]
    return ", ".join(parts)


def _distance(measured: PairEvidence | RobotEvidence, what: str) -> str:
    if measured.status == "unproven":
        return (
            "see too little in common"
            if isinstance(measured, PairEvidence)
            else ("sees too little of the robot")
        )
    return f"{1e3 * measured.median_m:.1f} mm {what} ({measured.status})"


def _moments(job: Job, episode: base.SourceEpisode) -> Iterator[Moment]:
    settings = dataclasses.replace(job.settings, size=None)
    with job.source().open(episode) as recording:
        prepared = prepare(recording, episode.place, settings)
        links = prepared.arrays[LINKS][..., :3, 3].astype(np.float64)
        skeleton = parse_robot(prepared.robot, Path(episode.name)).skeleton
        robot = np.asarray(kinematic_points(links, skeleton))
        steps = spread(MOMENTS, len(prepared.rows))
        rows = prepared.rows[steps].tolist()
        for step, row, images in zip(steps, rows, recording.frames(rows), strict=True):
            views = {
                name: thin(_view(image, prepared.arrays, name, step), MAX_PIXELS)
                for name, image in images.items()
            }
            yield Moment(0, row, views, robot[step])


def _view(image: base.RgbdImage, arrays: Mapping[str, np.ndarray], camera: str, step: int) -> View:
    intrinsics, pose = (arrays[f"cameras/{camera}/{k}"] for k in ("intrinsics", "camera_to_world"))
    return View(
        image.rgb,
        image.depth_m.astype(np.float64),
        intrinsics if intrinsics.ndim == 2 else intrinsics[step],
        pose if pose.ndim == 2 else pose[step],
    )
