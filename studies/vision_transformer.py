"""Small vision transformers whose attention takes any mask: of images, and of short clips."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.attention.feature_maps import relu_features
from hdvpd.basics.types import Array, Float, JaxArray
from studies.attention import dense
from studies.head_masks import AbstractGridMask, HeadMasks

# Width of the hidden layer over that of tokens (arXiv 2410.03462, Table 2: 4).
_WIDENING = 2
_CLASS_SPREAD = 0.02
# That of a normalised pixel's embedding: smaller ones go unused for most of a short training.
_POSITION_SPREAD = 1.0

Kind = Literal["softmax", "linear"]
FamilyOf = Callable[[tuple[int, int]], AbstractGridMask]


class Attention(nnx.Module):
    """Attention in several heads: softmax, or linear with ReLU features.

    Every form is computed with its [t, t] weights, whatever it would cost: at 65 tokens that is the
    fastest on a CPU, and it makes the forms' times equal. `masked_linear_attention` gives the same
    from the masks' fast products, which a test shows.

    Args:
      width: of tokens.
      num_heads: divides the width.
      kind: softmax or linear.
      family: of the heads' masks, over all tokens but the first; None leaves them out.
      rngs: of weights and walks.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        kind: Kind,
        family: AbstractGridMask | None,
        *,
        rngs: nnx.Rngs,
    ):
        self.num_heads, self.kind = num_heads, kind
        self.project = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.merge = nnx.Linear(width, width, rngs=rngs)
        self.masks = None if family is None else HeadMasks(family, num_heads, rngs=rngs)

    def __call__(self, x: Float[JaxArray, "t d"]) -> Float[JaxArray, "t d"]:
        """Return what every token reads."""
        num_tokens = x.shape[0]
        query, key, value = self.heads(x)
        if self.masks is None:
            attend = dense.linear_attention if self.kind == "linear" else dense.softmax_attention
            read = jax.vmap(attend)(query, key, value)
        else:
            linear, softmax = dense.masked_linear_attention, dense.masked_softmax_attention
            attend = linear if self.kind == "linear" else softmax
            read = jax.vmap(attend)(query, key, value, self.masks.dense())
        return self.merge(jnp.swapaxes(read, 0, 1).reshape(num_tokens, -1))

    def heads(self, x: Float[JaxArray, "t d"]) -> tuple[Float[Array, "a t m"], ...]:
        """Return queries, keys and values; for linear attention the features of the first two."""
        num_tokens = x.shape[0]
        projected = self.project(x).reshape(num_tokens, 3, self.num_heads, -1)
        query, key, value = jnp.moveaxis(projected, (1, 2), (0, 1))
        if self.kind == "linear":
            query, key = relu_features(query / np.sqrt(query.shape[-1])), relu_features(key)
        return query, key, value


class Block(nnx.Module):
    """Attention, then a two-layer perceptron, each of normalised tokens and added to them."""

    def __init__(self, width: int, attention: Attention, *, rngs: nnx.Rngs):
        self.first_norm, self.second_norm = (nnx.LayerNorm(width, rngs=rngs) for _ in range(2))
        self.attention = attention
        self.widen = nnx.Linear(width, _WIDENING * width, rngs=rngs)
        self.narrow = nnx.Linear(_WIDENING * width, width, rngs=rngs)

    def __call__(
        self, x: Float[JaxArray, "t d"], num_read: int | None = None
    ) -> Float[JaxArray, "_ d"]:
        """Return the next tokens, all or the first ones."""
        x = (x + self.attention(self.first_norm(x)))[:num_read]
        return x + self.narrow(jax.nn.gelu(self.widen(self.second_norm(x))))


class Encoder(nnx.Module):
    """A transformer over the cells of a grid, read out at a class token.

    Args:
      in_dim: numbers of a cell.
      cells: rows and columns of the grid.
      width: of tokens.
      num_heads: of attention.
      depth: blocks.
      kind: of attention.
      family: makes the family of the masks on a grid, of all blocks but the last; None for no mask.
      positions: whether every token has a learned position embedding.
      rngs: of weights and walks.
    """

    def __init__(
        self,
        in_dim: int,
        cells: tuple[int, int],
        *,
        width: int,
        num_heads: int,
        depth: int,
        kind: Kind,
        family: FamilyOf | None,
        positions: bool,
        rngs: nnx.Rngs,
    ):
        normal = nnx.initializers.normal
        num_cells = cells[0] * cells[1]
        # Every mask lets the class token see all cells alike, and the last block's others are not
        # read: a mask there would change nothing.
        masks = [None if family is None else family(cells)] * (depth - 1) + [None]
        self.embed = nnx.Linear(in_dim, width, rngs=rngs)
        self.class_token = nnx.Param(normal(_CLASS_SPREAD)(rngs.params(), (1, width)))
        # Drawn in any case, so that what follows starts alike with and without.
        drawn = normal(_POSITION_SPREAD)(rngs.params(), (num_cells, width))
        self.positions = nnx.Param(drawn) if positions else None
        self.blocks = nnx.List(
            Block(width, Attention(width, num_heads, kind, on_cells, rngs=rngs), rngs=rngs)
            for on_cells in masks
        )
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, cells: Float[JaxArray, "n i"]) -> Float[JaxArray, "d"]:
        """Return the class token after the last block."""
        tokens = self.embed(cells)
        if self.positions is not None:
            tokens = tokens + self.positions.get_value()
        tokens = jnp.concatenate([self.class_token.get_value(), tokens])
        for block in self.blocks[:-1]:
            tokens = block(tokens)
        return self.norm(self.blocks[-1](tokens, num_read=1)[0])


class ImageTransformer(nnx.Module):
    """Vision transformer (arXiv 2010.11929): an encoder over patches and one linear layer."""

    def __init__(self, encoder: Encoder, width: int, num_classes: int, *, rngs: nnx.Rngs):
        self.encoder = encoder
        self.classify = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, patches: Float[JaxArray, "n i"]) -> Float[JaxArray, "classes"]:
        """Return the logits of one image."""
        return self.classify(self.encoder(patches))


class ClipTransformer(nnx.Module):
    """Factorised video transformer (arXiv 2103.15691, model 2): patches of frames, then frames."""

    def __init__(
        self, spatial: Encoder, temporal: Encoder, width: int, num_classes: int, *, rngs: nnx.Rngs
    ):
        self.spatial, self.temporal = spatial, temporal
        self.classify = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, patches: Float[JaxArray, "f n i"]) -> Float[JaxArray, "classes"]:
        """Return the logits of one clip."""
        frames = jax.vmap(self.spatial)(patches)
        return self.classify(self.temporal(frames))


def patches(
    images: Float[np.ndarray, "*batch h w c"], size: int
) -> Float[np.ndarray, "*batch n i"]:
    """Cut images into square patches in row-major order, each as a row of numbers.

    Args:
      images: rows and columns are multiples of `size`.
      size: of a patch [px].
    """
    *batch, height, width, channels = images.shape
    cut = images.reshape(*batch, height // size, size, width // size, size, channels)
    return np.moveaxis(cut, -3, -4).reshape(*batch, -1, size * size * channels)
