"""A made-up recording: a red cube goes left in truth and a blue one right in the prediction."""

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Camera
from hdvpd.viewing import editing
from hdvpd.viewing.recording import PREDICTION, TRUTH, Layer, Particles, Recording
from hdvpd.viewing.sources import AbstractSource

TIMES, OBSERVED, SIDE = 5, 2, 8
RED, BLUE = (230, 20, 20), (20, 20, 230)
HTML = "<img src=x onerror=\"console.error('run')\"><script>console.error('run')</script>"
"""A name that must never become markup."""


def cube(center, tracked_color, velocity, *, tracked: bool) -> Particles:
    grid = np.stack(np.meshgrid(*[np.linspace(-0.08, 0.08, SIDE)] * 3), -1).reshape(-1, 3)
    steps = np.maximum(np.arange(TIMES) - OBSERVED + 1, 0)
    positions = center + grid + steps[:, None, None] * np.asarray(velocity)
    count = len(grid)
    mask = np.ones((TIMES, count), bool)
    mask[:, -5:] = False  # padding
    rng = np.random.default_rng(0)
    return Particles(
        positions=positions.astype(np.float32),
        colors=np.broadcast_to(np.uint8(tracked_color), (TIMES, count, 3)).copy(),
        features=rng.normal(size=(TIMES, count, 4)).astype(np.float32) if tracked else None,
        mask=mask,
        age=steps.astype(np.int32) if tracked else np.zeros(TIMES, np.int32),
        tracked=tracked,
    )


def make_recording(title: str = "episode 3, push", cameras=("left", "right")) -> Recording:
    height, width = 12, 16
    views = len(cameras)
    center = np.array([0.0, 0.0, 0.3])
    layers = {
        TRUTH: cube(center, RED, (0.0, -0.12, 0.0), tracked=False),
        PREDICTION: cube(center, BLUE, (0.0, 0.12, 0.0), tracked=True),
    }
    colors = {TRUTH: RED, PREDICTION: BLUE}
    poses = np.broadcast_to(np.eye(4, dtype=np.float32), (TIMES, views, 4, 4)).copy()
    poses[:, :, 2, 3] = -0.8
    lens = np.array([[14, 0, 8], [0, 14, 6], [0, 0, 1]], np.float32)
    robot = np.zeros((TIMES, 3, 3), np.float32)
    robot[:, :, 2] = [0.1, 0.3, 0.5]
    robot[:, 2, 0] = np.linspace(0, 0.2, TIMES)
    return Recording(
        title=title,
        rate_hz=2.0,
        num_observed=OBSERVED,
        cameras=cameras,
        camera=Camera(
            intrinsics=np.broadcast_to(lens, (TIMES, views, 3, 3)), camera_to_world=poses
        ),
        robot=robot,
        bones=((0, 1), (1, 2)),
        workspace=((-0.5, -0.5, 0.0), (0.5, 0.5, 0.6)),
        layers={
            name: Layer(
                particles,
                np.broadcast_to(np.uint8(colors[name]), (TIMES, views, height, width, 3)).copy(),
                np.full((TIMES, views, height, width), 0.8, np.float32),
            )
            for name, particles in layers.items()
        },
        ssim=np.full((TIMES, views), 0.5),
    )


class MadeUp(AbstractSource):
    """Two scenes of `make_recording`; edits change the prediction and take away the truth."""

    name = "made up"
    titles = ("episode 3, push", "episode 4, " + HTML)
    episodes = (3, 4)

    def load(self, index, edits=()):
        recording = make_recording(self.titles[index], ("left", HTML))
        if not edits:
            return recording
        particles = recording.layers[PREDICTION].particles
        for edit in edits:
            particles = editing.edit_particles(particles, edit)
        changed = recording.with_particles(PREDICTION, particles)
        layers = {PREDICTION: changed.layers[PREDICTION]}
        return Recording(**{**vars(changed), "layers": layers, "ssim": None})

    def render(self, recording, time, camera_to_world, fov):
        if time == 0:
            raise UserError("no view from the past")
        return np.full((12, 16, 3), 200, np.uint8)
