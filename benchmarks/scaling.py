"""Inference against the number of particles: time and memory of every part, fitted exponents.

The paper's model on a wavy square metre of particles in Z order, as the encoder's are: neighbour
search, plan (search and walks), GRF attention, global attention, MLP, local layer, a whole rollout
step, and rendering of 1,536 rays. Each size runs in a process of its own (peak memory cannot be
taken back), once to compile; times are the best of two. Memory is what the whole step adds to the
process. Freed memory goes back to the system, as in any Python process; `--keep` keeps it, as
training does: faster, and up to twice the memory, which a million particles may not have.
Exponents are fitted over all sizes and over those from 32,768 particles on. `--blocks` compares
the blocks of rows of `hdvpd.basics.layers.by_rows` with all rows at once.

Run: python benchmarks/scaling.py [--sizes 4096 ... 1048576] [--keep] [--blocks]
"""

# Shapes and tuples of arrays are unpacked, whose lengths pyright does not know.
# pyright: reportCallIssue=false, reportOptionalCall=false

import argparse
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from timing import best_of, fitted_exponent, peak_gib, surface

import hdvpd.basics.layers
from hdvpd.basics.machine import keep_freed_memory
from hdvpd.basics.types import ParticleCloud, Rays, RobotPoints
from hdvpd.config import SceneSpec
from hdvpd.config.experiments import load_config
from hdvpd.dynamics.interlacer import Interlacer
from hdvpd.kernels.neighbors import knn
from hdvpd.kernels.walk_attention import attend_along_walks
from hdvpd.kernels.z_order import z_order
from hdvpd.training.step import create_model, merge_model

SIZES = [2**i for i in range(12, 21)]
NUM_POINTS, NUM_RAYS, LARGE = 84, 1536, 32768
PARTS = (
    "search", "plan", "GRF attention", "global attention", "MLP", "local layer", "rollout step",
    "render",
)  # fmt: skip


def scene(num_particles: int, feature_dim: int) -> tuple[list[ParticleCloud], RobotPoints]:
    """Return two clouds, half a millimetre apart, and a robot above them."""
    positions = surface(num_particles)
    positions = positions[np.asarray(z_order(positions, np.ones(num_particles, bool)))]
    rng = np.random.default_rng(1)
    features = rng.normal(size=(num_particles, feature_dim)).astype(np.float32)
    mask = np.ones(num_particles, bool)
    clouds = [
        ParticleCloud(*map(jnp.asarray, (positions + shift, features, mask)))
        for shift in np.array([[0, 0, 0], [0, 0, 5e-4]], np.float32)[:, None]
    ]
    points = rng.uniform([0, 0, 0.1], [1, 1, 0.5], (3, NUM_POINTS, 3)).astype(np.float32)
    axes = np.broadcast_to(np.eye(3, dtype=np.float32), (3, NUM_POINTS, 3, 3))
    return clouds, RobotPoints(*map(jnp.asarray, (points, axes)), jnp.zeros((3, NUM_POINTS)))


def rays_from_above() -> Rays:
    """Return rays that look straight down on the surface."""
    xy = np.random.default_rng(2).uniform(0.1, 0.9, (NUM_RAYS, 2))
    origins = np.concatenate([xy, np.full((NUM_RAYS, 1), 1.0)], 1).astype(np.float32)
    directions = np.tile(np.array([[0, 0, -1]], np.float32), (NUM_RAYS, 1))
    return Rays(*map(jnp.asarray, (origins, directions, np.ones(NUM_RAYS, np.float32))))


def measure(num_particles: int, repeats: int) -> dict[str, float]:
    """Return seconds of each part, and memory [GiB]."""
    overrides = {"model": {"num_particles": num_particles}, "train": {"remat": False}}
    config = load_config("paper", overrides)
    spec = SceneSpec(NUM_POINTS, (-0.1, -0.1, -0.2), (1.1, 1.1, 1.0))
    model = merge_model(*create_model(config, spec))
    dynamics, key = model.dynamics, jax.random.key(0)
    assert isinstance(dynamics, Interlacer)
    clouds, robot = scene(num_particles, config.model.feature_dim)
    before = peak_gib()
    roll = jax.jit(lambda clouds, robot: model.rollout(*clouds, robot, key))
    seconds = {"rollout step": best_of(roll, clouds, robot, repeats=repeats)}
    memory = {"added GiB": peak_gib() - before}
    rays = rays_from_above()
    render = jax.jit(lambda cloud, rays: model.render(cloud, rays, None))
    seconds["render"] = best_of(render, clouds[1], rays, repeats=repeats)
    tokens, positions, mask = jax.jit(dynamics.tokens)(*clouds, robot)
    search = jax.jit(lambda x: knn(x, x, 3, mask=mask, exclude_self=True).indices)
    seconds["search"] = best_of(search, positions, repeats=repeats)
    prepare = jax.jit(lambda x: dynamics.settings.plan(config.model, x, mask, key)[0])
    seconds["plan"] = best_of(prepare, positions, repeats=repeats)
    plan, block = prepare(positions), dynamics.blocks[0]
    positive = jnp.abs(tokens) + 0.1
    attend = jax.jit(lambda x, plan: attend_along_walks(x, x, x, jnp.ones(4), plan))
    seconds["GRF attention"] = best_of(attend, positive, plan, repeats=repeats)
    whole = jax.jit(lambda x: block.attended(x, mask))
    seconds["global attention"] = best_of(whole, tokens, repeats=repeats)
    seconds["MLP"] = best_of(jax.jit(block.fed_forward), tokens, repeats=repeats)
    local = jax.jit(lambda x, plan: x + block.local(block.norm_local(x), plan))
    seconds["local layer"] = best_of(local, tokens, plan, repeats=repeats)
    return {"particles": num_particles, **seconds, **memory, "peak GiB": peak_gib()}


def exponents(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the fitted exponents of all sizes and of the larger ones, by part."""
    fitted = {}
    for part in PARTS:
        ranges = {"all": rows, "large": [row for row in rows if row["particles"] >= LARGE]}
        fitted[part] = {
            name: fitted_exponent([int(r["particles"]) for r in some], [r[part] for r in some])
            for name, some in ranges.items()
            if len(some) > 1
        }
    return fitted


def in_own_process(size: int, repeats: int, *flags: str) -> dict[str, float]:
    """Measure a size in a new process."""
    command = [sys.executable, __file__, "--one", str(size), "--repeats", str(repeats), *flags]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Print the table, the exponents and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--blocks", action="store_true", help="with and without blocks of rows")
    parser.add_argument("--keep", action="store_true", help="keep freed memory")
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.keep:
        keep_freed_memory()
    if arguments.one:
        if arguments.whole:
            hdvpd.basics.layers.ROWS_AT_ONCE = sys.maxsize
        print(json.dumps(measure(arguments.one, arguments.repeats)))
        return
    written = {}
    for form in ("blocks", "whole")[: 1 + arguments.blocks]:
        flags = ("--keep",) * arguments.keep + ("--whole",) * (form == "whole")
        print(f"{form}\nparticles " + "".join(f"{x:>17s}" for x in (*PARTS, "KiB per particle")))
        rows = []
        for size in arguments.sizes:
            row = in_own_process(size, arguments.repeats, *flags)
            rows.append(row)
            kib = row["added GiB"] * 2**20 / size
            times = "".join(f"{row[part]:17.4f}" for part in PARTS)
            print(f"{size:9d} {times}{kib:17.1f}", flush=True)
        written[form] = {"rows": rows}
        if len(rows) > 1:
            written[form]["exponents"] = exponents(rows)
            print("exponents", json.dumps(written[form]["exponents"]), flush=True)
    print(json.dumps(written))


if __name__ == "__main__":
    main()
