"""Rollouts as pictures: one mp4 with a poster, and one set of PNG files per episode.

A frame of the video has a row per camera and four panels: ground truth (whitened, as it is
scored), prediction, particles, and kinematic particles over the dimmed truth. The first two
frames are the observed ones. Panels are enlarged by a whole factor, so that pixels stay square
and sharp, and padded at the edges to the multiple of 16 that video encoders want.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import av
import imageio.v3 as iio
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hdvpd.basics.errors import UserError
from hdvpd.basics.geometry import project
from hdvpd.basics.types import Array, Bool, Camera, Float, RobotPoints, UInt8

PANELS = ("ground truth", "prediction", "particles", "kinematic particles")
OBSERVED_FRAMES = 2

_PANEL_HEIGHT = 288
_GAP = 4
_HEADER = 46
_BLOCK = 16
_BACKGROUND = (24, 26, 30)
_TEXT = (235, 235, 235)
_EMPTY = 40
_COMMANDED = (255, 140, 0)
_PREVIOUS = (70, 190, 255)


@dataclass(frozen=True)
class Clip:
    """One rollout, as it is shown.

    Attributes:
      title: what stands above the panels, such as the episode and its task.
      cameras: names of the views.
      rate_hz: frames per second of the data.
      truth: whitened frames in [0, 1], the two observed ones first.
      depth_m: measured planar depth of the same frames [m].
      camera: cameras of the same frames, axes (f v).
      prediction: rendered frames after the observed ones.
      ssim: score of every rendered frame.
      positions: particles of every frame, encoded for the observed ones [m].
      mask: which particles are real.
      robot: kinematic particles of every frame, axes (f).
    """

    title: str
    cameras: tuple[str, ...]
    rate_hz: float
    truth: Float[np.ndarray, "f v h w 3"]
    depth_m: Float[np.ndarray, "f v h w"]
    camera: Camera
    prediction: Float[np.ndarray, "s v h w 3"]
    ssim: Float[np.ndarray, "s v"]
    positions: Float[np.ndarray, "f n 3"]
    mask: Bool[np.ndarray, "f n"]
    robot: RobotPoints

    def camera_of(self, frame: int, view: int) -> Camera:
        """Return one camera."""
        return Camera(
            intrinsics=self.camera.intrinsics[frame, view],
            camera_to_world=self.camera.camera_to_world[frame, view],
        )

    @property
    def scale(self) -> int:
        """Enlargement of the panels."""
        return max(1, round(_PANEL_HEIGHT / self.truth.shape[2]))


def to_uint8(image: Float[Array, "*batch"]) -> UInt8[np.ndarray, "*batch"]:
    """Convert colours in [0, 1] to 0..255, rounded; what lies outside is clipped."""
    return np.rint(np.clip(np.asarray(image), 0.0, 1.0) * 255.0).astype(np.uint8)


def particle_colors(
    positions: Float[np.ndarray, "n 3"],
    rgb: Float[np.ndarray, "v h w 3"],
    depth_m: Float[np.ndarray, "v h w"],
    cameras: list[Camera],
) -> Float[np.ndarray, "n 3"]:
    """Give every particle the colour of the pixel it was lifted from.

    Particles carry no colour, but an encoded one projects to the centre of its pixel at the depth
    measured there; among the views, that of the smallest error in depth is its source.

    Args:
      positions: particles of an observed frame [m].
      rgb: that frame's images.
      depth_m: that frame's planar depth [m].
      cameras: one per view.

    Returns:
      Colours in [0, 1], which a particle keeps through a rollout because it keeps its index.
    """
    _, height, width = depth_m.shape
    errors, colors = [], []
    for view, camera in enumerate(cameras):
        pixels, z = (np.asarray(x) for x in project(positions, camera))
        column = np.floor(pixels[:, 0]).astype(int)
        row = np.floor(pixels[:, 1]).astype(int)
        inside = (z > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
        row, column = np.where(inside, row, 0), np.where(inside, column, 0)
        error = np.abs(z - depth_m[view, row, column])
        errors.append(np.where(inside & np.isfinite(error), error, np.inf))
        colors.append(rgb[view, row, column])
    source = np.argmin(errors, axis=0)
    return np.stack(colors)[source, np.arange(len(positions))]


def splat_particles(
    positions: Float[np.ndarray, "n 3"],
    colors: Float[np.ndarray, "n 3"],
    mask: Bool[np.ndarray, "n"],
    camera: Camera,
    size: tuple[int, int],
    scale: int,
) -> UInt8[np.ndarray, "h w 3"]:
    """Paint particles as squares about as large as a pixel of the camera, nearest on top.

    Colours are in [0, 1]; the picture is the camera's image, of `size` [px], enlarged by `scale`.

    Returns:
      The picture, dark where no particle is.
    """
    height, width = size[0] * scale, size[1] * scale
    pixels, z = (np.asarray(x) for x in project(positions, camera))
    seen = mask & (z > 0) & np.isfinite(pixels).all(axis=-1)
    far_to_near = np.argsort(-z[seen], kind="stable")
    center = np.floor(np.clip(pixels[seen][far_to_near] * scale, -1e6, 1e6)).astype(int)
    radius = (scale + 1) // 2
    offsets = np.arange(-radius, radius + 1)
    # Particle-major order: all pixels of a nearer particle come after those of a farther one,
    # and the last of equal indices stays.
    row = (center[:, 1, None, None] + offsets[None, :, None]).repeat(len(offsets), axis=2)
    column = (center[:, 0, None, None] + offsets[None, None, :]).repeat(len(offsets), axis=1)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    painted = np.broadcast_to(to_uint8(colors[seen][far_to_near])[:, None, None], (*row.shape, 3))
    picture = np.full((height, width, 3), _EMPTY, np.uint8)
    picture[row[inside], column[inside]] = painted[inside]
    return picture


def draw_robot(clip: Clip, frame: int, view: int) -> UInt8[np.ndarray, "h w 3"]:
    """Draw the kinematic particles over the dimmed truth.

    Returns:
      The panel: a dot per point, with a line from where the frame before had it.
    """
    dimmed = 0.15 + 0.4 * clip.truth[frame, view]
    image = Image.fromarray(enlarge(to_uint8(dimmed), clip.scale))
    canvas = ImageDraw.Draw(image)
    camera = clip.camera_of(frame, view)
    before = np.asarray(clip.robot.positions)[max(frame - 1, 0)]
    now = np.asarray(clip.robot.positions)[frame]
    ends = [tuple(np.asarray(x) for x in project(points, camera)) for points in (before, now)]
    in_front = (ends[0][1] > 0) & (ends[1][1] > 0)
    radius = max(2, clip.scale // 2 + 1)
    for start, end in zip(*(pixels[in_front] * clip.scale for pixels, _ in ends), strict=True):
        if np.abs(np.concatenate([start, end])).max() < 1e5:
            canvas.line([tuple(start), tuple(end)], fill=_PREVIOUS, width=2)
    for x, y in ends[1][0][in_front] * clip.scale:
        if max(abs(x), abs(y)) < 1e5:
            canvas.ellipse([x - radius, y - radius, x + radius, y + radius], fill=_COMMANDED)
    return np.asarray(image)


def enlarge(image: UInt8[np.ndarray, "h w 3"], scale: int) -> UInt8[np.ndarray, "h2 w2 3"]:
    """Repeat every pixel `scale` times in both directions."""
    return image.repeat(scale, axis=0).repeat(scale, axis=1)


def _panels(
    clip: Clip, frame: int, view: int, colors: Float[np.ndarray, "n 3"]
) -> list[UInt8[np.ndarray, "h w 3"]]:
    truth = clip.truth[frame, view]
    step = frame - OBSERVED_FRAMES
    predicted = truth if step < 0 else clip.prediction[step, view]
    particles = splat_particles(
        clip.positions[frame],
        colors,
        clip.mask[frame],
        clip.camera_of(frame, view),
        (truth.shape[0], truth.shape[1]),
        clip.scale,
    )
    images = [enlarge(to_uint8(image), clip.scale) for image in (truth, predicted)]
    return [*images, particles, draw_robot(clip, frame, view)]


def _headline(clip: Clip, frame: int) -> str:
    step = frame - OBSERVED_FRAMES
    if step < 0:
        return f"{clip.title} | observed frame {frame + 1} of {OBSERVED_FRAMES}"
    return f"{clip.title} | rollout step {step} (+{(step + 1) / clip.rate_hz:.1f} s)"


def compose_frame(clip: Clip, frame: int) -> UInt8[np.ndarray, "h w 3"]:
    """Lay out all panels of one frame with their labels.

    Returns:
      The picture; both sides are multiples of 16.
    """
    source = min(frame, OBSERVED_FRAMES - 1)
    views = range(len(clip.cameras))
    colors = particle_colors(
        clip.positions[source],
        clip.truth[source],
        clip.depth_m[source],
        [clip.camera_of(source, view) for view in views],
    )
    rows = [_panels(clip, frame, view, colors) for view in views]
    height, width = rows[0][0].shape[:2]
    full_height = _HEADER + len(rows) * (height + _GAP)
    full_width = _GAP + len(PANELS) * (width + _GAP)
    padded = [-(-side // _BLOCK) * _BLOCK for side in (full_height, full_width)]
    canvas = np.full((*padded, 3), _BACKGROUND, np.uint8)
    for i, row in enumerate(rows):
        top = _HEADER + i * (height + _GAP)
        for j, panel in enumerate(row):
            left = _GAP + j * (width + _GAP)
            canvas[top : top + height, left : left + width] = panel
    return _label(clip, frame, canvas, height, width)


def _label(
    clip: Clip, frame: int, canvas: UInt8[np.ndarray, "h w 3"], height: int, width: int
) -> UInt8[np.ndarray, "h w 3"]:
    image = Image.fromarray(canvas)
    draw = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(18), ImageFont.load_default(14)
    draw.text((_GAP + 2, 3), _headline(clip, frame), font=large, fill=_TEXT)
    step = frame - OBSERVED_FRAMES
    for j, name in enumerate(PANELS):
        shown = "observed" if step < 0 and name == "prediction" else name
        draw.text((_GAP + 2 + j * (width + _GAP), 27), shown, font=small, fill=_TEXT)
    for i, camera in enumerate(clip.cameras):
        top = _HEADER + i * (height + _GAP) + 4
        _tag(draw, (_GAP + 4, top), camera, small)
        if step >= 0:
            score = f"SSIM {clip.ssim[step, i]:.3f}"
            _tag(draw, (2 * _GAP + width + 4, top), score, small)
    return np.asarray(image)


def _tag(
    draw: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    text: str,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> None:
    left, top, right, bottom = draw.textbbox(corner, text, font=font)
    draw.rectangle([left - 3, top - 2, right + 3, bottom + 2], fill=_BACKGROUND)
    draw.text(corner, text, font=font, fill=_TEXT)


def frames_per_second(rate_hz: float) -> int:
    """Choose the speed of a video: real time, rounded, but between 2 and 4 frames per second."""
    return int(np.clip(round(rate_hz), 2, 4))


def write_video(path: Path, frames: list[UInt8[np.ndarray, "h w 3"]], fps: int) -> None:
    """Write an H.264 mp4 that browsers play; the last frame stays for a second.

    PyAV encodes in this process: ffmpeg as another would be forked, which can deadlock once JAX has
    started its threads. Not by imageio, which collects the whole process's garbage twice a video.

    Args:
      path: the file.
      frames: pictures of equal size, sides multiples of 16.
      fps: frames per second.

    Raises:
      UserError: the file cannot be written.
    """
    shown = [*frames, *frames[-1:] * fps]
    # In memory, for what the encoder says of a full disk helps nobody. Room for the index is kept
    # at the beginning, so that a browser need not wait for the end.
    encoded, room = io.BytesIO(), {"moov_size": str(4096 + 32 * len(shown))}
    with av.open(encoded, "w", format="mp4", options=room) as file:
        stream = file.add_stream("libx264", rate=fps)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in shown:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        file.mux(stream.encode())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded.getvalue())
    except OSError as error:
        raise UserError(
            f"{path}: could not write this video ({error}). Free some space or permit writing "
            "there, then evaluate again."
        ) from error


def write_clip(clip: Clip, video: Path, folder: Path) -> None:
    """Write a rollout as mp4 and as PNG files.

    Args:
      clip: the rollout.
      video: the mp4 file; its poster, the last frame, is a JPEG file beside it.
      folder: gets the composed frames (`observed-0.png`, `step-00.png`, ...) and, at the data's
        own size, `<camera>-step-00-truth.png` and `-prediction.png`.
    """
    frames = [compose_frame(clip, frame) for frame in range(len(clip.truth))]
    write_video(video, frames, frames_per_second(clip.rate_hz))
    iio.imwrite(video.with_suffix(".jpg"), frames[-1], quality=85)
    folder.mkdir(parents=True, exist_ok=True)
    for frame, picture in enumerate(frames):
        step = frame - OBSERVED_FRAMES
        name = f"observed-{frame}" if step < 0 else f"step-{step:02d}"
        iio.imwrite(folder / f"{name}.png", picture)
        if step < 0:
            continue
        for view, camera in enumerate(clip.cameras):
            for kind, image in (
                ("truth", clip.truth[frame, view]),
                ("prediction", clip.prediction[step, view]),
            ):
                iio.imwrite(folder / f"{camera}-{name}-{kind}.png", to_uint8(image))
