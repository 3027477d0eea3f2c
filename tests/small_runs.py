"""A run for tests of what is done with a trained model: tiny, and quick to compile.

Its parameters are drawn, never trained: predictions mean nothing but depend on everything.
"""

from pathlib import Path

import jax
import numpy as np
import pytest

TINY = {
    "data": {"height": 16, "width": 20},
    "model": {"num_particles": 96, "unet_channels": [8], "dynamics": {"num_layers": 1}},
    "eval": {"windows_per_episode": 1, "controls": ["static_render"]},
}


def write_run(folder: Path, *paths: Path, noise: float = 0.1, changes=TINY) -> Path:
    """Save a run of random parameters as training would.

    Args:
      folder: of the run.
      paths: of its data set, or of several.
      noise: standard deviation of the parameters.
      changes: to experiment `debug`.
    """
    from hdvpd.config.experiments import load_config
    from hdvpd.data.mixture import open_dataset
    from hdvpd.data.setup import keep_setup
    from hdvpd.training.checkpoints import CheckpointStore
    from hdvpd.training.run_folder import RunFolder
    from hdvpd.training.session import new_progress
    from hdvpd.training.step import create_train_state

    data = changes["data"] | {"path": list(map(str, paths)) if paths[1:] else str(paths[0])}
    config = load_config("debug", changes | {"data": data})
    dataset = open_dataset(config.data)
    scene = dataset.scene_spec(config.data)
    # Drawn, not initialised, which would be compiled first.
    shapes = jax.eval_shape(lambda: create_train_state(config, scene)[1])
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda x: (noise * rng.normal(size=x.shape)).astype(x.dtype), shapes)
    files = RunFolder(folder).describe(config, scene, dataset_identity=dataset.identity())
    keep_setup(folder, dataset)
    CheckpointStore(folder).save(
        3,
        state,
        progress=new_progress(dataset.identity()),
        files=files,
    )
    return folder


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, synthetic_dataset: Path) -> Path:
    """Folder of a run on `synthetic_dataset`: 16x20 pixels, 96 particles. Never write into it."""
    return write_run(tmp_path_factory.mktemp("runs") / "small", synthetic_dataset)


@pytest.fixture(scope="session")
def small_world(small_run: Path):
    """`hdvpd.load` of `small_run`; what it has compiled is shared."""
    import hdvpd

    return hdvpd.load(small_run)


@pytest.fixture(scope="session")
def arms_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run on the simulated arms: 24x32 pixels, 512 particles. Never write into it."""
    from hdvpd.data.simulation import bimanual

    folder = tmp_path_factory.mktemp("arms")
    bimanual.simulate(folder / "data", episodes=1, steps=8, size=(24, 32), workers=1)
    changes = {
        "data": {"height": 24, "width": 32},
        "model": {"num_particles": 512, "unet_channels": [8], "dynamics": {"num_layers": 1}},
    }
    return write_run(folder / "run", folder / "data", noise=0.03, changes=changes)
