"""Inference against the number of particles: time, peak memory and their fitted exponents.

Each size runs in a process of its own (peak memory cannot be taken back): encode two frames of the
analytic scene, roll out one step, render one image. The model is the paper's; images are 480x640,
so that 131,072 valid pixels exist. Memory is what the size adds to a process that has only
compiled nothing yet; times are of the second call.

Run: python benchmarks/scaling.py [--sizes 4096 8192 ... 65536] [--also 131072]
"""

import argparse
import json
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
from timing import analytic_batch, fitted_exponent, peak_gib

from hdvpd.config.experiments import load_config
from hdvpd.kernels.memory import keep_freed_memory
from hdvpd.model import render_image
from hdvpd.training.step import create_model, merge_model

HEIGHT, WIDTH = 480, 640
IMAGE = (96, 128)


def measure(num_particles: int) -> dict[str, float]:
    """Return seconds of encoder, one dynamics step and one small image, and peak memory [GiB]."""
    overrides = {
        "model": {"num_particles": num_particles},
        "train": {"batch_size": 1, "horizon": 1, "remat": False},
        "data": {"height": HEIGHT, "width": WIDTH},
    }
    config = load_config("paper", overrides)
    dataset, batch = analytic_batch(config)
    window = jax.tree.map(lambda x: jnp.asarray(x[0]), batch)
    observed = jax.tree.map(lambda x: x[:2], window.frames)
    camera = jax.tree.map(lambda x: x[0, 0], window.frames.camera)
    # The image is smaller than the camera's, so its intrinsics shrink with it.
    scale = jnp.asarray([[IMAGE[1] / WIDTH], [IMAGE[0] / HEIGHT], [1.0]])
    camera = type(camera)(camera.intrinsics * scale, camera.camera_to_world)
    base = peak_gib()
    graphdef, params = create_model(config, dataset.scene_spec(config.data))
    model = merge_model(graphdef, params)
    keys = jax.random.split(jax.random.key(0))
    parts = {
        "encode": jax.jit(lambda frames: jax.vmap(model.encode)(frames, keys)),
        "dynamics": jax.jit(
            lambda clouds, robot: model.rollout(clouds[0], clouds[1], robot, keys[0])
        ),
        "render": jax.jit(lambda cloud: render_image(model, cloud, camera, *IMAGE)),
    }
    clouds = jax.block_until_ready(parts["encode"](observed))
    if not bool(clouds.mask.all()):
        raise SystemExit(f"The scene shows fewer than {num_particles} valid points.")
    pair = [jax.tree.map(lambda x, i=i: x[i], clouds) for i in range(2)]
    future = jax.tree.map(lambda x: x[0], jax.block_until_ready(
        parts["dynamics"](pair, window.robot)))  # fmt: skip
    jax.block_until_ready(parts["render"](future))
    result: dict[str, float] = {"particles": num_particles}
    for name, arguments in (
        ("encode", (observed,)), ("dynamics", (pair, window.robot)), ("render", (future,))
    ):  # fmt: skip
        start = time.perf_counter()
        jax.block_until_ready(parts[name](*arguments))
        result[name] = time.perf_counter() - start
    return result | {"peak_gib": peak_gib(), "added_gib": peak_gib() - base}


def main() -> None:
    """Print the table and the exponents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**i for i in range(12, 17)])
    parser.add_argument("--also", type=int, nargs="*", default=[131072])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    keep_freed_memory()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    rows = []
    print("particles   encode s  dynamics s   render s   peak GiB  added GiB")
    for size in [*arguments.sizes, *arguments.also]:
        command = [sys.executable, __file__, "--one", str(size)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        row = json.loads(output.splitlines()[-1])
        rows.append(row)
        print(
            f"{size:9d} {row['encode']:10.2f} {row['dynamics']:11.2f} {row['render']:10.2f} "
            f"{row['peak_gib']:10.2f} {row['added_gib']:10.2f}",
            flush=True,
        )
    fitted = rows[: len(arguments.sizes)]
    for name in ("dynamics", "peak_gib"):
        exponent = fitted_exponent(arguments.sizes, [row[name] for row in fitted])
        print(f"fitted exponent of {name}: {exponent:.2f}")


if __name__ == "__main__":
    main()
