"""The report: one HTML page that holds everything, readable without a server or a network."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hdvpd.basics.statistics import MIN_SAMPLES
from hdvpd.evaluation.curves import LABELS, METRICS, describe_sample
from hdvpd.evaluation.motion_plots import judge_motion
from hdvpd.evaluation.motion_tables import describe_motion, motion_tables
from hdvpd.evaluation.pixel_tables import pixel_table, reconstruction_table
from hdvpd.evaluation.verdicts import average_table, depth_table, judge, step_table

_EXPLANATIONS = {
    "model": "particles moved by the planned actions",
    "static_render": "the encoded particles, rendered without dynamics",
    "copy_last_frame": "the last observed frame itself",
    "kinematics_only": "the particles carried along with the planned robot, nothing learned",
    "zero_actions": "the model, told that the robot stands still",
    "shuffled_actions": "the model with another episode's plan",
}


@dataclass(frozen=True)
class Video:
    """A rollout on the page.

    Attributes:
      title: such as the episode and its task.
      mp4: the video.
      poster: JPEG picture that stands in for it until it plays.
    """

    title: str
    mp4: bytes
    poster: bytes


@dataclass(frozen=True)
class RunReport:
    """What the page shows of one run.

    Attributes:
      name: name of the run.
      summary: its object in metrics.json.
      config_toml: the resolved configuration.
      facts: what it was made from, such as checkpoint and data set, as label and value.
      videos: of the shown episodes.
      scene: address of a page in three dimensions; empty if there is none.
    """

    name: str
    summary: dict[str, Any]
    config_toml: str
    facts: dict[str, str]
    videos: tuple[Video, ...]
    scene: str = ""


def _details(title: str, content: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def _pixels(summary: dict[str, Any]) -> str:
    """Lay out the measures of pixels, and the reconstruction of what was observed."""
    return (
        "<h3>Objects, robot and the rest</h3><p>PSNR on pixels that truly show objects, and on "
        "moving pixels that show or showed the robot and others; colour error: CIEDE2000 of "
        "objects' mean colours; sharpness: gradient energy relative to the truth's.</p>"
        + pixel_table(summary).html()
        + reconstruction_table(summary).html()
    )


def _motion(motion: dict[str, Any]) -> str:
    """Lay out the motion of particles: means over the steps, and all else folded."""
    average, *others = motion_tables(motion)
    folded = "".join(f"<h4>{html.escape(table.title)}</h4>{table.html()}" for table in others)
    return (
        "<h3>Motion of objects</h3><p>Mean distance of particles from where they should be, "
        f"{html.escape(describe_motion(motion))}.</p>{average.html()}"
        + _details("Motion at every step and of every task", folded)
    )


def _verdicts(summary: dict[str, Any]) -> str:
    items = []
    moved = judge_motion(summary["motion"]) if "motion" in summary else []
    for verdict in judge(summary) + moved:
        text = html.escape(verdict.text)
        content = text if verdict.good else f"<strong>{text}</strong>"
        items.append(f'<li class="{"good" if verdict.good else "bad"}">{content}</li>')
    return f'<ul class="verdicts">{"".join(items)}</ul>'


def _embed(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _videos(videos: Sequence[Video]) -> str:
    return "".join(
        '<figure><video controls loop muted playsinline preload="none" '
        f'poster="{_embed("image/jpeg", video.poster)}" '
        f'src="{_embed("video/mp4", video.mp4)}"></video>'
        f"<figcaption>{html.escape(video.title)}</figcaption></figure>"
        for video in videos
    )


def _run_section(run: RunReport) -> str:
    summary = run.summary
    facts = "".join(
        f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>"
        for k, v in run.facts.items()
    )
    steps = "".join(step_table(summary, summary, metric).html() for metric in METRICS)
    cameras = "".join(
        f"<h4>{html.escape(name)}</h4>"
        + "".join(step_table(summary, lists, metric).html() for metric in METRICS)
        for name, lists in summary["cameras"].items()
    )
    notes = {LABELS[predictor]: text for predictor, text in _EXPLANATIONS.items()}
    shown = f"<h3>Rollouts</h3>{_videos(run.videos)}" if run.videos else ""
    if run.scene:
        shown += (
            f'<p><a href="{html.escape(run.scene)}">The first rollout in three dimensions</a></p>'
        )
    return (
        f'<section><h2>{html.escape(run.name)}</h2><dl class="facts">{facts}</dl>'
        f"{_verdicts(summary)}"
        f"<h3>Mean over rollout steps 0 to {summary['steps'] - 1}</h3>"
        f"{average_table(summary).html(notes)}"
        f"{_pixels(summary) if 'pixels' in summary else ''}"
        f"{_motion(summary['motion']) if 'motion' in summary else ''}"
        f"{shown}<h3>Details</h3>"
        f"{_details('Every rollout step', steps + depth_table(summary).html())}"
        f"{_details('Every camera', cameras)}"
        f"{_details('Configuration', f'<pre>{html.escape(run.config_toml)}</pre>')}</section>"
    )


def _method(summary: dict[str, Any]) -> str:
    settings = summary["ssim_settings"]
    size = settings["window_size"]
    spread = (
        "<b>\u00b1</b>: half of Student's 95 % interval over episodes, whose windows are averaged "
        "first. "
        if summary["episodes"] >= MIN_SAMPLES
        else ""
    )
    return (
        f"<p>{describe_sample(summary)}, rolled out {summary['steps']} steps from "
        "two observed frames and the planned actions. Truth is white wherever nothing can be "
        "rendered (no depth, outside the workspace box, too far). "
        f"<b>SSIM</b>: {size}\u00d7{size} Gaussian window, \u03c3 = {settings['sigma']}, "
        "population covariance, data range 1, mean over RGB, valid borders. "
        "<b>PSNR</b>: 10 log\u2081\u2080(1/MSE) per frame, then averaged. "
        f"<b>Moving pixels</b>: any channel differs by more than {summary['moving_threshold']} "
        "from the last observed frame; frames without any are left out. "
        f"{spread}The best of a column is bold. Where cameras stand still, copying the last frame "
        "scores high on the full frame for nothing: compare on moving pixels.</p>"
    )


def render_report(runs: Sequence[RunReport], plots: Sequence[bytes]) -> str:
    """Write the page, which refers to nothing outside itself."""
    title = "hdvpd: " + ", ".join(run.name for run in runs)
    sections = "".join(_run_section(run) for run in runs)
    curves = "".join(
        '<figure class="curve"><img alt="Scores against the rollout step" '
        f'src="{_embed("image/png", plot)}"></figure>'
        for plot in plots
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<header><h1>{html.escape(title)}</h1>{_method(runs[0].summary)}</header>"
        f"{curves}"
        f"{sections}</main></body></html>\n"
    )


_STYLE = """
:root { color-scheme: light dark; --text: #1d2126; --faint: #5d6670; --page: #f6f7f8;
  --card: #fff; --line: #dde1e6; --good: #15734a; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --faint: #9aa4af;
  --page: #15181c; --card: #1e2227; --line: #343a42; --good: #59c48f; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem clamp(.75rem, 3vw, 2rem) 4rem; }
h1 { font-size: 1.7rem; margin: 1.2rem 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 0 0 .6rem; overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; }
h4 { margin: 1rem 0 .3rem; }
header p { color: var(--faint); font-size: .92rem; max-width: 62rem; }
section, .curve { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.1rem clamp(.75rem, 2.5vw, 1.5rem); margin: 1.2rem 0; }
.curve { background: #fff; text-align: center; }
img, video { max-width: 100%; height: auto; display: block; margin: 0 auto; }
video { width: 100%; border-radius: .35rem; background: #18191e; }
figure { margin: .8rem 0; }
figcaption { color: var(--faint); font-size: .88rem; margin-top: .3rem; }
.facts { display: flex; flex-wrap: wrap; gap: .4rem 1.6rem; margin: 0 0 .8rem; }
.facts dt { color: var(--faint); font-size: .8rem; }
.facts dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.verdicts { list-style: none; padding: 0; margin: .8rem 0; }
.verdicts li { border-left: .28rem solid var(--good); padding: .25rem .7rem; margin: .45rem 0; }
.verdicts li.bad { border-color: var(--bad); }
.verdicts li.bad strong { color: var(--bad); }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
thead th { color: var(--faint); font-weight: 600; font-size: .85rem; }
tbody th, thead th:first-child { text-align: left; font-weight: 600; }
td small { color: var(--faint); font-weight: 400; }
tbody th small { display: block; color: var(--faint); font-weight: 400; white-space: normal;
  min-width: 12rem; }
details { border-top: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; font-size: .85rem; background: var(--page); padding: .8rem;
  border-radius: .4rem; }
@media print { section, .curve { break-inside: avoid; } }
"""
