"""What a world asks of the states that it is given and makes."""

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import ParticleCloud
from hdvpd.config import Config, SceneSpec
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.world.state import State


def require_seen(cloud: ParticleCloud, scene: SceneSpec, config: Config) -> None:
    """Require that something of an observed cloud is in the workspace.

    Raises:
      UserError: nothing is, as with depth in other units or poses that are inverted.
    """
    if not cloud.mask.any():
        low, high = (
            ", ".join(f"{x:g}" for x in corner)
            for corner in (scene.workspace_min, scene.workspace_max)
        )
        raise UserError(
            f"Nothing that was observed lies in the model's workspace, ({low}) to ({high}) m, and "
            f"between {config.render.near:g} and {config.render.far:g} m of depth. Depth is planar "
            "and in metres; camera_to_world takes points of the camera to the world."
        )


def require_own(state: State, scene: SceneSpec, config: Config) -> None:
    """Require that a state is of a model like this one.

    Raises:
      UserError: its particles have other features, or its robot other kinematic points.
    """
    points, width = state.robot.positions.shape[-2], state.current.features.shape[-1]
    if (points, width) != (scene.num_robot_points, config.model.feature_dim):
        raise UserError(
            f"This state was encoded by another model: it has {points} kinematic points and "
            f"{width} features of a particle, this model {scene.num_robot_points} and "
            f"{config.model.feature_dim}. Encode its frames with this one (observe, state_from)."
        )


def require_length(dataset: Dataset, episode: int, start: int, steps: int) -> None:
    """Require that an episode goes on for some steps after two observed frames.

    Raises:
      UserError: it does not.
    """
    length = dataset.episode(episode).length
    if start < 0 or steps < 1 or start + OBSERVED_FRAMES + steps > length:
        raise UserError(
            f"Episode {episode} of {dataset.title} has {length} frames: from frame {start}, "
            f"{OBSERVED_FRAMES} observed and {steps} predicted steps do not fit. Ask for at most "
            f"{max(length - start - OBSERVED_FRAMES, 0)} steps, or an earlier start."
        )
