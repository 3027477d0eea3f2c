"""Would registration move cameras that seem to agree? The test of edges.

Distances from surfaces do not see a camera that slides along them, and their limits leave room for
a turn of a few degrees. Registration resolves a fraction of a pixel: cameras that stand right stay
where they are.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.data.calibration.agreement import Evidence
from hdvpd.data.calibration.clouds import Indexer
from hdvpd.data.calibration.refinement import FEW_POINTS, refine
from hdvpd.data.calibration.registration import Change, Fit, changed, register
from hdvpd.data.calibration.signals import clearly_more
from hdvpd.data.calibration.sliding import slid
from hdvpd.data.calibration.views import Moment, View, some

GATES_M = (0.04,) * 5
MOMENTS, POINTS = 4, 250
NEAR_SPACINGS = 2.0
"""Least gate in the spacing of the compared pixels."""
BETTER = 0.02
"""Share of the cost that the other place must save."""


def with_drift(moments: Sequence[Moment], evidence: Evidence, index: Indexer) -> Evidence:
    """Add to the evidence by how much registration would move cameras that pass."""
    agreeing = [pair for pair in evidence.pairs if pair.status == "pass"]
    names = sorted({name for pair in agreeing for name in pair.cameras})
    if not agreeing:
        return evidence
    few = [
        dataclasses.replace(m, views={n: m.views[n] for n in names}) for m in some(moments, MOMENTS)
    ]
    gates = np.maximum(GATES_M, NEAR_SPACINGS * max(p.spacing_m for p in agreeing)).tolist()
    still = register(few, dict.fromkeys(names, ()), index, max_points=POINTS, gates=gates)
    fit = _best(few, names, gates, index)
    if fit is None:
        return evidence
    still, fit = (refine(few, found, index, FEW_POINTS) for found in (still, fit))
    if not clearly_more(still.costs, fit.costs, BETTER * max(float(still.costs.mean()), 1.0)):
        return evidence
    pairs = tuple(
        dataclasses.replace(pair, drift_m=_drift(few, pair.cameras, fit.changes))
        if pair.status == "pass"
        else pair
        for pair in evidence.pairs
    )
    return dataclasses.replace(evidence, pairs=pairs)


def _best(
    moments: Sequence[Moment], names: Sequence[str], gates: Sequence[float], index: Indexer
) -> Fit | None:
    """Fit the poses of all cameras but the first, from where they are said to be and beside it."""
    free = dict.fromkeys(names[1:], ("pose",))
    options: dict[str, Any] = {"max_points": POINTS, "gates": gates}
    fit = register(moments, free, index, **options)
    if not fit.points or not np.isfinite(fit.costs).all():
        return None
    for name in names[1:]:
        others = {n: c for n, c in fit.changes.items() if n != name}
        mended = [changed(moment, others) for moment in moments]
        for change in slid(mended, name, fit.changes[name], index, 1):
            start = {**fit.changes, name: change}
            other = register(moments, free, index, start=start, **options)
            if other.points and other.costs.mean() < fit.costs.mean():
                fit = other
    return fit


def _drift(
    moments: Sequence[Moment], cameras: tuple[str, str], changes: Mapping[str, Change]
) -> float:
    """Return how far one camera's points would move as seen by the other, typically [m]."""
    found = []
    for moment in moments:
        before = [moment.views[name] for name in cameras]
        after = [changes.get(n, Change()).apply(v) for n, v in zip(cameras, before, strict=True)]
        points = _points(before[1])
        if len(points):
            moved = [_relative(*views) for views in (before, after)]
            off = points @ (moved[1] - moved[0])[:3, :3].T + (moved[1] - moved[0])[:3, 3]
            found.append(np.square(off).sum(axis=1))
    return float(np.sqrt(np.concatenate(found).mean())) if found else 0.0


def _relative(first: View, second: View) -> Float[np.ndarray, "4 4"]:
    return np.linalg.inv(first.camera_to_world) @ second.camera_to_world


def _points(view: View) -> Float[np.ndarray, "n 3"]:
    row, column = np.nonzero(view.depth_m > 0)
    depth = view.depth_m[row, column]
    x = (column + 0.5 - view.intrinsics[0, 2]) / view.intrinsics[0, 0]
    y = (row + 0.5 - view.intrinsics[1, 2]) / view.intrinsics[1, 1]
    return (np.stack([x, y, np.ones_like(x)], axis=1) * depth[:, None])[::7]
