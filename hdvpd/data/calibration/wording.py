"""The words of a calibration report: cells of its table, what explains failures, the verdict."""

from collections.abc import Iterator, Sequence

from hdvpd.data.calibration.agreement import Evidence
from hdvpd.data.calibration.check import CameraReport, Report
from hdvpd.data.calibration.estimate import Estimate, describe_fit
from hdvpd.data.calibration.findings import Finding
from hdvpd.data.calibration.robot_fit import RobotFit, describe_robot_fit


def cells_of(name: str, camera: CameraReport, evidence: Evidence) -> list[str]:
    """Return the cells of a camera's row in the table of the report, after name and verdict."""
    pairs = [p for p in evidence.pairs if name in p.cameras and p.status != "unproven"]
    robot = evidence.robots.get(name)
    seen = robot is not None and robot.status != "unproven"
    worst = max(pairs, key=lambda pair: pair.excess, default=None)
    return [
        f"{1e3 * worst.median_m:.1f} mm" if worst else "-",
        f"{1e3 * worst.p95_m:.1f} mm" if worst else "-",
        f"{100 * worst.in_front:.2f} %" if worst else "-",
        f"{1e3 * robot.median_m:.0f} mm" if robot and seen else "-",
        f"{100 * robot.detached:.1f} %" if robot and seen else "-",
        f"{camera.depth.median_m:.4g} m, {100 * camera.depth.valid:.0f} % valid",
        f"{camera.lag.best:+d}" if camera.lag else "-",
    ]


def all_findings(report: Report) -> Iterator[tuple[str, Finding]]:
    """Yield every finding with its camera, or "data set"."""
    for name, camera in report.cameras.items():
        for finding in camera.findings:
            yield name, finding
    for finding in report.findings:
        yield "data set", finding


def diagnosis_lines(report: Report) -> list[str]:
    """Say what explains the failures, and what to do.

    Returns:
      One line per mistake or correction and one on the result; a line that says so if nothing
      explains them.
    """
    found, repaired = report.found, report.found.evidence
    sound = all(report.evidence.status(name) == "pass" for name in report.cameras)
    if sound and not found.odd_episodes:
        return []
    lines = []
    if found.odd_episodes:
        listed = ", ".join(map(str, found.odd_episodes))
        lines.append(f"Only episodes {listed} fail; what follows is about them.")
    if repaired is None:
        return [*lines, *_unexplained(report)]
    lines += [
        f"Diagnosis: {mistake.name} ({', '.join(mistake.cameras)}). Fix: {mistake.fix}."
        for mistake in (found.diagnosis.mistakes if found.diagnosis else ())
    ]
    if found.diagnosis and found.diagnosis.alternatives:
        lines.append(
            f"This would fit too, but not better: {'; '.join(found.diagnosis.alternatives)}."
        )
    if found.robot and found.diagnosis is None and found.estimate is None:
        lines += _robot_lines(found.robot, report)
    if found.estimate is not None:
        lines += _estimate_lines(found.estimate, report)
    passing = [name for name in report.cameras if repaired.status(name) == "pass"]
    numbers = "; ".join(
        f"{' and '.join(p.cameras)} then agree to {1e3 * p.median_m:.1f} mm (95 %: "
        f"{1e3 * p.p95_m:.1f} mm)"
        for p in repaired.pairs
        if p.status != "unproven"
    )
    result = f"With this undone the geometry of {', '.join(passing)} is proven"
    return [*lines, f"{result}; {numbers}." if numbers else f"{result}."]


def _estimate_lines(estimate: Estimate, report: Report) -> Iterator[str]:
    after = {p.cameras: p for p in estimate.evidence.pairs}
    failing = [p for p in report.evidence.pairs if p.status == "fail"] or report.evidence.pairs
    worst = max(failing, key=lambda p: p.excess)
    for text in describe_fit(estimate.fit):
        yield (
            f"Correction: {text}; applying it brings {' and '.join(worst.cameras)} from "
            f"{1e3 * worst.median_m:.1f} to {1e3 * after[worst.cameras].median_m:.1f} mm (95 %: "
            f"{1e3 * worst.p95_m:.1f} to {1e3 * after[worst.cameras].p95_m:.1f} mm)."
        )
    yield from alternatives(report)
    yield _offer(report)


def _robot_lines(fits: Sequence[RobotFit], report: Report) -> Iterator[str]:
    best = fits[0]
    yield (
        f"Correction: robot: {describe_robot_fit(best)}; applying it brings the differences of its "
        f"points' distances from {1e3 * best.before_m:.0f} to {1e3 * best.after_m:.0f} mm."
    )
    yield from alternatives(report)
    yield _offer(report)


def _offer(report: Report) -> str:
    if report.found.odd_episodes:
        return "No correction is offered: it holds in these episodes only."
    return f"`hdvpd data calibrate {report.path}` writes it."


def alternatives(report: Report) -> Iterator[str]:
    """Say in at most one line what other corrections would explain as much as the one found."""
    found = report.found
    listed: list[str] = []
    if found.estimate is not None:
        listed = [", ".join(describe_fit(fit)) for fit in found.estimate.alternatives]
    elif found.robot and found.diagnosis is None:
        listed = [describe_robot_fit(fit) for fit in found.robot[1:]]
        listed.append("all cameras moved the other way")
    if listed:
        yield f"The data cannot tell this from: {'; or '.join(listed)}."


def _unexplained(report: Report) -> list[str]:
    named = any(
        finding.verdict == "fail" and finding.topic in ("time", "world", "depth", "intrinsics")
        for _, finding in all_findings(report)
    )
    if named:
        return ["Beyond what is named above, no known mistake and no correction explains this."]
    return [
        "None of the known mistakes explains this. Look at the pictures: is the robot where "
        "its points are, and do the surfaces of two cameras meet?"
    ]


def verdict_line(report: Report) -> str:
    """Say in one line whether the data set passes, and what that rests on."""
    episodes = len({moment.episode for moment in report.moments})
    basis = (
        f"{len(report.moments)} frames of {episodes} episodes, nearest points by {report.search}"
    )
    if report.passed:
        line = f"PASS: the calibration is proven for {', '.join(report.cameras)} ({basis})."
        return f"{line} {proven_line(report)}"
    bad = [f"{n} {c.status}" for n, c in report.cameras.items() if c.status != "pass"]
    bad += [f"{f.topic} of the data set" for f in report.findings if f.verdict == "fail"]
    if report.verdict == "unproven" and not bad:
        bad = ["handedness of the world unproven"]
    return f"{report.verdict.upper()}: {', '.join(bad)} ({basis}). {proven_line(report)}"


def proven_line(report: Report) -> str:
    """Say which of the proofs succeeded: geometry, handedness, scale and time are four."""
    world, evidence = report.world, report.evidence
    pairs = [" and ".join(p.cameras) for p in evidence.pairs if p.status == "pass"]
    seen = [name for name, robot in evidence.robots.items() if robot.status == "pass"]
    clocks = [
        name
        for name, camera in report.cameras.items()
        if any(f.topic == "time" and f.verdict == "pass" for f in camera.findings)
    ]
    proofs = {
        f"geometry ({'; '.join([*pairs, *(f'{name} and the robot' for name in seen)])})": bool(
            pairs or seen
        ),
        "handedness": world is not None and world.handedness,
        "scale"
        if world is None or world.scale is None
        else f"scale to {100 * (world.scale - 1):.0f} %": world is not None
        and world.scale is not None,
        f"time ({', '.join(clocks)})" if clocks else "time": bool(clocks),
    }
    yes = [name for name, proven in proofs.items() if proven]
    no = [name.partition(" (")[0] for name, proven in proofs.items() if not proven]
    lines = [f"Proven: {', '.join(yes)}."] if yes else []
    return " ".join([*lines, *([f"Not proven: {', '.join(no)}."] if no else [])])
