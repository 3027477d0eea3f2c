"""One scene's particles spread over devices, for clouds beyond the memory of one.

Every device holds an equal, contiguous part of both observed clouds; the robot's few points are on
all. Tokens, MLPs and the read-out need no exchange. What is exchanged, for N particles per cloud,
P robot points, width d, k neighbours and L blocks, in every step:

- once: positions (2 N x 3) and masks, by all-gather, so that each device finds the neighbours of
  its own tokens among all; then the neighbour lists (2 N x k), from which it follows its own walks;
- per block: sums of key-value products, by all-reduce (d^2 / heads + d numbers, whatever N is);
- per block with a local layer: keys and values (2 x 2 N x d), by all-gather.

`exchanged_bytes` is that in bytes. Memory per device is that of its own part, and of gathered keys
and values of one block at a time.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from hdvpd.attention.feature_maps import relu_features
from hdvpd.attention.grf import nonnegative_modulation
from hdvpd.attention.learned.base import positive
from hdvpd.attention.learned.grf import LearnedGrf
from hdvpd.basics.errors import UserError
from hdvpd.basics.layers import split_linear
from hdvpd.basics.types import Array, ParticleCloud, PRNGKey, RobotPoints
from hdvpd.dynamics.base import Change
from hdvpd.dynamics.global_attention import GlobalAttention
from hdvpd.dynamics.graph_attention import GraphAttention, GraphAttentionSettings
from hdvpd.dynamics.interlacer import Interlacer, InterlacerSettings
from hdvpd.dynamics.rollout import rollout
from hdvpd.kernels.neighbors import knn

PARTICLES = "particles"
"""The mesh's axis."""

Rollout = Callable[[ParticleCloud, ParticleCloud, RobotPoints, PRNGKey], ParticleCloud]


def spread_rollout(interlacer: Interlacer, mesh: Mesh, *, remat: bool = False) -> Rollout:
    """Make a rollout whose particles are spread over the devices of a mesh.

    Args:
      interlacer: with exact GRF walks, or no local layer; its parameters are on every device.
      mesh: with one axis, `PARTICLES`.
      remat: recompute each step in the backward pass.

    Returns:
      (previous, current, robot, key) -> clouds of all steps, as `hdvpd.dynamics.rollout.rollout`
      gives them, to rounding; clouds have axes (n), and the results' particles stay spread.

    Raises:
      UserError: the model is of another kind, or (when called) the devices do not divide the
        particles.
    """
    _require_known(interlacer)

    def of_device(
        previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints, key: PRNGKey
    ) -> ParticleCloud:
        def step(
            previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints, key: PRNGKey
        ) -> Change:
            del key  # exact walks draw nothing
            return _step(interlacer, previous, current, robot)

        return rollout(step, previous, current, robot, key, remat=remat)

    spread = jax.shard_map(
        of_device,
        mesh=mesh,
        in_specs=(P(PARTICLES), P(PARTICLES), P(), P()),
        out_specs=P(None, PARTICLES),
        # The compiled host kernels do not say over which axes their results vary.
        check_vma=False,
    )

    def roll_out(
        previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints, key: PRNGKey
    ) -> ParticleCloud:
        count = current.mask.shape[0]
        if count % mesh.size:
            raise UserError(
                f"{count} particles cannot be spread evenly over {mesh.size} devices: set "
                f"model.num_particles to a multiple of {mesh.size}."
            )
        return spread(previous, current, robot, key)

    return roll_out


def exchanged_bytes(
    num_particles: int, settings: InterlacerSettings, width: int, devices: int
) -> dict[str, int]:
    """Count what a device receives or reduces in one predicted step, forward.

    Args:
      num_particles: of a cloud, N.
      settings: of the model.
      width: of its tokens.
      devices: that share the particles.

    Returns:
      Bytes of the results of all-gathers and of all-reduces, as XLA's program states them.
    """
    if devices == 1:
        return {"all-gather": 0, "all-reduce": 0}
    blocks, heads = settings.num_layers, settings.attention.num_heads
    gathered = 0
    if settings.local is not None:
        assert isinstance(settings.local, GraphAttentionSettings)
        lists = 2 * num_particles * (3 * 4 + 1 + settings.local.num_neighbors * 4)
        gathered = lists + blocks * 2 * 2 * num_particles * width * 4
    # Summaries and key sums of every head; once, the number of real tokens.
    reduced = 4 * (blocks * (width * width // heads + width) + 1)
    return {"all-gather": gathered, "all-reduce": reduced}


def _require_known(interlacer: Interlacer) -> None:
    settings = interlacer.settings
    if interlacer.model.contact:
        raise UserError(
            "Particles cannot be spread over devices with model.contact, which looks for each "
            "particle's counterpart in the whole other cloud; this model has it."
        )
    local, attention = settings.local, settings.attention
    if local is not None and not (
        isinstance(local, GraphAttentionSettings)
        and local.num_heads == 1
        and isinstance(local.mask, LearnedGrf)
        and local.mask.walks == "exact"
    ):
        raise UserError(
            "Particles can be spread over devices with model.dynamics.local = none, or its graph "
            'attention with mask = "grf", walks = "exact" and num_heads = 1; this model has '
            f"{local}."
        )
    if attention.mask is not None or attention.feature_map == "favor":
        raise UserError(
            "Particles can be spread over devices with a global attention without a mask and with "
            f'feature_map "relu" or "elu"; this model has {attention}.'
        )


def _step(
    interlacer: Interlacer, previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints
) -> Change:
    """Return the change of this device's part of `current`."""
    size = current.mask.shape[0]
    tokens, positions, mask = interlacer.tokens(previous, current, robot)
    is_particle = np.arange(len(mask)) < 2 * size
    # The robot's tokens are on every device, and count once.
    counted = mask & (is_particle | (jax.lax.axis_index(PARTICLES) == 0))
    walks = None
    if interlacer.settings.local is not None:
        walks = _walks(interlacer, positions, mask, size)
    for block in interlacer.blocks:
        normed = block.norm_global(tokens)
        tokens = tokens + _global_attention(block.global_attention, normed, counted)
        tokens = block.fed_forward(tokens)
        if walks is not None:
            assert isinstance(block.local, GraphAttention)
            assert block.norm_local is not None
            normed = block.norm_local(tokens)
            tokens = tokens + _local_attention(block.local, normed, walks, size)
    return interlacer.read_out(tokens[size : 2 * size], current, robot)


def _global_attention(layer: GlobalAttention, tokens: jax.Array, counted: Array) -> jax.Array:
    """Linear attention with its sums over all devices; see `hdvpd.attention.linear`."""
    num_tokens, latent_dim = tokens.shape
    heads = layer.settings.num_heads
    query, key, value = (
        part.reshape(num_tokens, heads, layer.head_dim)
        for part in split_linear(layer.query_key_value, tokens, 3)
    )
    query, key = layer._features(query, key, counted)
    total = jax.lax.psum(counted.sum(dtype=jnp.float32), PARTICLES)
    key = key * (counted / jnp.maximum(total, 1.0))[:, None, None]
    summary = jax.lax.psum(jnp.einsum("tam,tac->amc", key, value), PARTICLES)
    normalizer = jnp.einsum("tam,am->ta", query, jax.lax.psum(key.sum(0), PARTICLES))
    normalizer = jnp.where(normalizer > 0, normalizer, 1.0)
    attended = jnp.einsum("tam,amc->tac", query, summary) / normalizer[..., None]
    return layer.out(attended.reshape(num_tokens, latent_dim))


def _gather(rows: Array, size: int) -> jax.Array:
    """Collect rows of tokens from all devices, in the order that one device would have them in."""
    previous, current = (
        jax.lax.all_gather(part, PARTICLES, tiled=True)
        for part in (rows[:size], rows[size : 2 * size])
    )
    return jnp.concatenate([previous, current, rows[2 * size :]])


def _walks(
    interlacer: Interlacer, positions: Array, mask: Array, size: int
) -> tuple[jax.Array, np.ndarray]:
    """Follow all walks of this device's tokens.

    Returns:
      Rows of the gathered tokens where each walk stands, axes (t e), and each walk's hop, axes (e).
    """
    settings = interlacer.settings.local
    assert isinstance(settings, GraphAttentionSettings)
    assert isinstance(settings.mask, LearnedGrf)
    count = size * jax.lax.axis_size(PARTICLES)
    first = jax.lax.axis_index(PARTICLES) * size
    own = jnp.arange(len(mask), dtype=jnp.int32)
    # The place of this device's rows among the gathered ones.
    rows = jnp.where(
        own < size, own + first, jnp.where(own < 2 * size, own - size + count + first, 0)
    )
    rows = jnp.where(own < 2 * size, rows, own - 2 * size + 2 * count)
    found = knn(
        positions,
        _gather(positions, size),
        settings.num_neighbors,
        mask=_gather(mask, size),
        exclude_self=True,
        rows=rows,
        backend=interlacer.model.knn,
    )
    columns = jnp.where(found.found & mask[:, None], found.indices, rows[:, None])
    columns = _gather(columns, size)
    nodes = [rows[:, None]]
    for _ in range(settings.mask.num_hops):
        nodes.append(columns[nodes[-1]].reshape(len(rows), -1))
    hops = np.repeat(np.arange(len(nodes)), [level.shape[1] for level in nodes])
    return jnp.concatenate(nodes, axis=1), hops


def _local_attention(
    layer: GraphAttention, tokens: jax.Array, walks: tuple[jax.Array, np.ndarray], size: int
) -> jax.Array:
    """Attend along walks to keys and values of all devices; see `hdvpd.attention.grf`."""
    nodes, hops = walks
    query = relu_features(layer.query(tokens) / np.sqrt(tokens.shape[1]))
    key = _gather(relu_features(layer.key(tokens)), size)
    value = _gather(layer.value(tokens), size)
    modulation = nonnegative_modulation(positive(layer.raw_modulation[...]))
    # k^hop walks share the hop's weight f.
    load = (1.0 / layer.settings.num_neighbors) ** hops * modulation[hops]
    weights = jnp.einsum("tm,tem->te", query, key[nodes]) * load[None]
    total = jnp.einsum("te,tec->tc", weights, value[nodes])
    return layer.out(total / weights.sum(-1)[:, None])
