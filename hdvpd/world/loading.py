"""Find a trained model and what it needs to know of its data."""

from pathlib import Path
from typing import Any

from hdvpd.basics.errors import UserError, how_to_install
from hdvpd.data.setup import find_setup
from hdvpd.data.store import Dataset
from hdvpd.evaluation.eval import find_runs
from hdvpd.training.checkpoints import load_model
from hdvpd.world.base import World


def load(
    run: str | Path = "runs/demo", step: int | None = None, *, stochastic: bool | None = None
) -> World:
    """Load a trained model.

    Args:
      run: folder of a run, or the name of one in `runs/`.
      step: which checkpoint; by default the newest sound one.
      stochastic: True: rollouts are samples, another seed is another future; False: they are the
        likeliest one; by default as the run's `model.stochastic` says.

    Returns:
      The model, ready to be used.

    Raises:
      UserError: there is no such run, or it has no such or no sound checkpoint, or its
        model tells no things apart and cannot be stochastic.
    """
    (folder,) = find_runs([Path(run)]).values()
    model, config, scene, step = load_model(folder, step, stochastic=stochastic)
    setup = find_setup(folder, config.data.paths[0])
    return World(model, config, scene, step, folder, setup)


def make_env(world: World, dataset: str | Path | Dataset, **settings: Any) -> Any:
    """Make a gymnasium environment of a model.

    Args:
      world: from `load`.
      dataset: whose frames a reset observes.
      settings: `camera`, `split`, `horizon`, `reward`, `done` and `render_mode`, as of
        `hdvpd.world.environment.WorldEnv`.

    Returns:
      The environment, a `gymnasium.Env`.

    Raises:
      UserError: gymnasium is not installed, or as of `WorldEnv`.
    """
    try:
        from hdvpd.world.environment import WorldEnv
    except ImportError as error:
        raise UserError(
            f"An environment needs gymnasium, which is not installed: {how_to_install('gym')}."
        ) from error
    data = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    return WorldEnv(world, data, **settings)
