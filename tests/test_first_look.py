"""A training on data of which nothing lies in the workspace is refused before it compiles."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

import hdvpd.training.train as training
from hdvpd.basics.errors import UserError
from hdvpd.config import Config
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_window
from hdvpd.training.first_look import require_something
from hdvpd.training.processes import Team


def with_box(config: Config, path: Path, low: float, high: float) -> Config:
    train = dataclasses.replace(config.train, num_steps=1)
    data = dataclasses.replace(
        config.data, path=str(path), workspace_min=(low,) * 3, workspace_max=(high,) * 3
    )
    return dataclasses.replace(config, data=data, train=train)


def test_a_workspace_without_anything_in_it_is_refused(
    debug_config: Config, synthetic_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it was compiled")

    monkeypatch.setattr(training, "compile_ahead", never)
    config = with_box(debug_config, synthetic_dataset, 5.0, 6.0)
    with pytest.raises(UserError, match="there is nothing to learn") as caught:
        training.main(config, run_dir=tmp_path / "run")
    message = str(caught.value)
    for words in (
        str(synthetic_dataset), "(5, 5, 5) to (6, 6, 6) m", "What is seen lies within (-",
        "camera poses", "depth unit", "`hdvpd data check`", "--resume auto",
    ):  # fmt: skip
        assert words in message
    assert "\n" not in message
    # As the message says: nothing of the refused start is in the way.
    config = with_box(debug_config, synthetic_dataset, -1.0, 1.0)
    with pytest.raises(AssertionError, match="it was compiled"):
        training.main(config, run_dir=tmp_path / "run", resume="auto")


@pytest.mark.parametrize("far", [8.0, 0.11])
def test_an_empty_batch_of_a_data_set_that_shows_something_is_trained_on(
    debug_config: Config, synthetic_dataset: Path, far: float
) -> None:
    render = dataclasses.replace(debug_config.render, far=far)
    config = dataclasses.replace(
        with_box(debug_config, synthetic_dataset, -1.0, 1.0), render=render
    )
    dataset = Dataset(synthetic_dataset)
    windows = WindowIndex(dataset, "train", 3)
    batch = jax.tree.map(lambda x: x[None], read_window(dataset, *windows[0], 3, config.data))
    empty = dataclasses.replace(batch.frames, depth_m=np.zeros_like(batch.frames.depth_m))
    batch = dataclasses.replace(batch, frames=empty)
    arguments = batch, dataset, windows, dataset.scene_spec(config.data), config, Team()
    if far > 1:
        require_something(*arguments)
    else:
        with pytest.raises(UserError, match=r"within render\.far = 0\.11 m"):
            require_something(*arguments)
