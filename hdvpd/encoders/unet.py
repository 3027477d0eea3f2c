"""U-Net on RGB images: one feature vector per pixel (docs/equations.md, Encoder)."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.layers import Conv, GroupNorm, Linear
from hdvpd.types import Float, JaxArray


class ConvBlock(nnx.Module):
    """Two 3x3 convolutions, each with GroupNorm (8 groups) and GELU."""

    def __init__(self, in_channels: int, out_channels: int, *, rngs: nnx.Rngs):
        conv = functools.partial(Conv, kernel_size=(3, 3), rngs=rngs)
        norm = functools.partial(GroupNorm, out_channels, num_groups=8, rngs=rngs)
        self.first, self.second = conv(in_channels, out_channels), conv(out_channels, out_channels)
        self.first_norm, self.second_norm = norm(), norm()

    def __call__(self, x: Float[JaxArray, "b h w i"]) -> Float[JaxArray, "b h w o"]:
        """Apply to images of any size."""
        x = jax.nn.gelu(self.first_norm(self.first(x)))
        return jax.nn.gelu(self.second_norm(self.second(x)))


class UNet(nnx.Module):
    """Average-pool down, bilinear up, skip connections, full-resolution output."""

    def __init__(self, channels: tuple[int, ...], feature_dim: int, *, rngs: nnx.Rngs):
        block = functools.partial(ConvBlock, rngs=rngs)
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
            shape = (*skip.shape[:3], x.shape[-1])
            x = block(jnp.concatenate([jax.image.resize(x, shape, "bilinear"), skip], axis=-1))
        return self.head(x)
