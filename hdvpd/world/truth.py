"""What was recorded after a state, to hold a prediction against."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hdvpd.basics.types import Bool, Camera, Float, RgbdFrames, UInt8
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, read_window
from hdvpd.encoders.particles import visible_points
from hdvpd.evaluation.curves import DEPTH_METRICS, METRICS
from hdvpd.evaluation.scoring import score_depth, score_images
from hdvpd.world.base import World
from hdvpd.world.future import Images


@dataclass(frozen=True)
class Truth:
    """Recorded frames, as predictions are scored against them.

    Attributes:
      rgb: colours, white where the model can show nothing; the two observed frames first.
      depth_m: measured planar depth [m]; 0 is invalid.
      visible: pixels that are not painted white.
      camera: of every frame, axes (f v).
    """

    rgb: UInt8[np.ndarray, "f v h w 3"]
    depth_m: Float[np.ndarray, "f v h w"]
    visible: Bool[np.ndarray, "f v h w"]
    camera: Camera


def read_truth(world: World, dataset: Dataset, episode: int, start: int, steps: int) -> Truth:
    """Read the observed and the following frames of an episode, at the model's size.

    Args:
      world: whose rollouts are to be compared.
      dataset: to read from.
      episode: number of the episode.
      start: first observed frame.
      steps: frames after the two observed ones.

    Raises:
      UserError: the episode is too short, or damaged.
    """
    batch = read_window(dataset, episode, start, OBSERVED_FRAMES + steps, world.config.data)
    return truth_of(world, batch.frames)


def truth_of(world: World, frames: RgbdFrames) -> Truth:
    """Paint frames, axes (f v), white where the model can show nothing.

    Args:
      world: whose rollouts are to be compared.
      frames: the two observed ones first, at the model's size.
    """
    box = world.scene.workspace_min, world.scene.workspace_max
    _, visible = visible_points(frames.depth_m, frames.camera, *box, world.config.render.far)
    seen = np.asarray(visible)
    return Truth(
        rgb=np.where(seen[..., None], np.asarray(frames.rgb), np.uint8(255)),
        depth_m=np.asarray(frames.depth_m),
        visible=seen,
        camera=jax.tree.map(np.asarray, frames.camera),
    )


def score(
    truth: Truth, predicted: list[Images], cameras: tuple[str, ...], moving_threshold: float
) -> list[dict[str, Any]]:
    """Score a rollout and, for comparison, the last observed frame, step by step.

    Args:
      truth: of the same steps.
      predicted: images of every camera, axes (s).
      cameras: their names.
      moving_threshold: see `evaluation.metrics.moving_pixels`.

    Returns:
      One row per predictor, camera and step: `METRICS`, and for the model `DEPTH_METRICS`; None
      where a score does not exist.
    """
    rgb = np.stack([images.rgb for images in predicted], axis=1).astype(np.float32) / 255.0
    depth_m = np.stack([images.depth_m for images in predicted], axis=1)
    true = truth.rgb.astype(np.float32) / 255.0
    after, last = true[OBSERVED_FRAMES:], true[OBSERVED_FRAMES - 1]
    images = {"model": rgb, "copy_last_frame": np.broadcast_to(last[None], rgb.shape)}
    scores = score_images(images, after, last, moving_threshold)
    depth = score_depth(depth_m, truth.depth_m[OBSERVED_FRAMES:], truth.visible[OBSERVED_FRAMES:])
    rows = []
    for number, predictor in enumerate(images):
        for view, camera in enumerate(cameras):
            for step in range(len(after)):
                values = dict(zip(METRICS, scores[number, view, step], strict=False))
                if predictor == "model":
                    values |= dict(zip(DEPTH_METRICS, depth[view, step], strict=True))
                plain = {k: float(v) if np.isfinite(v) else None for k, v in values.items()}
                rows.append({"predictor": predictor, "camera": camera, "step": step, **plain})
    return rows
