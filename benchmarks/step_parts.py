"""One training step of an experiment on this machine: time of its parts and peak memory.

By default the paper's size (32,768 particles per time step, 6-step rollout, 128 rays, two cameras
of 240x320) with batch size 1, on the analytic scene. The whole step runs first, in its own process
state, so that the peak memory printed after it is the step's and not the parts'.

Run: python benchmarks/step_parts.py [paper] [--train.batch-size 1] [--model.knn xla] ...
"""

import argparse
import json
from typing import Any

import jax
import jax.numpy as jnp
from timing import analytic_batch, best_of, peak_gib

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Batch
from hdvpd.commands.flags import read_flags
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import load_config
from hdvpd.dynamics.graph_attention import GraphAttentionSettings
from hdvpd.dynamics.interlacer import Interlacer, InterlacerSettings
from hdvpd.kernels.memory import keep_freed_memory
from hdvpd.kernels.neighbors import knn
from hdvpd.model import Model, sample_rays
from hdvpd.training.step import create_train_state, make_train_step, merge_model


def time_step(config: Config, scene: SceneSpec, batch: Batch, repeats: int) -> dict[str, float]:
    """Return seconds and peak memory [GiB] of the whole training step."""
    graphdef, state = create_train_state(config, scene)
    step, key = make_train_step(config, graphdef), jax.random.key(config.train.seed)
    state, metrics = step(state, batch, key)
    jax.block_until_ready(metrics)

    def once() -> Any:
        nonlocal state
        state, metrics = step(state, batch, key)
        return metrics

    seconds = best_of(once, repeats=repeats)
    return {"training step [s]": seconds, "peak memory after it [GiB]": peak_gib()}


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
    observed = jax.tree.map(lambda x: x[:2], window.frames)
    encode = jax.jit(lambda params: jax.vmap(model(params).encode)(observed, jax.random.split(key)))
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

    future = jax.tree.map(lambda x: x[:, 2:], batch.frames)
    last_observed = jax.tree.map(lambda x: x[:, 1:2], batch.frames)
    rays, _ = jax.jit(
        lambda params: sample_rays(
            future,
            model(params).white_targets(future),
            model(params).white_targets(last_observed),
            config.train.num_rays,
            config.train.moving_ray_weight,
            key[None],
        )
    )(params)
    one_ray_group = jax.tree.map(lambda x: x[0, :1], rays)
    one_cloud = jax.tree.map(lambda x: x[None], current)
    render = jax.jit(lambda params, cloud: model(params).renderer(cloud, one_ray_group, key[None]))
    times["render"] = calls * best_of(render, params, one_cloud, repeats=repeats)

    loss = jax.jit(lambda params: model(params).loss(batch, key).mean())
    gradient = jax.jit(jax.grad(lambda params: model(params).loss(batch, key).mean()))
    forward = best_of(loss, params, repeats=repeats)
    times["forward (whole)"] = forward
    times["backward (whole)"] = best_of(gradient, params, repeats=repeats) - forward
    return times


def main() -> None:
    """Print the tables and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only-step", action="store_true", help="skip the parts")
    arguments, flags = parser.parse_known_args()
    keep_freed_memory()  # as `hdvpd train` does
    config = load_config(arguments.experiment, read_flags(["--train.batch-size", "1", *flags]))
    dataset, batch = analytic_batch(config)
    scene = dataset.scene_spec(config.data)
    batch = jax.tree.map(jnp.asarray, batch)
    result = time_step(config, scene, batch, arguments.repeats)
    for name, value in result.items():
        print(f"{name:28s} {value:8.2f}", flush=True)
    if not arguments.only_step:
        print("parts, forward only, seconds per training step:")
        parts = time_parts(config, scene, batch, arguments.repeats)
        for name, value in parts.items():
            print(f"  {name:26s} {value:8.2f}", flush=True)
        result |= parts
    print(json.dumps({"device": jax.devices()[0].device_kind, **result}))


if __name__ == "__main__":
    main()
