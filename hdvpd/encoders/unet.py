"""U-Net on RGB images: one feature vector per pixel (docs/equations.md, Encoder)."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.layers import Conv, GroupNorm, Linear
from hdvpd.basics.types import Float, JaxArray
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.convolution import LEAST_NORMED, convolve, group_norm_gelu, on_host


class ConvBlock(nnx.Module):
    """Two 3x3 convolutions, each with GroupNorm (8 groups) and GELU."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernels: Kernels = "auto",
        rngs: nnx.Rngs,
    ):
        conv = functools.partial(Conv, kernel_size=(3, 3), rngs=rngs)
        norm = functools.partial(GroupNorm, out_channels, num_groups=8, rngs=rngs)
        self.first, self.second = conv(in_channels, out_channels), conv(out_channels, out_channels)
        self.first_norm, self.second_norm = norm(), norm()
        self.kernels: Kernels = kernels

    def __call__(self, x: Float[JaxArray, "b h w i"]) -> Float[JaxArray, "b h w o"]:
        """Apply to images of any size."""
        return self._layer(
            self.second, self.second_norm, self._layer(self.first, self.first_norm, x)
        )

    def _layer(
        self, conv: nnx.Conv, norm: nnx.GroupNorm, x: Float[JaxArray, "b h w i"]
    ) -> Float[JaxArray, "b h w o"]:
        kernel = conv.kernel[...]
        if conv.dtype is not None or not on_host(self.kernels, x, kernel):
            return jax.nn.gelu(norm(conv(x)))
        assert conv.bias is not None
        assert norm.scale is not None
        assert norm.bias is not None
        x, bias = convolve(x, kernel), conv.bias[...]
        if x.size < LEAST_NORMED:
            return jax.nn.gelu(norm(x + bias[None, None, None]))
        shape = norm.num_groups, norm.epsilon
        return group_norm_gelu(x, bias, norm.scale[...], norm.bias[...], *shape)


class UNet(nnx.Module):
    """Average-pool down, bilinear up, skip connections, full-resolution output."""

    def __init__(
        self,
        channels: tuple[int, ...],
        feature_dim: int,
        *,
        kernels: Kernels = "auto",
        rngs: nnx.Rngs,
    ):
        block = functools.partial(ConvBlock, kernels=kernels, rngs=rngs)
        inputs = (3, *channels[:-1])
        self.down = nnx.List([block(i, o) for i, o in zip(inputs, channels, strict=True)])
        pairs = list(zip(channels[1:], channels[:-1], strict=True))[::-1]
        self.up = nnx.List([block(deep + skip, skip) for deep, skip in pairs])
        self.head = Linear(channels[0], feature_dim, rngs=rngs)

    def __call__(self, rgb: Float[JaxArray, "b h w 3"]) -> Float[JaxArray, "b h w c"]:
        """Return features of every pixel.

        Args:
          rgb: colours in [-1, 1]; any height and width (odd sizes are padded inside).
        """
        skips, x = [], rgb
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else nnx.avg_pool(x, (2, 2), (2, 2), padding="SAME",
                                                        count_include_pad=False))  # fmt: skip
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            x = block(jnp.concatenate([_enlarged(x, *skip.shape[1:3]), skip], axis=-1))
        # As rows: of an array with more axes, the gradient of the weights would be made of a copy.
        return self.head(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


def _enlarged(x: Float[JaxArray, "b i j c"], height: int, width: int) -> Float[JaxArray, "b h w c"]:
    """Resize bilinearly to a size of which that of x is half, rounded up."""
    for axis, size in ((1, height), (2, width)):
        if size == 2 * x.shape[axis]:
            x = _doubled(x, axis)
        else:
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            x = jax.image.resize(x, shape, "bilinear")
    return x


def _doubled(x: Float[JaxArray, "b i j c"], axis: int) -> Float[JaxArray, "b h w c"]:
    """Double one axis as `jax.image.resize` does, which multiplies by a dense matrix instead."""
    last = x.shape[axis] - 1
    rows = functools.partial(jax.lax.slice_in_dim, x, axis=axis)
    before = jnp.concatenate([rows(0, 1), rows(0, last)], axis)
    after = jnp.concatenate([rows(1, last + 1), rows(last, last + 1)], axis)
    pairs = jnp.stack([0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after], axis + 1)
    return pairs.reshape(*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :])
