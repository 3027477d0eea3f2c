"""The report of `hdvpd data check`: a table, check.json, pictures and one self-contained page."""

import base64
import dataclasses
import functools
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import rich.console
import rich.table
from rich.text import Text

from hdvpd.basics import files
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.agreement import Evidence, as_plain
from hdvpd.data.calibration.check import CameraReport, Report
from hdvpd.data.calibration.clouds import Indexer, choose_indexer
from hdvpd.data.calibration.estimate import describe_fit
from hdvpd.data.calibration.explanation import Explanation
from hdvpd.data.calibration.pictures import overlay_robot, overlay_views, plot_signals
from hdvpd.data.calibration.recording import spread
from hdvpd.data.calibration.robot_fit import describe_robot_fit
from hdvpd.data.calibration.views import Moment
from hdvpd.data.calibration.wording import all_findings, cells_of, diagnosis_lines, verdict_line
from hdvpd.data.writer import write_json

JSON_NAME, PAGE_NAME = "check.json", "check.html"
ROBOT_TILES = 3
WORST_MOMENTS = 12
"""Moments among which the worst is sought."""
COLORS = {"pass": "green", "fail": "red", "unproven": "yellow", "note": "cyan"}


def print_report(report: Report, console: rich.console.Console) -> None:
    """Print verdicts, numbers, what is wrong and what to do."""
    console.print(_table(report))
    # Names and paths of users hold brackets and colons, which are markup and emoji to rich.
    say = functools.partial(console.print, markup=False, emoji=False, soft_wrap=True)
    for subject, finding in all_findings(report):
        if finding.verdict != "pass" and finding.topic != "diagnosis":
            verdict = Text(finding.verdict, COLORS[finding.verdict])
            say(verdict, f"{subject}, {finding.topic}: {finding.text}")
    for line in diagnosis_lines(report):
        say(line, style="bold")
    say(verdict_line(report))


def _table(report: Report) -> rich.table.Table:
    title = Text(f"calibration of {report.path} ({report.identity})", "table.title")
    table = rich.table.Table(title=title)
    for column in (
        "camera", "verdict", "other views, median", "95 %", "in front", "robot, median",
        "detached", "depth", "lag",
    ):  # fmt: skip
        table.add_column(column)
    for name, camera in report.cameras.items():
        cells = cells_of(name, camera, report.evidence)
        table.add_row(Text(name), Text(camera.status, COLORS[camera.status]), *cells)
    return table


def write_report(report: Report, folder: Path) -> Path:
    """Write check.json, the pictures and the page; return the page.

    Raises:
      UserError: the folder cannot be written.
    """
    pictures = make_pictures(report)
    page = folder / PAGE_NAME
    with files.explain_write_errors(folder, "Name another folder with --out."):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / JSON_NAME).is_file():  # of an earlier check, whose pictures these are
            for old in folder.glob("check-*.png"):
                old.unlink()
        for name, (_, data) in pictures.items():
            files.replace(folder / name, data)
        files.replace(page, render_page(report, pictures))
        write_json(folder / JSON_NAME, as_json(report))
    return page


def make_pictures(report: Report) -> dict[str, tuple[str, bytes]]:
    """Draw all pictures of a report: caption and PNG by file name."""
    _, index = choose_indexer("scipy")
    moments, repaired = list(report.moments), report.found.moments
    numbers = list(range(len(moments)))
    if repaired is not None:
        kept = {(m.episode, m.frame) for m in repaired}
        numbers = [k for k in numbers if (moments[k].episode, moments[k].frame) in kept]
    moments, shown = [moments[k] for k in numbers], worst_moments(report.evidence, numbers)
    pictures = _draw(moments, shown, "", index)
    if repaired is not None:
        pictures |= _draw(repaired, shown, "-repaired", index)
    lags = {name: camera.lag for name, camera in report.cameras.items() if camera.lag}
    if lags or report.leads:
        pictures["check-signals.png"] = (
            "Time: where the images fit the robot's motion best, and by how many rows the targets "
            "lead the positions (1 is expected).",
            plot_signals(lags, report.leads),
        )
    return {
        name: (caption, iio.imwrite("<bytes>", image, extension=".png"))
        for name, (caption, image) in pictures.items()
    }


def worst_moments(evidence: Evidence, numbers: Sequence[int]) -> dict[tuple[str, str], int]:
    """Choose for each pair of cameras the moment to show.

    Args:
      evidence: of all moments.
      numbers: of the moments among which one is chosen.

    Returns:
      Which of the numbers, by pair: where a failing pair disagrees most, else the middle one.
    """
    failing = [k for k, pair in enumerate(evidence.pairs) if pair.status == "fail"]
    shown = {pair.cameras: len(numbers) // 2 for pair in evidence.pairs}
    looked_at = spread(WORST_MOMENTS, len(numbers)) if failing else []
    alone = [evidence.of([numbers[at]]) for at in looked_at]
    for k in failing:
        worst = np.nan_to_num([found.pairs[k].excess for found in alone])
        shown[evidence.pairs[k].cameras] = looked_at[int(np.argmax(worst))]
    return shown


def _draw(
    moments: Sequence[Moment], chosen: Mapping[tuple[str, str], int], suffix: str, index: Indexer
) -> dict[str, tuple[str, np.ndarray]]:
    pictures: dict[str, tuple[str, np.ndarray]] = {}
    state = "after the correction" if suffix else "as stored"
    shown = [moments[i] for i in spread(ROBOT_TILES, len(moments))]
    cameras = list(moments[0].views)
    for target in cameras:
        if any(moment.robot is not None for moment in shown):
            pictures[f"check-robot-{target}{suffix}.png"] = (
                f"{target}, {state}: kinematic points on the image. Green: a surface lies around "
                "the point; blue: something nearer hides it; red: it floats in the air.",
                overlay_robot(shown, target, index),
            )
        for source in (name for name in cameras if name != target):
            pair = (source, target) if (source, target) in chosen else (target, source)
            moment = moments[chosen[pair]]
            pictures[f"check-{source}-in-{target}{suffix}.png"] = (
                f"{target}, {state} (episode {moment.episode}, frame {moment.frame}): its image; "
                f"the cloud of {source} as it should appear there; distance of that cloud from "
                "what is seen, green 0, yellow 2 cm, red 4 cm and more, magenta: seen through.",
                overlay_views(moment, source, target, index),
            )
    return pictures


def as_json(report: Report) -> dict[str, Any]:
    """Return the whole report as plain JSON values, in metres; None where there is no number."""
    workspace = report.workspace
    return {
        "format": "hdvpd-check",
        "version": 1,
        "data": str(report.path),
        "identity": report.identity,
        "passed": report.passed,
        "verdict": report.verdict,
        "search": report.search,
        "frames": [[moment.episode, moment.frame] for moment in report.moments],
        "cameras": {name: _camera_json(camera) for name, camera in report.cameras.items()},
        "evidence": _evidence_json(report.evidence),
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "world": None if report.world is None else dataclasses.asdict(report.world),
        "leads": {name: dataclasses.asdict(lead) for name, lead in report.leads.items()},
        "workspace": None
        if workspace is None
        else dict(zip(("min", "max"), (c.tolist() for c in workspace), strict=True)),
        "odd_episodes": list(report.found.odd_episodes),
        "odd_cameras": list(report.found.odd_cameras),
        "diagnosis": _explanation_json(report.found),
        "limits": {name: value for name, value in vars(limits).items() if name.isupper()},
    }


def _camera_json(camera: CameraReport) -> dict[str, Any]:
    return {
        "status": camera.status,
        "depth": dataclasses.asdict(camera.depth),
        "lag": None if camera.lag is None else dataclasses.asdict(camera.lag),
        "shift": None if camera.shift is None else dataclasses.asdict(camera.shift),
        "color_preference_rad": camera.color,
        "findings": [dataclasses.asdict(finding) for finding in camera.findings],
    }


def _evidence_json(evidence: Evidence) -> dict[str, Any]:
    return {
        "views": [as_plain(pair) for pair in evidence.pairs],
        "robot": {name: as_plain(robot) for name, robot in evidence.robots.items()},
    }


def _explanation_json(found: Explanation) -> dict[str, Any] | None:
    if found.evidence is None:
        return None
    mistakes = found.diagnosis.mistakes if found.diagnosis else ()
    alternatives = list(found.diagnosis.alternatives) if found.diagnosis else []
    corrections = describe_fit(found.estimate.fit) if found.estimate else []
    if found.estimate:
        alternatives += [", ".join(describe_fit(fit)) for fit in found.estimate.alternatives]
    elif found.robot and not mistakes:
        corrections = [describe_robot_fit(found.robot[0])]
        alternatives += [describe_robot_fit(fit) for fit in found.robot[1:]]
    return {
        "mistakes": [
            {"name": mistake.name, "cameras": list(mistake.cameras), "fix": mistake.fix}
            for mistake in mistakes
        ],
        "corrections": corrections,
        "alternatives": alternatives,
        "repaired": _evidence_json(found.evidence),
    }


def render_page(report: Report, pictures: Mapping[str, tuple[str, bytes]]) -> str:
    """Return the page as HTML that refers to nothing outside itself."""
    head = ["camera", "verdict", "other views, median", "95 %", "in front", "robot, median",
            "detached", "depth", "lag [frames]"]  # fmt: skip
    rows = "".join(
        _row("td", [name, camera.status, *cells_of(name, camera, report.evidence)], camera.status)
        for name, camera in report.cameras.items()
    )
    findings = "".join(
        _row("td", [subject, f.topic, f.verdict, f.text], f.verdict)
        for subject, f in all_findings(report)
    )
    lines = "".join(f"<p><b>{html.escape(line)}</b></p>" for line in diagnosis_lines(report))
    figures = "".join(
        f'<figure><img alt="{html.escape(name)}" src="data:image/png;base64,'
        f'{base64.b64encode(data).decode()}"><figcaption>{html.escape(caption)}</figcaption></figure>'
        for name, (caption, data) in pictures.items()
    )
    title = html.escape(f"Calibration of {report.path}")
    status = report.verdict
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main><h1>{title}</h1>"
        f'<p class="{status}">{html.escape(verdict_line(report))}</p>{lines}'
        f"<table>{_row('th', head)}{rows}</table><h2>Pictures</h2>{figures}"
        f"<h2>Findings</h2><table>{_row('th', ['of', 'topic', 'verdict', ''])}{findings}</table>"
        "</main></body></html>\n"
    )


def _row(tag: str, cells: Sequence[str], status: str = "") -> str:
    inner = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
    return f'<tr class="{status}">{inner}</tr>'


_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .3rem .7rem; text-align: left; border-bottom: 1px solid #8886; }
img { max-width: 100%; display: block; image-rendering: pixelated; }
figure { margin: 1rem 0; }
figcaption { font-size: .9rem; opacity: .8; }
.pass td:nth-child(2), p.pass { color: #15803d; }
.fail td:nth-child(2), p.fail { color: #c62828; font-weight: 600; }
"""
