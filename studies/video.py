"""`python -m studies video`: which of the simulated robot tasks a short clip shows.

A factorised video transformer, whose masks lie on the grid of a frame's patches and on the path of
frames (arXiv 2410.03462, appendix C.4, at a size for two CPU cores).
"""

from pathlib import Path

import numpy as np
from flax import nnx

from hdvpd.data.simulation.bimanual import simulate
from hdvpd.data.simulation.scene import CAMERAS, TASKS
from hdvpd.data.store import Dataset
from studies.classification import Examples, family_of, run_study
from studies.outputs import make_folder
from studies.settings import CLIP_SIZE, Variant, VideoSettings
from studies.vision_transformer import ClipTransformer, Encoder, patches

_CHANNELS = 3


def main(out: Path, settings: VideoSettings) -> None:
    """Simulate clips into `out`/clips, or take those that are there, and run the study.

    `run_study` says what it writes.

    Raises:
      UserError: `out` cannot be a folder, clips of other settings are there, or MuJoCo is missing.
    """

    def make(variant: Variant, positions: bool, rngs: nnx.Rngs) -> ClipTransformer:
        return make_model(variant, positions, settings, rngs=rngs)

    make_folder(out)
    simulate(
        out / "clips",
        episodes=settings.clips,
        steps=settings.frames - 1,
        size=CLIP_SIZE,
        workers=settings.workers,
    )
    run_study(
        out,
        load_clips(out / "clips", settings.patch),
        settings.clips - settings.test_clips,
        make,
        settings,
        reference="softmax",
        title="clips",
    )


def load_clips(path: Path, patch: int) -> Examples:
    """Return the first camera's frames of every episode as patches, brightness in [-1, 1].

    Args:
      path: of a simulated data set.
      patch: height and width of a patch [px].

    Returns:
      Axes (b f n i); the class is the task's number in `TASKS`.
    """
    dataset = Dataset(path)
    clips = [
        dataset.read(episode.number, f"cameras/{CAMERAS[0]}/rgb") for episode in dataset.episodes
    ]
    images = np.stack(clips).astype(np.float32) / 127.5 - 1
    labels = np.array([TASKS.index(episode.task) for episode in dataset.episodes], np.int32)
    return Examples(patches(images, patch), labels)


def make_model(
    variant: Variant, positions: bool, settings: VideoSettings, *, rngs: nnx.Rngs
) -> ClipTransformer:
    """Build an untrained model.

    Args:
      variant: attention and mask, of both encoders.
      positions: whether patches and frames have learned position embeddings.
      settings: sizes.
      rngs: streams `params` and `masks`.
    """
    height, width = (pixels // settings.patch for pixels in CLIP_SIZE)
    spatial, temporal = (
        Encoder(
            in_dim,
            cells,
            width=settings.width,
            num_heads=settings.heads,
            depth=settings.depth,
            kind=variant.attention,
            family=family_of(variant, settings),
            positions=positions,
            rngs=rngs,
        )
        for in_dim, cells in (
            (_CHANNELS * settings.patch**2, (height, width)),
            (settings.width, (1, settings.frames)),
        )
    )
    return ClipTransformer(spatial, temporal, settings.width, len(TASKS), rngs=rngs)
