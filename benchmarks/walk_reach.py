"""What the walks of the GRF layer reach in a data set's clouds, against the number of particles.

Of a particle of the newer time slice, in the first window of some training episodes: the distance
of the farthest token on its walks, the distinct tokens, the share of them in its own slice, and
the share of particles with a walk to the robot's kinematic points.

Run: python benchmarks/walk_reach.py compare [--episodes 8] [--particles 1024 4096 32768]
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.basics.types import Batch
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import load_config
from hdvpd.data.mixture import open_dataset
from hdvpd.data.windows import read_window
from hdvpd.dynamics.graph_attention import GraphAttentionSettings
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.model import Model


def reach(config: Config, scene: SceneSpec, window: Batch) -> np.ndarray:
    """Return the four numbers of one window."""
    dynamics = config.model.dynamics
    assert isinstance(dynamics, InterlacerSettings)
    assert isinstance(dynamics.local, GraphAttentionSettings)
    model = Model(config, scene, rngs=nnx.Rngs(0))
    keys = jax.random.split(jax.random.key(0))
    frames, measured = jax.tree.map(lambda x: jnp.asarray(x[:2]), (window.frames, window.robot))
    clouds = jax.vmap(model.encode)(frames, measured, keys)
    robot = jnp.asarray(window.robot.positions[:3]).reshape(-1, 3)
    positions = jnp.concatenate([clouds.positions.reshape(-1, 3), robot])
    mask = jnp.concatenate([clouds.mask.reshape(-1), jnp.ones(len(robot), bool)])
    walks = dynamics.local.plan(config.model, positions, mask, keys[0])
    size = config.model.num_particles
    current = np.arange(size, 2 * size)[np.asarray(clouds.mask[1])]
    nodes, counts = np.asarray(walks.nodes)[current], np.asarray(walks.num_entries)[current]
    used = np.arange(nodes.shape[1])[None] < counts[:, None]
    apart = np.linalg.norm(
        np.asarray(positions)[nodes] - np.asarray(positions)[current, None], axis=-1
    )
    same_slice = (nodes >= size) & (nodes < 2 * size)
    return np.array([
        np.median(np.where(used, apart, 0).max(1)),
        counts.mean(),
        (same_slice & used).sum() / used.sum(),
        ((nodes >= 2 * size) & used).any(1).mean(),
    ])  # fmt: skip


def main() -> None:
    """Print a table, one row per number of particles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="compare")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--particles", type=int, nargs="+", default=[1024, 4096, 32768])
    arguments = parser.parse_args()
    config = load_config(arguments.experiment)
    dataset = open_dataset(config.data)
    scene = dataset.scene_spec(config.data)
    episodes = [info.number for info in dataset.split("train")[: arguments.episodes]]
    windows = [read_window(dataset, episode, 0, 3, config.data) for episode in episodes]
    print(f"{'particles':>9} {'farthest cm':>12} {'tokens':>7} {'own slice':>10} {'robot':>7}")
    for size in arguments.particles:
        model = dataclasses.replace(config.model, num_particles=size)
        sized = dataclasses.replace(config, model=model)
        means = np.mean([reach(sized, scene, window) for window in windows], axis=0)
        print(f"{size:9,} {100 * means[0]:12.1f} {means[1]:7.1f} {means[2]:10.2f} {means[3]:7.3f}")


if __name__ == "__main__":
    main()
