"""Pictures that show what the numbers of a calibration mean."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from hdvpd.basics.types import UInt8
from hdvpd.data.calibration.agreement import RobotPoint, robot_points, shared_points
from hdvpd.data.calibration.clouds import Indexer, Surface, observe
from hdvpd.data.calibration.signals import Lag, Lead
from hdvpd.data.calibration.views import Moment, View, locate, project

TILE_HEIGHT = 288
FRONT_COLOR = (255, 0, 200)
POINT_COLORS = {
    RobotPoint.COVERED: (40, 220, 90),
    RobotPoint.HIDDEN: (80, 140, 255),
    RobotPoint.DETACHED: (255, 30, 30),
}

Picture = UInt8[np.ndarray, "_ _ 3"]


def overlay_views(moment: Moment, source: str, target: str, index: Indexer) -> Picture:
    """Show one camera's cloud in another's image.

    Returns:
      Three tiles: the target's image; the source's points in their own colours, where the target
      should see them, on the greyed image; and their distance from what the target saw, from
      green (0) over yellow to red (4 cm and more), magenta where it looked through them.
    """
    view = moment.views[target]
    first, second = (observe(moment.views[name], index) for name in (source, target))
    tiles = [view.rgb, _faded(view.rgb), _faded(view.rgb)]
    if first is not None and second is not None:
        tiles[1:] = _cloud_tile(first, view), _distance_tile(first, second)
    return np.concatenate([_enlarged(tile) for tile in tiles], axis=1)


def _cloud_tile(source: Surface, target: View) -> Picture:
    pixels, depth = project(source.points, target)
    row, column, inside = locate(pixels, target)
    seen = target.depth_m[row, column]
    # Only what the target should see: hidden points would be drawn over what hides them.
    inside &= (seen <= 0) | (depth <= seen + 0.05)
    colors = source.view.rgb[source.view.depth_m > 0]
    order = np.flatnonzero(inside)[np.argsort(-depth[inside])]
    tile = _faded(target.rgb)
    tile[row[order], column[order]] = colors[order]
    return tile


def _distance_tile(source: Surface, target: Surface) -> Picture:
    found = shared_points(source, target, max_points=len(source.points))
    pixels, _ = project(found.points, target.view)
    row, column, _ = locate(pixels, target.view)
    shade = np.clip(found.distances / 0.04, 0, 1)
    colors = (255 * matplotlib.colormaps["RdYlGn_r"](shade)[:, :3]).astype(np.uint8)
    colors[found.in_front] = FRONT_COLOR
    order = np.argsort(found.distances)
    tile = _faded(target.view.rgb)
    tile[row[order], column[order]] = colors[order]
    return tile


def overlay_robot(moments: Sequence[Moment], camera: str, index: Indexer) -> Picture:
    """Draw the robot's kinematic points on a camera's images.

    Returns:
      Tiles side by side. Green: a surface lies around the point; blue: something nearer hides it;
      red: it floats away from every surface.
    """
    return np.concatenate([_robot_tile(moment, camera, index) for moment in moments], axis=1)


def _robot_tile(moment: Moment, camera: str, index: Indexer) -> Picture:
    view = moment.views[camera]
    tile = Image.fromarray(_enlarged(view.rgb))
    surface = observe(view, index)
    if moment.robot is None or surface is None:
        return np.asarray(tile)
    states, _ = robot_points(moment.robot, surface)
    pixels, _ = project(moment.robot, view)
    scale = tile.height / view.depth_m.shape[0]
    draw = ImageDraw.Draw(tile)
    for (x, y), state in zip(pixels * scale, states, strict=True):
        if state != RobotPoint.OUTSIDE:
            circle = (x - 3, y - 3, x + 3, y + 3)
            draw.ellipse(circle, fill=POINT_COLORS[RobotPoint(state)], outline=(0, 0, 0))
    return np.asarray(tile)


def plot_signals(lags: Mapping[str, Lag], leads: Mapping[str, Lead]) -> Picture:
    """Plot lag correlations by camera, and lead errors by what was compared, side by side."""
    figure = Figure(figsize=(9, 3.2), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for name, lag in lags.items():
        left.plot(lag.lags, lag.correlations, marker="o", label=name)
    left.set(xlabel="images late by [frames]", ylabel="correlation", title="image and robot motion")
    for name, lead in leads.items():
        right.plot(lead.leads, [100 * e for e in lead.errors], marker="o", label=name)
    right.set(xlabel="targets lead by [rows]", ylabel="distance [% of range]", title="actions")
    for axes, lines in ((left, lags), (right, leads)):
        axes.grid(alpha=0.3)
        if lines:
            axes.legend()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _faded(rgb: Picture) -> Picture:
    gray = rgb.astype(np.float32).mean(axis=-1, keepdims=True)
    return np.repeat(0.35 * gray, 3, axis=-1).astype(np.uint8)


def _enlarged(rgb: Picture) -> Picture:
    factor = max(1, round(TILE_HEIGHT / rgb.shape[0]))
    return rgb.repeat(factor, axis=0).repeat(factor, axis=1)
