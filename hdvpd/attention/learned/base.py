"""The one interface of every mask with parameters, and how they are kept positive.

Layers hold raw parameters, any real numbers; a mask gets softplus of them, so that its entries are
never negative.
"""

import abc
from dataclasses import dataclass
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.attention.feature_maps import relu_features
from hdvpd.attention.masked import masked_linear_attention
from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.types import Array, Float, JaxArray, Key, PRNGKey
from hdvpd.config.settings import Settings
from hdvpd.kernels.sparse_rows import SparseRows

Plan = TypeVar("Plan")


@dataclass(frozen=True)
class AbstractLearnedMask(Settings, abc.ABC, Generic[Plan]):
    """How a mask over a graph's nodes follows from parameters; its fields are its settings.

    `plan` is a pytree of what depends on the graph and on chance but not on the parameters; all
    heads and layers over one graph can share it.
    """

    @abc.abstractmethod
    def initial_raw(self, key: PRNGKey) -> Float[Array, "..."]:
        """Return one head's raw parameters when learning starts."""

    @abc.abstractmethod
    def plan(self, graph: SparseRows, key: PRNGKey) -> Plan:
        """Prepare what the masks over one graph share."""

    @abc.abstractmethod
    def mask(self, parameters: Float[JaxArray, "..."], plan: Plan) -> AbstractMask:
        """Return one head's mask."""

    def attend(
        self,
        query: Float[Array, "t m"],
        key: Float[Array, "t m"],
        value: Float[Array, "t c"],
        parameters: Float[JaxArray, "..."],
        plan: Plan,
    ) -> Float[Array, "t c"]:
        """Attend with one head under its mask, by its products unless there is a faster way."""
        return masked_linear_attention(query, key, value, self.mask(parameters, plan))

    def attend_heads(
        self,
        query: Float[Array, "t a m"],
        key: Float[Array, "t a m"],
        value: Float[Array, "t a w"],
        parameters: Float[JaxArray, "a *_"],
        plan: Plan,
    ) -> Float[Array, "t a w"]:
        """Attend with every head under its own mask over one graph; arguments as in `attend`."""

        def attend(query: Array, key: Array, value: Array, parameters: JaxArray) -> Array:
            return self.attend(query, key, value, parameters, plan)

        if query.shape[1] == 1:  # The compiled host code takes one head as it is.
            return attend(query[:, 0], key[:, 0], value[:, 0], parameters[0])[:, None]
        return jax.vmap(attend, in_axes=(1, 1, 1, 0), out_axes=1)(query, key, value, parameters)

    def attend_projected(
        self,
        queries_keys_values: Float[JaxArray, "t w"],
        parameters: Float[JaxArray, "a *_"],
        plan: Plan,
    ) -> Float[JaxArray, "t d"]:
        """Attend with ReLU features of what dense layers return.

        Args:
          queries_keys_values: w = 3 d, beside each other, each of all heads beside each other.
          parameters: of every head's mask.
          plan: of all masks.
        """
        heads = parameters.shape[0]
        query, key, value = (
            part.reshape(part.shape[0], heads, -1)
            for part in jnp.split(queries_keys_values, 3, axis=1)
        )
        query, key = relu_features(query / np.sqrt(query.shape[-1])), relu_features(key)
        attended = self.attend_heads(query, key, value, parameters, plan)
        return jnp.asarray(attended).reshape(value.shape[0], -1)

    def check_degree(self, out_degree: int) -> None:
        """Refuse settings with which the plan of a graph of this out-degree would be too large.

        Raises:
          SettingError: naming the setting.
        """
        del out_degree


def positive(raw: Float[Array, "..."]) -> Float[JaxArray, "..."]:
    """Return softplus of raw parameters: what masks take."""
    return jax.nn.softplus(raw)


def raw(positive: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the raw parameters of positive ones, log(exp(y) - 1), as float32.

    Numpy's are computed in float64, and are numpy's again.
    """
    if isinstance(positive, jax.Array):
        return jnp.log(jnp.expm1(positive))
    return np.log(np.expm1(np.asarray(positive, np.float64))).astype(np.float32)


def head_keys(rngs: nnx.Rngs, num_heads: int) -> Key[JaxArray, "a"]:
    """Return a key per head for `AbstractLearnedMask.initial_raw`.

    The stream of the other layers' keys does not move: they start as they would without a mask.
    """
    stream = rngs.params
    drawn = getattr(stream, "drawn", stream.count[...])  # `basics.layers.Keys` counts in Python
    fresh = jax.random.fold_in(jax.random.fold_in(stream.key[...], drawn), 0)
    return jax.random.split(fresh, num_heads)
