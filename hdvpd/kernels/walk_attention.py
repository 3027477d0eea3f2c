"""Linear attention among the entries of walks: every token attends to where its walks lead."""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Float, JaxArray
from hdvpd.kernels import walk_attention_host
from hdvpd.kernels.choice import use_gpu_kernels, use_host_kernels
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import host_call
from hdvpd.kernels.walks import Walks, check_modulation, merged


def attend_along_walks(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    modulation: Float[Array, "l"],
    walks: Walks,
) -> Float[Array, "t c"]:
    """Attend along walks: out_i = sum_e c_e v_e / sum_e c_e, c_e = (q_i . k_e) sum_l f_l W^l_ie.

    Args:
      query: positive feature map of the queries, as keys and values in float32.
      key: positive feature map of the keys.
      value: values.
      modulation: f, not negative.
      walks: entries of every token. The form is theirs: compiled host code or Pallas, which never
        materialise [t, e, c], or plain JAX. Listed walks are merged first where a form needs their
        transpose.

    Returns:
      Weighted means of the values; weights sum to one.

    Raises:
      UserError: f is not as long as the walks.
    """
    check_modulation(walks, modulation)
    if use_host_kernels(walks.kernels):
        return _on_host(None, (query, key, value, modulation), merged(walks))
    if use_gpu_kernels(walks.kernels):
        from hdvpd.kernels import walk_attention_pallas

        walks = merged(walks)
        return walk_attention_pallas.attend(query, key, value, walks.loads @ modulation, walks)
    scores = jnp.einsum("tm,tem->te", query, key[walks.nodes])
    weights = scores * (walks.loads @ modulation)
    total = jnp.einsum("te,tec->tc", weights, value[walks.nodes])
    return total / weights.sum(-1)[:, None]


def relu_attend_along_walks(
    queries_keys_values: Float[Array, "t w"],
    modulation: Float[Array, "l"],
    walks: Walks,
    least: float,
) -> Float[JaxArray, "t d"]:
    """Return `attend_along_walks` of ReLU features, relu(q / sqrt(d)) + least and relu(k) + least.

    Args:
      queries_keys_values: w = 3 d, beside each other, in float32.
      modulation: f, not negative.
      walks: entries of every token, whose form is compiled host code.
      least: added to ReLU.

    Raises:
      UserError: f is not as long as the walks.
    """
    check_modulation(walks, modulation)
    return _relu_on_host(least, (queries_keys_values, modulation), merged(walks))


def _forward(_, moving, walks):
    results = [jax.ShapeDtypeStruct(x.shape, np.float32) for x in (moving[2], walks.num_entries)]
    arguments = (*moving, walks.nodes, walks.loads, walks.num_entries)
    out, normalizer = host_call(walk_attention_host.forward, results, *arguments)
    return out, (out, normalizer)


def _backward(_, moving, walks, saved, out_bar):
    results = [jax.ShapeDtypeStruct(x.shape, np.float32) for x in moving]
    rows = (walks.nodes, walks.loads, walks.num_entries)
    order = (walks.incoming.entries, walks.incoming.offsets)
    arguments = (*moving, *rows, *order, *saved, out_bar)
    return tuple(host_call(walk_attention_host.backward, results, *arguments))


def _relu_forward(least, moving, walks):
    together, modulation = moving
    shapes = [(together.shape[0], together.shape[1] // 3), walks.num_entries.shape]
    results = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    arguments = (together, np.float32(least), modulation)
    rows = (walks.nodes, walks.loads, walks.num_entries)
    out, normalizer = host_call(walk_attention_host.relu_forward, results, *arguments, *rows)
    return out, (out, normalizer)


def _relu_backward(least, moving, walks, saved, out_bar):
    together, modulation = moving
    results = [jax.ShapeDtypeStruct(x.shape, np.float32) for x in moving]
    arguments = (together, np.float32(least), modulation)
    rows = (walks.nodes, walks.loads, walks.num_entries)
    order = (walks.incoming.entries, walks.incoming.offsets)
    arguments = (*arguments, *rows, *order, *saved, out_bar)
    return tuple(host_call(walk_attention_host.relu_backward, results, *arguments))


_on_host = differentiable(_forward, _backward)
_relu_on_host = differentiable(_relu_forward, _relu_backward)
