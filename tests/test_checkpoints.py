"""Checkpoints: bit-exact, atomic, digested, and the previous one survives whatever happens."""

import dataclasses
import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hdvpd.basics.errors import UserError
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import to_toml
from hdvpd.model import abstract_model
from hdvpd.training.checkpoint_folder import find_damage
from hdvpd.training.checkpoints import CheckpointStore, load_model, require_disk_space
from hdvpd.training.processes import Team
from hdvpd.training.spread_checkpoints import SpreadStore
from hdvpd.training.step import TrainState

FILES = {"config.toml": "[train]\nseed = 3\n", "scene.json": '{"num_robot_points": 1}'}


def make_state(step: int) -> TrainState:
    """A small state that is a function of the step, with all the kinds of leaves that occur."""
    rng = np.random.default_rng(step)
    params = {
        "unet": {"blocks": {0: {"kernel": rng.normal(size=(3, 3, 4, 8)).astype(np.float32)}}},
        "norm": {"scale": np.full(8, np.float32(1) / 3)},
        "modulation": np.float32(rng.normal()),
    }
    params = jax.tree.map(jnp.asarray, params)
    gradient = jax.tree.map(lambda p: p * 0.1, params)
    optimizer = optax.chain(optax.clip_by_global_norm(0.01), optax.adamw(1e-3))
    _, opt_state = optimizer.update(gradient, optimizer.init(params), params)
    return TrainState(
        step=jnp.int32(step),
        params=params,
        opt_state=opt_state,
        nonfinite_in_row=jnp.int32(2),
        nonfinite_total=jnp.int32(step + 5),
    )


def assert_same(actual: object, expected: object) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def save(store: CheckpointStore, step: int) -> Path:
    return store.save(step, make_state(step), progress={"next_batch": step}, files=FILES)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run", keep=3)


def test_what_is_restored_is_what_was_saved_bit_for_bit(store: CheckpointStore) -> None:
    progress = {"next_batch": 7, "window": [{"loss": 0.1 + 0.2, "grad_norm": None}]}
    store.save(7, make_state(7), progress=progress, files=FILES)
    state, step, restored_progress = store.restore(None, like=make_state(0))
    assert_same(state, make_state(7))
    assert (step, restored_progress) == (7, progress)
    assert (store.path / "7" / "config.toml").read_text() == FILES["config.toml"]


def test_a_restored_state_can_be_donated(store: CheckpointStore) -> None:
    save(store, 1)
    state, _, _ = store.restore(None, like=make_state(0))
    double = jax.jit(lambda tree: jax.tree.map(lambda x: x + x, tree), donate_argnums=0)
    assert_same(double(state), jax.tree.map(lambda x: x + x, make_state(1)))


def test_files_hold_plain_arrays_with_params_apart(store: CheckpointStore) -> None:
    path = save(store, 4)
    read = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    params = read.restore((path / "params").absolute())
    assert set(params) == {
        "params/unet/blocks/0/kernel",
        "params/norm/scale",
        "params/modulation",
    }
    np.testing.assert_array_equal(params["params/norm/scale"], np.full(8, np.float32(1) / 3))
    train_state = read.restore((path / "train_state").absolute())
    read.close()
    assert not any(name.startswith("params/") for name in train_state)
    assert train_state["step"] == 4


def test_parameters_load_alone(store: CheckpointStore) -> None:
    save(store, 4)
    assert_same(store.restore_params(4, like=make_state(0).params), make_state(4).params)


def test_the_oldest_go_and_the_newest_stay(store: CheckpointStore) -> None:
    for step in (0, 10, 20, 100, 110):
        save(store, step)
    assert store.steps() == [20, 100, 110]
    assert sorted(p.name for p in store.path.iterdir()) == ["100", "110", "20"]


def test_every_damaged_byte_is_found(store: CheckpointStore) -> None:
    path = save(store, 1)
    assert find_damage(path) is None
    rng = random.Random(0)
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.stat().st_size)
    assert len(files) > 8
    for file in files:
        good = file.read_bytes()
        place = rng.randrange(len(good))
        if file.name == "digest.json":
            place = good.index(b'": "') + 10  # inside a digest
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        damage = find_damage(path)
        assert damage is not None, file
        assert file.name in damage or file.name == "digest.json"
        file.write_bytes(good)
    assert find_damage(path) is None


def flip_a_byte(path: Path) -> None:
    file = max((p for p in (path / "params").rglob("*") if p.is_file()), key=os.path.getsize)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(path: Path) -> None:
    file = max((p for p in (path / "train_state").rglob("*") if p.is_file()), key=os.path.getsize)
    os.truncate(file, file.stat().st_size // 2)


def remove_digest(path: Path) -> None:
    (path / "digest.json").unlink()


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


@pytest.mark.parametrize("harm", [flip_a_byte, truncate, remove_digest, empty])
def test_a_damaged_checkpoint_is_never_loaded(
    store: CheckpointStore, harm, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save(store, step)
    harm(store.path / "2")
    with caplog.at_level(logging.WARNING, "hdvpd"):
        state, step, _ = store.restore(None, like=make_state(0))
    assert step == 1
    assert_same(state, make_state(1))
    assert str(store.path / "2") in caplog.text
    with pytest.raises(UserError, match=r"2 is damaged: .*--step"):
        store.restore(2, like=make_state(0))


def test_no_sound_checkpoint_is_one_message(store: CheckpointStore) -> None:
    with pytest.raises(UserError, match="no sound checkpoint"):
        store.restore(None, like=make_state(0))
    save(store, 1)
    flip_a_byte(store.path / "1")
    with pytest.raises(UserError, match="no sound checkpoint"):
        store.restore(None, like=make_state(0))
    with pytest.raises(UserError, match=r"no checkpoint of step 3; it has \[1\]"):
        store.restore(3, like=make_state(0))


def test_a_damaged_step_can_be_saved_again_and_nothing_is_deleted(store: CheckpointStore) -> None:
    for _ in range(3):
        path = save(store, 5)
        flip_a_byte(path)
    save(store, 5)
    assert find_damage(store.path / "5") is None
    names = sorted(p.name for p in store.path.iterdir())
    assert names == ["5", "5.aside", "5.aside-2", "5.aside-3"]
    assert store.steps() == [5]


def test_left_over_temporary_folders_are_ignored_and_cleaned(store: CheckpointStore) -> None:
    save(store, 1)
    shutil.copytree(store.path / "1", store.path / ".saving-2-99")
    (store.path / ".saving-2-99" / "digest.json").unlink()
    shutil.copytree(store.path / "1", store.path / ".deleting-0-99")
    assert store.steps() == [1]
    store.clean()
    assert [p.name for p in store.path.iterdir()] == ["1"]


def test_a_copy_elsewhere_restores(store: CheckpointStore, tmp_path: Path) -> None:
    save(store, 1)
    shutil.copytree(store.path, tmp_path / "elsewhere" / "checkpoints")
    shutil.rmtree(store.path)
    state, step, _ = CheckpointStore(tmp_path / "elsewhere").restore(None, like=make_state(0))
    assert step == 1
    assert_same(state, make_state(1))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nothing_non_finite_is_saved(store: CheckpointStore, value: float) -> None:
    save(store, 1)
    state = make_state(2)
    state.params["norm"]["scale"] = state.params["norm"]["scale"].at[3].set(value)
    with pytest.raises(UserError, match="params/norm/scale is not finite after step 2"):
        store.save(2, state, progress={})
    assert [p.name for p in store.path.iterdir()] == ["1"]


def test_another_model_is_refused_by_name(store: CheckpointStore) -> None:
    save(store, 1)
    like = make_state(0)
    like.params["norm"]["scale"] = jnp.zeros(9)
    with pytest.raises(UserError, match=r"params/norm/scale is \(\(8,\), 'float32'\)"):
        store.restore(None, like=like)
    like = make_state(0)
    like.params["new"] = jnp.zeros(1)
    with pytest.raises(UserError, match="params/new is absent in the checkpoint"):
        store.restore(None, like=like)


def full_allocation(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_tensorstore(*_: object, **__: object) -> None:
    raise ValueError(
        "RESOURCE_EXHAUSTED: Failed to write 9 bytes to file 14: No space left on device "
        "[os_error_code='28']"
    )


@pytest.mark.parametrize(
    ("owner", "name", "fail"),
    [
        (os, "posix_fallocate", full_allocation),
        (os, "fsync", full_allocation),
        (Path, "rename", full_allocation),
        (ocp.Checkpointer, "save", full_tensorstore),
    ],
)
def test_a_failed_save_keeps_the_previous_one_and_is_forgotten(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, owner, name: str, fail
) -> None:
    save(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(UserError, match=r"checkpoints/2: No space left on device.*--resume"):
            save(store, 2)
    assert [p.name for p in store.path.iterdir()] == ["1"]
    assert_same(store.restore(None, like=make_state(0))[0], make_state(1))
    save(store, 2)
    assert store.sound_step() == 2


def test_errors_of_the_program_are_not_dressed_up(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(ocp.Checkpointer, "save", fail)
    with pytest.raises(ValueError, match="a bug"):
        save(store, 2)


def test_a_full_disk_is_one_message(small_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = CheckpointStore(small_disk, keep=3)
    save(store, 1)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 100_000))
    with pytest.raises(UserError, match="No space left on device"):
        save(store, 2)
    assert capfd.readouterr() == ("", "")
    assert [p.name for p in store.path.iterdir()] == ["1"]
    assert_same(store.restore(None, like=make_state(0))[0], make_state(1))
    filler.unlink()
    save(store, 2)
    assert store.sound_step() == 2


def test_too_small_a_disk_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(make_state(0)))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2 * size))
    require_disk_space(tmp_path, make_state(0))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2 * size - 1))
    with pytest.raises(UserError, match=r"0\.0 MiB free.*Free some space"):
        require_disk_space(tmp_path, make_state(0))


SAVER = """
import sys
from pathlib import Path
from test_checkpoints import CheckpointStore, save
store = CheckpointStore(Path(sys.argv[1]), keep=2)
store.clean()
step = max(store.steps(), default=0)
print("ready", flush=True)
while True:
    step += 1
    save(store, step)
"""


def test_a_killed_process_leaves_a_sound_checkpoint(tmp_path: Path, long: bool) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    newest = 0
    for repeat in range(50 if long else 2):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_until(lambda: len(store.steps()) > 0)
        time.sleep(random.Random(repeat).uniform(0.1, 0.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        state, step, _ = store.restore(None, like=make_state(0))
        assert step == store.steps()[-1]
        assert step >= newest
        assert_same(state, make_state(step))
        newest = step


def wait_until(condition) -> None:
    while not condition():
        time.sleep(0.01)


def test_files_and_threads_stay_bounded(store: CheckpointStore) -> None:
    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    for step in range(3):
        save(store, step)
    before = count()
    for step in range(3, 15):
        save(store, step)
    after = count()
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 2


def test_what_does_not_read_back_is_reported(store: CheckpointStore) -> None:
    save(store, 1)
    store.verify(1, make_state(1))
    other = make_state(1)
    scale = other.params["norm"]["scale"]
    other.params["norm"]["scale"] = jnp.nextafter(scale, scale + 1)
    with pytest.raises(UserError, match=r"params/norm/scale in .* does not read back"):
        store.verify(1, other)


def test_a_state_spread_over_devices_is_saved_as_a_whole_one_is(store: CheckpointStore) -> None:
    mesh = Mesh(jax.devices(), ("all",))

    def place(step: int) -> TrainState:
        def spread(x: jax.Array) -> jax.Array:
            last = (None,) * (x.ndim - 1)
            divided = x.ndim and x.shape[-1] % mesh.size == 0
            return jax.device_put(x, NamedSharding(mesh, P(*last, "all") if divided else P()))

        return jax.tree.map(spread, make_state(step))

    together = SpreadStore(store, Team())
    together.save(3, together.copy(place(3)), progress={"next_batch": 3}, files=FILES)
    assert find_damage(store.path / "3") is None
    state, step, progress = store.restore(None, like=make_state(0))
    assert_same(state, make_state(3))
    assert (step, progress) == (3, {"next_batch": 3})
    together.verify(3, place(3))
    with pytest.raises(UserError, match="does not read back"):
        together.verify(3, place(4))
    wrong = place(4)
    wrong.params["norm"]["scale"] = wrong.params["norm"]["scale"].at[3].set(np.nan)
    with pytest.raises(UserError, match="params/norm/scale is not finite after step 4"):
        together.save(4, wrong, progress={})
    assert [p.name for p in store.path.iterdir()] == ["3"]


def test_load_model_gives_the_trained_parameters(tmp_path: Path, debug_config: Config) -> None:
    scene = SceneSpec(5, (-1.0, -1.0, -0.5), (1.0, 1.0, 1.5))
    shapes = abstract_model(debug_config, scene)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype),
        nnx.to_pure_dict(nnx.state(shapes)),
    )
    store = CheckpointStore(tmp_path / "run")
    files = {"config.toml": to_toml(debug_config), "scene.json": json.dumps(scene.to_dict())}
    state = dataclasses.replace(make_state(8), params=params)
    store.save(8, state, progress={}, files=files)
    model, config, loaded_scene, step = load_model(tmp_path / "run")
    assert (config, loaded_scene, step) == (debug_config, scene, 8)
    assert_same(nnx.to_pure_dict(nnx.state(model)), params)


def test_load_model_says_what_a_run_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a trained run"):
        load_model(tmp_path)
