"""Films of plans that are executed: what a camera saw, beside what was predicted."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from hdvpd.basics.geometry import project
from hdvpd.basics.types import Camera, Float, UInt8
from hdvpd.evaluation.videos import enlarge
from hdvpd.planning.trials import Outcome, Trial
from hdvpd.world.future import Future

_SCALE = 2
_FRAME_MS = 500
_LAST_MS = 2000
_GOAL, _RADIUS = (255, 0, 200), 5


class Film:
    """A picture per executed step: what the first camera saw, and what the plan showed for it."""

    def __init__(self) -> None:
        """Begin without a picture."""
        self._pictures: list[UInt8[np.ndarray, "h w 3"]] = []
        self._future: Future | None = None
        self._shown = 0

    def take(
        self, trial: Trial, done: Float[np.ndarray, "s j"], future: Future | None, outcome: Outcome
    ) -> None:
        """Add the steps that are executed now.

        Args:
          trial: as it stood before them.
          done: their joint targets.
          future: what was predicted of the plan; None goes on with the one before.
          outcome: whose goal is marked.
        """
        if future is not None:
            self._future, self._shown = future, 0
        rendered = trial.images(done)
        assert rendered is not None
        assert self._future is not None
        camera = next(iter(trial.cameras.values()))
        for true in rendered[0][:, 0]:
            cloud = self._future.cloud(self._shown)
            predicted = self._future.render_cloud(cloud, camera, trial.size).rgb
            pair = [enlarge(image, _SCALE) for image in (true, predicted)]
            if outcome.task == "push":
                goal = np.r_[outcome.goal, trial.object_to_world[2, 3]]
                pair = [marked(image, camera, goal) for image in pair]
            self._pictures.append(np.concatenate(pair, axis=1))
            self._shown += 1

    def write(self, file: Path) -> None:
        """Write an animation that repeats, as WebP."""
        file.parent.mkdir(parents=True, exist_ok=True)
        first, *others = map(Image.fromarray, self._pictures)
        waits = [_FRAME_MS] * len(others) + [_LAST_MS]
        first.save(
            file, save_all=True, append_images=others, duration=waits, loop=0, quality=80, method=6
        )


def marked(
    image: UInt8[np.ndarray, "h w 3"], camera: Camera, point: Float[np.ndarray, "3"]
) -> UInt8[np.ndarray, "h w 3"]:
    """Draw a ring around a point [m] into an image that is `_SCALE` times the camera's."""
    pixels, _ = project(np.asarray(point, np.float32)[None], camera)
    x, y = (_SCALE * float(value) for value in np.asarray(pixels)[0])
    picture = Image.fromarray(image)
    box = (x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS)
    ImageDraw.Draw(picture).ellipse(box, outline=_GOAL, width=2)
    return np.asarray(picture)
