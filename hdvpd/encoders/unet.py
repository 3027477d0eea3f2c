"""U-Net on RGB images: one feature vector per pixel (docs/equations.md, Encoder)."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.layers import Conv, GroupNorm, Linear
from hdvpd.basics.types import Float, JaxArray
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.convolution import LEAST_NORMED, convolve, group_norm_gelu, on_host
from hdvpd.kernels.derivatives import differentiable


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
        self.kernels: Kernels = kernels

    def __call__(self, rgb: Float[JaxArray, "b h w 3"]) -> Float[JaxArray, "b h w c"]:
        """Return features of every pixel.

        Args:
          rgb: colours in [-1, 1]; any height and width (odd sizes are padded inside).
        """
        skips, x = [], rgb
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else _halved(x))
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            x = block(jnp.concatenate([_enlarged(x, *skip.shape[1:3]), skip], axis=-1))
        return self._features(x)

    def _features(self, x: Float[JaxArray, "b h w i"]) -> Float[JaxArray, "b h w c"]:
        kernel = self.head.kernel[...][None, None]
        if self.head.dtype is None and on_host(self.kernels, x, kernel):
            assert self.head.bias is not None
            return convolve(x, kernel) + self.head.bias[...][None, None, None]
        # As rows: of an array with more axes, the gradient of the weights would be made of a copy.
        return self.head(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


def _halved(x: Float[JaxArray, "b h w c"]) -> Float[JaxArray, "b i j c"]:
    """Average 2x2 pixels each, at the end of an odd axis those that there are."""
    b, h, w, c = x.shape
    if h % 2 or w % 2:
        return nnx.avg_pool(x, (2, 2), (2, 2), padding="SAME", count_include_pad=False)
    # XLA's code for CPUs takes up to three times as long for a window that moves.
    x = x.reshape(b, h // 2, 2, w // 2, 2, c)
    return 0.25 * (x[:, :, 0, :, 0] + x[:, :, 0, :, 1] + x[:, :, 1, :, 0] + x[:, :, 1, :, 1])


def _enlarged(x: Float[JaxArray, "b i j c"], height: int, width: int) -> Float[JaxArray, "b h w c"]:
    """Resize bilinearly to a size of which that of x is half, rounded up."""
    for axis, size in ((2, width), (1, height)):
        if size == 2 * x.shape[axis]:
            x = _doubled(axis, x, ())
        else:
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            x = jax.image.resize(x, shape, "bilinear")
    return x


def _double(
    axis: int, x: Float[JaxArray, "b i j c"], fixed: tuple[()]
) -> tuple[Float[JaxArray, "b h w c"], None]:
    """Double one axis as `jax.image.resize` does, which multiplies by a dense matrix instead."""
    before, after = _neighbors(x, x, axis)
    pairs = jnp.stack([0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after], axis + 1)
    return pairs.reshape(*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :]), None


def _double_backward(
    axis: int,
    x: Float[JaxArray, "b i j c"],
    fixed: tuple[()],
    saved: None,
    result_bar: Float[JaxArray, "b h w c"],
) -> Float[JaxArray, "b i j c"]:
    # A sum of shifted parts; what JAX makes of `_double` adds padded ones, in twice the time.
    pairs = result_bar.reshape(*x.shape[: axis + 1], 2, *x.shape[axis + 1 :])
    even, odd = (jax.lax.index_in_dim(pairs, i, axis + 1, keepdims=False) for i in range(2))
    before, after = _neighbors(odd, even, axis)
    return 0.75 * (even + odd) + 0.25 * (before + after)


def _neighbors(
    left: Float[JaxArray, "b i j c"], right: Float[JaxArray, "b i j c"], axis: int
) -> tuple[Float[JaxArray, "b i j c"], Float[JaxArray, "b i j c"]]:
    """Return what lies before and after every place: of `left` and of `right`.

    Before the first place lies that of `right` itself, and after the last one that of `left`.
    """
    last = left.shape[axis] - 1
    part = functools.partial(jax.lax.slice_in_dim, axis=axis)
    before = jnp.concatenate([part(right, 0, 1), part(left, 0, last)], axis)
    after = jnp.concatenate([part(right, 1, last + 1), part(left, last, last + 1)], axis)
    return before, after


_doubled = differentiable(_double, _double_backward)
