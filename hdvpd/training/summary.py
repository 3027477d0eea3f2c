"""`hdvpd model summary`: parameters of every part, memory of a training step, and whether it fits.

Nothing is computed and no array exists: the model is traced with shapes only.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.basics.machine import main_memory
from hdvpd.basics.tables import Table
from hdvpd.basics.types import Batch, Camera, ParticleCloud, RgbdFrames, RobotPoints
from hdvpd.config import Config, SceneSpec
from hdvpd.config.members import member_names, with_member
from hdvpd.data.mixture import open_dataset
from hdvpd.data.remote import locate
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.model import abstract_model

DEFAULT_ROBOT_POINTS = 84
"""Kinematic points of the two simulated arms, assumed where there is no data set."""
DEFAULT_CAMERAS = 2
_abstract_model = functools.lru_cache(abstract_model)


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a training step holds [bytes].

    Attributes:
      state: parameters, their average if there is one, gradients and AdamW's two moments.
      stored: arrays that the forward pass keeps for the backward pass, all steps stored.
      recomputed: the same with `train.remat`, plus one dynamics step's while it is recomputed.
    """

    state: int
    stored: int
    recomputed: int


def print_summary(config: Config, *, all_members: bool = False) -> None:
    """Print parameters and memory, and whether the training fits here; or a row per member.

    Args:
      config: the experiment; its data set, if it is there, says how many cameras and kinematic
        points there are.
      all_members: print every member of the comparison with the same settings, each when known.
    """
    scene, num_cameras, source = find_scene(config)
    where, limit = device_memory()
    if all_members:
        _print_members(config, scene, num_cameras, limit)
    else:
        counts = count_parameters(config, scene)
        counts["total"] = sum(counts.values())
        Table(("part", "parameters"), [(part, f"{n:,}") for part, n in counts.items()]).print()
        print("tracing a training step for its memory ...", flush=True)
        memory = training_memory(config, scene, num_cameras)
        rows = [(label, f"{getattr(memory, name) / 2**30:.3g}") for name, label in _ROWS.items()]
        Table(("memory of a training step", "GiB"), rows).print()
        print(verdict(memory, config, limit, where))
    train = config.train
    print(
        f"\n{scene.num_robot_points} kinematic points and {num_cameras} cameras, {source}."
        f"\nMemory is of one training step: batch {train.batch_size}, {train.horizon} predicted"
        f" steps, {train.cloud_size or config.model.num_particles} particles,"
        f"\non {jax.default_backend()}: what the"
        " backward pass needs of the forward pass, before the compiler's\nsavings and workspace."
    )


_ROWS = {
    "state": "parameters, gradients, AdamW",
    "stored": "activations, train.no-remat",
    "recomputed": "activations, train.remat",
}
# Under the compiler's own count the estimate was at most a tenth too low.
_MARGIN = 1.1
_COLUMNS = "{:<14}{:>10}{:>11}{:>9}{:>8}{:>7}"


def device_memory() -> tuple[str, int]:
    """Say where a training step's memory is, and how much of it there is [bytes]."""
    device = jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit:
        return f"{device.device_kind}, of which jax takes", limit
    return "this machine's main memory", main_memory()


def largest_batch(memory: Memory, batch_size: int, limit: int, *, remat: bool) -> int:
    """Return the largest batch size, up to the given one, whose training step fits.

    Args:
      memory: of a step with the given batch size; activations are in proportion to it.
      batch_size: that size.
      limit: memory of the device [bytes].
      remat: whether the dynamics is recomputed.
    """
    activations = memory.recomputed if remat else memory.stored
    room = max(limit / _MARGIN - memory.state, 0.0)
    return min(batch_size, int(room * batch_size / activations))


def verdict(memory: Memory, config: Config, limit: int, where: str) -> str:
    """Say whether a training step fits into so many bytes of a device and, if not, what would."""
    size, remat = config.train.batch_size, config.train.remat
    needed = memory.state + (memory.recomputed if remat else memory.stored)
    has = f"{where}: {limit / 2**30:.3g} GiB"
    if largest_batch(memory, size, limit, remat=remat) == size:
        return f"It fits here ({has}), with about {needed / 2**30:.3g} GiB."
    batches = {choice: largest_batch(memory, size, limit, remat=choice) for choice in (remat, True)}
    flags = [
        " ".join(
            ([f"--train.batch-size {batch}"] if batch < size else [])
            + (["--train.remat"] if choice and not remat else [])
        )
        for choice, batch in batches.items()
        if batch
    ]
    if flags:
        remedy = f"What fits: {', or '.join(flags)}."
    else:
        least = (memory.state + memory.recomputed / size) / 2**30
        remedy = (
            f"Not even --train.batch-size 1 --train.remat fits ({least:.3g} GiB): lower "
            "--train.horizon,\n--model.num-particles or --data.height and --data.width too."
        )
    return f"It does not fit here ({has}): it needs about {needed / 2**30:.3g} GiB.\n{remedy}"


def _print_members(config: Config, scene: SceneSpec, num_cameras: int, limit: int) -> None:
    """Print a row per member as soon as it is known: each takes seconds."""
    print(_COLUMNS.format("", *("parameters",) * 2, "GiB,", "GiB,", "batch").rstrip())
    head = ("member", "dynamics", "total", "no-remat", "remat", "fits")
    print(_COLUMNS.format(*head), flush=True)
    shared: dict[str, int] = {}
    for name in member_names():
        member = with_member(config, name)
        counts = count_parameters(member, scene)
        shared = {part: n for part, n in counts.items() if not part.startswith("dynamics.")}
        total = sum(counts.values())
        dynamics = total - sum(shared.values())
        memory = training_memory(member, scene, num_cameras)
        batch = largest_batch(memory, config.train.batch_size, limit, remat=config.train.remat)
        sizes = [f"{size / 2**30:.3g}" for size in (memory.stored, memory.recomputed)]
        numbers = (f"{dynamics:,}", f"{total:,}", *sizes, batch)
        print(_COLUMNS.format(name, *numbers), flush=True)
    alike = ", ".join(f"{part} {count:,}" for part, count in shared.items())
    print(
        f"In the total of each: {alike}. The last column is the largest batch size,\nup to "
        f"train.batch_size = {config.train.batch_size}, that fits here"
        f" {'with' if config.train.remat else 'without'} train.remat."
    )


def find_scene(config: Config) -> tuple[SceneSpec, int, str]:
    """Say for which robot and cameras the model is built.

    Returns:
      The scene, the number of cameras, and where both come from.
    """
    title = " + ".join(config.data.paths)
    if all((locate(path) / "dataset.json").is_file() for path in config.data.paths):
        dataset = open_dataset(config.data)
        num_cameras = len(config.data.cameras or dataset.cameras)
        return dataset.scene_spec(config.data), num_cameras, f"as in {title}"
    scene = SceneSpec(DEFAULT_ROBOT_POINTS, (-1.0, -1.0, -1.0), (1.0, 1.0, 1.0))
    num_cameras = len(config.data.cameras) or DEFAULT_CAMERAS
    return scene, num_cameras, f"assumed: there is no data set at {title}"


def count_parameters(config: Config, scene: SceneSpec) -> dict[str, int]:
    """Count the parameters of every part.

    Returns:
      By part, an attribute of the model; the dynamics' own parts one by one, those of equal blocks
      together.
    """
    counts: dict[str, int] = {}
    params = nnx.to_pure_dict(nnx.state(_abstract_model(config, scene)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = _part([entry.key for entry in path])
        counts[name] = counts.get(name, 0) + leaf.size
    return counts


def _part(path: list[str | int]) -> str:
    depth = 1 if path[0] != "dynamics" else 3 if isinstance(path[2], int) else 2
    return ".".join([name for name in path if isinstance(name, str)][:depth])


def training_memory(config: Config, scene: SceneSpec, num_cameras: int) -> Memory:
    """Estimate the memory of one training step by tracing it.

    The rule: the forward pass keeps the residuals of `jax.vjp`, each array counted once and inputs
    not at all. With rematerialisation a rollout step keeps its two clouds only, and the backward
    pass holds the residuals of one step, of the whole batch, while it recomputes it. The compiler
    recomputes cheap residuals instead of storing them and needs workspace: for tiny models of all
    members on CPU the estimate was 0.9 to 2.1 times the temporary memory that it reported.
    """
    batch = jax.eval_shape(functools.partial(_zero_batch, config, scene, num_cameras))
    params = nnx.to_pure_dict(nnx.state(_abstract_model(config, scene)))
    stored, recomputed = (
        residual_bytes(_loss(_with_remat(config, remat), scene), params, batch)
        for remat in (False, True)
    )
    size = config.train.batch_size
    particles = config.train.cloud_size or config.model.num_particles
    clouds = [
        jax.ShapeDtypeStruct((size, 2, particles, width), jnp.float32)
        for width in (3, config.model.feature_dim)
    ]
    robot = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((size, 3, *x.shape[2:]), x.dtype), batch.robot
    )
    mask = jax.ShapeDtypeStruct((size, 2, particles), bool)
    step = residual_bytes(_dynamics_step(config, scene), (params, *clouds, robot), mask)
    copies = 5 if config.train.ema_decay else 4
    return Memory(
        state=copies * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params)),
        stored=stored,
        recomputed=recomputed + step,
    )


def _with_remat(config: Config, remat: bool) -> Config:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, remat=remat))


def _loss(config: Config, scene: SceneSpec) -> Callable[[Any, Batch], Any]:
    graphdef = nnx.graphdef(_abstract_model(config, scene))

    def loss(params: Any, batch: Batch) -> Any:
        model = nnx.merge(graphdef, nnx.State(params))
        return jnp.mean(jnp.asarray(model.loss(batch, jax.random.key(0))))

    return loss


def _dynamics_step(config: Config, scene: SceneSpec) -> Callable[[Any, Any], Any]:
    """Return one dynamics call of a whole batch, of (params, positions, features, robot), mask."""
    graphdef = nnx.graphdef(_abstract_model(config, scene))

    def step(moving: Any, mask: Any) -> Any:
        params, positions, features, robot = moving
        dynamics = nnx.merge(graphdef, nnx.State(params)).dynamics

        def one(positions: Any, features: Any, robot: Any, mask: Any) -> Any:
            previous, current = (
                ParticleCloud(positions=positions[i], features=features[i], mask=mask[i])
                for i in range(2)
            )
            return dynamics(previous, current, robot, jax.random.key(0))

        return jax.vmap(one)(positions, features, robot, mask)

    return step


def _zero_batch(config: Config, scene: SceneSpec, num_cameras: int) -> Batch:
    frames = (config.train.batch_size, OBSERVED_FRAMES + config.train.horizon)
    views = (*frames, num_cameras)
    image = (*views, config.data.height, config.data.width)
    points = (*frames, scene.num_robot_points)
    window = jnp.zeros(frames[0], jnp.int32)
    return Batch(
        frames=RgbdFrames(
            rgb=jnp.zeros((*image, 3), jnp.uint8),
            depth_m=jnp.zeros(image),
            camera=Camera(
                intrinsics=jnp.zeros((*views, 3, 3)), camera_to_world=jnp.zeros((*views, 4, 4))
            ),
        ),
        robot=RobotPoints(
            positions=jnp.zeros((*points, 3)),
            axes=jnp.zeros((*points, 3, 3)),
            gripper=jnp.zeros(points),
        ),
        episode=window,
        start=window,
    )


def residual_bytes(function: Callable[..., Any], moving: Any, *fixed: Any) -> int:
    """Return the bytes that a function's backward pass needs from its forward pass.

    Args:
      function: of (moving, *fixed).
      moving: shapes of what is differentiated.
      *fixed: shapes of the other arguments.

    Returns:
      Size of the residuals of `jax.vjp`; arguments and constants are not counted.
    """

    def residuals(moving: Any, *fixed: Any) -> Any:
        return jax.tree.leaves(jax.vjp(lambda moving: function(moving, *fixed), moving)[1])

    jaxpr = jax.make_jaxpr(residuals)(moving, *fixed).jaxpr
    given = {*jaxpr.invars, *jaxpr.constvars}
    kept = {
        variable
        for variable in jaxpr.outvars
        if not isinstance(variable, jax.extend.core.Literal) and variable not in given
    }
    return sum(int(np.prod(v.aval.shape)) * v.aval.dtype.itemsize for v in kept)
