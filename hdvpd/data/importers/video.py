"""Frames of a video at given times, decoded by PyAV: exact to the frame, one frame in memory.

Frames are found by their time stamps, never by counting, because several episodes may share a file.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, Shaped, UInt8
from hdvpd.data.importers.faults import AGAIN, SourcePlace, diagnosis

# Times in tables are rounded (float32) and so are those in videos (to the time base): far below a
# quarter of a frame. From a half on two frames would lie within reach of one time.
TOLERANCE = 0.25
"""How far a frame may be from the time asked for, as a share of the time between frames."""
_FIRST_STEP_BACK = 16.0
"""How much farther back to begin, in tolerances and then in itself, after landing too late."""
_DEMUXERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "matroska", ".avi": "avi"}


@dataclass(frozen=True)
class Picture:
    """A decoded frame.

    Attributes:
      size: height and width [px].
      bits: per sample of its first plane.
      frame: PyAV's.
      converter: shared by the frames of a video, because making one takes longer than using it.
    """

    size: tuple[int, int]
    bits: int
    frame: Any
    converter: Any

    def rgb(self) -> UInt8[np.ndarray, "h w 3"]:
        """Convert to 8-bit colours, as PyAV does."""
        return self.converter.reformat(self.frame, format="rgb24", threads=1).to_ndarray()

    def samples(self) -> Shaped[np.ndarray, "h w"]:
        """Return the first plane as stored: grey, or the luma of a colour video."""
        plane = self.frame.planes[0]
        dtype = np.dtype(np.uint8 if self.bits <= 8 else "<u2")
        stored = np.frombuffer(plane, dtype).reshape(-1, plane.line_size // dtype.itemsize)
        return stored[: self.size[0], : self.size[1]]


class Video:
    """An opened video.

    Attributes:
      size: height and width [px].
    """

    def __init__(self, place: SourcePlace, container: Any) -> None:
        """Wrap a PyAV container."""
        self._place, self._container = place, container
        self._stream = container.streams.video[0]
        context = self._stream.codec_context
        # More threads cost a quarter of the speed per core; --workers uses the other cores.
        context.thread_count = 1
        self.size = (context.height, context.width)
        self._index: Any = self._stream.index_entries
        self._decoded = self._decode()
        self._last_s = -math.inf

    def frames(
        self, rows: Sequence[int], times_s: Float[np.ndarray, "n"], period_s: float
    ) -> Iterator[Picture]:
        """Decode the frames at given times. A new call may go back; only one may be under way.

        Args:
          rows: of the episode, for messages.
          times_s: in the file, ascending [s]; where one repeats, so does its frame.
          period_s: between frames [s].

        Raises:
          BadEpisodeError: there is no frame at a time, or it is damaged.
        """
        from av.error import FFmpegError
        from av.video.reformatter import VideoReformatter

        converter = VideoReformatter()
        if self._last_s > -math.inf:
            self._seek(0.0)
        frame: Any = None
        shown_s = -math.inf
        for row, time_s in zip(rows, times_s.tolist(), strict=True):
            try:
                # Decoding has passed a frame that is asked for again.
                if time_s != shown_s:
                    frame, shown_s = self._at(row, time_s, TOLERANCE * period_s), time_s
            except (FFmpegError, EOFError) as error:
                raise self._damaged(row, str(error)) from error
            size = (frame.height, frame.width)
            if size != self.size:
                raise self._place.error(
                    f"the picture is {size[0]}x{size[1]}, the others of this video are "
                    f"{self.size[0]}x{self.size[1]}",
                    "All images of a camera have one size.",
                    row,
                )
            yield Picture(size, frame.format.components[0].bits, frame, converter)

    def _at(self, row: int, time_s: float, tolerance_s: float) -> Any:
        jumped = self._jump(time_s, tolerance_s)
        back_s = _FIRST_STEP_BACK * tolerance_s
        while (frame := self._next(row, time_s, tolerance_s)) is None and jumped:
            # The index holds decoding times, so a jump can land too late: begin earlier.
            jumped = back_s < time_s
            self._seek(max(time_s - back_s, 0.0))
            back_s *= _FIRST_STEP_BACK
        if frame is None:
            raise self._place.error(
                f"the video has no frame at {time_s:.4f} s; decoding came to {self._last_s:.4f} s",
                "It is truncated, or its time stamps are not those of the table. " + AGAIN,
                row,
            )
        return frame

    def _next(self, row: int, time_s: float, tolerance_s: float) -> Any | None:
        """Decode up to a time; None if the frames have passed it, or end before it."""
        for packet_damaged, frame in self._decoded:
            self._last_s = frame.time
            if frame.time > time_s + tolerance_s:
                return None
            if frame.time >= time_s - tolerance_s:
                if packet_damaged or frame.is_corrupt:
                    raise self._damaged(row, "its data are incomplete")
                return frame
        return None

    def _jump(self, time_s: float, tolerance_s: float) -> bool:
        """Go to the key frame before a time where that saves decoding."""
        # Up to a frame and a quarter away it is the next one, which decoding finds anyway.
        if time_s <= self._last_s + 5 * tolerance_s:
            return False
        # A key frame at this very time may be stamped a little later.
        stamp = round((time_s + tolerance_s) / self._stream.time_base)
        entry = self._index.search_timestamp(stamp) if self._index else -1
        if entry < 0:  # Matroska's index is read by its first seek
            if self._last_s > -math.inf or time_s <= tolerance_s:
                return False
            self._seek(time_s)
            return True
        keyframe_s = float(self._index[entry].timestamp * self._stream.time_base)
        if keyframe_s <= self._last_s + 5 * tolerance_s:
            return False
        self._seek(keyframe_s)
        return True

    def _seek(self, time_s: float) -> None:
        self._container.seek(round(time_s / self._stream.time_base), stream=self._stream)
        self._decoded = self._decode()
        self._last_s = -math.inf

    def _decode(self) -> Iterator[tuple[bool, Any]]:
        for packet in self._container.demux(self._stream):
            for frame in packet.decode():
                if frame.time is not None:
                    yield packet.is_corrupt, frame

    def _damaged(self, row: int, reason: str) -> UserError:
        found = f"the video is damaged ({' '.join(reason.split())})"
        return self._place.error(found, AGAIN, row)


@contextlib.contextmanager
def open_video(place: SourcePlace) -> Iterator[Video]:
    """Open the video that is the file of a place.

    Raises:
      BadEpisodeError: the file is missing, damaged, of another kind or without pictures.
    """
    file: Path = place.file
    # Naming the demuxer keeps FFmpeg from taking the file for a playlist of other files.
    demuxer = _DEMUXERS.get(file.suffix.lower())
    if demuxer is None:
        raise place.error(f"{file.suffix!r} is no video", f"Known are {', '.join(_DEMUXERS)}.")
    try:
        container: Any = av.open(str(file.absolute()), format=demuxer)
    except FileNotFoundError as error:
        raise place.error("the video is missing", AGAIN) from error
    except (FFmpegError, OSError, ValueError) as error:
        said = " ".join(str(error.args[-2] if len(error.args) > 2 else error).split())
        wrong = diagnosis(file, f"is damaged ({said})", name="the video")
        raise place.error(*wrong) from error
    with container:
        if not container.streams.video:
            raise place.error("the video has no pictures", AGAIN)
        yield Video(place, container)
