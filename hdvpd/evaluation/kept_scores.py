"""Scores beside the run that they are of, kept so that nothing is scored twice."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics import sealed
from hdvpd.evaluation.curves import Scores, plain_numbers

_ARRAYS = ("images", "depth", "pixels", "reconstruction", "motion")


def scores_to_json(scores: Scores, made_from: Mapping[str, Any]) -> str:
    """Write scores so that `read_scores` gives them back."""
    arrays = {
        name: np.array(plain_numbers(values.ravel()), object).reshape(values.shape).tolist()
        for name in _ARRAYS
        if (values := getattr(scores, name)) is not None
    }
    names = {key: getattr(scores, key) for key in ("name", "cameras", "episodes", "predictors")}
    return sealed.dumps({"made_from": made_from, **names, **arrays}, indent=None)


def read_scores(file: Path, made_from: Mapping[str, Any]) -> Scores | None:
    """Read scores, if they are those asked for.

    Args:
      file: that `scores_to_json` was written to.
      made_from: what they must have been made from, or part of it.

    Returns:
      The scores; None if there are none, they are damaged, or they were made from something else.
    """
    try:
        kept = sealed.loads(file.read_text())
    except (OSError, ValueError):
        return None
    asked = json.loads(json.dumps(made_from))
    if not asked.items() <= kept.get("made_from", {}).items():
        return None
    return Scores(
        name=kept["name"],
        cameras=tuple(kept["cameras"]),
        episodes=tuple(kept["episodes"]),
        predictors=tuple(kept["predictors"]),
        **{name: np.array(kept[name], np.float64) for name in _ARRAYS if name in kept},
    )
