"""Images of an evaluation: one call per image against one call for all, in one run.

A cloud per rollout step is seen by two cameras that stand still; besides, one cloud that does not
move is shown at every step. As it was: an image per step and camera, each a call of its own. Now:
all clouds and cameras in one call, what rests once. Prints milliseconds per shown image, by the
clock and of the processor, and checks that the images agree.

Run: python benchmarks/images.py [demo] [--repeats 3] [--steps 2]
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import analytic_batch

from hdvpd.basics.machine import keep_freed_memory
from hdvpd.config.experiments import load_config
from hdvpd.model.images import render_image, render_images
from hdvpd.training.step import create_model, merge_model


def cost(function: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the least milliseconds of a call by the clock and of the processor."""
    jax.block_until_ready(function())
    clock, processor = [], []
    for _ in range(repeats):
        begin, used = time.perf_counter(), time.process_time()
        jax.block_until_ready(function())
        clock.append(time.perf_counter() - begin)
        processor.append(time.process_time() - used)
    return 1e3 * min(clock), 1e3 * min(processor)


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="demo")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    keep_freed_memory()
    config = load_config(arguments.experiment, {"train": {"batch_size": 1}})
    dataset, batch = analytic_batch(config)
    model = merge_model(*create_model(config, dataset.scene_spec(config.data)))
    frames, robot = jax.tree.map(lambda x: jnp.asarray(x[0, :2]), (batch.frames, batch.robot))
    keys, steps = jax.random.split(jax.random.key(0)), arguments.steps
    clouds = jax.jit(jax.vmap(model.encode))(frames, robot, keys)
    moving = jax.tree.map(lambda x: jnp.stack([x[i % 2] for i in range(steps)]), clouds)
    camera = jax.tree.map(lambda x: x[0], frames.camera)
    size = config.data.height, config.data.width
    one = jax.jit(lambda cloud, seen_from: render_image(model, cloud, seen_from, *size).rgb)
    batched = jax.jit(lambda clouds, cameras: render_images(model, clouds, cameras, *size).rgb)
    views = camera.intrinsics.shape[0]

    def take(tree: Any, i: int) -> Any:
        return jax.tree.map(lambda x: x[i], tree)

    resting = take(moving, 0)
    shown = [take(moving, i) for i in range(steps)] + [resting] * steps
    every = jax.tree.map(lambda *x: jnp.stack(x), *shown[: steps + 1])
    cameras = jax.tree.map(lambda x: jnp.stack([x] * (steps + 1)), camera)

    def single() -> list[jax.Array]:
        return [one(cloud, take(camera, v)) for cloud in shown for v in range(views)]

    def together() -> jax.Array:
        return batched(every, cameras)

    a = np.stack([np.asarray(x) for x in single()[: (steps + 1) * views]])
    b = np.asarray(together()).reshape(a.shape)
    images = 2 * steps * views
    result = {"largest difference": float(np.abs(a - b).max())}
    for name, function in (("one call per image", single), ("one call", together)):
        clock, processor = (x / images for x in cost(function, arguments.repeats))
        print(f"{name:20s} {clock:8.1f} ms by the clock {processor:8.1f} ms of the processor")
        result |= {f"{name}, clock [ms]": clock, f"{name}, processor [ms]": processor}
    result["ratio, processor"] = (
        result["one call per image, processor [ms]"] / result["one call, processor [ms]"]
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
