"""How far a training step, a rollout step and an image are from what this machine could do.

Of every part: the operations and bytes that its mathematics needs (`counts.py`), the time that
follows from the machine's rate of matrix products and its copy bandwidth, both measured in this
run (`timing.machine_rates`), the time measured, and their ratio. A part takes at least the
longer of operations / rate and bytes / bandwidth, and a sum of parts the sum of theirs. Nothing is
counted for what an implementation adds: what is computed again by rematerialisation, padding, what
is written between layers. The training step is made ready and measured first, with nothing else in
memory; then all other programs are, beside each other, and are measured alone, in the order in
which they run; what of a whole is not in its parts is its last row. Programs are loaded from disk,
as by every start of a training but its first: another process compiles them before. With
--first-start they are compiled here, which slows their process down.
Samples out of reach of all particles are searched for and nothing else. With --processor, times are
of the processor instead of the clock: on one core
(`taskset -c 0 ...`) they are those of a machine without other work.

`paper` runs with one window and one predicted step, rematerialised as in its configuration. Where
windows are spread over cores, as the demo's two are (`train.num_devices`), parts are still measured
one after another, on one device that has all cores.

Run: python benchmarks/floor.py [demo] [--data DIR] [--repeats 5] [--processor] [--out DIR] ...
"""

# Shapes and tuples of arrays are unpacked, whose lengths pyright does not know.
# pyright: reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import counts
import jax
import jax.numpy as jnp
import optax
from counts import Need
from flax import nnx
from jax.stages import Compiled, Lowered, Wrapped
from timing import analytic_batch, best_of, machine_rates

from hdvpd.basics.geometry import pixel_rays
from hdvpd.basics.machine import keep_freed_memory, settle_memory
from hdvpd.basics.types import Batch, ParticleCloud, Rays, RobotPoints
from hdvpd.commands.flags import read_flags
from hdvpd.config import Config
from hdvpd.config.experiments import load_config
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_window, stack_windows
from hdvpd.dynamics.carrying import NUM_POINTS
from hdvpd.dynamics.interlacer import Interlacer
from hdvpd.dynamics.matching import match_distance
from hdvpd.encoders.particles import subsample, visible_points
from hdvpd.kernels.annular_sums import annular_sums
from hdvpd.kernels.cores import share_cores
from hdvpd.kernels.kept_programs import keep_programs
from hdvpd.kernels.neighbors import Neighbors, knn
from hdvpd.kernels.together import compiling_beside
from hdvpd.model import Model
from hdvpd.model.images import render_image
from hdvpd.render.compositing import composite
from hdvpd.render.interpolation import annular_features
from hdvpd.render.rays import Samples, in_order, proposal_density, propose, samples_at, stratified
from hdvpd.render.renderer import NerfMlp, support
from hdvpd.render.surface import light_stopped
from hdvpd.training.optimizer import create_optimizer
from hdvpd.training.parallel import make_layout, offer_cores
from hdvpd.training.step import create_train_state, make_train_step, merge_model

TRAINING = "training step"
SMALLER = {"paper": ["--train.batch-size", "1", "--train.horizon", "1"]}
"""What is changed of an experiment so that its training step fits this machine."""


Call = Callable[[], Any]
"""Calls a program, for which it waits the first time."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a whole.

    Attributes:
      name: of it.
      need: of one call.
      forward: computes it.
      both: forward and backward.
      calls: in the whole.
    """

    name: str
    need: Need
    forward: Call
    both: Call
    calls: float = 1.0


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all measurements share.

    Attributes:
      config: of the experiment.
      compile_: starts to compile.
    """

    config: Config
    compile_: Callable[[Lowered], Future[Compiled]]

    def call(self, function: Wrapped, *arguments: Any) -> Call:
        """Start to compile a function, to be called with these arguments."""
        program = self.compile_(function.lower(*arguments))
        return lambda: program.result()(*arguments)

    def part(
        self, name: str, need: Need, function: Callable[..., Any], module: Any, *inputs: Any
    ) -> Part:
        """Start to compile a part.

        Args:
          name: of it.
          need: of one call.
          function: of the module, what has a cotangent, and what has none.
          module: with parameters, or None.
          *inputs: what has a cotangent, then what has none; None for nothing.
        """
        moving, fixed = (*inputs, None, None)[:2]
        graphdef, params = nnx.split(module if module is not None else nnx.Module())

        def run(params: Any, moving: Any, fixed: Any) -> Any:
            return function(nnx.merge(graphdef, params), moving, fixed)

        inputs = params, moving, fixed
        forward = self.call(jax.jit(run), *inputs)
        if need.forward == need.both:
            return Part(name, need, forward, forward)

        @jax.jit
        def both(params: Any, moving: Any, fixed: Any, bars: Any) -> Any:
            out, back = jax.vjp(lambda *x: run(*x, fixed), params, moving)
            return out, back(bars)

        bars = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), jax.eval_shape(run, *inputs))
        return Part(name, need, forward, self.call(both, *inputs, bars))


def encoder_parts(bench: Bench, model: Model, batch: Batch, particles: int) -> Iterator[Part]:
    """Yield the parts of encoding the two observed frames of a window."""
    config, frames = bench.config, jax.tree.map(lambda x: x[0, :2], batch.frames)
    shape = frames.rgb.shape[:-1]
    images, outputs = shape[0] * shape[1], model.unet.head.out_features
    rgb = jnp.asarray(frames.rgb, jnp.float32).reshape(images, *shape[2:], 3) / 127.5 - 1.0
    yield bench.part(
        "U-Net",
        counts.unet(images, *shape[2:], config.model.unet_channels, outputs),
        lambda unet, _, rgb: unet(rgb), model.unet, None, rgb,
    )  # fmt: skip
    scene, key = model.scene, jax.random.key(0)
    features = jnp.zeros((*shape[1:], config.model.feature_dim))

    def draw(frames: Any) -> Any:
        points, valid = visible_points(
            frames.depth_m, frames.camera, scene.workspace_min, scene.workspace_max,
            config.render.far,
        )  # fmt: skip
        flat = points.reshape(-1, 3), features.reshape(-1, features.shape[-1]), valid.reshape(-1)
        return subsample(
            *flat, particles, key, even=config.model.even, kernels=config.model.kernels
        )

    pixels = shape[1] * shape[2] * shape[3]
    drawing = counts.draw_particles(pixels, particles, config.model.feature_dim)
    yield bench.part(
        "drawing particles", counts.in_sum([drawing] * 2),
        lambda _, __, frames: jax.vmap(draw)(frames), None, None, frames,
    )  # fmt: skip


def dynamics_parts(
    bench: Bench,
    dynamics: Interlacer,
    previous: ParticleCloud,
    current: ParticleCloud,
    robot: RobotPoints,
) -> Iterator[Part]:
    """Yield the parts of one predicted step."""
    config, settings = bench.config.model, dynamics.settings
    particles, points = current.mask.shape[0], robot.positions.shape[1]
    width, heads = config.latent_dim, settings.attention.num_heads
    rows = 2 * particles + 3 * points
    masks = previous.mask, current.mask
    moving = [(cloud.positions, cloud.features) for cloud in (previous, current)]

    def clouds(moving: Any) -> list[ParticleCloud]:
        return [ParticleCloud(*arrays, mask) for arrays, mask in zip(moving, masks, strict=True)]

    in_tokens = [counts.tokens(particles, points, width, 16, config.position_frequencies)]
    if config.carry:
        in_tokens.append(counts.carried(2 * particles, points, 1))
        if not config.contact:
            in_tokens.append(counts.neighbor_search(2 * particles, 2 * points, 1))
    if config.contact:
        in_tokens.append(counts.held(2 * particles, points, 1))
        in_tokens.append(counts.contact(particles, points, width, config.feature_dim, NUM_POINTS))
    yield bench.part(
        "tokens", counts.in_sum(in_tokens),
        lambda tokens, moving, robot: tokens(*clouds(moving), robot)[0],
        dynamics.tokens, moving, robot,
    )  # fmt: skip
    tokens, positions, mask = jax.jit(dynamics.tokens)(previous, current, robot)
    local = settings.local
    degree, hops = local.num_neighbors, local.mask.num_hops
    yield bench.part(
        "neighbour search", counts.neighbor_search(rows, rows, degree),
        lambda _, __, x: knn(
            x, x, degree, mask=mask, exclude_self=True, backend=config.knn
        ).indices,
        None, None, positions,
    )  # fmt: skip

    def plan_of(positions: Any) -> Any:
        return settings.plan(config, positions, mask, jax.random.key(0))[0]

    make_plan = bench.call(jax.jit(plan_of), positions)
    plan = make_plan()
    entries = float(plan.num_entries.mean())
    listed = sum(degree**hop for hop in range(hops + 1))
    searched = counts.neighbor_search(rows, rows, degree)
    needed = counts.in_sum([searched, counts.walk_plan(rows, listed, entries, hops)])
    yield Part("plan of walks, with its search", needed, make_plan, make_plan)
    block, layers = dynamics.blocks[0], settings.num_layers
    for name, needed, function in (
        (
            "global attention",
            counts.global_attention(rows, width, heads),
            lambda block, x, _: block.attended(x, mask),
        ),
        (
            "MLP",
            counts.mlp(rows, width, settings.mlp_ratio * width),
            lambda block, x, _: block.fed_forward(x),
        ),
        (
            "local layer",
            counts.local_layer(rows, width, entries, hops),
            lambda block, x, plan: block.local.added(x, block.norm_local, plan),
        ),
    ):
        part = bench.part(name, needed, function, block, tokens, plan)
        yield dataclasses.replace(part, calls=layers)
    outputs = 3 + config.feature_dim + (config.carry and not config.contact)
    needed = [counts.read_out(particles, width, outputs)]
    if config.carry or config.contact:
        needed.append(counts.carried(particles, points, 1))
    if config.contact:
        needed.append(counts.held(particles, points, 1))
        needed.append(counts.things(particles, points))
    if config.shadow:
        needed.append(counts.shadow(particles, points))
    yield bench.part(
        "read-out", counts.in_sum(needed),
        lambda read_out, moving, robot: read_out(
            moving[0], clouds(moving[1])[1], robot
        ),
        dynamics.read_out, (tokens[particles : 2 * particles], moving), robot,
    )  # fmt: skip


def render_parts(
    bench: Bench, model: Model, cloud: ParticleCloud, rays: Rays, *, training: bool
) -> Iterator[Part]:
    """Yield the parts of rendering rays of one cloud."""
    config = bench.config.render
    key = jax.random.key(0) if training else None
    strata, proposals = (
        (config.num_samples, config.num_proposals)
        if training
        else (config.eval_num_samples, config.eval_num_proposals)
    )
    num_rays, each = rays.z_scale.shape[0], strata + proposals
    tdist = stratified(num_rays, strata, config.near, config.far, key)
    nearest = _search(bench, cloud, samples_at(tdist, rays, config.near, config.far), 1)

    def place(distances: Any) -> Any:
        density = proposal_density(distances.reshape(tdist.shape))
        proposed = propose(density, proposals, config.near, config.far, key)
        tdist_again = stratified(num_rays, strata, config.near, config.far, key)
        return in_order(tdist_again, proposed, ~jnp.isfinite(distances.reshape(tdist.shape)))

    placing = bench.part(
        "placing samples", counts.place_samples(num_rays * each, num_rays * strata),
        lambda _, __, x: place(x), None, None, nearest.distances,
    )  # fmt: skip
    yield placing
    tdist, empty = placing.forward()
    samples = samples_at(tdist, rays, config.near, config.far)
    # Samples known to be empty are not searched for.
    asked = dataclasses.replace(
        samples, points=jnp.where(empty[..., None], jnp.nan, samples.points)
    )
    first = samples_at(stratified(num_rays, strata, config.near, config.far, key), rays,
                       config.near, config.far)  # fmt: skip
    size, found = cloud.mask.shape[0], config.num_neighbors
    yield bench.part(
        "search",
        counts.in_sum(
            [
                counts.neighbor_search(num_rays * strata, size, 1),
                counts.neighbor_search(num_rays * each, size, found),
            ]
        ),
        lambda _, __, x: (
            _search(bench, x[0], x[1], 1).distances, _search(bench, x[0], x[2], found).indices
        ),
        None, None, (cloud, first, asked),
    )  # fmt: skip
    neighbors = jax.jit(lambda *x: _search(bench, *x, found))(cloud, asked)
    yield from _shading_parts(bench, model, cloud, samples, neighbors)
    shape = (num_rays, each)
    yield bench.part(
        "compositing", counts.compositing(*shape),
        lambda _, x, fixed: composite(*x, *fixed, config.far),
        None, (jnp.full((*shape, 3), 0.5), jnp.ones(shape)), (tdist, rays.z_scale),
    )  # fmt: skip


def _search(bench: Bench, cloud: ParticleCloud, samples: Samples, k: int) -> Neighbors:
    render = bench.config.render
    return knn(
        samples.points.reshape(-1, 3), cloud.positions, k, mask=cloud.mask,
        max_distance=support(render) if k > 1 else render.cutoff, max_nearest=render.cutoff,
        backend=bench.config.model.knn,
    )  # fmt: skip


def _shading_parts(
    bench: Bench, model: Model, cloud: ParticleCloud, samples: Samples, neighbors: Neighbors
) -> Iterator[Part]:
    """Yield what is done to the samples within reach, which are picked out here."""
    config, renderer = bench.config.render, model.renderer
    reached = jnp.flatnonzero(neighbors.found[:, 0])
    samples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[reached], samples)
    indices, found = neighbors.indices[reached], neighbors.found[reached]
    pairs, queries = float(found.sum()), reached.shape[0]
    features = renderer.num_features
    config = renderer.config

    def sums(x: Any, samples: Samples) -> Any:
        return annular_sums(
            *x, samples.points, indices, found, config.radii, config.bandwidths, renderer.kernels
        )

    moving = cloud.positions, cloud.features[:, :features]
    summing = bench.part(
        "annular sums", counts.annular_sums(pairs, queries, len(config.radii), features),
        lambda _, x, samples: sums(x, samples), None, moving, samples,
    )  # fmt: skip
    yield summing
    seen = annular_features(summing.forward())
    if isinstance(renderer.mlp, NerfMlp):
        widths = (seen.shape[1], *(config.mlp_width,) * config.mlp_depth, 4)
        yield bench.part(
            "MLP of the renderer", counts.perceptron(queries, widths),
            lambda mlp, x, _: mlp(x, x[:, :3] if renderer.colors else None), renderer.mlp, seen,
        )  # fmt: skip
    if config.surface_thickness:
        yield bench.part(
            "surface", counts.surface(pairs, queries),
            lambda _, x, samples: light_stopped(
                x[1], x[0], samples, indices, found,
                config.surface_bandwidth, config.surface_thickness,
            ),
            None, (cloud.positions, jnp.ones((queries,))), samples,
        )  # fmt: skip


def matching_part(bench: Bench, model: Model, cloud: ParticleCloud) -> Iterator[Part]:
    """Yield the comparison of particles with measured points, where the loss has it."""
    if not bench.config.train.match_weight:
        return
    size, colors = cloud.mask.shape[0], cloud.features[:, :3]
    yield bench.part(
        "matching", counts.matching(size, size),
        lambda _, x, fixed: match_distance(
            x, colors, cloud.mask, fixed, colors, cloud.mask, bench.config.model.kernels
        ),
        None, cloud.positions, cloud.positions + 0.01,
    )  # fmt: skip


def optimizer_part(bench: Bench, params: Any) -> Part:
    """Return clipping and AdamW."""
    optimizer = create_optimizer(bench.config.train)
    state = optimizer.init(params)

    @jax.jit
    def update(gradient: Any, state: Any, params: Any) -> Any:
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    call = bench.call(cast(Wrapped, update), params, state, params)
    return Part("optimiser", counts.optimizer(size), call, call)


def times(parts: Iterable[Part], calls: float) -> list[Part]:
    """Return parts that are called so often."""
    return [dataclasses.replace(part, calls=calls * part.calls) for part in parts]


def training_step(bench: Bench, dataset: Dataset, batch: Batch) -> Call:
    """Start to compile a training step, each of which goes on from the one before."""
    config = bench.config
    graphdef, state = create_train_state(config, dataset.scene_spec(config.data))
    step, layout = make_train_step(config, graphdef), make_layout(config.train)
    placed = layout.place_batch(batch), layout.place_everywhere(jax.random.key(0))
    state = layout.place_state(state)
    program = bench.compile_(cast(Wrapped, step).lower(state, *placed))

    def train() -> Any:
        nonlocal state
        state, metrics = program.result()(state, *placed)
        return metrics

    return train


def others(
    bench: Bench, dataset: Dataset, batch: Batch
) -> tuple[list[Part], dict[str, tuple[list[Part], Call]]]:
    """Return a training step's parts; the parts and the whole of a rollout step and an image."""
    config = bench.config
    graphdef, state = create_train_state(config, dataset.scene_spec(config.data))
    params = state.params
    model, key = merge_model(graphdef, params), jax.random.key(0)
    frames, robot = jax.tree.map(lambda x: x[0], (batch.frames, batch.robot))
    poses = jax.tree.map(lambda x: x[:3], robot)
    observed = jax.tree.map(lambda x: x[:2], (frames, robot))

    def clouds_of(particles: int) -> list[ParticleCloud]:
        encode = jax.jit(jax.vmap(functools.partial(model.encode, num_particles=particles)))
        both = encode(*observed, jax.random.split(key))
        return [jax.tree.map(lambda x, i=i: x[i], both) for i in range(2)]

    size = batch.start.shape[0]
    steps, images = config.train.horizon, config.train.horizon + config.train.reconstruct
    few = config.train.cloud_size or config.model.num_particles
    clouds = clouds_of(few)
    rays = _rays(frames, config)
    some = jax.tree.map(
        lambda x: x[:: x.shape[0] // config.train.num_rays][: config.train.num_rays], rays
    )
    assert isinstance(model.dynamics, Interlacer)
    predicting = list(dynamics_parts(bench, model.dynamics, *clouds, poses))
    trained = [
        *times(encoder_parts(bench, model, batch, few), size),
        *times(predicting, size * steps),
        *times(render_parts(bench, model, clouds[1], some, training=True), size * images),
        *times(matching_part(bench, model, clouds[1]), size * images),
        optimizer_part(bench, params),
    ]
    if few != config.model.num_particles:
        clouds = clouds_of(config.model.num_particles)
        predicting = list(dynamics_parts(bench, model.dynamics, *clouds, poses))
    roll = jax.jit(lambda previous, current: model.rollout(previous, current, poses, key))
    camera = jax.tree.map(lambda x: x[0, 0], frames.camera)
    shape = config.data.height, config.data.width
    image = jax.jit(lambda cloud: render_image(model, cloud, camera, *shape))
    chunk = min(config.render.chunk_rays, shape[0] * shape[1])
    every = rays.z_scale.shape[0] // chunk
    spread = jax.tree.map(lambda x: x[::every][:chunk], rays)
    return trained, {
        "rollout step": (predicting, bench.call(roll, *clouds)),
        "image": (
            times(
                render_parts(bench, model, clouds[1], spread, training=False),
                shape[0] * shape[1] / chunk,
            ),
            bench.call(image, clouds[1]),
        ),
    }


def _rays(frames: Any, config: Config) -> Rays:
    """Return all rays of the first camera."""
    camera = jax.tree.map(lambda x: jnp.asarray(x[1, 0]), frames.camera)
    rays = pixel_rays(camera, config.data.height, config.data.width)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rays)


def time_parts(
    parts: list[Part], *, training: bool, repeats: int, clock: Callable[[], float]
) -> "Timed":
    """Time each part, on one device."""
    calls = [part.both if training else part.forward for part in parts]
    once = [best_of(call, repeats=repeats, clock=clock) for call in calls]
    return list(zip(parts, once, strict=True))


Timed = list[tuple[Part, float]]
"""Parts, and the seconds of a call of each."""


def rows_of(
    parts: Timed, seconds: float, rate: float, bandwidth: float, *, training: bool
) -> list[dict[str, float | str]]:
    """Return a row per part, of their sum, and of the whole."""

    def row(name: str, calls: float, cost: counts.Cost, least: float, took: float) -> dict:
        return {
            "part": name, "calls": calls, "GFLOP": cost.flop / 1e9, "MB": cost.moved / 1e6,
            "floor [ms]": 1e3 * least, "measured [ms]": 1e3 * took, "ratio": took / least,
        }  # fmt: skip

    rows, total, least, took = [], counts.Cost(), 0.0, 0.0
    for part, once in parts:
        cost = (part.need.both if training else part.need.forward) * part.calls
        floor, measured = cost.seconds(rate, bandwidth), part.calls * once
        rows.append(row(part.name, part.calls, cost, floor, measured))
        if part.name != "neighbour search":  # it is in the plan too
            total, least, took = total + cost, least + floor, took + measured
    rows.append(row("sum of the parts", 1, total, least, took))
    rows.append(row("the whole", 1, total, least, seconds))
    return rows


def to_markdown(tables: dict[str, list[dict[str, Any]]]) -> str:
    """Return the tables."""
    lines = []
    for name, rows in tables.items():
        lines += [f"\n{name}\n", "| " + " | ".join(rows[0]) + " |", "|---|" + "---|" * 6]
        for row in rows:
            values = [f"{v:.4g}" if isinstance(v, float | int) else v for v in row.values()]
            lines.append("| " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def read_batch(config: Config, data: str | None) -> tuple[Dataset, Batch]:
    """Return a data set and its first training batch; the analytic scene without a folder."""
    if data is None:
        return analytic_batch(config)
    dataset, length = Dataset(data), config.train.horizon + 2
    windows = WindowIndex(dataset, "train", length).sample(0, 0, config.train.batch_size)
    return dataset, stack_windows([read_window(dataset, *w, length, config.data) for w in windows])


def find_programs(*, compiling: bool, preparing: bool) -> str:
    """Let programs be found on disk, and have another process compile them first.

    Args:
      compiling: here instead.
      preparing: this is that process.

    Returns:
      What is said of the programs.
    """
    if compiling:
        jax.config.update("jax_enable_compilation_cache", False)
    else:
        keep_programs()
    kept = jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if kept and not preparing:
        status = subprocess.run([sys.executable, *sys.argv, "--prepare"], check=False).returncode
        if status:  # its message is above
            raise SystemExit(status)
    return "loaded" if kept else "compiled"


def main() -> None:
    """Print the tables and one JSON line, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="demo")
    parser.add_argument("--data", help="data set to take a window of, instead of the analytic one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processor", action="store_true", help="time of the processor")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--first-start", action="store_true", help="compile programs here")
    parser.add_argument("--prepare", action="store_true", help="keep programs on disk, no more")
    arguments, flags = parser.parse_known_args()
    made = find_programs(compiling=arguments.first_start, preparing=arguments.prepare)
    smaller = SMALLER.get(arguments.experiment, [])
    config = load_config(arguments.experiment, read_flags([*smaller, *flags]))
    keep_freed_memory()  # as `hdvpd train` does
    offer_cores(config.train)
    dataset, batch = read_batch(config, arguments.data)
    batch = jax.tree.map(jnp.asarray, batch)
    clock = time.process_time if arguments.processor else time.perf_counter
    repeats = arguments.repeats
    # Before anything else is in memory, as in a training.
    with compiling_beside() as compile_:
        train = training_step(Bench(config, compile_), dataset, batch)
    settle_memory()
    first = machine_rates(2 * repeats, clock)
    share_cores(make_layout(config.train).mesh.size)
    took = 0.0 if arguments.prepare else best_of(train, repeats=repeats, clock=clock)
    share_cores(1)
    with compiling_beside() as compile_:
        trained, programs = others(Bench(config, compile_), dataset, batch)
    if arguments.prepare:
        return
    settle_memory()
    timed = functools.partial(time_parts, repeats=repeats, clock=clock)
    measured = {TRAINING: (timed(trained, training=True), took)}
    for name, (parts, whole) in programs.items():
        took = best_of(whole, repeats=repeats, clock=clock)
        measured[name] = timed(parts, training=False), took
    again = machine_rates(2 * repeats, clock)
    rate, bandwidth = map(max, zip(first, again, strict=True))
    tables = {
        name: rows_of(parts, took, rate, bandwidth, training=name == TRAINING)
        for name, (parts, took) in measured.items()
    }
    about = {
        "experiment": arguments.experiment,
        "changed": " ".join([*smaller, *flags]),
        "programs": made,
        "clock": "processor" if arguments.processor else "wall",
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "kinematic points": dataset.scene_spec(config.data).num_robot_points,
        "GFLOP/s": rate / 1e9,
        "GB/s": bandwidth / 1e9,
    }
    table = ", ".join(f"{k}: {v}" for k, v in about.items()) + "\n" + to_markdown(tables)
    written = json.dumps(about | {"tables": tables})
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"floor-{arguments.experiment}.json").write_text(written + "\n")
        (arguments.out / f"floor-{arguments.experiment}.md").write_text(table)
    print(table)
    print(written)


if __name__ == "__main__":
    main()
