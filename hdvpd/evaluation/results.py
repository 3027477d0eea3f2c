"""What evaluations of runs hold, and the files, tables and pages that are made of them."""

import dataclasses
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.config import Config
from hdvpd.config.experiments import to_toml
from hdvpd.data.store import Dataset
from hdvpd.evaluation.curves import episodes_csv, plot_curves, to_csv, to_png
from hdvpd.evaluation.episodes import RunResult, Window
from hdvpd.evaluation.motion_plots import judge_motion, write_motion
from hdvpd.evaluation.motion_tables import motion_table
from hdvpd.evaluation.outputs import METRICS_FILE, explain_write_errors
from hdvpd.evaluation.pixel_tables import (
    pixel_table,
    pixels_csv,
    plot_pixels,
    reconstruction_table,
)
from hdvpd.evaluation.report import RunReport, Video, render_report
from hdvpd.evaluation.verdicts import average_table, explain_table, judge, to_markdown
from hdvpd.evaluation.videos import Clip, write_clip
from hdvpd.model import Model
from hdvpd.training.run_folder import RunFolder

ORIGIN = ("checkpoint_step", "dataset", "seed")
"""What motion.json says of each run beside its motion."""
_PLANS = {
    "commanded": "recorded commands",
    "next_positions": "where the robot went, for want of recorded commands",
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, ready to be evaluated.

    Attributes:
      folder: of the run.
      model: with the checkpoint's parameters.
      checkpoint_step: of the checkpoint.
      config: resolved, with the flags of this evaluation.
      dataset: to evaluate on.
      windows: what is rolled out.
      frames: what decides which images the predictors are scored on.
    """

    folder: Path
    model: Model
    checkpoint_step: int
    config: Config
    dataset: Dataset
    windows: tuple[Window, ...]
    frames: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One run, evaluated.

    Attributes:
      run: what was evaluated.
      result: scores and clips.
      summary: its object in metrics.json.
    """

    run: Run
    result: RunResult
    summary: dict[str, Any]


def require_same_frames(frames: Mapping[str, dict[str, Any]]) -> None:
    """Refuse to compare runs that would be scored on different frames.

    Args:
      frames: by run, what decides on which frames it is scored (`eval.scored_frames`).

    Raises:
      UserError: naming the first run that differs from the first.
    """
    first_name, first = next(iter(frames.items()))
    for name, own in frames.items():
        for key, value in own.items():
            if value != first[key]:
                raise UserError(
                    f"Runs {first_name} and {name} would be scored on different frames and cannot "
                    f"share a plot: {key} is {first[key]} and {value}. Give both the same "
                    "with flags such as --steps, --data.path or --eval.*, or evaluate them apart."
                )


def moving_cameras(run: Run) -> list[str]:
    """Name the evaluated cameras that the robot carries."""
    return [name for name in run.frames["cameras"] if name in run.dataset.moving_cameras]


def describe(evaluation: Evaluation) -> dict[str, str]:
    """Say what an evaluation was made from."""
    run, config = evaluation.run, evaluation.run.config
    targets, moving = run.dataset.joint_targets_source, moving_cameras(run)
    poses = f" ({', '.join(moving)}: pose as measured, also of predicted frames)" if moving else ""
    return {
        "checkpoint": f"step {run.checkpoint_step} of {config.train.num_steps}",
        "data set": f"{run.dataset.title} ({run.frames['dataset']})",
        "held-out episodes": ", ".join(
            run.dataset.episode_title(number) for number in evaluation.result.scores.episodes
        ),
        "cameras": ", ".join(run.frames["cameras"]) + poses,
        "plan": f"{_PLANS.get(targets, targets)}, links from {run.dataset.links_source}",
        "images": f"{config.data.height}\u00d7{config.data.width} px",
        "particles": f"{config.model.num_particles:,} per time step",
        "code": RunFolder(run.folder).code(),
    }


ScenePage = Callable[[Clip, Run], str]
"""Makes a page in three dimensions, as `viewing.clips` does, of what a run rolled out."""


def write_results(
    staging: Path, evaluations: dict[str, Evaluation], results: str, scene_page: ScenePage | None
) -> list[Path]:
    """Write all files of an evaluation.

    Args:
      staging: an empty folder.
      evaluations: by name of the run.
      results: way from the report's folder to that of the results.
      scene_page: is made of the first clip of every run.

    Returns:
      The videos' paths inside the folder.
    """
    summaries = {name: e.summary for name, e in evaluations.items()}
    single = len(summaries) == 1
    curve = to_png(plot_curves(summaries))
    pages, videos = [], []
    with explain_write_errors(staging.parent):
        for position, (name, evaluation) in enumerate(evaluations.items()):
            below = Path() if single else Path(_folder(name, position))
            shown = []
            for number, clip in evaluation.result.clips:
                stem = f"episode-{number:04d}"
                videos.append(Path("videos") / below / f"{stem}.mp4")
                write_clip(clip, staging / videos[-1], staging / "frames" / below / stem)
                mp4 = staging / videos[-1]
                poster = mp4.with_suffix(".jpg").read_bytes()
                shown.append(Video(clip.title, mp4.read_bytes(), poster))
            scene = ""
            if scene_page is not None and evaluation.result.clips:
                number, clip = evaluation.result.clips[0]
                page = Path("scenes") / below / f"episode-{number:04d}.html"
                (staging / page).parent.mkdir(parents=True, exist_ok=True)
                (staging / page).write_text(scene_page(clip, evaluation.run), encoding="utf-8")
                scene = urllib.parse.quote((Path(results) / page).as_posix())
            pages.append(
                RunReport(
                    name=name,
                    summary=evaluation.summary,
                    config_toml=to_toml(evaluation.run.config),
                    facts=describe(evaluation),
                    videos=tuple(shown),
                    scene=scene,
                )
            )
        value = next(iter(summaries.values())) if single else {"runs": summaries}
        (staging / METRICS_FILE).write_text(sealed.dumps(value, indent=2))
        (staging / "metrics.csv").write_text(to_csv(summaries))
        (staging / "metrics.md").write_text(to_markdown(summaries), encoding="utf-8")
        scores = [e.result.scores for e in evaluations.values()]
        (staging / "episodes.csv").write_text(episodes_csv(scores))
        (staging / "ssim.png").write_bytes(curve)
        plots = [curve, *_write_pixels(staging, summaries), *_write_motion(staging, summaries)]
        page = render_report(pages, plots)
        (staging / "report.html").write_text(page, encoding="utf-8")
    return videos


def _folder(name: str, position: int) -> str:
    """Name a run's subfolder; runs that are called alike are known by their paths."""
    return f"{position}-{Path(name).name}" if Path(name).name != name else name


def _write_motion(staging: Path, summaries: dict[str, dict[str, Any]]) -> list[bytes]:
    """Write the motion of objects; return its plot, if the data know objects."""
    motions = {
        name: {key: summary[key] for key in ORIGIN} | summary["motion"]
        for name, summary in summaries.items()
        if "motion" in summary
    }
    return [write_motion(staging, motions)] if motions else []


def _write_pixels(staging: Path, summaries: dict[str, dict[str, Any]]) -> list[bytes]:
    """Write the measures of pixels; return their plot, if there are any."""
    if not all("pixels" in summary for summary in summaries.values()):
        return []
    (staging / "pixels.csv").write_text(pixels_csv(summaries))
    tables = "".join(
        f"\n## {name}, pixels\n\n{pixel_table(summary).markdown()}\n"
        f"{reconstruction_table(summary).markdown()}"
        for name, summary in summaries.items()
    )
    with (staging / "metrics.md").open("a", encoding="utf-8") as file:
        file.write(tables)
    plot = to_png(plot_pixels(summaries))
    (staging / "pixels.png").write_bytes(plot)
    return [plot]


def print_summary(name: str, evaluation: Evaluation) -> None:
    """Print means over all rollout steps and what they say."""
    summary = evaluation.summary
    title = f"{name}, checkpoint {summary['checkpoint_step']}: {explain_table(summary)}"
    print()
    average_table(summary, title).print()
    verdicts = judge(summary)
    if "pixels" in summary:
        for table in (pixel_table(summary), reconstruction_table(summary)):
            print()
            table.print()
    if "motion" in summary:
        print()
        motion_table(summary["motion"]).print()
        verdicts += judge_motion(summary["motion"])
    print()
    for verdict in verdicts:
        print(verdict.text)
