"""Slow float64 numpy versions of the maths, written from the formulas and not from the package.

Every function takes and returns numpy arrays; loops are preferred to clever indexing.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg

from hdvpd.attention.learned.grf import LearnedGrf
from hdvpd.attention.learned.rwgnk import LearnedRwgnk
from hdvpd.dynamics.graph_attention import GraphAttentionSettings
from hdvpd.dynamics.neighbor_attender import NeighborAttenderSettings

Array = np.ndarray


# Geometry -----------------------------------------------------------------------------------------


def unproject(x: float, y: float, depth: float, intrinsics: Array, pose: Array) -> Array:
    """Lift one pixel position with planar depth to a world point."""
    fx, fy, cx, cy = intrinsics[0, 0], intrinsics[1, 1], intrinsics[0, 2], intrinsics[1, 2]
    local = depth * np.array([(x - cx) / fx, (y - cy) / fy, 1.0])
    return pose[:3, :3] @ local + pose[:3, 3]


def project(point: Array, intrinsics: Array, pose: Array) -> tuple[Array, float]:
    """Return pixel position and planar depth of a world point."""
    homogeneous = intrinsics @ (np.linalg.inv(pose) @ np.append(point, 1.0))[:3]
    return homogeneous[:2] / homogeneous[2], homogeneous[2]


# Neighbours ---------------------------------------------------------------------------------------


def nearest(
    queries: Array,
    points: Array,
    k: int,
    mask: Array | None = None,
    max_distance: float = np.inf,
    exclude_self: bool = False,
) -> tuple[Array, Array]:
    """Return indices and distances of the k nearest points, inf and 0 where there are none."""
    queries, points = np.asarray(queries, np.float64), np.asarray(points, np.float64)
    indices = np.zeros((len(queries), k), np.int64)
    distances = np.full((len(queries), k), np.inf)
    for q, query in enumerate(queries):
        candidates = []
        for n, point in enumerate(points):
            allowed = (mask is None or mask[n]) and not (exclude_self and n == q)
            distance = np.linalg.norm(point - query)
            if allowed and np.isfinite(distance) and distance <= max_distance:
                candidates.append((distance, n))
        for rank, (distance, n) in enumerate(sorted(candidates)[:k]):
            distances[q, rank], indices[q, rank] = distance, n
    return indices, distances


# Attention and walks ------------------------------------------------------------------------------


def masked_attention(query: Array, key: Array, value: Array, mask: Array) -> Array:
    """Dense linear attention: out_i = sum_j M_ij (q_i . k_j) v_j / sum_j M_ij (q_i . k_j)."""
    scores = mask * (np.asarray(query, np.float64) @ np.asarray(key, np.float64).T)
    return scores @ np.asarray(value, np.float64) / scores.sum(1, keepdims=True)


def transition_matrix(neighbors: Array) -> Array:
    """Return W with W_ij = 1/k per entry j of row i's list."""
    tokens, k = neighbors.shape
    matrix = np.zeros((tokens, tokens))
    for i in range(tokens):
        for j in neighbors[i]:
            matrix[i, j] += 1.0 / k
    return matrix


def walk_powers(neighbors: Array, num_hops: int) -> Array:
    """Return W^0..W^h, axes (l t t)."""
    matrix = transition_matrix(neighbors)
    return np.stack([np.linalg.matrix_power(matrix, hop) for hop in range(num_hops + 1)])


def walk_mask(neighbors: Array, modulation: Array) -> Array:
    """Return sum_l f_l W^l."""
    powers = walk_powers(neighbors, len(modulation) - 1)
    return np.einsum("l,lij->ij", np.asarray(modulation, np.float64), powers)


def graph_mask(learned: Any, neighbors: Array, parameters: Array) -> Array:
    """Return the dense form of a learned mask on lists of weight 1/k.

    Args:
      learned: its settings.
      neighbors: lists of all tokens.
      parameters: f of graph random features, [lambda] of the others.
    """
    if isinstance(learned, LearnedGrf):
        return walk_mask(neighbors, parameters)
    if isinstance(learned, LearnedRwgnk):
        psi = walk_mask(neighbors, parameters[0] ** np.arange(learned.num_hops + 1))
        psi /= np.linalg.norm(psi, axis=1, keepdims=True)
        return psi @ psi.T
    directed = walk_powers(neighbors, 1)[1]
    adjacency = (directed + directed.T) / 2
    degrees = adjacency.sum(1)
    return scipy.linalg.expm(-parameters[0] * (np.diag(degrees) - adjacency) / degrees[None])


def repelling_hop(num_walkers: int, degree: int, rng: np.random.Generator) -> Array:
    """Draw the neighbour slots that walkers at one node take (arXiv 2310.04854, public code).

    More walkers than neighbours: full blocks are cyclic shifts of all neighbours, the rest takes
    consecutive neighbours. Otherwise one shared uniform spreads them evenly.
    """
    if num_walkers <= degree:
        uniform = (np.arange(num_walkers) / num_walkers + rng.random()) % 1.0
        return np.minimum((uniform * degree).astype(int), degree - 1)
    slots: list[int] = []
    while num_walkers - len(slots) >= degree:
        slots.extend((np.arange(degree) + rng.integers(degree)) % degree)
    rest = num_walkers - len(slots)
    slots.extend((np.arange(rest) + rng.integers(degree)) % degree)
    return np.array(slots)


def repelling_walks(
    neighbors: Array, num_hops: int, num_walkers: int, rng: np.random.Generator
) -> Array:
    """Simulate walkers from every token; return their shares per hop and node, axes (l t t)."""
    tokens, degree = neighbors.shape
    shares = np.zeros((num_hops + 1, tokens, tokens))
    for start in range(tokens):
        walkers = np.full(num_walkers, start)
        for hop in range(num_hops + 1):
            np.add.at(shares[hop, start], walkers, 1.0 / num_walkers)
            following = walkers.copy()
            for node in np.unique(walkers):
                here = np.flatnonzero(walkers == node)
                following[here] = neighbors[node, repelling_hop(len(here), degree, rng)]
            walkers = following
    return shares


# Layers -------------------------------------------------------------------------------------------


def gelu(x: Array) -> Array:
    """Return the tanh form of GELU."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def linear(params: dict, x: Array) -> Array:
    """Apply a dense layer."""
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params.get("bias", 0.0))


def layer_norm(params: dict, x: Array) -> Array:
    """Apply LayerNorm over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return normal * np.asarray(params["scale"]) + np.asarray(params["bias"])


def carried_motion(positions: Array, robot: Any, slice_: int, until: int) -> tuple[Array, Array]:
    """Return the motion of each particle's link (n 3) from slice to slice, and its reach (n)."""
    start, end = (np.asarray(robot.positions[x], np.float64) for x in (slice_, until))
    before, after = (np.asarray(robot.axes[x], np.float64) for x in (slice_, until))
    motion, reach = [], []
    for position in positions:
        away = np.linalg.norm(start - position, axis=1)
        p = away.argmin()
        on_link = before[p].T @ (position - start[p])
        motion.append(end[p] + after[p] @ on_link - position)
        reach.append(np.exp(-((away[p] / 0.12) ** 4)))
    return np.array(motion), np.array(reach)


def held_motion(positions: Array, robot: Any, slice_: int, until: int) -> Array:
    """Return the mean motion (n 3) of all points' links, the nearer the more."""
    start, end = (np.asarray(robot.positions[x], np.float64) for x in (slice_, until))
    before, after = (np.asarray(robot.axes[x], np.float64) for x in (slice_, until))
    motion = []
    for position in positions:
        squared = ((start - position) ** 2).sum(1)
        share = np.exp(-(squared - squared.min()) / 0.07**2)
        ends = [end[p] + after[p] @ before[p].T @ (position - start[p]) for p in range(len(start))]
        motion.append(share / share.sum() @ np.array(ends) - position)
    return np.array(motion)


def fourier_features(position: Array, num_frequencies: int) -> Array:
    """Return a position with sines and cosines of wavelengths 2 m, 1 m, ..., sines first."""
    waves = [np.pi * 2**octave * position for octave in range(num_frequencies)]
    return np.concatenate([position, *map(np.sin, waves), *map(np.cos, waves)])


def interlacer_tokens(
    params: dict, config: Any, center: Array, previous: Any, current: Any, robot: Any
) -> tuple[Array, Array, Array]:
    """Return tokens, positions and which are real."""
    rows, positions, real, points = [], [], [], []
    robot_positions = np.asarray(robot.positions, np.float64)
    for time in range(3):
        shift = (robot_positions[2] - robot_positions[time]) / 0.05
        gripper = np.asarray(robot.gripper[time], np.float64)[:, None]
        points.append(np.concatenate([params["point_embedding"], gripper, shift], axis=1))
    for time, cloud in enumerate((previous, current)):
        place = np.asarray(cloud.positions, np.float64)
        tokens = linear(params["particle"], np.asarray(cloud.features, np.float64))
        if config.carry:
            motion, reach = carried_motion(place, robot, time, 2)
            carried = np.concatenate([reach[:, None] * motion / 0.05, reach[:, None]], axis=1)
            tokens = tokens + linear(params["carried"], carried)
        rows.append(tokens + np.asarray(params["time"][time] + params["kind"][0])[None])
        positions.append(place)
        real.append(np.asarray(cloud.mask))
    for time in range(3):
        tokens = linear(params["point"], points[time])
        rows.append(tokens + np.asarray(params["time"][time] + params["kind"][1])[None])
        positions.append(robot_positions[time])
        real.append(np.ones(len(tokens), bool))
    x, place = np.concatenate(rows), np.concatenate(positions)
    if config.position_embedding:
        embedded = [fourier_features(row, config.position_frequencies) for row in place - center]
        x = x + linear(params["position"], np.array(embedded))
    return x, place, np.concatenate(real)


def mlp(params: dict, x: Array) -> Array:
    """Apply two dense layers with GELU between."""
    return linear(params["out"], gelu(linear(params["hidden"], x)))


def drawn(scores: Array, real: Array, fraction: float) -> list[int]:
    """Return the real elements of the highest scores: a fraction of all real ones, rounded up."""
    order = [i for i in np.argsort(-np.asarray(scores)[: len(real)]) if real[i]]
    return order[: math.ceil(fraction * len(order) - 1e-6)]


def offset(node: Array, query: Array) -> Array:
    """Return node less query in units of 5 cm, and its length."""
    scaled = (node - query) / 0.05
    return np.append(scaled, np.sqrt(scaled @ scaled + 1e-12))


def edge_linear(params: dict, query: Array, node: Array, edge: Array) -> Array:
    """Apply one dense layer to [query, node, edge] of one edge."""
    kernel = np.concatenate([params[name]["kernel"] for name in ("query", "node", "edge")])
    return np.concatenate([query, node, edge]) @ kernel + np.asarray(params["query"]["bias"])


def neighbor_attender(
    params: dict, settings: Any, h: Array, positions: Array, real: Array, scores: Array
) -> Array:
    """Return the update of every token by message passing over anchors."""
    anchors = drawn(scores, real, settings.anchor_fraction)
    updates = np.zeros_like(h)
    for a in anchors:
        others = real & (np.arange(len(h)) != a)
        found, distances = nearest(
            positions[a : a + 1], positions, settings.anchor_neighbors, others
        )
        hidden, logits = [], []
        for j in found[0][np.isfinite(distances[0])]:
            r = offset(positions[j], positions[a])
            hidden.append(gelu(edge_linear(params["read"], h[a], h[j], r)))
            if settings.aggregate == "softmax":
                logits.append(linear(params["score"], hidden[-1])[0])
        messages = [linear(params["message"], u) for u in hidden]
        share = {
            "softmax": np.exp(logits) / max(np.exp(logits).sum(), 1e-300),
            "mean": np.ones(len(hidden)) / max(len(hidden), 1),
            "sum": np.ones(len(hidden)),
        }[settings.aggregate]
        message = sum((p * m for p, m in zip(share, messages, strict=True)), np.zeros(h.shape[1]))
        updates[a] = mlp(params["update"], np.concatenate([h[a], message]))
    for i in np.flatnonzero(real):
        if i not in anchors:
            a = min(anchors, key=lambda a, i=i: np.linalg.norm(positions[a] - positions[i]))
            r = offset(positions[a], positions[i])
            hidden = gelu(edge_linear(params["spread"], h[i], h[a] + updates[a], r))
            updates[i] = linear(params["out"], hidden)
    return updates


def graph_network(
    params: dict, config: Any, previous: Any, current: Any, robot: Any, scores: Array
) -> tuple[Array, Array]:
    """Return displacement and feature change of one call of VPD's graph network."""
    num_particles = len(previous.mask)
    settings = config.dynamics
    config = dataclasses.replace(config, position_embedding=False)
    x, place, real = interlacer_tokens(
        params["tokens"], config, np.zeros(3), previous, current, robot
    )
    chosen = drawn(scores, real[: 2 * num_particles], settings.abstract_fraction / 2)
    nodes, where = x[chosen], place[chosen]

    def linked(i: int, k: int, exclude: int = -1) -> list[int]:
        others = [n for n in range(len(chosen)) if n != exclude]
        return sorted(others, key=lambda n: np.linalg.norm(where[n] - place[i]))[:k]

    def message(params: dict, query: Array, node: Array, edge: Array) -> Array:
        hidden = gelu(edge_linear(params["hidden"], query, node, edge))
        return layer_norm(params["norm"], linear(params["out"], hidden))

    def update(params: dict, own: Array, received: Array) -> Array:
        inputs = np.concatenate([own, received], axis=-1)
        return own + layer_norm(params["norm"], mlp(params["mlp"], inputs))

    received = np.zeros_like(nodes)
    for i in np.flatnonzero(real):
        for n in linked(i, settings.abstract_links):
            edge = offset(where[n], place[i])
            received[n] += message(params["up_edge"], x[i], nodes[n], edge)
    nodes = update(params["up_node"], nodes, received)
    edges = {}
    for n, i in enumerate(chosen):
        for m in linked(i, settings.abstract_neighbors, exclude=n):
            encoded = mlp(params["among"]["mlp"], offset(where[m], where[n]))
            edges[n, m] = layer_norm(params["among"]["norm"], encoded)
    for i in range(settings.message_rounds):
        step, received = params["rounds"][i], np.zeros_like(nodes)
        for (n, m), edge in list(edges.items()):
            sent = message(step["edge"], nodes[n], nodes[m], edge)
            received[n] += sent
            edges[n, m] = edge + sent
        nodes = update(step["node"], nodes, received)
    present = range(num_particles, 2 * num_particles)
    received = np.zeros((num_particles, config.latent_dim))
    for i in present:
        for n in linked(i, settings.abstract_links) if real[i] else []:
            edge = offset(where[n], place[i])
            received[i - num_particles] += message(params["down_edge"], x[i], nodes[n], edge)
    tokens = update(params["down_node"], x[present], received)
    return read_out(params["read_out"], config, tokens, current, robot)


def read_out(
    params: dict, config: Any, tokens: Array, current: Any, robot: Any
) -> tuple[Array, Array]:
    """Return displacement and feature change of the current particles from their tokens."""
    raw = mlp(params["mlp"], layer_norm(params["norm"], tokens))
    raw = np.where(np.asarray(current.mask)[:, None], raw, 0.0)
    bound = config.max_displacement
    moved = (config.displacement_unit or bound) * raw[:, :3]
    if config.carry:
        motion, reach = carried_motion(np.asarray(current.positions, np.float64), robot, 1, 2)
        moved = moved + raw[:, -1:] * reach[:, None] * motion
    return bound * np.tanh(moved / bound), raw[:, 3 : 3 + config.feature_dim]


def attention_features(
    settings: Any, query: Array, key: Array, projection: Array | None = None
) -> tuple[Array, Array]:
    """Return positive features of one head's queries and keys, without any stabilisation."""
    width = query.shape[1]
    if settings.feature_map == "favor":
        z = query / width**0.25, key / width**0.25
        return tuple(np.exp(x @ projection.T - (x**2).sum(1, keepdims=True) / 2) for x in z)
    if settings.feature_map == "elu":
        x = query / np.sqrt(width), key
        return tuple(np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1 for x in x)
    return np.maximum(query / np.sqrt(width), 0) + 1e-3, np.maximum(key, 0) + 1e-3


def interlacer(
    params: dict,
    config: Any,
    center: Array,
    previous: Any,
    current: Any,
    robot: Any,
    scores: Array | None = None,
    projections: Sequence[Array] = (),
) -> tuple[Array, Array]:
    """Return displacement and feature change of one Interlacer call, all tokens dense.

    `scores` draw the anchors of message passing, `projections` are FAVOR+'s of every block.
    """
    f64, dim, num_particles = np.float64, config.latent_dim, len(previous.mask)
    attention, layer = config.dynamics.attention, config.dynamics.local
    x, positions, real = interlacer_tokens(
        params["tokens"], config, center, previous, current, robot
    )

    def neighbors(k: int) -> Array:
        found, distances = nearest(positions, positions, k, real, exclude_self=True)
        own = np.arange(len(x))[:, None]
        return np.where(np.isfinite(distances) & real[:, None], found, own)

    for i in range(config.dynamics.num_layers):
        block = params["blocks"][i]
        h = linear(block["global_attention"]["query_key_value"],
                   layer_norm(block["norm_global"], x))  # fmt: skip
        heads, width = attention.num_heads, dim // attention.num_heads
        query, key, value = (part.reshape(-1, heads, width) for part in np.split(h, 3, axis=1))
        masks = np.broadcast_to(real[None], (heads, len(x), len(x)))
        if attention.mask is not None:
            raw = np.asarray(block["global_attention"]["raw_mask"], f64)
            masks = [
                graph_mask(attention.mask, neighbors(attention.num_neighbors), parameters)
                for parameters in np.log1p(np.exp(raw))
            ]
        out = []
        for a in range(heads):
            projection = projections[i][a] if len(projections) else None
            features = attention_features(attention, query[:, a], key[:, a], projection)
            out.append(masked_attention(*features, value[:, a], masks[a]))
        x = x + linear(block["global_attention"]["out"], np.concatenate(out, axis=1))
        x = x + mlp(block["mlp"], layer_norm(block["norm_mlp"], x))
        if isinstance(layer, GraphAttentionSettings):
            local, h = block["local"], layer_norm(block["norm_local"], x)
            modulation = np.log1p(np.exp(np.asarray(local["raw_modulation"], f64)))
            weights = graph_mask(layer.mask, neighbors(layer.num_neighbors), modulation)
            query, key, value = (
                np.split(linear(local[part], h), layer.num_heads, axis=1)
                for part in ("query", "key", "value")
            )
            features = (
                (np.maximum(q / np.sqrt(q.shape[1]), 0) + 1e-3, np.maximum(k, 0) + 1e-3)
                for q, k in zip(query, key, strict=True)
            )
            attended = [
                masked_attention(*both, v, weights) for both, v in zip(features, value, strict=True)
            ]
            x = x + linear(local["out"], np.concatenate(attended, axis=1))
        if isinstance(layer, NeighborAttenderSettings):
            h = layer_norm(block["norm_local"], x)
            x = x + neighbor_attender(block["local"], layer, h, positions, real, scores)
    tokens = x[num_particles : 2 * num_particles]
    return read_out(params["read_out"], config, tokens, current, robot)


# U-Net --------------------------------------------------------------------------------------------


def conv3x3(params: dict, image: Array) -> Array:
    """Convolve (h w i) with zero padding."""
    kernel = np.asarray(params["kernel"], np.float64)
    height, width, _ = image.shape
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    out = np.zeros((height, width, kernel.shape[-1])) + np.asarray(params["bias"])
    for i in range(3):
        for j in range(3):
            out += padded[i : i + height, j : j + width] @ kernel[i, j]
    return out


def group_norm(params: dict, image: Array, num_groups: int = 8) -> Array:
    """Normalise groups of channels over the whole image."""
    grouped = image.reshape(*image.shape[:2], num_groups, -1)
    mean = grouped.mean((0, 1, 3), keepdims=True)
    variance = ((grouped - mean) ** 2).mean((0, 1, 3), keepdims=True)
    normal = ((grouped - mean) / np.sqrt(variance + 1e-6)).reshape(image.shape)
    return normal * np.asarray(params["scale"]) + np.asarray(params["bias"])


def pool2(image: Array, reduce: Callable[[Array], Any] = np.mean) -> Array:
    """Reduce 2x2 cells; cells at odd borders hold fewer pixels."""
    height, width, _ = image.shape
    rows = []
    for i in range(0, height, 2):
        cells = [image[i : i + 2, j : j + 2] for j in range(0, width, 2)]
        rows.append([[reduce(cell[..., c]) for c in range(image.shape[2])] for cell in cells])
    return np.array(rows)


def bilinear_weights(small: int, large: int) -> Array:
    """Return the (large, small) matrix of linear interpolation between pixel centres."""
    weights = np.zeros((large, small))
    for row in range(large):
        source = np.clip((row + 0.5) * small / large - 0.5, 0, small - 1)
        low = int(np.floor(source))
        high = min(low + 1, small - 1)
        weights[row, low] += 1 - (source - low)
        weights[row, high] += source - low
    return weights


def resize(image: Array, height: int, width: int) -> Array:
    """Enlarge (h w c) bilinearly."""
    rows = np.einsum("Hh,hwc->Hwc", bilinear_weights(image.shape[0], height), image)
    return np.einsum("Ww,hwc->hWc", bilinear_weights(image.shape[1], width), rows)


def unet(params: dict, image: Array) -> Array:
    """Return features (h w c) of one image in [-1, 1]."""

    def block(params: dict, x: Array) -> Array:
        for name in ("first", "second"):
            x = gelu(group_norm(params[f"{name}_norm"], conv3x3(params[name], x)))
        return x

    x, skips = np.asarray(image, np.float64), []
    for level in range(len(params["down"])):
        x = block(params["down"][level], pool2(x) if level else x)
        skips.append(x)
    for level in range(len(params["up"])):
        skip = skips[-2 - level]
        enlarged = resize(x, *skip.shape[:2])
        x = block(params["up"][level], np.concatenate([enlarged, skip], axis=-1))
    return linear(params["head"], x)


def receptive_field(height: int, width: int, row: int, column: int, num_levels: int) -> Array:
    """Return which input pixels reach one output pixel of a U-Net without norms, by dilation."""

    def grow(seen: Array) -> Array:
        padded = np.pad(seen, 2)  # two 3x3 convolutions
        return np.any(
            [padded[i : i + seen.shape[0], j : j + seen.shape[1]]
             for i in range(5) for j in range(5)], axis=0
        )  # fmt: skip

    def inputs_of(seen: Array, level: int) -> Array:
        """Trace pixels of a level's final map back to the input of that level's encoder block."""
        if level == num_levels - 1:
            return grow(seen)
        seen = grow(seen)
        small = ((seen.shape[0] + 1) // 2, (seen.shape[1] + 1) // 2)
        taps = [bilinear_weights(s, n) > 0 for s, n in zip(small, seen.shape, strict=True)]
        below = inputs_of(np.einsum("Hh,HW,Ww->hw", taps[0], seen, taps[1]) > 0, level + 1)
        pooled = np.repeat(np.repeat(below, 2, 0), 2, 1)[: seen.shape[0], : seen.shape[1]]
        return grow(seen | pooled)

    start = np.zeros((height, width), bool)
    start[row, column] = True
    return inputs_of(start, 0)


# Rendering ----------------------------------------------------------------------------------------


def annular_sums(
    positions: Array,
    features: Array,
    query: Array,
    radii: Sequence[float],
    bandwidths: Sequence[float],
) -> tuple[Array, Array]:
    """Return sum_i w_ki f_i and sum_i w_ki of one query over all particles given."""
    num_kernels = len(radii)
    weighted, total = np.zeros((num_kernels, features.shape[1])), np.zeros(num_kernels)
    for position, feature in zip(positions, features, strict=True):
        difference = np.asarray(position, np.float64) - query
        distance = np.sqrt(difference @ difference + 1e-12)
        for k in range(num_kernels):
            weight = np.exp(-(((distance - radii[k]) / bandwidths[k]) ** 2))
            weighted[k] += weight * feature
            total[k] += weight
    return weighted, total


def annular_features(weighted: Array, total: Array) -> Array:
    """Return [F_0, g_0, F_1, g_1, ...] of one query."""
    eps = 1e-8
    channels = []
    for k in range(len(total)):
        channels.extend(weighted[k] / (total[k] + eps))
        channels.append(1 + np.log(total[k] + eps) / np.log(1 / eps))
    return np.array(channels)


def composite(
    rgb: Array, density: Array, tdist: Array, far: float
) -> tuple[Array, float, float, Array]:
    """Return colour, ray distance, opacity and weights of one ray, by products of (1 - alpha)."""
    ends = np.append(tdist[1:], far)
    alpha = 1 - np.exp(-density * (ends - tdist))
    light, weights = 1.0, np.zeros(len(tdist))
    for m in range(len(tdist)):
        weights[m] = light * alpha[m]
        light *= 1 - alpha[m]
    return weights @ rgb + light, weights @ tdist + light * far, 1 - light, weights


def render(params: dict, config: Any, cloud: Any, rays: Any, tdist: Array) -> tuple[Array, Array]:
    """Return colour and planar depth of rays through given sample distances."""
    real = np.asarray(cloud.mask)
    positions = np.asarray(cloud.positions, np.float64)[real]
    features = np.asarray(cloud.features, np.float64)[real]
    colours, depths = [], []
    for r in range(len(tdist)):
        origin, direction = (np.asarray(x[r], np.float64) for x in (rays.origins, rays.directions))
        rgb, density = np.zeros((len(tdist[r]), 3)), np.zeros(len(tdist[r]))
        for m, t in enumerate(tdist[r]):
            query = origin + t * direction
            distance = np.linalg.norm(positions - query[None], axis=1)
            chosen = np.argsort(distance)[: config.num_neighbors]
            if not len(chosen) or distance[chosen[0]] > config.cutoff:
                continue
            weighted, total = annular_sums(
                positions[chosen], features[chosen], query, config.radii, config.bandwidths
            )
            x = annular_features(weighted, total)
            for layer in range(config.mlp_depth):
                x = gelu(linear(params["hidden"][layer], x))
            raw = linear(params["out"], layer_norm(params["norm"], x))
            rgb[m] = 1 / (1 + np.exp(-raw[:3]))
            gate = min(total[np.argmax(config.bandwidths)], 1.0)
            density[m] = gate * config.density_scale * np.log1p(np.exp(raw[3]))
        colour, ray_distance, _, _ = composite(rgb, density, tdist[r], config.far)
        colours.append(colour)
        depths.append(ray_distance * float(rays.z_scale[r]))
    return np.array(colours), np.array(depths)


def inverse_transform(density: Array, quantiles: Array, near: float, far: float) -> Array:
    """Return the distances at which a piecewise-constant density reaches the quantiles."""
    width = (far - near) / len(density)
    share = density / density.sum()
    out = []
    for quantile in quantiles:
        below = 0.0
        for stratum in range(len(share)):
            if below + share[stratum] >= quantile or stratum == len(share) - 1:
                out.append(near + width * (stratum + (quantile - below) / share[stratum]))
                break
            below += share[stratum]
    return np.array(out)


# Training -----------------------------------------------------------------------------------------


def adamw_steps(
    value: Array,
    grads: Sequence[Array],
    rates: Sequence[float],
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    clip_norm: float,
) -> Array:
    """Apply AdamW with global-norm clipping to one array (Loshchilov and Hutter, alg. 2)."""
    value = np.array(value, np.float64)
    first, second = np.zeros_like(value), np.zeros_like(value)
    for step, (grad, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        norm = np.sqrt((grad**2).sum())
        grad = grad * min(1.0, clip_norm / norm)
        first = b1 * first + (1 - b1) * grad
        second = b2 * second + (1 - b2) * grad**2
        unbiased = first / (1 - b1**step), second / (1 - b2**step)
        value -= rate * (unbiased[0] / (np.sqrt(unbiased[1]) + eps) + weight_decay * value)
    return value


def directional_derivative(
    function: Callable[..., float], arguments: Sequence[Array], directions: Sequence[Array]
) -> float:
    """Return the central difference of a float64 function along a direction."""
    step = 1e-5
    ahead = function(*(a + step * d for a, d in zip(arguments, directions, strict=True)))
    behind = function(*(a - step * d for a, d in zip(arguments, directions, strict=True)))
    return (ahead - behind) / (2 * step)
