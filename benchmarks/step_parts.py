"""One training step of an experiment on this machine: time of its parts and peak memory.

By default the paper's size (32,768 particles per time step, 6-step rollout, 128 rays, two cameras
of 240x320) with batch size 1, on the analytic scene. The whole step runs first, in its own process
state, so that the peak memory printed after it is the step's and not the parts'.

Then its four stages, each a program of its own that runs forward and backward (as often as the step
runs it, recomputation included), and finer parts, forward only. What of the step is in no stage
(targets, rays, cotangents between the stages) and what a stage computes for being alone make the
sum of the stages another number than the step's; both are printed. `--out` writes everything as
JSON, from which `scaling_model.py` predicts.

Run: python benchmarks/step_parts.py [paper] [--only-step | --only-stages] [--out FILE]
     [--train.batch-size 1] [--model.knn xla] ...
"""

import argparse
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from timing import analytic_batch, best_of, machine_rates, peak_gib

from hdvpd.basics.errors import UserError
from hdvpd.basics.machine import keep_freed_memory
from hdvpd.basics.types import Batch, ParticleCloud, Rays
from hdvpd.commands.flags import read_flags
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import load_config
from hdvpd.dynamics.graph_attention import GraphAttentionSettings
from hdvpd.dynamics.interlacer import Interlacer, InterlacerSettings
from hdvpd.dynamics.rollout import rollout
from hdvpd.kernels.neighbors import knn
from hdvpd.model import Model
from hdvpd.model.rays import sample_rays
from hdvpd.training.optimizer import create_optimizer
from hdvpd.training.step import create_train_state, make_train_step, merge_model


def time_step(config: Config, scene: SceneSpec, batch: Batch, repeats: int) -> dict[str, float]:
    """Return seconds and peak memory [GiB] of the whole training step."""
    graphdef, state = create_train_state(config, scene)
    step, key = make_train_step(config, graphdef), jax.random.key(config.train.seed)

    def once() -> Any:
        nonlocal state
        state, metrics = step(state, batch, key)
        return metrics

    seconds = best_of(once, repeats=repeats)
    return {"training step [s]": seconds, "peak memory after it [GiB]": peak_gib()}


def draw_rays(model: Model, batch: Batch, key: jax.Array) -> Rays:
    """Return the rays of every predicted image, axes (b s r), as the loss draws them."""
    future = jax.tree.map(lambda x: x[:, 2:], batch.frames)
    last_observed = jax.tree.map(lambda x: x[:, 1:2], batch.frames)
    rays, _ = sample_rays(
        future,
        model.white_targets(future),
        model.white_targets(last_observed),
        model.config.train.num_rays,
        model.config.train.moving_ray_weight,
        jax.random.split(key, batch.start.shape[0]),
    )
    return rays


def time_stages(config: Config, scene: SceneSpec, batch: Batch, repeats: int) -> dict[str, float]:
    """Return seconds of every stage, forward and backward, summed over a whole training step."""
    graphdef, state = create_train_state(config, scene)
    params, key = state.params, jax.random.key(0)
    size, steps = batch.start.shape[0], config.train.horizon
    window = jax.tree.map(lambda x: jnp.asarray(x[0]), batch)
    frames, measured = jax.tree.map(lambda x: x[:2], (window.frames, window.robot))
    rays = jax.jit(lambda params: draw_rays(merge_model(graphdef, params), batch, key))(params)
    rays = jax.tree.map(lambda x: x[:1], rays)

    def encoded(model: Model) -> ParticleCloud:
        encode = jax.vmap(lambda f, r, k: model.encode(f, r, k, config.train.cloud_size))
        return encode(frames, measured, jax.random.split(key))

    clouds = jax.jit(lambda params: encoded(merge_model(graphdef, params)))(params)
    mask, moving = clouds.mask, (clouds.positions, clouds.features)

    def encode(model: Model, _: None) -> Any:
        cloud = encoded(model)
        return cloud.positions, cloud.features

    def predict(model: Model, moving: Any) -> Any:
        positions, features = moving
        previous, current = (ParticleCloud(positions[i], features[i], mask[i]) for i in range(2))
        remat = config.train.remat
        step = model.dynamics.begin(model.dynamics.know(current, window.robot, key))
        predicted = rollout(step, previous, current, window.robot, key, remat=remat, unroll=True)
        return predicted.positions, predicted.features

    def render(model: Model, moving: Any) -> Any:
        cloud = ParticleCloud(moving[0][1], moving[1][1], mask[1])
        clouds = jax.tree.map(lambda x: jnp.broadcast_to(x, (1, steps, *x.shape)), cloud)
        return model._render_images(clouds, rays, key[None])

    def seconds(stage: Callable[[Model, Any], Any], moving: Any) -> float:
        @jax.jit
        def both(params: Any, moving: Any) -> Any:
            out, back = jax.vjp(lambda p, x: stage(merge_model(graphdef, p), x), params, moving)
            return out, back(jax.tree.map(jnp.ones_like, out))

        return best_of(both, params, moving, repeats=repeats)

    @jax.jit
    def update(gradient: Any, opt_state: Any) -> Any:
        updates, opt_state = create_optimizer(config.train).update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return {
        "encode": size * seconds(encode, None),
        "dynamics": size * seconds(predict, moving),
        "render": size * seconds(render, moving),
        "update": best_of(update, params, state.opt_state, repeats=repeats),
    }


def interlacer(model: Model) -> Interlacer:
    """Return the dynamics, of which the other members have no such parts."""
    if not isinstance(model.dynamics, Interlacer):
        raise UserError("the parts are the Interlacer's: add --only-step for other dynamics.")
    return model.dynamics


def local_layer(model: Model) -> Any:
    """Return the first block's local layer."""
    return interlacer(model).blocks[0].local


def time_parts(config: Config, scene: SceneSpec, batch: Batch, repeats: int) -> dict[str, float]:
    """Return seconds of each part's forward pass, summed over a whole training step."""
    graphdef, state = create_train_state(config, scene)
    params, key = state.params, jax.random.key(0)
    size, steps = batch.start.shape[0], config.train.horizon

    def model(params: Any) -> Model:
        return merge_model(graphdef, params)

    window = jax.tree.map(lambda x: jnp.asarray(x[0]), batch)
    frames, measured = jax.tree.map(lambda x: x[:2], (window.frames, window.robot))

    def encode_with(params: Any) -> ParticleCloud:
        encode = functools.partial(model(params).encode, num_particles=config.train.cloud_size)
        return jax.vmap(encode)(frames, measured, jax.random.split(key))

    encode = jax.jit(encode_with)
    times = {"encode": size * best_of(encode, params, repeats=repeats)}
    clouds = encode(params)
    previous, current = (jax.tree.map(lambda x, i=i: x[i], clouds) for i in range(2))
    first_poses = jax.tree.map(lambda x: x[:3], window.robot)
    tokens, positions, mask = jax.jit(
        lambda params: interlacer(model(params)).tokens(previous, current, first_poses)
    )(params)
    calls = size * steps
    settings = config.model.dynamics
    assert isinstance(settings, InterlacerSettings)
    layer = settings.local
    if isinstance(layer, GraphAttentionSettings):
        count, backend = layer.num_neighbors, config.model.knn
        search = jax.jit(lambda x: knn(x, x, count, mask=mask, exclude_self=True, backend=backend))
        times["neighbours"] = calls * best_of(search, positions, repeats=repeats)
    if layer is not None:
        plan = jax.jit(lambda x: layer.plan(config.model, x, mask, key))
        times["plan (with neighbours)"] = calls * best_of(plan, positions, repeats=repeats)
        planned = plan(positions)
        local = jax.jit(lambda params, x: local_layer(model(params))(x, planned))
        layers = settings.num_layers * calls
        times["local layers"] = layers * best_of(local, params, tokens, repeats=repeats)
    attend = jax.jit(
        lambda params, x: interlacer(model(params)).blocks[0].global_attention(x, mask)
    )
    feed = jax.jit(lambda params, x: interlacer(model(params)).blocks[0].mlp(x))
    layers = settings.num_layers * calls
    times["global layers"] = layers * best_of(attend, params, tokens, repeats=repeats)
    times["MLPs"] = layers * best_of(feed, params, tokens, repeats=repeats)

    rays = jax.jit(lambda params: draw_rays(model(params), batch, key))(params)
    one_ray_group = jax.tree.map(lambda x: x[0, :1], rays)
    one_cloud = jax.tree.map(lambda x: x[None], current)
    render = jax.jit(lambda params, cloud: model(params).renderer(cloud, one_ray_group, key[None]))
    times["render"] = calls * best_of(render, params, one_cloud, repeats=repeats)
    return times


def main() -> None:
    """Print the tables and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only-step", action="store_true", help="no stages, no parts")
    parser.add_argument("--only-stages", action="store_true", help="no parts, forward only")
    parser.add_argument("--out", type=Path, help="where the numbers are written")
    arguments, flags = parser.parse_known_args()
    keep_freed_memory()  # as `hdvpd train` does
    config = load_config(arguments.experiment, read_flags(["--train.batch-size", "1", *flags]))
    dataset, batch = analytic_batch(config)
    scene = dataset.scene_spec(config.data)
    batch = jax.tree.map(jnp.asarray, batch)
    result: dict[str, Any] = time_step(config, scene, batch, arguments.repeats)
    for name, value in result.items():
        print(f"{name:28s} {value:8.2f}", flush=True)
    if not arguments.only_step:
        stages = time_stages(config, scene, batch, arguments.repeats)
        rate, bandwidth = machine_rates(10)
        result |= {"stages": stages, "GFLOP/s": rate / 1e9, "GB/s": bandwidth / 1e9}
        total, whole = sum(stages.values()), result["training step [s]"]
        print("stages, forward and backward, seconds per training step:")
        for name, value in (stages | {"sum": total}).items():
            print(f"  {name:26s} {value:8.2f} {value / total:7.1%}")
        print(f"  {'the sum over the step':26s} {total / whole:8.2f}", flush=True)
    if not (arguments.only_step or arguments.only_stages):
        print("parts, forward only, seconds per training step:")
        parts = time_parts(config, scene, batch, arguments.repeats)
        for name, value in parts.items():
            print(f"  {name:26s} {value:8.2f}", flush=True)
        result |= parts
    about = {"device": jax.devices()[0].device_kind, "cores": len(os.sched_getaffinity(0))}
    written = json.dumps(about | {"windows": config.train.batch_size} | result)
    if arguments.out:
        arguments.out.write_text(written + "\n")
    print(written)


if __name__ == "__main__":
    main()
