"""Several data sets read as one.

A `Mixture` is a data set whose episodes come from several: number n of the k-th (from 0) is
k * 1,000,000 + n here. Everything that reads by episode works on it unchanged. The data sets may be
of different robots and cameras, as far as one model takes them: views are matched by their place,
kinematic points by their number.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorstore

from hdvpd.basics.errors import UserError
from hdvpd.config import DataConfig, SceneSpec
from hdvpd.data import schema
from hdvpd.data.corrections import Corrections
from hdvpd.data.remote import RemotePath
from hdvpd.data.schema import EpisodeInfo
from hdvpd.data.store import Dataset
from hdvpd.data.windows import select_cameras

NUMBERS = 1_000_000
"""Episodes of a data set have six digits."""


def open_dataset(data_config: DataConfig) -> Dataset:
    """Open what `data.path` names: one data set, or several as a mixture.

    Raises:
      UserError: one is missing or damaged, or they do not fit together.
    """
    sources = [Dataset(path) for path in data_config.paths]
    return sources[0] if len(sources) == 1 else Mixture(sources, data_config)


class Mixture(Dataset):
    """Several data sets as one; `info`, `path` and the names of views are those of the first.

    Attributes:
      sources: the data sets.
    """

    def __init__(self, sources: Sequence[Dataset], data_config: DataConfig) -> None:
        """Check that one model can take all of them.

        Args:
          sources: at least one.
          data_config: cameras and workspace.

        Raises:
          UserError: one is named twice, or one does not fit the first; with the remedy.
        """
        require_fit(sources, data_config)
        self._sources = tuple(sources)
        self.path, self.info = sources[0].path, sources[0].info
        self.title = " + ".join(source.title for source in sources)
        self.corrections = Corrections()  # the sources apply their own
        self.episodes = tuple(
            dataclasses.replace(
                episode,
                number=k * NUMBERS + episode.number,
                links_source=episode.links_source or source.robot.name,
                objects=source.objects(episode),
            )
            for k, source in enumerate(sources)
            for episode in source.episodes
        )
        self._by_number = {episode.number: episode for episode in self.episodes}

    @property
    def sources(self) -> tuple[Dataset, ...]:
        """The data sets, in the order of `data.path`."""
        return self._sources

    def source_of(self, number: int) -> tuple[Dataset, int]:
        """Return the data set that holds an episode, and the episode's number there."""
        self.episode(number)
        return self._sources[number // NUMBERS], number % NUMBERS

    def episode_title(self, number: int) -> str:
        """Return what a message says of an episode after the word, its data set too."""
        source, own = self.source_of(number)
        return f"{own} of {source.title}"

    def window_id(self, episode: int, start: int) -> tuple[int | str, ...]:
        """Return what a log says of a window: its data set, episode there and first frame."""
        source, number = self.source_of(episode)
        return source.title, number, start

    @property
    def moving_cameras(self) -> tuple[str, ...]:
        """Names of the cameras that a link carries in any of the data sets."""
        return tuple(dict.fromkeys(n for s in self._sources for n in s.moving_cameras))

    def objects(self, episode: EpisodeInfo) -> tuple[schema.ObjectInfo, ...]:
        """Return the objects of an episode, in the order of `truth/object_to_world`."""
        return episode.objects or ()

    def identity(self) -> str:
        """Return the fingerprints of all, in their order."""
        return "+".join(source.identity() for source in self._sources)

    def check_arrays(self) -> None:
        """Check the arrays of all; errors as of `Dataset`."""
        for source in self._sources:
            source.check_arrays()

    def open_array(self, number: int, name: str) -> tensorstore.TensorStore:
        """Open one array of an episode; errors as of `Dataset`."""
        source, own = self.source_of(number)
        return source.open_array(own, name)

    def has_array(self, number: int, name: str) -> bool:
        """Say whether an episode has an array."""
        source, own = self.source_of(number)
        return source.has_array(own, name)

    def read_many(
        self, number: int, names: list[str], start: int | None = None, length: int | None = None
    ) -> dict[str, np.ndarray]:
        """Read several arrays of an episode; arguments and errors as of `Dataset`."""
        source, own = self.source_of(number)
        return source.read_many(own, names, start, length)


def require_fit(sources: Sequence[Dataset], data_config: DataConfig) -> None:
    """Refuse data sets that one model cannot take together.

    Args:
      sources: at least one; the others are compared with the first.
      data_config: cameras and workspace.

    Raises:
      UserError: naming two of them, what differs and the remedy.
    """
    first = sources[0]
    _require_distinct(sources)
    for other in sources[1:]:
        both = f"{first.title} and {other.title} cannot be mixed"
        views = [len(select_cameras(source, data_config)) for source in (first, other)]
        if views[0] != views[1]:
            raise UserError(
                f"{both}: they have {views[0]} and {views[1]} cameras ({', '.join(first.cameras)}; "
                f"{', '.join(other.cameras)}), and every window of a batch has equally many views. "
                "Choose cameras that all of them have with data.cameras."
            )
        if not np.isclose(first.rate_hz, other.rate_hz, rtol=1e-6):
            raise UserError(
                f"{both}: they have {first.rate_hz:g} and {other.rate_hz:g} frames per second, and "
                "a model learns one control step. Import one of them again with the other's "
                "--step."
            )
        _require_scene(both, first.scene_spec(data_config), other.scene_spec(data_config))


def _require_distinct(sources: Sequence[Dataset]) -> None:
    titles: dict[Path, str] = {}
    for source in sources:
        remote = isinstance(source.path, RemotePath)
        place = source.path if remote else source.path.resolve()
        if place in titles:
            names = " and ".join(dict.fromkeys((titles[place], source.title)))
            raise UserError(
                f"data.path names the same data set twice ({names}): name it once, with a larger "
                "weight in data.weights."
            )
        titles[place] = source.title


def _require_scene(both: str, ours: SceneSpec, theirs: SceneSpec) -> None:
    if ours.num_robot_points != theirs.num_robot_points:
        raise UserError(
            f"{both}: their robots have {ours.num_robot_points} and {theirs.num_robot_points} "
            "kinematic points, and a model has one number of them. Name as many links and segments "
            "in robot.skeleton of one dataset.json as the other has (docs/data-format.md)."
        )
    if ours != theirs:
        low = np.minimum(ours.workspace_min, theirs.workspace_min)
        high = np.maximum(ours.workspace_max, theirs.workspace_max)
        raise UserError(
            f"{both}: their workspaces are {ours.workspace_min} to {ours.workspace_max} and "
            f"{theirs.workspace_min} to {theirs.workspace_max} m, and a model has one. Give one "
            f"for all, for example the box around both: --data.workspace-min {_words(low)} "
            f"--data.workspace-max {_words(high)}."
        )


def _words(corner: np.ndarray) -> str:
    return " ".join(f"{x:g}" for x in corner)
