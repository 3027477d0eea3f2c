"""The renderer: place samples, interpolate particles, shade and composite.

The formulas are in docs/equations.md, Renderer.
Works on groups g of (cloud, rays): a group is one predicted frame of one window. Samples with no
particle within reach are sorted to the end and skipped in chunks, so that only the search sees
them; the chunks run over all groups at once.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.layers import LayerNorm, Linear
from hdvpd.basics.sampling import marked_first
from hdvpd.basics.types import (
    Array,
    Bool,
    Float,
    Int,
    JaxArray,
    Key,
    ParticleCloud,
    PRNGKey,
    Rays,
    Rendering,
)
from hdvpd.config import RenderConfig
from hdvpd.kernels.annular_sums import annular_sums
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.derivatives import by_chunks
from hdvpd.kernels.layers import bent, normed
from hdvpd.kernels.neighbors import Backend, Neighbors, PointIndex, index_points, knn
from hdvpd.render.compositing import composite
from hdvpd.render.interpolation import annular_features
from hdvpd.render.rays import (
    Samples,
    in_order,
    proposal_density,
    propose,
    samples_at,
    stratified,
)
from hdvpd.render.surface import light_stopped

# Chunks per call in which samples are shaded: skipping wastes at most one in this many.
_NUM_CHUNKS = 16


def support(config: RenderConfig) -> float:
    """Return how far particles are looked for around a sample within the cutoff of one [m].

    Three bandwidths beyond the cutoff, or beyond an annulus still farther out: a particle there
    weighs less than e^-9 of one at the cutoff, or on the annulus, in every kernel.
    """
    farthest = (max(config.cutoff, radius) for radius in config.radii)
    return max(x + 3 * b for x, b in zip(farthest, config.bandwidths, strict=True))


class NerfMlp(nnx.Module):
    """Interpolated features to colour and density."""

    def __init__(
        self, in_dim: int, config: RenderConfig, kernels: Kernels = "auto", *, rngs: nnx.Rngs
    ):
        widths = [in_dim] + [config.mlp_width] * config.mlp_depth
        self.hidden = nnx.List([Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(widths)])
        self.norm = LayerNorm(widths[-1], rngs=rngs)
        self.out = Linear(widths[-1], 4, rngs=rngs)
        self.density_scale = config.density_scale
        self.kernels: Kernels = kernels

    def __call__(
        self, x: Float[JaxArray, "q d"], colors: Float[Array, "q 3"] | None = None
    ) -> tuple[Float[Array, "q 3"], Float[Array, "q"]]:
        """Return colour in [0, 1] and density per metre.

        Args:
          x: interpolated features.
          colors: logits that are added to the colour's; None adds nothing.
        """
        for layer in self.hidden:
            x = bent(layer, x, self.kernels)
        raw = normed(self.norm, [self.out], x, self.kernels)
        density = self.density_scale * jax.nn.softplus(raw[:, 3])
        logits = raw[:, :3] if colors is None else raw[:, :3] + colors
        return jax.nn.sigmoid(logits), density


class ParticleAppearance(nnx.Module):
    """Colour of the particles around a point, and constant density; nothing is learned.

    Beyond the papers. A renderer that learns on few predicted images learns to hedge: where the
    prediction is wrong, half-transparent surfaces cost less (docs/lab-book.md).
    """

    def __init__(self, config: RenderConfig):
        self.density = config.density_scale

    def __call__(
        self, x: Float[Array, "q d"], colors: Float[Array, "q 3"] | None = None
    ) -> tuple[Float[Array, "q 3"], Float[Array, "q"]]:
        """Return colour in [0, 1] and density per metre; see `NerfMlp`."""
        logits = x[:, :3] if colors is None else colors
        return jax.nn.sigmoid(logits), jnp.full(x.shape[:1], self.density)


class Renderer(nnx.Module):
    """Annular-kernel Point-NeRF."""

    def __init__(
        self,
        config: RenderConfig,
        feature_dim: int,
        *,
        colors: bool = False,
        knn_backend: Backend,
        kernels: Kernels,
        rngs: nnx.Rngs,
    ):
        particles = config.appearance == "particles"
        if particles:
            # Nothing but the innermost kernel's colours is asked for.
            config = dataclasses.replace(
                config, radii=config.radii[:1], bandwidths=config.bandwidths[:1]
            )
        self.mlp = (
            ParticleAppearance(config)
            if particles
            else NerfMlp(len(config.radii) * (feature_dim + 1), config, kernels, rngs=rngs)
        )
        self.config = config
        self.num_features = 3 if particles else feature_dim
        self.colors = colors
        self.knn_backend: Backend = knn_backend
        self.kernels: Kernels = kernels

    def __call__(
        self,
        clouds: ParticleCloud,
        rays: Rays,
        keys: Key[JaxArray, "g"] | None,
        spacing: float = 1.0,
        index: PointIndex | None = None,
    ) -> Rendering:
        """Render rays of every group.

        Args:
          clouds: one cloud per group, axes (g).
          rays: axes (g r).
          keys: each jitters a group's training samples; None places the evaluation samples at
            mid-points.
          spacing: how much farther apart the particles are than the kernels were made for.
          index: of the clouds, where they are rendered several times.

        Returns:
          Colour, depth and opacity, axes (g r).
        """
        index = self.index(clouds) if index is None else index
        tdist, empty = jax.vmap(self._place_samples)(index, rays, keys)
        samples = samples_at(tdist, rays, self.config.near, self.config.far)
        config = _spread(self.config, spacing)
        rgb, density, ahead = self._shade(clouds, index, samples, config, empty)
        if self.config.surface_thickness:
            starts, stops = tdist + samples.before, tdist + ahead
            return composite(rgb, density, starts, rays.z_scale, self.config.far, stops)
        return composite(rgb, density, tdist, rays.z_scale, self.config.far)

    def particle_colors(self, cloud: ParticleCloud) -> Float[Array, "n 3"]:
        """Return the radiance field's colour at every particle, in [0, 1]."""
        one = jax.tree.map(lambda x: x[None], cloud)
        points = jnp.asarray(cloud.positions)[None, :, None]
        nowhere = jnp.zeros(points.shape[:-1])
        samples = Samples(points, jnp.zeros_like(points), before=nowhere, after=nowhere)
        return self._shade(one, self.index(one), samples, self.config)[0][0, :, 0]

    def index(self, clouds: ParticleCloud) -> PointIndex:
        """Prepare clouds, axes (g), for being rendered."""

        def prepare(cloud: ParticleCloud) -> PointIndex:
            return index_points(cloud.positions, mask=cloud.mask, backend=self.knn_backend)

        return jax.vmap(prepare)(clouds)

    def _place_samples(
        self, index: PointIndex, rays: Rays, key: PRNGKey | None
    ) -> tuple[Float[Array, "r s"], Bool[Array, "r s"]]:
        """Return sorted distances, without gradient, and which are known to be out of reach.

        They are strata plus proposals near particles, which the strata's own search found.
        """
        config = self.config
        num_rays = rays.z_scale.shape[0]
        if key is None:
            keys, counts = (None, None), (config.eval_num_samples, config.eval_num_proposals)
        else:
            keys = tuple(jax.random.split(key))
            counts = (config.num_samples, config.num_proposals)
        tdist = stratified(num_rays, counts[0], config.near, config.far, keys[0])
        if counts[1] == 0:
            return tdist, jnp.zeros(tdist.shape, bool)
        queries = rays.origins[:, None] + tdist[..., None] * rays.directions[:, None]
        nearest = self._search(index, queries.reshape(-1, 3), 1, config.cutoff)
        nearest_m = nearest.distances.reshape(tdist.shape)
        density = proposal_density(nearest_m)
        proposals = propose(density, counts[1], config.near, config.far, keys[1])
        return in_order(*jax.lax.stop_gradient((tdist, proposals)), ~jnp.isfinite(nearest_m))

    def _search(
        self, index: PointIndex, queries: Float[Array, "q 3"], k: int, max_distance: float
    ) -> Neighbors:
        """Find neighbours of queries with a particle within the cutoff; others find none."""
        with jax.named_scope("render_neighbors"):
            return knn(
                queries,
                index,
                k,
                max_distance=max_distance,
                max_nearest=self.config.cutoff,
                backend=self.knn_backend,
            )

    def _shade(
        self,
        clouds: ParticleCloud,
        index: PointIndex,
        samples: Samples,
        config: RenderConfig,
        empty: Bool[Array, "g r s"] | None = None,
    ) -> tuple[Float[Array, "g r s 3"], Float[Array, "g r s"], Float[Array, "g r s"]]:
        """Return colour, density, 0 out of reach, and where the light stops, from the sample on.

        Samples have axes (g r s). Density is that at the sample or, of surfaces, the mean over the
        part of the ray that the sample stands for. Those known to be empty are not searched for.
        """
        shape = samples.before.shape
        points = samples.points
        if empty is not None:
            points = jnp.where(empty[..., None], jnp.nan, points)
        points = points.reshape(shape[0], -1, 3)
        neighbors = jax.vmap(
            lambda index, points: self._search(index, points, config.num_neighbors, support(config))
        )(index, points)
        num_particles = clouds.mask.shape[1]
        first = jnp.arange(shape[0], dtype=jnp.int32)[:, None, None] * num_particles
        shaded = self._shade_reached(
            clouds.positions.reshape(-1, 3),
            clouds.features.reshape(-1, clouds.features.shape[-1])[:, : self.num_features],
            jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), samples),
            (neighbors.indices + first).reshape(-1, config.num_neighbors),
            neighbors.distances.reshape(-1, config.num_neighbors),
            config,
        ).reshape(*shape, 5)
        return shaded[..., :3], shaded[..., 3], shaded[..., 4]

    def _shade_reached(
        self,
        positions: Float[Array, "n 3"],
        features: Float[Array, "n c"],
        samples: Samples,
        indices: Int[Array, "q k"],
        distances: Float[Array, "q k"],
        config: RenderConfig,
    ) -> Float[Array, "q 5"]:
        """Interpolate and shade in chunks, only those that hold a sample in reach.

        No gradient flows to samples. Reverse mode only.
        """
        widest = config.bandwidths.index(max(config.bandwidths))
        reached = jnp.isfinite(distances[:, 0])
        order, place = marked_first(reached)
        num_queries, num_features = reached.shape[0], features.shape[-1]
        chunk = -(-num_queries // _NUM_CHUNKS)
        order = jnp.pad(order, (0, chunk * _NUM_CHUNKS - num_queries))
        num_chunks = -(-jnp.sum(reached, dtype=jnp.int32) // chunk)
        # Cotangents, of chunks and of either use, are added up: of three columns by no vectors.
        coordinates, numbers = positions.reshape(-1), features.reshape(-1)

        def shade(
            number: Int[Array, ""],
            fixed: tuple[Samples, Int[Array, "q k"], Float[Array, "q k"], Int[Array, "_"]],
            coordinates: Float[Array, "_"],
            numbers: Float[Array, "_"],
        ) -> Float[Array, "_ 5"]:
            *picked, order = fixed
            rows = jax.lax.dynamic_slice_in_dim(order, number * chunk, chunk)
            seen, neighbors, distances = jax.tree.map(lambda x: x[rows], picked)
            found = jnp.isfinite(distances)
            sums = annular_sums(
                coordinates.reshape(-1, 3), numbers.reshape(-1, num_features),
                seen.points, neighbors, found,
                config.radii, config.bandwidths, self.kernels,
            )  # fmt: skip
            features_seen = jnp.asarray(annular_features(sums))
            colors = features_seen[:, :3] if self.colors else None
            rgb, density = self.mlp(features_seen, colors)
            # Fading keeps density continuous at the cutoff and tells positions where density
            # should be; it also learns faster (docs/lab-book.md).
            if config.surface_thickness:
                density, ahead = light_stopped(
                    density, coordinates.reshape(-1, 3), seen, neighbors, found,
                    config.surface_bandwidth, config.surface_thickness,
                )  # fmt: skip
            else:
                density *= jnp.minimum(sums[:, widest, -1], 1.0)
                ahead = jnp.zeros_like(density)
            return jnp.concatenate([rgb, density[:, None], ahead[:, None]], axis=-1)

        moving, fixed = (coordinates, numbers), (samples, indices, distances, order)
        shaded = by_chunks(shade, len(order), num_chunks, moving, fixed)[place]
        return jnp.where(reached[:, None] | (jnp.arange(5) < 3)[None], shaded, 0.0)


def _spread(config: RenderConfig, spacing: float) -> RenderConfig:
    """Return settings whose kernels are wider, for particles that are farther apart."""
    return dataclasses.replace(
        config,
        radii=tuple(spacing * x for x in config.radii),
        bandwidths=tuple(spacing * x for x in config.bandwidths),
        surface_bandwidth=spacing * config.surface_bandwidth,
    )
