"""What `hdvpd data check` finds: sound data sets, and every error on some, drawn at random.

Each set is one file of results, so that the study continues where it was stopped, and several
processes may work at it.
"""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from hdvpd.basics import files
from hdvpd.data.arrays import LINKS, TARGET_LINKS
from hdvpd.data.calibration.agreement import Evidence
from hdvpd.data.calibration.calibrate import corrections_of
from hdvpd.data.calibration.check import Report, check
from hdvpd.data.calibration.wording import all_findings, diagnosis_lines
from hdvpd.data.corrections import CameraCorrection, Corrections
from hdvpd.data.store import Dataset
from studies.calibration_sets import ERRORS, Arrays, Draw, Error, draw, write
from studies.calibration_sources import simulated
from studies.outputs import make_folder, table, write_csv
from studies.resumable import require_same
from studies.settings import CalibrationSettings

FIRST_ERROR_SEED = 1000
KINDS = ("analytic", "simulated", "analytic", "imported", "analytic")
"""Of the sets, in turn."""
_REMEDY = "Free some space or permit writing there; the same command goes on."


def main(out: Path, settings: CalibrationSettings) -> None:
    """Run what is missing, and write the table of what there is."""
    make_folder(out)
    require_same(out / "settings.toml", settings, extent=("sound", "each"))
    if any(drawn.kind == "simulated" for _, _, drawn in tasks(settings)):
        # Before anything reads a robot model: MuJoCo chooses its renderer when it is imported.
        simulated(out / "simulated")
    for name, error, drawn in tasks(settings):
        file, lock = out / f"{name}.json", out / f"{name}.lock"
        with contextlib.suppress(files.FolderInUseError), files.locked(lock, name, _REMEDY):
            if not file.exists():
                measured = measure_set(error, drawn, out / "simulated")
                files.write(file, json.dumps(measured), _REMEDY)
            lock.unlink(missing_ok=True)
    rows = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    summary = [row for row in summaries(rows) if row]
    write_csv(out / "calibration.csv", summary)
    (out / "calibration.md").write_text(table(summary).markdown() + "\n")
    print(table(summary, "what the check finds").markdown())


def tasks(settings: CalibrationSettings) -> Iterator[tuple[str, Error | None, Draw]]:
    """List the sets: a name, the error or None, and what is drawn; sound and wrong ones in turn."""
    sound = [
        (f"sound-{k:03}", None, draw(settings.seed + k, kind=KINDS[k % len(KINDS)]))
        for k in range(settings.sound)
    ]
    wrong = [
        (f"error-{number:02}-{k:03}", error, _for_error(error, settings.seed, number, k))
        for k in range(settings.each)
        for number, error in enumerate(ERRORS)
    ]
    every = max(len(wrong) // max(len(sound), 1), 1)
    for k in range(max(len(sound), -(-len(wrong) // every))):
        yield from sound[k : k + 1]
        yield from wrong[every * k : every * (k + 1)]
    yield from wrong[every * max(len(sound), -(-len(wrong) // every)) :]


def _for_error(error: Error, seed: int, number: int, k: int) -> Draw:
    kind = KINDS[k % len(KINDS)]
    if (error.late and kind == "simulated") or error.truth == "joint":
        kind = "analytic"  # the others cannot show it
    cameras = 3 if k % 3 == 2 and kind == "analytic" else 2
    return draw(
        seed + FIRST_ERROR_SEED + 50 * number + k,
        cameras=cameras,
        model=error.robot or k % 2 == 0,
        kind=kind,
    )


def measure_set(error: Error | None, drawn: Draw, shared: Path) -> dict[str, Any]:
    """Write one set, check it and return what was found."""
    folder = Path(tempfile.mkdtemp())
    started = time.process_time()
    try:

        def damage(number: int, arrays: Arrays) -> Arrays:
            if error is None:
                return arrays
            return error.damage(arrays, np.random.default_rng([drawn.seed, 1]), number)

        write(folder / "set", drawn, damage, 0.0 if error is None else error.late, shared)
        report = check(folder / "set", episodes=4, frames=4, backend="scipy")
        corrections, _ = corrections_of(report)
        row = {"error": "none (sound)", "size": f"{len(drawn.cameras)} cameras"}
        if error is not None:
            row = {"error": error.name, "size": error.size}
            row |= _recovered(error, drawn, folder / "set", report, corrections)
        said = [f.text for _, f in all_findings(report) if f.verdict == "fail"]
        text = "\n".join([*said, *diagnosis_lines(report)])
        words = () if error is None else error.words
        mended = report.found.evidence
        return row | {
            "verdict": report.verdict,
            "named": any(word in text for word in words),
            "corrected": mended is not None
            and all(mended.status(name) == "pass" for name in report.cameras),
            "offered": bool(corrections),
            "lag_named": any("images are" in line for line in said),
            "before_mm": _worst(report.evidence),
            "after_mm": float("nan") if mended is None else _worst(mended),
            "cpu_s": time.process_time() - started,
            "text": text,
            "draw": repr(drawn),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _worst(evidence: Evidence) -> float:
    measured = [1e3 * p.median_m for p in evidence.pairs if p.status != "unproven"]
    return max(measured, default=float("nan"))


def _recovered(
    error: Error, drawn: Draw, path: Path, report: Report, corrections: Corrections
) -> dict[str, Any]:
    """Return how far what was recovered is from the truth, relative to another camera."""
    if error.truth == "lag":
        shift = report.cameras["cam0"].shift
        if shift is None:
            return {}
        off = abs(shift.lag - error.late)
        return {"lag_error": off, "within": off < 2 * shift.error}
    if error.truth in ("base", "joint"):
        return _robot_recovered(error, drawn, path, report, corrections)
    if not error.truth or not corrections.cameras:
        return {}
    first, other = (corrections.cameras.get(n, CameraCorrection()) for n in ("cam0", "cam1"))
    if error.truth == "scale":
        factor = float(error.size.split()[-1]) * first.depth_scale / other.depth_scale
        return {"scale_error": abs(factor - 1)}
    if error.truth == "focal":
        return {"scale_error": abs(1.1 * first.intrinsics[0, 0] / other.intrinsics[0, 0] - 1)}
    stored = Dataset(path, corrections=Corrections())
    bad, reference = (
        stored.read(0, f"cameras/{n}/camera_to_world").reshape(-1, 4, 4)[0]
        for n in ("cam0", "cam1")
    )
    arrays = {"cameras/cam0/camera_to_world": np.eye(4)}
    moved = error.damage(arrays, np.random.default_rng([drawn.seed, 1]), 0)
    truth = np.linalg.inv(reference) @ bad @ np.linalg.inv(moved["cameras/cam0/camera_to_world"])
    found = np.linalg.inv(reference @ other.pose) @ bad @ first.pose
    left = np.linalg.inv(truth) @ found
    row = {
        "turn_error_deg": float(np.rad2deg(Rotation.from_matrix(left[:3, :3]).magnitude())),
        "move_error_mm": float(1e3 * np.linalg.norm(left[:3, 3])),
    }
    fit = report.found.estimate.fit if report.found.estimate else None
    if fit is not None and len(fit.errors) == 1:
        (stated,) = fit.errors.values()
        turn, move = np.rad2deg(np.linalg.norm(stated[:3])), 1e3 * np.linalg.norm(stated[3:6])
        row["within"] = bool(row["turn_error_deg"] < 2 * turn and row["move_error_mm"] < 2 * move)
    return row


def _robot_recovered(
    error: Error, drawn: Draw, path: Path, report: Report, corrections: Corrections
) -> dict[str, Any]:
    """Return how far the middle of the robot, or a joint, is from the truth."""
    if not corrections.moves_robot:
        return {}
    fit = report.found.robot[0]
    if error.truth == "joint":
        off = sum(joint.offset for joint in corrections.joints.values())
        left = abs(float(np.rad2deg(off)) + float(error.size.split()[0]))
        stated = float(np.rad2deg(sum(fit.errors.values())))
        return {"joint_error_deg": left, "within": left < 2 * stated}
    stored = Dataset(path, corrections=Corrections())
    links = stored.read(0, LINKS).astype(np.float64)
    names = ["cameras/cam0/camera_to_world", LINKS]
    probe: Arrays = {n: np.eye(4) for n in names} | {TARGET_LINKS: np.eye(4)}
    damaged = error.damage(probe, np.random.default_rng([drawn.seed, 1]), 0)
    # Either all cameras were moved, and the robot should follow, or the robot, and should go back.
    truth = damaged[names[0]] @ np.linalg.inv(damaged[LINKS])
    middle = links[..., :3, 3].reshape(-1, 3).mean(axis=0)
    found, wanted = (pose @ np.append(middle, 1.0) for pose in (corrections.robot, truth))
    left = float(np.linalg.norm(found - wanted))
    return {"base_error_mm": 1e3 * left, "within": left < 2 * fit.move_m[1]}


def summaries(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Summarise the sets of each error: shares, and medians and maxima of what was recovered."""
    sound = [row for row in rows if row["error"] == "none (sound)"]
    if sound:
        yield _summary("none (sound)", "1 to 5 cameras", sound)
    for error in ERRORS:
        mine = [r for r in rows if (r["error"], r["size"]) == (error.name, error.size)]
        if mine:
            yield _summary(error.name, error.size, mine)


def _summary(name: str, size: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    def count(key: str) -> str:
        return f"{sum(bool(row[key]) for row in rows)}/{len(rows)}"

    parts = []
    for key, unit in (
        ("turn_error_deg", "degrees"), ("move_error_mm", "mm"), ("scale_error", "of 1"),
        ("lag_error", "steps"), ("base_error_mm", "mm"), ("joint_error_deg", "degrees"),
    ):  # fmt: skip
        values = [row[key] for row in rows if key in row]
        if values:
            parts.append(f"{np.median(values):.2g} (worst {max(values):.2g}) {unit}")
    verdicts = [row["verdict"] for row in rows]
    stated = [row["within"] for row in rows if "within" in row]
    left = [row["after_mm"] for row in rows if row["corrected"] and np.isfinite(row["after_mm"])]
    return {
        "error": name,
        "size": size,
        "fail": f"{verdicts.count('fail')}/{len(rows)}",
        "pass": f"{verdicts.count('pass')}/{len(rows)}",
        "named": count("named"),
        "named or corrected": f"{sum(r['named'] or r['corrected'] for r in rows)}/{len(rows)}",
        "correction offered": count("offered"),
        "recovered to": ", ".join(parts),
        "within two of the stated errors": f"{sum(stated)}/{len(stated)}" if stated else "",
        "residual": f"{max(left):.1f} mm" if left else "",
    }
