"""`hdvpd data calibrate`: from what the check found to corrections that every reader applies.

Nothing is corrected unless the check fails, the corrected data pass it, and nothing gets worse.
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np

from hdvpd.basics import files
from hdvpd.basics.errors import UserError
from hdvpd.data import metadata, store, writer
from hdvpd.data.calibration import Backend
from hdvpd.data.calibration.check import Report, check
from hdvpd.data.calibration.estimate import describe_change
from hdvpd.data.calibration.images import sentinel
from hdvpd.data.calibration.robot_fit import describe_robot_fit
from hdvpd.data.calibration.views import Moment, View
from hdvpd.data.calibration.wording import alternatives
from hdvpd.data.corrections import FILE_NAME, CameraCorrection, Corrections, Flip
from hdvpd.data.remote import require_local
from hdvpd.data.robot import ROBOT_FILE, read_robot

TOLERANCE = 1e-6
"""Corrections that differ by more between moments are not one correction."""
CODED = "a code for invalid depth"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What calibrating a data set gave.

    Attributes:
      before: the check of the data as stored.
      corrections: found; empty if none is needed or none helps.
      after: the check with them applied, or None.
      reason: why nothing is offered; empty if something is.
    """

    before: Report
    corrections: Corrections
    after: Report | None
    reason: str


def calibrate(
    path: str | Path,
    out: Path | None = None,
    *,
    episodes: int = 8,
    frames: int = 4,
    backend: Backend = "auto",
) -> Calibration:
    """Correct the calibration of a data set.

    The arguments are the flags of `hdvpd data calibrate`. An earlier `corrections.json` is
    replaced, and nothing else changes.

    Raises:
      UserError: the data set is damaged, or `out` is in use.
    """
    path = Path(path)
    require_local(path)
    if out is not None and writer.is_in_use(out):
        raise UserError(f"{out} is in use; give a new folder for the corrected copy with --out.")
    options = {"episodes": episodes, "frames": frames, "backend": backend}
    before = check(path, corrections=Corrections(), **options)
    corrections, reason = corrections_of(before)
    after = None
    if corrections:
        after = check(path, corrections=corrections, **options)
        reason = _objection(before, after)
    if reason:
        return Calibration(before, Corrections(), after, reason)
    if out is not None:
        write_corrected(path, out, corrections)
    else:
        writer.write_json(path / FILE_NAME, corrections.as_plain())
    return Calibration(before, corrections, after, "")


def _objection(before: Report, after: Report) -> str:
    """Say why corrections must not be offered; nothing if they may."""
    failing = [name for name, camera in after.cameras.items() if camera.status == "fail"]
    new = [n for n in failing if before.cameras[n].status != "fail"]
    if new:
        return f"the correction that was found makes {', '.join(new)} worse"
    geometry = [
        name
        for name in after.cameras
        if after.evidence.status(name) != "pass" and before.evidence.status(name) == "fail"
    ]
    if geometry:
        return f"with the correction that was found {', '.join(geometry)} would still not pass"
    return ""


def corrections_of(report: Report) -> tuple[Corrections, str]:
    """Return the corrections that a report's diagnosis and estimate amount to.

    Returns:
      The corrections, and why there are none or nothing.
    """
    if report.verdict != "fail":
        return Corrections(), f"no correction is needed: the check says {report.verdict}"
    if report.found.odd_episodes:
        listed = ", ".join(map(str, report.found.odd_episodes))
        return Corrections(), (
            f"episodes {listed} differ from the others, so that no single correction holds: "
            "import them apart, or leave them out"
        )
    codes = {n: c.depth.sentinel_m for n, c in report.cameras.items() if c.depth.sentinel_m}
    if report.found.moments is None and not codes:
        return Corrections(), "no correction was found that makes the cameras agree"
    cameras = {n: CameraCorrection(invalid_depth_m=m, why=CODED) for n, m in codes.items()}
    for name in report.cameras:
        views = [(m.views[name], r.views[name]) for m, r in _pairs(report)]
        correction = _difference(views)
        if correction is None:
            return Corrections(), f"the correction of {name} differs from moment to moment"
        if correction.as_plain():
            code = correction.invalid_depth_m or codes.get(name)
            why = _why(report, name) or CODED
            cameras[name] = dataclasses.replace(correction, invalid_depth_m=code, why=why)
    lags = {n: c.shift for n, c in report.cameras.items() if c.shift and c.shift.proven}
    for name, shift in lags.items():
        found = cameras.get(name, CameraCorrection())
        cameras[name] = dataclasses.replace(found, lag_s=shift.lag / report.rate_hz)
    pose, joints = np.eye(4), {}
    if report.found.robot and report.found.diagnosis is None and report.found.estimate is None:
        pose, joints = report.found.robot[0].pose, report.found.robot[0].joints
    found = Corrections(cameras, pose, joints)
    return found, "" if found else "what fails is no matter of calibration"


def _pairs(report: Report) -> list[tuple[Moment, Moment]]:
    return list(zip(report.moments, report.found.moments or report.moments, strict=True))


def _why(report: Report, camera: str) -> str:
    parts = []
    if report.found.diagnosis is not None:
        parts += [m.name for m in report.found.diagnosis.mistakes if camera in m.cameras]
    if report.found.estimate is not None and camera in report.found.estimate.fit.changes:
        fit = report.found.estimate.fit
        parts.append(describe_change(fit.changes[camera], fit.errors[camera], fit.free[camera]))
    return "; ".join(parts)


def _difference(views: list[tuple[View, View]]) -> CameraCorrection | None:
    """Return the one correction that turns every first view into the second, or None."""
    found = [_of_view(old, new) for old, new in views]
    first = found[0]
    alike = all(
        np.allclose(other.pose, first.pose, atol=TOLERANCE)
        and np.allclose(other.intrinsics, first.intrinsics, rtol=TOLERANCE, atol=TOLERANCE)
        and other.flip == first.flip
        for other in found
    )
    if not alike:
        return None
    with_depth = [f for f in found if f.depth_scale != 1 or f.depth_offset_m or f.depth_along_ray]
    return dataclasses.replace(with_depth[0], pose=first.pose) if with_depth else first


def _of_view(old: View, new: View) -> CameraCorrection:
    pose = np.linalg.solve(old.camera_to_world, new.camera_to_world)
    intrinsics = np.linalg.solve(old.recorded_intrinsics.T, new.recorded_intrinsics.T).T
    flip: Flip = ""
    flipped = old
    kinds: dict[Flip, tuple[int, int]] = {"left to right": (1, -1), "upside down": (-1, 1)}
    for name, signs in kinds.items():
        rows, columns = (slice(None, None, sign) for sign in signs)
        mirrored = old.rgb[rows, columns]
        if not np.array_equal(old.rgb, new.rgb) and np.array_equal(mirrored, new.rgb):
            flip = name
            flipped = dataclasses.replace(old, depth_m=old.depth_m[rows, columns])
    correction = CameraCorrection(
        flip=flip,
        intrinsics=_clean(intrinsics, np.eye(3)),
        pose=_clean(pose, np.eye(4)),
    )
    both = (flipped.depth_m > 0) & (new.depth_m > 0)
    if not both.any() or np.allclose(flipped.depth_m[both], new.depth_m[both], rtol=1e-9):
        code = sentinel(old.depth_m[old.depth_m > 0], old.depth_m.size)
        gone = code is not None and not (new.depth_m == code).any()
        return dataclasses.replace(correction, invalid_depth_m=code if gone else None)
    x, y = flipped.depth_m[both], new.depth_m[both]
    scale, offset = np.polyfit(x, y, 1) if np.ptp(x) > 1e-6 else (float((y / x).mean()), 0.0)
    if np.abs(scale * x + offset - y).max() > 1e-6 * y.max():
        return dataclasses.replace(correction, depth_along_ray=True)
    offset = 0.0 if abs(offset) < 1e-7 * y.max() else float(offset)
    scale = 1.0 if abs(scale - 1) < 1e-9 else float(scale)
    return dataclasses.replace(correction, depth_scale=scale, depth_offset_m=offset)


def _clean(matrix: np.ndarray, identity: np.ndarray) -> np.ndarray:
    return identity if np.allclose(matrix, identity, atol=1e-12) else matrix


def write_corrected(path: Path, out: Path, corrections: Corrections) -> None:
    """Write a copy of a data set with corrected arrays and no side-car.

    Raises:
      UserError: the disk is full or not writable.
    """
    source = store.Dataset(path, corrections=corrections)
    with (
        writer.only_writer(out),
        files.explain_write_errors(out, "Name another folder with --out."),
    ):
        writer.make_dataset(out)
        writer.write_json(out / writer.INCOMPLETE, {"calibration": "under way"})
        description = json.loads(json.dumps(source.info.raw))
        for name, camera in source.info.cameras.items():
            description["cameras"][name]["depth_unit_m"] = camera.depth_unit_m
        description.setdefault("source", {})["corrections"] = corrections.as_plain()
        writer.write_json(out / "dataset.json", description)
        for episode in source.episodes:
            folder = writer.episode_folder(path, episode.number)
            names = _arrays_in(folder)
            meta = metadata.read_json(folder / "episode.json")
            writer.write_episode(out, episode.number, meta, source.read_many(episode.number, names))
        if (path / "quarantine.json").exists():
            shutil.copy(path / "quarantine.json", out / "quarantine.json")
        robot = read_robot(path, corrections.robot)
        if robot is not None:
            writer.write_json(out / ROBOT_FILE, robot.description)
        (out / writer.INCOMPLETE).unlink()


def _arrays_in(folder: Path) -> list[str]:
    """List all arrays of an episode, also undeclared ones and those behind symbolic links."""
    found = []
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        if "zarr.json" in names:
            found.append(str(here.relative_to(folder)))
        # A link to a folder that it lies in would have no end.
        folders[:] = [f for f in folders if not here.resolve().is_relative_to((here / f).resolve())]
    return found


def lines(result: Calibration, path: Path, out: Path | None) -> list[str]:
    """Say what was corrected, for people."""
    if result.reason:
        return [f"Nothing is written: {result.reason}."]
    said = [f"{name}: {c.why or 'time'}" for name, c in result.corrections.cameras.items()]
    said += [
        f"{name}: images {abs(c.lag_s):.3g} s {'late' if c.lag_s > 0 else 'early'}; an import with "
        "these corrections takes other frames, stored ones stay"
        for name, c in result.corrections.cameras.items()
        if c.lag_s
    ]
    if result.corrections.moves_robot:
        said.append(f"robot: {describe_robot_fit(result.before.found.robot[0])}")
    said += alternatives(result.before)
    where = f"a corrected copy: {out}" if out else f"{path / FILE_NAME}; every reader applies it"
    verdict = "" if result.after is None else f" The check then says {result.after.verdict}."
    return [*said, f"Wrote {where}.{verdict}"]
