"""Writing an evaluation: a reader finds the old one or the new one, and nothing is lost.

Everything is made in a folder aside and moved into place file by file, metrics.json last. Results
that differ from those already there (another checkpoint, more steps) first move to `previous-1`,
`previous-2`, ... beside the new ones; equal results are replaced, which changes nothing.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from hdvpd.basics import files
from hdvpd.basics.errors import UserError

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


def require_place(target: Path, runs: Sequence[Path]) -> None:
    """Refuse a folder that a user chose and that is not this evaluation's to fill.

    Args:
      target: `--out`.
      runs: folders of the evaluated runs.

    Raises:
      UserError: it belongs to a data set or to a run that is not the one evaluated, or holds
        something else than an earlier evaluation.
    """
    whole = target.resolve()
    own = runs[0].resolve() if len(runs) == 1 else None
    if own and whole == own / "eval":
        return  # where it goes without --out
    for folder in (whole, *whole.parents):
        kind = _owner(folder)
        if kind and (folder != own or folder == whole):
            lies = "is" if folder == whole else f"lies in {folder},"
            leave = f", or leave --out out for {runs[0] / 'eval'}" if own else ""
            raise UserError(
                f"--out {target} {lies} the folder of a {kind}, with which results would be mixed. "
                f"Choose a folder of its own, such as comparison{leave}."
            )
        if folder == own:
            break
    if not target.is_dir():
        return
    names = {path.name for path in target.iterdir() if path.name != files.LOCK}
    # Of a process that was killed while it moved files, or that is at it: then the lock refuses.
    begun = any(name.startswith(_STAGING) for name in names)
    strange = {name for name in names if not name.startswith((_STAGING, "previous-"))}
    if begun and strange <= {*_ARTEFACTS, "report"}:
        return
    results = (METRICS_FILE, MOTION_FILE)
    if names and not any((target / n).is_file() for n in results) and not _kept(target):
        raise UserError(
            f"--out {target} exists and is no earlier evaluation: it has neither {METRICS_FILE} "
            f"nor {MOTION_FILE}. Choose a new folder, or move away what is there."
        )


def _owner(folder: Path) -> str:
    """Say whose folder it is: a run's, a data set's or, empty, neither's."""
    if (folder / "config.toml").is_file() and (folder / "scene.json").is_file():
        return "run"
    if (folder / "dataset.json").is_file() and (folder / "episodes").is_dir():
        return "data set"
    return ""


def _kept(target: Path) -> bool:
    """Whether earlier results were moved aside, after which a process may have ended."""
    results = (METRICS_FILE, MOTION_FILE)
    return any(file.name in results for file in target.glob("previous-*/m*.json"))


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
    names = _MOTION if report is None else _ARTEFACTS
    # What is there without the numbers that it belongs to may be a user's own.
    replaced = [n for n in names if (target / n).exists() and (staging / n).exists()]
    if not known and not replaced and not (report is not None and report.is_file()):
        return
    if known and all(old.read_bytes() == new.read_bytes() for old, new in known):
        return
    number = 1
    while (target / f"previous-{number}").exists():
        number += 1
    kept = target / f"previous-{number}"
    kept.mkdir()
    for name in names:
        if (target / name).exists():
            (target / name).rename(kept / name)
    if report is not None and report.is_file():
        shutil.move(report, kept / "report.html")
