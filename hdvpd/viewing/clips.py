"""What an evaluation rolled out, in three dimensions: the page that its report links to."""

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.evaluation.results import Run
from hdvpd.evaluation.videos import OBSERVED_FRAMES, Clip, particle_colors, to_uint8
from hdvpd.viewing.offline import render_page
from hdvpd.viewing.recording import PREDICTION, Layer, Particles, Recording, bones


def clip_page(clip: Clip, run: Run) -> str:
    """Make a page that plays the predicted particles of a clip; see `offline.render_page`.

    Args:
      clip: one rollout of an evaluation.
      run: that was evaluated.
    """
    return render_page(recording_of(clip, run), frames_per_second=clip.rate_hz)


def recording_of(clip: Clip, run: Run) -> Recording:
    """Return the prediction of a clip; particles keep the colours in which they were observed."""
    frames, last = len(clip.positions), OBSERVED_FRAMES - 1
    painted = [_painted(clip, frame) for frame in range(last + 1)]
    rgb = np.concatenate([clip.truth[:OBSERVED_FRAMES], clip.prediction])
    particles = Particles(
        positions=np.asarray(clip.positions, np.float32),
        colors=to_uint8(np.stack(painted + painted[-1:] * (frames - len(painted)))),
        features=None,
        mask=np.asarray(clip.mask),
        age=np.maximum(np.arange(frames) - last, 0).astype(np.int32),
        tracked=True,
    )
    scene = run.dataset.scene_spec(run.config.data)
    return Recording(
        title=clip.title,
        rate_hz=clip.rate_hz,
        num_observed=OBSERVED_FRAMES,
        cameras=clip.cameras,
        camera=clip.camera,
        robot=np.asarray(clip.robot.positions, np.float32),
        bones=bones(run.dataset.robot.skeleton),
        workspace=(scene.workspace_min, scene.workspace_max),
        layers={PREDICTION: Layer(particles, to_uint8(rgb), np.asarray(clip.depth_m))},
    )


def _painted(clip: Clip, frame: int) -> Float[np.ndarray, "n 3"]:
    cameras = [clip.camera_of(frame, view) for view in range(len(clip.cameras))]
    return particle_colors(clip.positions[frame], clip.truth[frame], clip.depth_m[frame], cameras)
