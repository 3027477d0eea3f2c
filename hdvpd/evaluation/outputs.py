"""Writing an evaluation: a reader finds the old one or the new one, and nothing is lost.

Everything is made in a folder aside and moved into place file by file, metrics.json last. Results
that differ from those already there (another checkpoint, more steps) first move to `previous-1`,
`previous-2`, ... beside the new ones; equal results are replaced, which changes nothing.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hdvpd.basics import files

METRICS_FILE = "metrics.json"
MOTION_FILE = "motion.json"
_STAGING = ".partial-"
_REMEDY = (
    "Earlier results there are intact. Free some space or permit writing there, then evaluate "
    "again."
)
_MOTION = (MOTION_FILE, "motion.md", "motion.csv", "motion.png")
_ARTEFACTS = (
    METRICS_FILE, "metrics.csv", "metrics.md", "episodes.csv", "ssim.png", "videos", "frames",
    "scenes", *_MOTION, "pixels.csv", "pixels.png",
)  # fmt: skip


def explain_write_errors(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turn a full or read-only disk into one message, as `hdvpd.basics.files` does."""
    return files.explain_write_errors(path, _REMEDY)


@contextlib.contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Make a folder beside the final files, and remove it whatever happens.

    The target is made too, before hours are spent on what then cannot be written, and removed
    again if it stays empty. A second process is refused until this one is done.

    Yields:
      An empty folder on the same disk.

    Raises:
      UserError: the target cannot be written, or another process writes there.
    """
    refusal = (
        f"Another process is writing an evaluation into {target}. Wait for it, stop it, or choose "
        "another --out."
    )
    with files.locked(target / files.LOCK, refusal, _REMEDY):
        with explain_write_errors(target):
            for left in target.glob(f"{_STAGING}*"):  # of processes that were killed
                shutil.rmtree(left, ignore_errors=True)
            staging = target / f"{_STAGING}{os.getpid()}"
            staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def publish(staging: Path, target: Path, report: Path | None = None) -> None:
    """Move finished files into place.

    Args:
      staging: folder of the files.
      target: where they go.
      report: where the page goes; None if there is none, but the motion of objects alone.

    Raises:
      UserError: the file system refuses.
    """
    with explain_write_errors(target):
        _keep_previous(staging, target, report)
        page = staging / "report.html"
        made = [f for f in sorted(staging.rglob("*")) if f.is_file() and f != page]
        for file in sorted(made, key=lambda f: f.name == METRICS_FILE):
            place = target / file.relative_to(staging)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)
        if report is not None:
            report.parent.mkdir(parents=True, exist_ok=True)
            # It may lie on another disk than the results when folders are links.
            shutil.move(page, report)


def _keep_previous(staging: Path, target: Path, report: Path | None) -> None:
    pairs = [(target / name, staging / name) for name in (METRICS_FILE, MOTION_FILE)]
    known = [(old, new) for old, new in pairs if old.is_file() and new.is_file()]
    if all(old.read_bytes() == new.read_bytes() for old, new in known):
        return
    number = 1
    while (target / f"previous-{number}").exists():
        number += 1
    kept = target / f"previous-{number}"
    kept.mkdir()
    for name in _MOTION if report is None else _ARTEFACTS:
        if (target / name).exists():
            (target / name).rename(kept / name)
    if report is not None and report.is_file():
        shutil.move(report, kept / "report.html")
