"""Settings of what is read."""

from dataclasses import dataclass
from typing import Annotated, Literal

from hdvpd.config.settings import Count, Free, Limit, Positive, Settings, require

_Corner = Annotated[
    tuple[float, ...], Limit(lambda x: len(x) in (0, 3), "give three numbers or none")
]


@dataclass(frozen=True)
class DataConfig(Settings):
    """Which frames are read, and at which size."""

    path: Annotated[
        str | tuple[str, ...],
        Limit(lambda path: path not in ("", ()), "name a data set"),
        Free("resume", "evaluation"),
    ] = "data/robot"
    """Folder of the data set (docs/data-format.md), or its address: gs://, s3://, https://; of
    several that are mixed, all of them."""
    weights: Annotated[
        tuple[float, ...],
        Limit(lambda weights: all(w > 0 for w in weights), "use positive numbers"),
    ] = ()
    """How often windows are drawn from each of several data sets, against the others; none draws
    all windows equally often."""
    cameras: Annotated[tuple[str, ...], Free("evaluation")] = ()
    """Cameras to read, in this order; empty means all of the data set (paper: 2)."""
    height: Count = 240
    """Image height [px]; frames of another size are resized, intrinsics with them."""
    width: Count = 320
    """Image width [px]."""
    workspace_min: _Corner = ()
    """Lower corner of the workspace box [m]; empty means the data set's own."""
    workspace_max: _Corner = ()
    """Upper corner of the workspace box [m]; empty means the data set's own."""
    num_workers: Annotated[Count, Free("resume", "evaluation")] = 2
    """Threads or processes that read windows ahead of the training step; never changes what is
    read."""
    workers: Annotated[Literal["threads", "processes"], Free("resume", "evaluation")] = "threads"
    """Threads share one interpreter, processes take memory of their own (docs/scaling.md)."""
    prefetch: Annotated[Count, Free("resume", "evaluation")] = 4
    """Batches kept ready."""
    patience_s: Annotated[Positive, Free("resume")] = 600.0
    """Seconds to wait for a batch before the run ends with a message."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The data sets, one or several."""
        return (self.path,) if isinstance(self.path, str) else self.path

    def check(self) -> None:
        """Refuse an empty workspace box."""
        low, high = self.workspace_min, self.workspace_max
        require(
            len(low) == len(high) and all(a < b for a, b in zip(low, high, strict=True)),
            "workspace_max",
            high,
            f"every number must lie above that of workspace_min = {low}",
        )
