"""Findings on time and on the world as a whole: what is proven, and by what."""

from collections.abc import Iterator, Mapping

from hdvpd.data.calibration import limits
from hdvpd.data.calibration.agreement import Evidence
from hdvpd.data.calibration.explanation import Explanation
from hdvpd.data.calibration.findings import Finding
from hdvpd.data.calibration.proofs import WorldProofs
from hdvpd.data.calibration.robot_fit import describe_robot_fit
from hdvpd.data.calibration.signals import Lag
from hdvpd.data.calibration.timing import Shift


def lag_finding(
    camera: str, lags: Mapping[str, Lag | None], shift: Shift | None, rate_hz: float
) -> Finding:
    """Judge the time of a camera's images."""
    lag = lags[camera]
    numbers = _numbers(lag, shift)
    if lag is None and (shift is None or not shift.decides):
        text = "nothing moves, or too few frames: the time of the images is not checked"
        return Finding("time", "unproven", text)
    if shift is not None and shift.proven:
        error = f" +- {shift.error:.1g}"
        return _shifted(shift.lag, error, rate_hz, numbers)
    if lag is not None and lag.best and lag.proven:
        others = [other for other in lags.values() if other is not None and other.correlates]
        if all(abs(other.best - lag.best) <= 1 for other in others):
            what = "" if shift is None or not shift.decides else " against depth and robot"
            return _shifted(float(lag.best), what, rate_hz, numbers)
        return Finding("time", "unproven", f"{numbers}; the cameras do not agree on a lag")
    if shift is not None and shift.decides and abs(shift.lag) < 3 * shift.error + 0.5:
        return Finding("time", "pass", numbers)
    if lag is not None and lag.correlates and lag.best == 0:
        return Finding("time", "pass", numbers)
    return Finding("time", "unproven", f"{numbers}: this proves no lag, and none excluded")


def _shifted(lag: float, error: str, rate_hz: float, numbers: str) -> Finding:
    late = "late" if lag > 0 else "early"
    text = (
        f"images are {abs(lag):.2g}{error} frames ({abs(lag) / rate_hz:.2g} s) {late}: shift the "
        f"images or the robot's arrays ({numbers})"
    )
    return Finding("time", "fail", text)


def _numbers(lag: Lag | None, shift: Shift | None) -> str:
    parts = []
    if shift is not None:
        parts.append(
            f"the robot fits the depth best {shift.lag:+.2f} +- {shift.error:.2f} frames late "
            f"({shift.moments} moments)"
        )
    if lag is not None:
        parts.append(
            f"image motion follows robot motion best {lag.best:+d} frames late (correlation "
            f"{max(lag.correlations):.2f}; {lag.at_zero:.2f} without lag; {lag.samples} samples, "
            f"{lag.effective:.0f} of them independent)"
        )
    return "; ".join(parts)


def robot_fit_findings(found: Explanation, evidence: Evidence) -> Iterator[Finding]:
    """Say where the robot fits better than where it is said to be, if that is more than chance."""
    if not found.robot:
        return
    best, *others = found.robot
    text = (
        f"the robot's points keep their distances from what is seen to {1e3 * best.after_m:.0f} mm "
        f"instead of {1e3 * best.before_m:.0f} with {describe_robot_fit(best)}"
    )
    if others:
        text += f"; or with {'; or with '.join(describe_robot_fit(fit) for fit in others)}"
    wrong = any(robot.status == "fail" for robot in evidence.robots.values())
    yield Finding("diagnosis" if wrong else "robot", "fail" if wrong else "note", text)


def world_findings(
    world: WorldProofs | None, *, displaced: bool, points: int = 0, has_model: bool = False
) -> Iterator[Finding]:
    """Judge handedness and scale of the world as a whole.

    Args:
      world: what the robot proves.
      displaced: whether another place of the robot explains what is seen.
      points: kinematic points that the data have.
      has_model: whether the data carry a model of the robot.
    """
    if world is None:
        text = (
            "handedness and scale are not proven: cameras agree in a mirrored or scaled world, "
            f"too; {_lacking(points, has_model)}"
        )
        yield Finding("world", "unproven", text)
        return
    if displaced:
        text = "handedness is not proven while the robot stands elsewhere than it is said to"
        yield Finding("world", "unproven", text)
    elif world.mirrored is not None:
        text = (
            f"the world is mirrored: with the images mirrored {world.mirrored} the robot is where "
            f"they show it ({-world.flips[world.mirrored]:.0f} standard errors better)"
        )
        yield Finding("world", "fail", text)
    elif world.handedness:
        text = f"handedness: the robot fits no mirror image ({_sigmas(world)} standard errors)"
        yield Finding("world", "pass", text)
    else:
        text = "handedness is not proven: the robot fits a mirror image as well"
        yield Finding("world", "unproven", text)
    if world.scale is None:
        text = "scale is not proven: the robot moves too little in the images, or is not seen"
        yield Finding("world", "unproven", text)
    else:
        percent = 100 * (world.scale - 1)
        text = f"scale: the robot excludes errors of {percent:.0f} % and more"
        yield Finding("world", "pass", text)


def _lacking(points: int, has_model: bool) -> str:
    """Say what would prove handedness and scale, by what there is of the robot."""
    if points >= limits.MIN_SKELETON:
        return (
            "the robot would prove both, but no camera has anything near its kinematic points "
            "where it could be seen: are camera poses, depth unit and the robot's base right, and "
            "is it in view?"
        )
    if has_model and not points:
        return "link poses of the data's robot model would prove both, but there are none"
    if has_model:
        return (
            f"the data's robot model has only {points} kinematic points and {limits.MIN_SKELETON} "
            "are needed: a model with more of the links between the base and the tool would prove "
            "both"
        )
    return "a robot model with link poses (--robot at import) would prove both"


def _sigmas(world: WorldProofs) -> str:
    return " and ".join(f"{value:.0f}" for value in world.flips.values())
