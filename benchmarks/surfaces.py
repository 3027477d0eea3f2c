"""Where the renderer draws surfaces before anything is learned: depth and SSIM of observed frames.

    python benchmarks/surfaces.py demo --data.path data/demo

Particles of observed frames are rendered from the cameras that saw them. The learned MLP is left
out: density is a constant times what the geometry says (the widest kernel's weight, or the surface
that the neighbours lie on), colour that of the innermost kernel. So nothing depends on training,
and what is seen is how the kernels, the samples and the choice of particles serve. Options stand
below; one line is printed for each.
"""

import argparse
import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.basics.color_features import color_features
from hdvpd.basics.geometry import pixel_rays
from hdvpd.basics.types import RgbdFrames
from hdvpd.config import Config, RenderConfig
from hdvpd.config.experiments import load_config
from hdvpd.data.mixture import open_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.windows import read_window
from hdvpd.encoders.particles import subsample, visible_points, white_targets
from hdvpd.evaluation.metrics import ssim
from hdvpd.render.renderer import Renderer

# Optical depth of a sheet of thickness h seen from above: 3 sqrt(pi), opaque.
_OPACITY = 3.0


class Constant(nnx.Module):
    """Stands in for the MLP: the colour features as they are, constant density."""

    def __init__(self, density: float):
        self.density = density

    def __call__(self, x: jax.Array, colors: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return colour and density."""
        return jax.nn.sigmoid(colors), jnp.full(x.shape[:1], self.density)


def options(
    render: RenderConfig, thicknesses: Sequence[float]
) -> dict[str, tuple[RenderConfig, float, bool]]:
    """Return settings of the renderer, density per metre, whether particles are even, by name."""
    paper = RenderConfig()
    # The stand-in below takes the MLP's place.
    render = dataclasses.replace(render, appearance="mlp")
    widest = dataclasses.replace(
        render,
        radii=paper.radii,
        bandwidths=paper.bandwidths,
        cutoff=paper.cutoff,
        surface_thickness=0.0,
    )
    found: dict[str, tuple[RenderConfig, float, bool]] = {}
    for even, drawn in ((False, "independent draws"), (True, "even draws")):
        found[f"widest kernel, {drawn}"] = (widest, paper.density_scale, even)
        for thickness in thicknesses:
            surface = dataclasses.replace(render, surface_thickness=thickness)
            name = f"surface of {1000 * thickness:g} mm, {drawn}"
            found[name] = (surface, _OPACITY / thickness, even)
    return found


def measure(
    config: Config, dataset: Dataset, render: RenderConfig, density: float, even: bool, count: int
) -> list[float]:
    """Return the means over frames of SSIM, median depth error and median absolute error [cm]."""
    scene = dataset.scene_spec(config.data)
    visible = (scene.workspace_min, scene.workspace_max, render.far)
    model = config.model
    renderer = Renderer(
        render, 3, colors=True, knn_backend=model.knn, kernels=model.kernels, rngs=nnx.Rngs(0)
    )
    setattr(renderer, "mlp", Constant(density))  # noqa: B010

    @functools.partial(jax.jit, static_argnums=2)
    def run(frames: RgbdFrames, key: jax.Array, num_particles: int) -> tuple[jax.Array, ...]:
        rgb = jnp.asarray(frames.rgb, jnp.float32) / 255.0
        points, valid = visible_points(frames.depth_m, frames.camera, *visible)
        points, features = points.reshape(-1, 3), color_features(rgb).reshape(-1, 3)
        cloud = subsample(points, features, valid.reshape(-1), num_particles, key, even=even)
        rays = jax.vmap(lambda camera: pixel_rays(camera, *rgb.shape[1:3]))(frames.camera)
        rays = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[3:]), rays)
        seen = renderer(jax.tree.map(lambda x: x[None], cloud), rays, None)
        target = white_targets(rgb, frames.depth_m, frames.camera, *visible)
        return tuple(
            jnp.asarray(x)
            for x in (seen.rgb.reshape(rgb.shape), seen.depth_m.reshape(valid.shape), target, valid)
        )

    rows = []
    for number, episode in enumerate(dataset.split("validation")[:count]):
        window = read_window(dataset, episode.number, episode.length // 2, 2, config.data)
        frames = jax.tree.map(lambda x: x[0], window.frames)
        seen, depth_m, target, valid = (
            np.asarray(x) for x in run(frames, jax.random.key(number), model.num_particles)
        )
        error = 100 * (depth_m - frames.depth_m)[valid]
        scores = [ssim(a, b) for a, b in zip(seen, target, strict=True)]
        rows.append([np.mean(scores), np.median(error), np.median(np.abs(error))])
    return np.mean(rows, axis=0).tolist()


def main() -> None:
    """Print one line per option."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("experiment")
    parser.add_argument("--data.path", dest="path", default=None)
    parser.add_argument("--particles", type=int, nargs="*", default=[])
    parser.add_argument("--thickness", type=float, nargs="*", default=[0.005, 0.004])
    parser.add_argument("--frames", type=int, default=4)
    arguments = parser.parse_args()
    config = load_config(arguments.experiment)
    dataset = Dataset(arguments.path) if arguments.path else open_dataset(config.data)
    print("particles  SSIM   depth error [cm]  absolute [cm]  option")
    for particles in arguments.particles or [config.model.num_particles]:
        model = dataclasses.replace(config.model, num_particles=particles)
        changed = dataclasses.replace(config, model=model)
        for name, option in options(config.render, arguments.thickness).items():
            ssim_, error, absolute = measure(changed, dataset, *option, arguments.frames)
            print(
                f"{particles:9d}  {ssim_:.3f}  {error:+16.2f}  {absolute:13.2f}  {name}", flush=True
            )


if __name__ == "__main__":
    main()
