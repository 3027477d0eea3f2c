"""Rollouts as files: video, pictures, depth, particles, and one page for several plans."""

import html
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np

from hdvpd.basics.tables import Table
from hdvpd.basics.types import UInt8
from hdvpd.evaluation.curves import DEPTH_METRICS, METRICS
from hdvpd.evaluation.videos import enlarge, frames_per_second, splat_particles, write_video
from hdvpd.world import saving
from hdvpd.world.future import Future, Images
from hdvpd.world.truth import Truth

DEPTH_UNIT_M = 1e-3
"""Metres per unit of the depth pictures, which hold up to 65 m."""
ROLLOUT_FILE, STATE_FILE, TRUTH_FILE = "rollout.json", "state.npz", "truth.npz"
_PANEL_HEIGHT = 288
_BLOCK = 16
_GAP = 4


@dataclass(frozen=True)
class Plan:
    """One plan, rolled out.

    Attributes:
      name: of its folder.
      source: what it was read from, for people.
      future: what the model predicts.
      images: of every camera, axes (s).
      truth: what was recorded, if this is what the robot did.
      scores: rows as of `truth.score`; none without truth.
      warning: what the user should know; empty if nothing.
    """

    name: str
    source: str
    future: Future
    images: Mapping[str, Images]
    truth: Truth | None
    scores: Sequence[Mapping[str, Any]]
    warning: str


def write_plan(plan: Plan, folder: Path, rate_hz: float) -> None:
    """Write video, pictures, depth and particles of one plan.

    Args:
      plan: rolled out.
      folder: is made; gets video.mp4, video.jpg, `<camera>/rgb-00.png`, `<camera>/depth-00.png`
        (16 bit, millimetres), particles.npz, `particles-00.ply`, and where truth exists
        truth.npz, metrics.csv and metrics.md.
      rate_hz: control steps per second.

    Raises:
      UserError: a file cannot be written.
    """
    folder.mkdir(parents=True)
    steps = len(plan.future)
    pictures = [compose(plan, step) for step in range(steps)]
    write_video(folder / "video.mp4", pictures, frames_per_second(rate_hz))
    iio.imwrite(folder / "video.jpg", pictures[-1], quality=85)
    for camera, images in plan.images.items():
        (folder / camera).mkdir()
        for step in range(steps):
            iio.imwrite(folder / camera / f"rgb-{step:02d}.png", images.rgb[step])
            depth = np.clip(np.rint(images.depth_m[step] / DEPTH_UNIT_M), 0, 65535)
            iio.imwrite(folder / camera / f"depth-{step:02d}.png", depth.astype(np.uint16))
    plan.future.save(folder / "particles.npz")
    plan.future.save(folder / "particles.ply")
    if plan.truth is not None:
        camera = plan.truth.camera
        arrays = {"rgb": plan.truth.rgb, "depth_m": plan.truth.depth_m}
        arrays["intrinsics"] = np.asarray(camera.intrinsics)
        arrays["camera_to_world"] = np.asarray(camera.camera_to_world)
        saving.write_npz(folder / TRUTH_FILE, "truth", arrays, {})
    if plan.scores:
        table = metrics_table(plan)
        (folder / "metrics.csv").write_text(table.csv(), encoding="utf-8")
        (folder / "metrics.md").write_text(mean_table(plan).markdown(), encoding="utf-8")


def compose(plan: Plan, step: int) -> UInt8[np.ndarray, "h w 3"]:
    """Put the pictures of a step together: a row per camera; truth if known, prediction, particles.

    Args:
      plan: rolled out.
      step: predicted step.
    """
    rows = []
    future = plan.future
    height, width = future.start.size
    scale = max(1, round(_PANEL_HEIGHT / height))
    colors = future.colors.astype(np.float32) / 255.0
    for view, (camera, images) in enumerate(plan.images.items()):
        panels = [enlarge(images.rgb[step], scale)]
        if plan.truth is not None:
            panels.insert(0, enlarge(plan.truth.rgb[2 + step, view], scale))
        seen_by = future.cameras_over_time(camera, len(future))[step]
        cloud = future.positions[step]
        panels.append(splat_particles(cloud, colors, future.mask, seen_by, (height, width), scale))
        rows.append(np.concatenate([np.pad(p, ((0, _GAP), (0, _GAP), (0, 0))) for p in panels], 1))
    picture = np.concatenate(rows)
    padding = [(0, -size % _BLOCK) for size in picture.shape[:2]]
    return np.pad(picture, [*padding, (0, 0)])


def metrics_table(plan: Plan) -> Table:
    """List the scores of every predictor, camera and step."""
    head = ("predictor", "camera", "step", *METRICS, *DEPTH_METRICS)
    return Table(head, [[row.get(name) for name in head] for row in plan.scores])


def mean_table(plan: Plan) -> Table:
    """List means over steps and cameras."""
    names = (*METRICS, *DEPTH_METRICS)
    predictors = dict.fromkeys(row["predictor"] for row in plan.scores)
    rows = []
    for predictor in predictors:
        own = [row for row in plan.scores if row["predictor"] == predictor]
        values = ([row[n] for row in own if row.get(n) is not None] for n in names)
        rows.append([predictor, *(float(np.mean(v)) if v else None for v in values)])
    return Table(("predictor", *names), rows, f"{plan.name}: means over steps and cameras")


def write_index(folder: Path, plans: Sequence[Plan], about: Mapping[str, Any]) -> None:
    """Write index.html with all plans side by side, and what `hdvpd view` reads.

    Args:
      folder: that holds a folder per plan; gets rollout.json and state.npz too.
      plans: in the order of the page, all from one state.
      about: plain values that say what was rolled out; `run`, `checkpoint` and `rate_hz` are read
        again by the viewer.
    """
    plans[0].future.start.save(folder / STATE_FILE)
    told = ", ".join(f"{key} {value}" for key, value in about.items())
    shown = []
    for plan in plans:
        name, source = html.escape(plan.name), html.escape(plan.source)
        place = urllib.parse.quote(plan.name)
        seen = "truth, prediction, particles" if plan.truth else "prediction, particles"
        warning = f'<p class="warning">{html.escape(plan.warning)}</p>' if plan.warning else ""
        table = _as_html(mean_table(plan)) if plan.scores else ""
        shown.append(
            f"<section><h2>{name}</h2><p>{source}; {len(plan.future)} steps: {seen}</p>"
            f'<video src="{place}/video.mp4" poster="{place}/video.jpg" controls loop muted '
            f"playsinline></video>{warning}{table}</section>"
        )
    page = _PAGE.replace("{told}", html.escape(told)).replace("{plans}", "\n".join(shown))
    (folder / "index.html").write_text(page, encoding="utf-8")
    listed = [
        {
            "name": plan.name,
            "source": plan.source,
            "steps": len(plan.future),
            "truth": plan.truth is not None,
            "warning": plan.warning,
        }
        for plan in plans
    ]
    cameras = list(plans[0].images)
    value = {"format": "hdvpd-rollout", "version": 1, **about, "cameras": cameras, "plans": listed}
    (folder / ROLLOUT_FILE).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _as_html(table: Table) -> str:
    def cells(row: Sequence[Any], tag: str) -> str:
        texts = ("\u2013" if c is None else f"{c:.3f}" if isinstance(c, float) else c for c in row)
        return "".join(f"<{tag}>{html.escape(str(text))}</{tag}>" for text in texts)

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    return f'<div class="wide"><table><tr>{cells(table.head, "th")}</tr>{body}</table></div>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Rollouts</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.4 sans-serif; margin: 1rem; color: #222; background: #fff; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr));
 gap: 1rem; }
video { width: 100%; background: #181a1e; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 12px; }
td, th { padding: 2px 6px; text-align: right; }
.warning { background: #fff3cd; padding: .4rem; }
</style></head><body><h1>Rollouts</h1><p>{told}</p>
<main>
{plans}
</main></body></html>
"""
