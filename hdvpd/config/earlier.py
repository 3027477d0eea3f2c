"""Keys of earlier versions: where they went, and tables of before rewritten for now.

Until the parts of the model got settings of their own, all of them were keys of `[model]`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hdvpd.config.parts import DYNAMICS, GRAPH_MASKS, LOCAL_LAYERS
from hdvpd.config.settings import NONE, Parts

_DYNAMICS = "model.dynamics"
_ATTENTION = f"{_DYNAMICS}.attention"
_LOCAL = f"{_DYNAMICS}.local"
_MASK = f"{_LOCAL}.mask"

MOVED: Mapping[str, str] = {
    **{f"model.{name}": f"{_DYNAMICS}.{name}" for name in (
        "local", "num_layers", "mlp_ratio", "abstract_fraction", "abstract_links",
        "abstract_neighbors", "message_rounds")},
    **{f"model.{name}": f"{_ATTENTION}.{name}" for name in (
        "num_heads", "feature_map", "num_random_features")},
    "model.global_mask": f"{_ATTENTION}.mask",
    **{f"model.{name}": f"{_LOCAL}.{name}" for name in (
        "num_neighbors", "anchor_fraction", "anchor_neighbors", "aggregate")},
    "model.local_heads": f"{_LOCAL}.num_heads",
    **{f"model.{name}": f"{_MASK}.{name}" for name in (
        "num_hops", "walks", "num_walkers", "halting")},
    "model.max_diffusion_time": f"{_MASK}.max_time",
}  # fmt: skip
"""The present key of each that moved."""

REMOVED: Mapping[str, str] = {
    "eval.num_bootstrap": "intervals are Student's now and need no resamples",
}
"""Keys that are gone, and why: left out of files, refused as flags."""


def is_earlier(tables: Mapping[str, Any]) -> bool:
    """Say whether tables hold keys of an earlier version."""
    model = tables.get("model", {})
    return isinstance(model, Mapping) and any(f"model.{key}" in MOVED for key in model)


def converted(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Rewrite tables of an earlier version.

    Args:
      tables: of a whole configuration, or of a file that states a part of one.

    Returns:
      The same configuration in present keys. What an earlier one said of parts that it did not
      choose had no effect, and is left out.
    """
    old = dict(tables.get("model", {}))
    dynamics = old.pop("dynamics", "interlacer")
    names = {key.partition(".")[2]: new.rpartition(".")[2] for key, new in MOVED.items()}
    model = {key: value for key, value in old.items() if key not in names}
    given = {key: old[key] for key in old if key in names}
    model["dynamics"] = _table(DYNAMICS, dynamics, given)
    if dynamics == "interlacer":
        local, mask = given.get("local", "grf"), given.get("global_mask", NONE)
        model["dynamics"]["attention"] = _attention(given, mask)
        model["dynamics"]["local"] = _local(given, local)
    return {**tables, "model": model}


def _attention(given: Mapping[str, Any], mask: str) -> dict[str, Any]:
    names = ("num_heads", "feature_map", "num_random_features")
    table = {name: given[name] for name in names if name in given}
    if mask != NONE:
        table |= {"mask": _table(GRAPH_MASKS, mask, given)}
        table |= {name: given[name] for name in ("num_neighbors",) if name in given}
    return table


def _local(given: Mapping[str, Any], local: str) -> dict[str, Any] | str:
    if local == NONE:
        return NONE
    if local in LOCAL_LAYERS.classes:
        return _table(LOCAL_LAYERS, local, given)
    table = {new: given[old] for old, new in (("local_heads", "num_heads"),
             ("num_neighbors", "num_neighbors")) if old in given}  # fmt: skip
    return {"kind": "attention", **table, "mask": _table(GRAPH_MASKS, local, given)}


def _table(parts: Parts, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part's table: what was given of its own settings, under their present names."""
    present = {"max_time": "max_diffusion_time"}
    fields = [field.name for field in dataclasses.fields(parts.find(kind))]
    own = {name: given[old] for name in fields if (old := present.get(name, name)) in given}
    return {"kind": kind, **{name: v for name, v in own.items() if name not in ("local", "mask")}}
