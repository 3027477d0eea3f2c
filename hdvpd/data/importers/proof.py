"""The end of an import: is the calibration right?"""

import dataclasses
from pathlib import Path
from typing import Any

import rich.console

from hdvpd.basics.errors import UserError
from hdvpd.data import metadata, store, writer
from hdvpd.data.calibration.check import Report, check
from hdvpd.data.calibration.estimate import describe_fit
from hdvpd.data.calibration.report import print_report, write_report

EPISODES, FRAMES = 3, 4
"""Looked at: the first, the middle and the last episode."""


def prove(path: Path) -> None:
    """Check the calibration of a finished import by its first, middle and last episode.

    Prints and writes what `hdvpd data check` does, and records the verdict as `source.calibration`
    in dataset.json. A calibration that is not proven is a warning: what was imported stays.
    """
    console = rich.console.Console()
    try:
        report = check(path, episodes=EPISODES, frames=FRAMES)
        _record(report)
        # What the report belongs to is the data set with this record.
        report = dataclasses.replace(report, identity=store.Dataset(path).identity())
        page = write_report(report, path / "check")
    except UserError as error:
        text = f"warning: the import is complete, but its calibration could not be checked: {error}"
        console.print(text, soft_wrap=True, markup=False)
        return
    print_report(report, console)
    console.print(f"Report with pictures: {page}", soft_wrap=True, markup=False)
    if not report.passed:
        console.print(
            f"warning: the import is complete, but the calibration is not proven; {path} says so. "
            "Correct what is named above, with --calibration or in the source, and import again.",
            soft_wrap=True, markup=False,
        )  # fmt: skip


def _record(report: Report) -> None:
    file = report.path / "dataset.json"
    description: dict[str, Any] = metadata.read_json(file)
    found = report.found
    mistakes = found.diagnosis.mistakes if found.diagnosis else ()
    description["source"]["calibration"] = {
        "episodes": sorted({moment.episode for moment in report.moments}),
        "passed": report.passed,
        "cameras": {name: camera.status for name, camera in report.cameras.items()},
        "mistakes": [f"{mistake.name} ({', '.join(mistake.cameras)})" for mistake in mistakes],
        "corrections": describe_fit(found.estimate.fit) if found.estimate else [],
    }
    writer.write_json(file, description)
