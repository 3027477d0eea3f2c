"""Where a training begins: at its first step, or at the last sound checkpoint of its run."""

import jax
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.config import Config, SceneSpec
from hdvpd.data.store import Dataset
from hdvpd.training.checkpoint_folder import Progress
from hdvpd.training.checkpoints import CheckpointStore, require_disk_space
from hdvpd.training.parallel import Layout
from hdvpd.training.processes import Team
from hdvpd.training.run_folder import RunFolder
from hdvpd.training.session import new_progress
from hdvpd.training.step import TrainState, create_train_state
from hdvpd.training.teaching import taught

_NEW = -1


def start_or_restore(
    store: CheckpointStore,
    config: Config,
    dataset: Dataset,
    step: int | None,
    team: Team,
    layout: Layout,
) -> tuple[nnx.GraphDef, TrainState, Progress]:
    """Take the run's last sound checkpoint, or the initial state where there is none.

    Checkpoints after the restored one, damaged or of an abandoned continuation, are set aside.

    Args:
      store: checkpoints of the run.
      config: of this start.
      dataset: what this start reads.
      step: the checkpoint to take; None takes the newest sound one.
      team: takes one and the same.
      layout: where the state will lie; of one that is spread over processes, each reads its part.

    Returns:
      Definition of the model, the state to continue from, and where the run stands.

    Raises:
      UserError: there is no such checkpoint, or it belongs to a run of another kind.
    """
    identity, scene = dataset.identity(), dataset.scene_spec(config.data)
    chosen = team.from_primary(
        team.together(lambda: find_start(store, step) if team.primary else _NEW)
    )
    if chosen == _NEW:
        graphdef, state = create_train_state(config, scene)
        state = team.together(lambda: taught(config, graphdef, state, dataset))
        team.together(
            lambda: require_disk_space(store.path.parent, state) if team.primary else None
        )
        return graphdef, state, new_progress(identity)

    def restore() -> tuple[nnx.GraphDef, TrainState, Progress]:
        saved_config, _, saved_progress = store.read_origin(chosen)
        RunFolder(store.path.parent).require_same(
            saved_config,
            config,
            saved_dataset=saved_progress["dataset"],
            dataset=identity,
        )
        _require_steps(store, chosen, config.train.num_steps)
        graphdef, shapes = describe_train_state(config, scene)
        state, _, progress = store.restore(chosen, layout.spread_shapes(shapes))
        _require_trained(store, chosen, state)
        return graphdef, state, progress

    restored = team.together(restore)
    if team.primary:
        for later in store.steps():
            if later > chosen:
                store.set_aside(later)
    return restored


def _require_trained(store: CheckpointStore, step: int, state: TrainState) -> None:
    """Refuse what has parameters of a step but not the rest of its state."""
    if int(state.step) != step:
        raise UserError(
            f"{store.path.parent} was made from a packed model, which has the parameters of step "
            f"{step} but not how its training stood: it can be used, not resumed. Resume the run "
            "that it was packed from, or train anew."
        )


def _require_steps(store: CheckpointStore, done: int, wanted: int) -> None:
    if wanted < done:
        raise UserError(
            f"{store.path.parent} has done {done} steps, more than train.num_steps = {wanted}. Ask "
            "for more, or continue from an earlier checkpoint with --step."
        )


def find_start(store: CheckpointStore, step: int | None) -> int:
    """Return the step of the checkpoint to continue from, or -1 to start anew.

    Raises:
      UserError: the one asked for, or every one there is, is missing or damaged.
    """
    store.clean()
    return _NEW if step is None and not store.steps() else store.sound_step(step)


def describe_train_state(config: Config, scene: SceneSpec) -> tuple[nnx.GraphDef, TrainState]:
    """Build the train state with shapes for arrays: initialising only to restore costs seconds."""
    graphdefs: list[nnx.GraphDef] = []

    def create() -> TrainState:
        graphdef, state = create_train_state(config, scene)
        graphdefs.append(graphdef)
        return state

    shapes = jax.eval_shape(create)
    return graphdefs[0], shapes
