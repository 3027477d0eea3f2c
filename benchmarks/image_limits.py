"""What limits a run's predicted images: its particles, or what two frames show; nothing is timed.

At some rollout steps of held-out windows the same frame is rendered from five sets of particles:
the model's, those of a model in which nothing was learned (same settings, fresh parameters), those
that are carried along with the robot (kinematics only), the particles of the last observed frame
where they truly are by then, and particles encoded from the frame itself. True places: what is
within 10 cm of a kinematic point and higher than `--above` goes with that point's link as it was
measured, objects by their poses, the rest stays. Scores are on moving pixels [dB] and SSIM, means
over windows and cameras; then how far carried particles of the robot are from their true places.

Run: python benchmarks/image_limits.py --run runs/demo [--episodes 6] [--at 1 6] [--above 0.012]
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from scipy.spatial import KDTree

from hdvpd.basics.tables import Table
from hdvpd.basics.types import Batch, Float, ParticleCloud
from hdvpd.data.arrays import LINKS
from hdvpd.data.store import Dataset
from hdvpd.data.truth import read_objects
from hdvpd.data.windows import OBSERVED_FRAMES, read_window
from hdvpd.evaluation.controls import carry_particles
from hdvpd.evaluation.eval import prepare
from hdvpd.evaluation.metrics import moving_pixels, score_frame
from hdvpd.evaluation.pixels import NEAR_ROBOT_M
from hdvpd.evaluation.rollouts import window_keys
from hdvpd.model import Model
from hdvpd.model.compiled import make_compiler

LAST = OBSERVED_FRAMES - 1


def true_places(
    cloud: ParticleCloud, batch: Batch, dataset: Dataset, above_m: float
) -> tuple[Float[np.ndarray, "s n 3"], np.ndarray]:
    """Return where particles truly go [m], and which are the robot's."""
    episode, start, length = int(batch.episode), int(batch.start), len(batch.robot.positions)
    objects = read_objects(dataset, episode, start, length)
    assert objects is not None
    points, mask = np.asarray(cloud.positions, np.float64), np.asarray(cloud.mask)
    owners = np.where(mask, objects.owners(LAST, points), -1)
    places = objects.move(points, owners, LAST)[OBSERVED_FRAMES:]
    away, nearest = KDTree(np.asarray(batch.robot.positions[LAST])).query(points)
    robot = mask & (owners < 0) & (away < NEAR_ROBOT_M) & (points[:, 2] > above_m)
    links = dataset.read(episode, LINKS, start, length).astype(np.float64)
    link = np.asarray(dataset.robot.skeleton.links)[np.asarray(nearest)[robot]]
    homogeneous = np.append(points[robot], np.ones((robot.sum(), 1)), axis=1)
    local = np.linalg.inv(links[LAST, link]) @ homogeneous[..., None]
    for step, pose in enumerate(links[OBSERVED_FRAMES:]):
        places[step, robot] = (pose[link] @ local)[:, :3, 0]
    return places, robot


class Limits:
    """Scores of the five sets of particles, window by window."""

    def __init__(self, folder: Path, at: Sequence[int], above_m: float):
        """Load a run; `at` are the steps that are rendered."""
        self.run, self.at, self.above_m = prepare(folder, None, lambda config: config), at, above_m
        compile_model = make_compiler(self.run.model)
        self.model = compile_model(self.run.model)
        scene = self.run.model.scene
        self.fresh = compile_model(Model(self.run.config, scene, rngs=nnx.Rngs(0)))

    def clouds(self, batch: Batch) -> tuple[dict[str, list[ParticleCloud]], np.ndarray]:
        """Return the particles at every step shown, and errors of the robot's carried ones [m]."""
        encode_key, rollout_key = window_keys(self.run.config.eval.seed, batch)

        def encode(first: int) -> ParticleCloud:
            frames, robot = jax.tree.map(
                lambda x: x[first : first + OBSERVED_FRAMES], (batch.frames, batch.robot)
            )
            cloud = self.model.encode(frames, robot, jax.random.clone(encode_key))
            return jax.tree.map(np.asarray, cloud)

        observed = encode(0)
        before, now = (jax.tree.map(lambda x, i=i: x[i], observed) for i in range(2))
        places, robot = true_places(now, batch, self.run.dataset, self.above_m)
        carried = carry_particles(before, now, batch.robot)
        seen = [jax.tree.map(lambda x: x[LAST], encode(step + 1)) for step in self.at]
        still = jax.tree.map(lambda x: np.repeat(x[None], len(places), axis=0), now)
        rolled = {
            "the model": self.model.rollout(observed, batch.robot, jax.random.clone(rollout_key)),
            "nothing learned": self.fresh.rollout(observed, batch.robot, rollout_key),
            "kinematics only": carried,
            "moved as they truly go": dataclasses.replace(still, positions=np.float32(places)),
        }
        found = {
            name: [jax.tree.map(lambda x, k=k: x[k], clouds) for k in self.at]
            for name, clouds in rolled.items()
        }
        found["the frame itself"] = seen
        return found, np.linalg.norm(np.asarray(carried.positions) - places, axis=-1)[:, robot]

    def scores(
        self, cloud: ParticleCloud, step: int, batch: Batch, truth: Float[np.ndarray, "f v h w 3"]
    ) -> np.ndarray:
        """Return PSNR on moving pixels [dB] and SSIM, means over the cameras."""
        frame = OBSERVED_FRAMES + step
        camera = jax.tree.map(lambda x: np.asarray(x)[frame][None], batch.frames.camera)
        one = jax.tree.map(lambda x: np.asarray(x)[None], cloud)
        found = []
        for view, image in enumerate(np.asarray(self.model.render(one, camera).rgb)[0]):
            threshold = self.run.config.eval.moving_threshold
            moving = moving_pixels(truth[frame, view], truth[LAST, view], threshold)
            score = score_frame(image, truth[frame, view], moving)
            found.append((score.moving_psnr, score.ssim))
        return np.nanmean(found, axis=0)


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"))
    parser.add_argument("--episodes", type=int, default=6, help="one window of each")
    parser.add_argument("--at", type=int, nargs="+", default=[1, 6], help="rollout steps")
    parser.add_argument("--above", type=float, default=0.012, help="what is lower is a table [m]")
    given = parser.parse_args()
    limits = Limits(given.run, given.at, given.above)
    config, dataset = limits.run.config, limits.run.dataset
    first = {window.episode: window for window in reversed(limits.run.windows)}
    scores: dict[str, list[list[np.ndarray]]] = {}
    squares = []
    for window in [first[episode] for episode in sorted(first)][: given.episodes]:
        length = OBSERVED_FRAMES + config.eval.num_steps
        batch = read_window(dataset, window.episode, window.start, length, config.data)
        truth = np.asarray(limits.model.whiten(batch.frames)[0])
        clouds, errors = limits.clouds(batch)
        squares.append(np.mean(errors**2, axis=1))
        for name, steps in clouds.items():
            pairs = zip(given.at, steps, strict=True)
            found = [limits.scores(cloud, step, batch, truth) for step, cloud in pairs]
            scores.setdefault(name, []).append(found)
    rows = [
        [name, *(f"{psnr:.1f}, {ssim:.3f}" for psnr, ssim in np.mean(values, axis=0))]
        for name, values in scores.items()
    ]
    print(Table(("particles", *(f"step {step}" for step in given.at)), rows).markdown())
    rms = 1e3 * np.sqrt(np.mean(squares, axis=0))
    head = ("robot's carried particles, step", *map(str, range(len(rms))))
    print(Table(head, [["rms [mm]", *(f"{x:.1f}" for x in rms)]]).markdown())


if __name__ == "__main__":
    main()
