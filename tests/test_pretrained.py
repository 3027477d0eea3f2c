"""The model that comes with hdvpd, on an episode that it never saw: its numbers hold."""

import jax
import numpy as np
import pytest
from test_simulation import needs_rendering

from hdvpd.data.simulation import bimanual
from hdvpd.data.store import Dataset
from hdvpd.data.truth import read_objects
from hdvpd.data.windows import OBSERVED_FRAMES, read_window
from hdvpd.evaluation.metrics import moving_pixels, score_frame
from hdvpd.evaluation.objects import particle_truth, score_motion
from hdvpd.model.compiled import compile_model
from hdvpd.training import packed
from hdvpd.training.checkpoints import load_model

STEPS = 8
START = 3
"""First frame of a window in which the hand comes to the block and pushes it."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = packed.shipped_model()
    assert file.stat().st_size < 4e6
    folder = tmp_path_factory.mktemp("runs") / packed.REFERENCE
    packed.unpack(file, folder)
    return load_model(folder)


@needs_rendering
def test_a_pushed_block_is_predicted(model, tmp_path, record_property):
    """Where its particles go, and what the third predicted frame looks like."""
    model, config, _, _ = model
    bimanual.simulate(tmp_path / "data", episodes=1, tasks=("push",), seed=1000)
    dataset = Dataset(tmp_path / "data")
    length = OBSERVED_FRAMES + STEPS
    batch = read_window(dataset, 0, START, length, config.data)
    objects = read_objects(dataset, 0, START, length)
    assert objects is not None
    compiled = compile_model(model)
    observed = compiled.encode(
        *jax.tree.map(lambda x: x[:OBSERVED_FRAMES], (batch.frames, batch.robot)), jax.random.key(0)
    )
    current = jax.tree.map(lambda x: x[-1], observed)
    clouds = compiled.rollout(observed, batch.robot, jax.random.key(1))
    truth = particle_truth(current, objects, batch.robot.positions)
    still = np.repeat(np.asarray(current.positions)[None], STEPS, axis=0)
    errors_m, still_m = (score_motion(x, truth)[:, 1] for x in (clouds.positions, still))
    third = jax.tree.map(lambda x: np.asarray(x)[2:3], clouds)
    camera = jax.tree.map(lambda x: np.asarray(x)[[OBSERVED_FRAMES + 2]], batch.frames.camera)
    frames = np.asarray(compiled.whiten(batch.frames)[0])
    image, expected = np.asarray(compiled.render(third, camera).rgb)[0, 0], frames[4, 0]
    moving = moving_pixels(expected, frames[1, 0], config.eval.moving_threshold)
    score, copied = (score_frame(x, expected, moving) for x in (image, frames[1, 0]))
    record_property(
        "measured",
        f"block {1e3 * errors_m[-1]:.1f} mm of {1e3 * still_m[-1]:.1f}, SSIM {score.ssim:.3f}, "
        f"moving pixels {score.moving_psnr:.1f} dB (last frame {copied.moving_psnr:.1f})",
    )
    assert still_m[-1] > 0.03
    assert errors_m[-1] < 0.6 * still_m[-1]
    assert score.ssim > 0.88
    assert score.moving_psnr > copied.moving_psnr + 3
