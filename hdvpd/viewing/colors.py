"""What the colour of a particle can say: its look, where it went, its features, its age, its error.

Numbers become colours by matplotlib's map `viridis`, from dark for 0 to yellow for the largest.
"""

from collections.abc import Callable, Mapping

import matplotlib
import numpy as np
from scipy.spatial import KDTree

from hdvpd.basics.types import Bool, Float, UInt8
from hdvpd.viewing.recording import PREDICTION, TRUTH, Layer, Particles, Recording

_SURE = 99.0  # percentile that counts as the largest: one stray particle must not darken the rest
MIN_SCALE_M = 0.01
"""Displacements and errors below a centimetre stay dark, however small the largest is."""


def color_of(values: Float[np.ndarray, "*n"], largest: float) -> UInt8[np.ndarray, "*n 3"]:
    """Colour numbers from 0 to the largest; beyond it, and below 0, they are clipped."""
    share = np.clip(np.nan_to_num(values) / max(largest, 1e-12), 0.0, 1.0)
    return matplotlib.colormaps["viridis"](share, bytes=True)[..., :3]


def displacements(particles: Particles, origin: int) -> Float[np.ndarray, "t n"]:
    """Measure how far every particle is from where it was last observed [m].

    Args:
      particles: of every time.
      origin: the last observed time, to which displacements are measured.

    Returns:
      Distances [m]; of particles that are not tracked, to the nearest one of that time. 0 for
      padding and for times before.
    """
    result = np.zeros(particles.mask.shape, np.float32)
    for time in range(origin + 1, len(result)):
        real = particles.mask[time]
        if particles.tracked:
            moved = particles.positions[time] - particles.positions[origin]
            result[time] = np.where(real, np.linalg.norm(moved, axis=-1), 0.0)
        else:
            result[time, real] = _nearest(
                particles.positions[time][real],
                particles.positions[origin][particles.mask[origin]],
            )
    return result


def errors(predicted: Particles, truth: Particles) -> Float[np.ndarray, "t n"]:
    """Measure how far every predicted particle is from the nearest point that was seen [m].

    Points that no camera saw, behind the robot for example, count as errors too.
    """
    result = np.zeros(predicted.mask.shape, np.float32)
    for time, (real, seen) in enumerate(zip(predicted.mask, truth.mask, strict=True)):
        result[time, real] = _nearest(predicted.positions[time][real], truth.positions[time][seen])
    return result


def _nearest(
    points: Float[np.ndarray, "a 3"], others: Float[np.ndarray, "b 3"]
) -> Float[np.ndarray, "a"]:
    if not len(points) or not len(others):
        return np.zeros(len(points), np.float32)
    return np.asarray(KDTree(others).query(points)[0], np.float32)


def components(
    features: Float[np.ndarray, "t n c"], mask: Bool[np.ndarray, "t n"]
) -> UInt8[np.ndarray, "t n 3"]:
    """Show features by their three principal components, as red, green and blue.

    The components are those of all times together, so that a colour means the same at every time;
    each is scaled so that all but its outermost hundredth fit. The sign is that which makes the
    largest weight positive.

    Args:
      features: latent features.
      mask: which particles are real.

    Returns:
      Colours; grey where there is no particle, and for components that do not vary.
    """
    shown = np.full((*mask.shape, 3), 128, np.uint8)
    rows = features[mask].astype(np.float64)
    if not len(rows):
        return shown
    centered = rows - rows.mean(0)
    _, vectors = np.linalg.eigh(centered.T @ centered)
    axes = vectors[:, ::-1][:, :3]
    axes *= np.sign(np.take_along_axis(axes, np.abs(axes).argmax(0)[None], axis=0))
    scores = centered @ axes
    low, high = np.percentile(scores, [100 - _SURE, _SURE], axis=0)
    varies = high - low > 1e-9
    share = np.where(varies, (scores - low) / np.where(varies, high - low, 1.0), 0.5)
    shown[mask, : share.shape[1]] = np.rint(np.clip(share, 0, 1) * 255)
    return shown


def _scaled(values: Float[np.ndarray, "t n"], mask: np.ndarray) -> UInt8[np.ndarray, "t n 3"]:
    largest = float(np.percentile(values[mask], _SURE)) if mask.any() else 0.0
    return color_of(values, max(largest, MIN_SCALE_M))


def _by_look(recording: Recording, layer: Layer) -> np.ndarray:
    del recording
    return layer.particles.colors


def _by_displacement(recording: Recording, layer: Layer) -> np.ndarray:
    origin = recording.last_observed if PREDICTION in recording.layers else 0
    return _scaled(displacements(layer.particles, origin), layer.particles.mask)


def _by_features(recording: Recording, layer: Layer) -> np.ndarray | None:
    del recording
    if layer.particles.features is None:
        return None
    return components(layer.particles.features, layer.particles.mask)


def _by_age(recording: Recording, layer: Layer) -> np.ndarray:
    oldest = max(recording.num_times - recording.num_observed, 1)
    colors = color_of(layer.particles.age.astype(np.float32), float(oldest))
    return np.broadcast_to(colors[:, None], layer.particles.colors.shape)


def _by_error(recording: Recording, layer: Layer) -> np.ndarray | None:
    truth = recording.layers.get(TRUTH)
    if truth is None or truth is layer:
        return None
    return _scaled(errors(layer.particles, truth.particles), layer.particles.mask)


COLORINGS: Mapping[str, Callable[[Recording, Layer], np.ndarray | None]] = {
    "rendered colour": _by_look,
    "displacement": _by_displacement,
    "features": _by_features,
    "age": _by_age,
    "error": _by_error,
}
"""From a recording and one of its layers to colours, axes (t n 3); None where it does not apply."""


def colored(recording: Recording, layer: str, coloring: str) -> UInt8[np.ndarray, "t n 3"]:
    """Colour the particles of a layer.

    Args:
      recording: what is shown.
      layer: which of its layers.
      coloring: one of `COLORINGS`; one that does not apply to the layer gives the plain colours.

    Returns:
      Colours of every time.
    """
    shown = recording.layers[layer]
    colors = COLORINGS[coloring](recording, shown)
    return shown.particles.colors if colors is None else colors
