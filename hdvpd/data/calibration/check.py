"""`hdvpd data check`: prove the calibration of a data set, camera by camera.

A few moments, spread over a few episodes, are compared across cameras and with the robot; whole
episodes are read as signals. Every result is a finding; a camera passes if something proves it and
nothing speaks against it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.data.calibration import Backend, findings, proof_findings, signals
from hdvpd.data.calibration.agreement import Evidence, Status, measure
from hdvpd.data.calibration.clouds import choose_indexer, suggest_box
from hdvpd.data.calibration.drift import with_drift
from hdvpd.data.calibration.estimate import describe_change
from hdvpd.data.calibration.explanation import Explanation, explain
from hdvpd.data.calibration.findings import Finding
from hdvpd.data.calibration.images import DepthValues, color_preference, depth_values
from hdvpd.data.calibration.proofs import WorldProofs, world_proofs
from hdvpd.data.calibration.recording import Sample, Signals, read_sample
from hdvpd.data.calibration.robot_fit import Arm, joint_axes
from hdvpd.data.calibration.timing import Shift, agreeing, robot_shift
from hdvpd.data.calibration.views import Moment, world_points
from hdvpd.data.corrections import Corrections
from hdvpd.data.robot import read_robot
from hdvpd.data.store import Dataset


@dataclass(frozen=True)
class CameraReport:
    """What was found of one camera.

    Attributes:
      depth: of its stored depth.
      lag: of its image motion behind the robot's; None if nothing can be said.
      shift: of its depth behind the robot, by where the robot is; None if nothing can be said.
      color: mean preference for RGB over BGR [rad]; None without a reference colour.
      findings: all results of this camera.
    """

    depth: DepthValues
    lag: signals.Lag | None
    shift: Shift | None
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
      rate_hz: frames per second.
      search: library that searched nearest points.
      moments: what was compared; the pictures show it.
      evidence: agreement of cameras and robot.
      cameras: by name.
      findings: of the data set as a whole.
      leads: of targets before positions, by what was compared (joints, points).
      workspace: suggested box [m], or None.
      found: what explains failures.
      world: what the robot proves of handedness and scale; None without a robot model.
    """

    path: Path
    identity: str
    rate_hz: float
    search: str
    moments: tuple[Moment, ...]
    evidence: Evidence
    cameras: Mapping[str, CameraReport]
    findings: tuple[Finding, ...]
    leads: Mapping[str, signals.Lead]
    workspace: tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]] | None
    found: Explanation
    world: WorldProofs | None

    @property
    def verdict(self) -> Status:
        """Fails with anything that fails, passes if every camera does and no mirror image fits.

        Where there is a robot model it must prove the handedness of the world.
        """
        cameras = {camera.status for camera in self.cameras.values()}
        if "fail" in cameras or any(finding.verdict == "fail" for finding in self.findings):
            return "fail"
        mirrored = self.world is not None and not self.world.handedness
        return "unproven" if "unproven" in cameras or mirrored else "pass"

    @property
    def passed(self) -> bool:
        """Whether the verdict is a pass."""
        return self.verdict == "pass"


def check(
    path: str | Path,
    *,
    episodes: int = 8,
    frames: int = 4,
    backend: Backend = "auto",
    corrections: Corrections | None = None,
) -> Report:
    """Check a data set.

    The arguments are the flags of `hdvpd data check`; without `corrections` those beside the data
    set are applied, if there are any.

    Raises:
      UserError: the data set is missing or damaged, or a number is impossible.
    """
    if min(episodes, frames) < 1:
        raise UserError(f"--episodes {episodes} --frames {frames}: both must be at least 1.")
    dataset = Dataset(path, corrections=corrections)
    dataset.check_arrays()
    search, index = choose_indexer(backend)
    sample = read_sample(dataset, episodes, frames)
    moments = sample.moments
    evidence = with_drift(moments, measure(moments, index), index)
    sound = all(evidence.status(name) == "pass" for name in dataset.cameras)
    skeleton = dataset.robot.skeleton
    shifts = agreeing({n: robot_shift(moments, n, index, skeleton) for n in dataset.cameras})
    world = world_proofs(moments, index)
    found = explain(
        moments,
        evidence,
        index,
        Arm(dataset.robot, joint_axes(read_robot(dataset.path))),
        late=any(shift is not None and shift.proven for shift in shifts.values()),
    )
    leads = _leads(sample.series)
    workspace = _suggest_workspace(sample) if sound else None
    return Report(
        path=dataset.path,
        identity=dataset.identity(),
        rate_hz=dataset.rate_hz,
        search=search,
        moments=moments,
        evidence=evidence,
        cameras=_check_cameras(sample, evidence, found, shifts),
        findings=tuple(_findings(sample, evidence, found, world, leads, workspace)),
        leads=leads,
        workspace=workspace,
        found=found,
        world=world,
    )


def _findings(
    sample: Sample,
    evidence: Evidence,
    found: Explanation,
    world: WorldProofs | None,
    leads: Mapping[str, signals.Lead],
    workspace: tuple[np.ndarray, np.ndarray] | None,
) -> Iterator[Finding]:
    """Judge the data set as a whole."""
    yield from _episode_findings(found, len(sample.episodes))
    known = [len(m.robot) for m in sample.moments if m.robot is not None]
    yield from proof_findings.world_findings(
        world,
        displaced=bool(found.robot) and found.evidence is not None,
        points=max(known, default=0),
        has_model=read_robot(sample.dataset.path) is not None,
    )
    yield from proof_findings.robot_fit_findings(found, evidence)
    yield from findings.clock_findings(sample.dataset)
    yield from findings.robot_array_findings(sample)
    yield from findings.action_findings(sample.series, leads)
    yield from findings.workspace_findings(sample, workspace)


def _mended(camera: str, found: Explanation) -> Iterator[Finding]:
    """Name what is to be corrected of a camera that then passes."""
    if found.evidence is None or found.evidence.status(camera) != "pass":
        return
    for mistake in found.diagnosis.mistakes if found.diagnosis else ():
        if camera in mistake.cameras:
            yield Finding("diagnosis", "fail", f"{mistake.name}: {mistake.fix}")
    fit = found.estimate.fit if found.estimate else None
    if fit is not None and camera in fit.changes:
        text = describe_change(fit.changes[camera], fit.errors[camera], fit.free[camera])
        yield Finding("diagnosis", "fail", f"to be corrected: {text}")


def _episode_findings(found: Explanation, looked_at: int) -> Iterator[Finding]:
    if found.odd_episodes:
        listed = ", ".join(map(str, found.odd_episodes))
        cameras = f" ({', '.join(found.odd_cameras)})" if found.odd_cameras else ""
        others = looked_at - len(found.odd_episodes)
        text = f"episodes {listed} fail{cameras}, the other {others} that were looked at agree"
        yield Finding("views", "fail", text)


def _check_cameras(
    sample: Sample,
    evidence: Evidence,
    found: Explanation,
    shifts: Mapping[str, Shift | None],
) -> dict[str, CameraReport]:
    motion = [s.robot_motion for s in sample.series]
    names = sample.dataset.cameras
    lags = {n: signals.align(motion, [s.image_motion[n] for s in sample.series]) for n in names}
    return {
        n: _check_camera(n, sample, evidence, lags, shifts[n], _mended(n, found)) for n in names
    }


def _check_camera(
    camera: str,
    sample: Sample,
    evidence: Evidence,
    lags: Mapping[str, signals.Lag | None],
    shift: Shift | None,
    mended: Iterator[Finding],
) -> CameraReport:
    snapshots = sample.snapshots
    unit_m = sample.dataset.info.cameras[camera].depth_unit_m
    depth = depth_values(np.stack([s.stored_depth[camera] for s in snapshots]), unit_m)
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
        proof_findings.lag_finding(camera, lags, shift, sample.dataset.rate_hz),
        *mended,
    ]
    return CameraReport(depth, lags[camera], shift, color, tuple(found))


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
