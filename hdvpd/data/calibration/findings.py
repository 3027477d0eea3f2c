"""From measures to findings: a verdict on each topic, in words that name number, limit and fix."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.data import checks
from hdvpd.data.arrays import JOINT_POSITIONS, JOINT_TARGETS, LINKS, TARGET_LINKS
from hdvpd.data.calibration import limits, signals
from hdvpd.data.calibration.agreement import Evidence
from hdvpd.data.calibration.images import DepthValues, intrinsics_faults
from hdvpd.data.calibration.recording import Sample, Signals
from hdvpd.data.store import Dataset

Verdict = Literal["pass", "fail", "unproven", "note"]
Topic = Literal[
    "structure", "depth", "intrinsics", "views", "robot", "colour", "time", "actions", "workspace",
    "world", "diagnosis",
]  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One result.

    Attributes:
      topic: what was checked.
      verdict: a note and an unproven topic do not fail by themselves.
      text: numbers, and for a failure what to do.
    """

    topic: Topic
    verdict: Verdict
    text: str


def structure_findings(camera: str, sample: Sample) -> Iterator[Finding]:
    """Check the form of a camera's matrices and that every looked-at frame has some valid depth."""
    dataset = sample.dataset
    tests: list[tuple[Callable[..., None], str, tuple[int, ...]]] = [
        (checks.check_intrinsics, "intrinsics", (-1, 3, 3)),
        (checks.check_pose, "camera_to_world", (-1, 4, 4)),
    ]
    for test, key, shape in tests:
        for episode in sample.episodes:
            values = dataset.read(episode.number, f"cameras/{camera}/{key}").reshape(shape)
            place = checks.Place(dataset.path, episode.number, 0)
            if fault := _fault(lambda t=test, p=place, v=values: t(p, camera, v)):
                yield Finding("structure", "fail", fault)
                break
    for moment in sample.moments:
        place = checks.Place(dataset.path, moment.episode, moment.frame)
        valid = moment.views[camera].depth_m > 0
        if fault := _fault(lambda p=place, v=valid: checks.check_depth(p, camera, v[None])):
            yield Finding("depth", "fail", fault)
            break


def robot_array_findings(sample: Sample) -> Iterator[Finding]:
    """Check that the robot's arrays are finite."""
    dataset = sample.dataset
    for episode in sample.episodes:
        number = episode.number
        place = checks.Place(dataset.path, number, 0)
        for name in (JOINT_POSITIONS, JOINT_TARGETS, LINKS, TARGET_LINKS):
            if not dataset.has_array(number, name):
                continue
            values = dataset.read(number, name)
            if fault := _fault(lambda p=place, n=name, v=values: checks.check_finite(p, n, v)):
                yield Finding("structure", "fail", fault)
                return


def _fault(test: Callable[[], None]) -> str | None:
    try:
        test()
    except UserError as error:
        return str(error)
    return None


def depth_findings(camera: str, depth: DepthValues, unit_m: float) -> Iterator[Finding]:
    """Judge unit, share and codes of a camera's depth."""
    numbers = (
        f"valid {100 * depth.valid:.1f} %, median {depth.median_m:.4g} m, "
        f"98 % within {depth.low_m:.4g} to {depth.high_m:.4g} m, depth_unit_m = {unit_m:g}"
    )
    if depth.valid == 0:
        return
    if depth.z_buffer:
        text = "these are z-buffer values in [0.9, 1], not metres: convert them with near and far"
        yield Finding("depth", "fail", f"{text} ({numbers})")
    elif not depth.plausible:
        low, high = limits.MEDIAN_DEPTH_M
        power = 10.0 ** round(np.log10(1.0 / depth.median_m))
        text = (
            f"wrong depth unit: the median should lie within {low:g} to {high:g} m; "
            f"depth_unit_m of {camera} is probably {unit_m * power:g}"
        )
        yield Finding("depth", "fail", f"{text} ({numbers})")
    elif depth.valid < limits.VALID_SHARE:
        yield Finding("depth", "fail", f"hardly any pixel has valid depth ({numbers})")
    else:
        yield Finding("depth", "pass", numbers)
    if depth.sentinel_m is not None:
        text = (
            f"many pixels hold exactly {depth.sentinel_m:.5g} m, beyond all others: a code for "
            "invalid depth, or where the sensor's range ends; store 0 there"
        )
        yield Finding("depth", "fail", text)
    if depth.nan + depth.negative > 0:
        text = f"{100 * (depth.nan + depth.negative):.1f} % NaN, infinite or negative: read as 0"
        yield Finding("depth", "note", text)


def intrinsics_findings(camera: str, sample: Sample) -> Iterator[Finding]:
    """Judge whether a camera's intrinsics belong to its images."""
    info = sample.dataset.info.cameras[camera]
    matrix = sample.dataset.read(sample.episodes[0].number, f"cameras/{camera}/intrinsics").reshape(
        -1, 3, 3
    )[0]
    if not np.isfinite(matrix).all() or matrix[0, 0] <= 0 or matrix[1, 1] <= 0:
        return
    faults, oddities = intrinsics_faults(matrix, info.height, info.width)
    for text in faults:
        yield Finding("intrinsics", "fail", text)
    for text in oddities:
        yield Finding("intrinsics", "note", text)
    if not faults and not oddities:
        text = (
            f"focal length {matrix[0, 0]:.1f}, {matrix[1, 1]:.1f} px, principal point "
            f"({matrix[0, 2]:.1f}, {matrix[1, 2]:.1f}) in {info.height}x{info.width}"
        )
        yield Finding("intrinsics", "pass", text)


def view_findings(camera: str, evidence: Evidence) -> Iterator[Finding]:
    """Judge a camera against each other one."""
    pairs = [pair for pair in evidence.pairs if camera in pair.cameras]
    if not pairs:
        text = "a single camera: nothing to compare with"
        yield Finding("views", "unproven", text)
    for pair in pairs:
        other = pair.cameras[pair.cameras[0] == camera]
        if pair.status == "unproven":
            text = f"too little seen by both {camera} and {other} ({pair.shared} points)"
            yield Finding("views", "unproven", text)
            continue
        text = (
            f"{other}: median {1e3 * pair.median_m:.1f} mm (limit {1e3 * pair.median_limit_m:.1f}),"
            f" 95th percentile {1e3 * pair.p95_m:.1f} mm (limit {1e3 * pair.p95_limit_m:.1f}), "
            f"in front {100 * pair.in_front:.2f} % (limit {100 * limits.FRONT_SHARE:g} %)"
        )
        if pair.drift_m > 0:
            text += (
                f", edges meet {1e3 * pair.drift_m:.0f} mm away (limit "
                f"{1e3 * pair.drift_limit_m:.0f})"
            )
        blamed = pair.status == "fail" and evidence.status(camera) != "pass"
        verdict = "fail" if blamed else "pass" if pair.status == "pass" else "note"
        yield Finding("views", verdict, text)


def robot_findings(camera: str, evidence: Evidence) -> Iterator[Finding]:
    """Judge whether a camera's images show the robot where its points are."""
    robot = evidence.robots.get(camera)
    if robot is None:
        text = "no robot/link_to_world: the robot's place in the images is not checked"
        yield Finding("robot", "unproven", text)
    elif robot.status == "unproven":
        few = robot.judged == robot.inside
        text = (
            f"{'too few points in view' if few else 'the robot is hardly visible'} ({robot.judged} "
            f"of {robot.inside} kinematic points inside the image can be judged, "
            f"{limits.MIN_ROBOT_POINTS} are needed)"
        )
        yield Finding("robot", "unproven", text)
    else:
        text = (
            f"kinematic points: median {1e3 * robot.median_m:.0f} mm from the seen surface (limit "
            f"{1e3 * limits.ROBOT_MEDIAN_M:.0f}), {100 * robot.detached:.1f} % detached (limit "
            f"{100 * limits.DETACHED_SHARE:.0f} %)"
        )
        yield Finding("robot", robot.status, text)


def color_finding(color: float | None) -> Finding:
    """Judge the order of a camera's channels."""
    if color is None:
        text = "no object with a declared colour is in view: the order of channels is not checked"
        return Finding("colour", "unproven", text)
    if color < -limits.COLOR_ANGLE:
        text = f"declared colours fit {-color:.2f} rad better with red and blue exchanged"
        return Finding("colour", "fail", f"swapped RGB/BGR: reverse the last axis of rgb ({text})")
    numbers = f"declared colours fit {color:+.2f} rad better as RGB than as BGR"
    return Finding("colour", "pass" if color > limits.COLOR_ANGLE else "unproven", numbers)


def clock_findings(dataset: Dataset) -> Iterator[Finding]:
    """Check that time increases at the rate, in every episode."""
    for episode in dataset.episodes:
        step = np.diff(dataset.read(episode.number, "time_s"))
        place = f"episode {episode.number}: time_s"
        if not np.isfinite(step).all() or (step <= 0).any():
            text = f"{place} does not increase after frame {int(np.argmin(step > 0))}"
            yield Finding("time", "fail", f"{text}; sort the frames or drop repeated ones")
            return
        if len(step) and abs(np.mean(step) * dataset.rate_hz - 1) > limits.RATE:
            text = f"{place} steps by {np.mean(step):.4g} s, but rate_hz = {dataset.rate_hz:g}"
            yield Finding("time", "fail", f"{text} means {1 / dataset.rate_hz:.4g} s")
            return
    text = f"time increases in steps of 1 / {dataset.rate_hz:g} s in all episodes"
    yield Finding("time", "pass", text)


def action_findings(
    series: Sequence[Signals], leads: Mapping[str, signals.Lead]
) -> Iterator[Finding]:
    """Judge whether targets lead positions."""
    if not leads:
        text = "the robot does not move, or episodes are too short: actions are not checked"
        yield Finding("actions", "unproven", text)
    for name, lead in leads.items():
        numbers = (
            f"{name}: targets lead positions by {lead.best:+d} rows (off by "
            f"{100 * lead.error:.1f} % of the range of motion there)"
        )
        if lead.best >= 1:
            yield Finding("actions", "pass", numbers)
        else:
            text = (
                f"{numbers}; row t of the targets must be what is commanded from frame t to t + 1:"
                f" shift the targets by {1 - lead.best} rows"
            )
            yield Finding("actions", "fail", text)
    if any(s.points is None or s.target_points is None for s in series):
        text = "robot/link_to_world or robot/target_link_to_world is missing: training needs both"
        yield Finding("actions", "note", text)


def workspace_findings(
    sample: Sample, suggested: tuple[np.ndarray, np.ndarray] | None
) -> Iterator[Finding]:
    """Judge the workspace box, and report the suggested one."""
    robot, info = sample.robot, sample.dataset.info
    if len(robot):
        low, high = np.array(info.workspace_min), np.array(info.workspace_max)
        inside = float(((robot >= low) & (robot <= high)).all(axis=1).mean())
        text = f"the workspace box holds {100 * inside:.1f} % of the robot's points"
        if inside == 0:  # a box that holds the scene holds some of the robot that acts in it
            text += (
                f" (box: min {low.tolist()}, max {high.tolist()} m; the points lie within "
                f"{_rounded(robot.min(axis=0))} to {_rounded(robot.max(axis=0))} m): nothing of "
                "what is outside is learned. Is the box in metres and in the frame of the camera "
                "poses? Correct workspace in dataset.json, or import again with another one in "
                "--calibration"
            )
            yield Finding("workspace", "fail", text)
        else:
            good = inside >= limits.SUGGESTED_COVER
            yield Finding("workspace", "pass" if good else "note", text)
    if suggested is not None:
        low, high = (corner.tolist() for corner in suggested)
        text = f"a box around what is seen near the robot: min {low}, max {high} m"
        yield Finding("workspace", "note", text)


def _rounded(corner: Float[np.ndarray, "3"]) -> list[float]:
    return [round(float(value), 3) for value in corner]
