"""`hdvpd data check`: prove the calibration of a data set, camera by camera.

A few moments, spread over a few episodes, are compared across cameras and with the robot; whole
episodes are read as signals. Every result is a finding; a camera passes if something proves it and
nothing speaks against it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hdvpd.data.calibration import findings, signals
from hdvpd.data.calibration.agreement import Evidence, Status, measure
from hdvpd.data.calibration.clouds import Backend, choose_indexer, suggest_box
from hdvpd.data.calibration.diagnosis import Diagnosis, diagnose
from hdvpd.data.calibration.findings import Finding
from hdvpd.data.calibration.images import DepthValues, color_preference, depth_values
from hdvpd.data.calibration.recording import Sample, Signals, read_sample, spread
from hdvpd.data.calibration.views import Moment, world_points
from hdvpd.data.store import Dataset
from hdvpd.errors import UserError
from hdvpd.types import Float

SCREENING_MOMENTS = 4


@dataclass(frozen=True)
class CameraReport:
    """What was found of one camera.

    Attributes:
      depth: of its stored depth.
      lag: of its image motion behind the robot's; None if nothing can be said.
      color: mean preference for RGB over BGR [rad]; None without a reference colour.
      findings: all results of this camera.
    """

    depth: DepthValues
    lag: signals.Lag | None
    color: float | None
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """Fails with any failed finding, passes if views or robot prove it."""
        verdicts = {finding.verdict for finding in self.findings}
        proven = any(f.verdict == "pass" and f.topic in ("views", "robot") for f in self.findings)
        return "fail" if "fail" in verdicts else "pass" if proven else "unproven"


@dataclass(frozen=True)
class Report:
    """Everything that `hdvpd data check` found.

    Attributes:
      path: the data set.
      identity: its fingerprint.
      search: library that searched nearest points.
      moments: what was compared; the pictures show it.
      evidence: agreement of cameras and robot.
      cameras: by name.
      findings: of the data set as a whole.
      leads: of targets before positions, by what was compared (joints, points).
      workspace: suggested box [m], or None.
      diagnosis: the mistakes that explain failures, or None.
      repaired: evidence over all moments with those mistakes undone, or None.
    """

    path: Path
    identity: str
    search: str
    moments: tuple[Moment, ...]
    evidence: Evidence
    cameras: Mapping[str, CameraReport]
    findings: tuple[Finding, ...]
    leads: Mapping[str, signals.Lead]
    workspace: tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]] | None
    diagnosis: Diagnosis | None
    repaired: Evidence | None

    @property
    def passed(self) -> bool:
        """Whether every camera passes and nothing else fails."""
        cameras = all(camera.status == "pass" for camera in self.cameras.values())
        return cameras and not any(finding.verdict == "fail" for finding in self.findings)


def check(
    path: str | Path,
    *,
    episodes: int = 8,
    frames: int = 4,
    backend: Backend = "auto",
) -> Report:
    """Check a data set.

    Args:
      path: its folder.
      episodes: to look at, evenly spread over the data set.
      frames: of each of them that are compared in full, evenly spread.
      backend: library for the nearest-point search.

    Raises:
      UserError: the data set is missing or damaged, or a number is impossible.
    """
    if min(episodes, frames) < 1:
        raise UserError(f"--episodes {episodes} --frames {frames}: both must be at least 1.")
    dataset = Dataset(path)
    dataset.check_arrays()
    search, index = choose_indexer(backend)
    sample = read_sample(dataset, episodes, frames)
    moments = sample.moments
    evidence = measure(moments, index)
    sound = all(evidence.status(name) == "pass" for name in dataset.cameras)
    diagnosis = None if sound else diagnose(_screening(moments), index)
    repaired = None if diagnosis is None else measure(diagnosis.repair(moments), index)
    leads = _leads(sample.series)
    workspace = _suggest_workspace(sample) if sound else None
    return Report(
        path=dataset.path,
        identity=dataset.identity(),
        search=search,
        moments=moments,
        evidence=evidence,
        cameras={
            name: _check_camera(name, sample, evidence, _mended(name, diagnosis, repaired))
            for name in dataset.cameras
        },
        findings=(
            *findings.clock_findings(dataset),
            *findings.robot_array_findings(sample),
            *findings.action_findings(sample.series, leads),
            *findings.workspace_findings(sample, workspace),
        ),
        leads=leads,
        workspace=workspace,
        diagnosis=diagnosis,
        repaired=repaired,
    )


def _screening(moments: Sequence[Moment]) -> list[Moment]:
    """Choose few moments, on which many hypotheses can be tried."""
    return [moments[i] for i in spread(SCREENING_MOMENTS, len(moments))]


def _mended(
    camera: str, diagnosis: Diagnosis | None, repaired: Evidence | None
) -> Iterator[Finding]:
    """Name the mistakes of a camera that passes with them undone."""
    if diagnosis is not None and repaired is not None and repaired.status(camera) == "pass":
        for mistake in diagnosis.mistakes:
            if camera in mistake.cameras:
                yield Finding("diagnosis", "fail", f"{mistake.name}: {mistake.fix}")


def _check_camera(
    camera: str, sample: Sample, evidence: Evidence, mended: Iterator[Finding]
) -> CameraReport:
    snapshots, series = sample.snapshots, sample.series
    unit_m = sample.dataset.info.cameras[camera].depth_unit_m
    depth = depth_values(np.stack([s.stored_depth[camera] for s in snapshots]), unit_m)
    lag = signals.align([s.robot_motion for s in series], [s.image_motion[camera] for s in series])
    preferences = [
        preference
        for s in snapshots
        for origin, rgb in s.objects
        if (preference := color_preference(s.moment.views[camera], origin, rgb)) is not None
    ]
    color = float(np.mean(preferences)) if preferences else None
    found = [
        *findings.structure_findings(camera, sample),
        *findings.depth_findings(camera, depth, unit_m),
        *findings.intrinsics_findings(camera, sample),
        *findings.view_findings(camera, evidence),
        *findings.robot_findings(camera, evidence),
        findings.color_finding(color),
        findings.lag_finding(lag, sample.dataset.rate_hz),
        *mended,
    ]
    return CameraReport(depth, lag, color, tuple(found))


def _leads(series: Sequence[Signals]) -> dict[str, signals.Lead]:
    compared = {
        "joints": [(s.joint_positions, s.joint_targets) for s in series],
        "kinematic points": [
            (s.points.reshape(len(s.points), -1), s.target_points.reshape(len(s.points), -1))
            for s in series
            if s.points is not None and s.target_points is not None
        ],
    }
    found = {
        name: signals.target_lead([p for p, _ in pairs], [t for _, t in pairs])
        for name, pairs in compared.items()
        if pairs
    }
    return {name: lead for name, lead in found.items() if lead is not None}


def _suggest_workspace(sample: Sample) -> tuple[np.ndarray, np.ndarray] | None:
    views = [view for moment in sample.moments for view in moment.views.values()]
    seen = [world_points(view)[view.depth_m > 0] for view in views]
    return suggest_box(np.concatenate(seen), sample.robot)
