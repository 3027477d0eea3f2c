"""Several real processes train one model, as one device does, whatever happens to one of them."""

import dataclasses
import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import processes
import pytest
import scenes

import hdvpd
from hdvpd.__main__ import main as command
from hdvpd.basics.errors import UserError
from hdvpd.config import Config
from hdvpd.training import step as step_module
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.training.processes import LOST_STATUS, Team, join


def six_steps(debug_config: Config, dataset: Path) -> Config:
    """Six steps of four windows; the last batch of the validation's three windows is ragged."""
    data = dataclasses.replace(debug_config.data, path=str(dataset))
    train = dataclasses.replace(
        debug_config.train, num_steps=6, batch_size=4, log_every=1, validate_every=3,
        validation_windows=3, checkpoint_every=3, keep_checkpoints=10,
    )  # fmt: skip
    return dataclasses.replace(debug_config, data=data, train=train)


@pytest.fixture(scope="module")
def config(debug_config: Config, synthetic_dataset: Path) -> Config:
    return six_steps(debug_config, synthetic_dataset)


@pytest.fixture
def tiny() -> Iterator[None]:
    """Train the tiny model in this process too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "Model", scenes.TinyModel)
        yield


def with_train(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


def losses(run: Path) -> dict[tuple[str, int], float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {(r["kind"], r["step"]): r["loss"] for r in lines if "loss" in r}


def assert_same_losses(run: Path, expected: Path) -> None:
    ours, theirs = losses(run), losses(expected)
    assert ours.keys() == theirs.keys()
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=2e-5)


@pytest.fixture(scope="module")
def alone(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, one device."""
    path = tmp_path_factory.mktemp("alone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "Model", scenes.TinyModel)
        hdvpd.train.main(config, run_dir=path)
    return path


def wait_for_checkpoint(run: Path, step: int, started: list, seconds: float = 500) -> None:
    deadline = time.monotonic() + seconds
    while not any(saved >= step for saved in CheckpointStore(run).steps()):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in started)
        time.sleep(0.05)


def test_two_processes_train_as_one_device_does(
    alone: Path, config: Config, tmp_path: Path
) -> None:
    run = tmp_path / "two"
    done = processes.finish(
        processes.start_training(with_train(config, shard_state=True), run, 2, devices=1)
    )
    assert [status for status, _, _ in done] == [0, 0], processes.told(done)
    assert_same_losses(run, alone)
    assert CheckpointStore(run).steps() == [0, 3, 6]
    # Each wrote the part of the state that it held.
    parts = sorted(p.name for p in (run / "checkpoints/6/params").glob("ocdbt.process_*"))
    assert parts == ["ocdbt.process_0", "ocdbt.process_1"]
    # The primary talks and writes, the other does neither.
    assert "step 6 is saved" in done[0][1]
    assert "step 6" not in done[1][1]
    assert (run / "first_batch.png").is_file()


def test_eight_devices_of_one_process_train_as_one_does(
    config: Config, tmp_path: Path, tiny: None
) -> None:
    """The last validation batch, of three windows, is ragged: no device waits for a window."""
    eight = with_train(config, batch_size=8)
    hdvpd.train.main(eight, run_dir=tmp_path / "one")
    (done,) = processes.finish(
        processes.start_training(
            with_train(eight, num_devices=0, shard_state=True), tmp_path / "eight", 1, devices=8
        )
    )
    assert done[0] == 0, done
    assert_same_losses(tmp_path / "eight", tmp_path / "one")


def test_processes_and_devices_evaluate_as_one_device_does(small_run: Path, tmp_path: Path) -> None:
    """Three windows and four devices in two processes; every number has the same bits."""
    words = ["eval", str(small_run), "--steps", "1", "--eval.windows-per-episode", "3"]
    words += ["--eval.num-videos", "1", "--out"]
    assert command([*words, str(tmp_path / "one")]) == 0
    done = processes.finish(
        processes.start([*words, str(tmp_path / "four"), "--eval.num-devices", "0"], 2, devices=2)
    )
    assert [status for status, _, _ in done] == [0, 0], processes.told(done)
    one, four = tmp_path / "one", tmp_path / "four"
    names = {str(f.relative_to(one)) for f in one.rglob("*") if f.is_file()}
    assert names == {str(f.relative_to(four)) for f in four.rglob("*") if f.is_file()}
    for name in names:
        if name.endswith((".json", ".csv", ".md")) or "frames/" in name:
            assert (four / name).read_bytes() == (one / name).read_bytes(), name
    assert "window 1/3" in done[0][1]
    assert "window" not in done[1][1]


def test_a_process_lost_in_an_evaluation_ends_it(small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    started = processes.start(["eval", str(small_run), "--out", str(out)], 2)
    try:
        deadline = time.monotonic() + 300
        while not out.is_dir():  # both have joined
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started[1].kill()
        (status, _, errors), _ = processes.finish(started, seconds=200)
    finally:
        for process in started:
            process.kill()
    assert status == LOST_STATUS, errors
    assert "another of the 2 processes is gone" in errors
    assert not (out / "metrics.json").exists()


def test_a_lost_process_ends_the_job_and_fewer_continue_it(
    alone: Path, config: Config, tmp_path: Path, tiny: None
) -> None:
    """Two processes go on where one was, each with its part of the state; then one again."""
    run = Path(shutil.copytree(alone, tmp_path / "run"))
    endless = with_train(
        config, num_steps=10**6, checkpoint_every=10, validate_every=0, preflight="off",
        shard_state=True,
    )  # fmt: skip
    with processes.running(endless, run, 2, "--resume", "auto") as started:
        wait_for_checkpoint(run, 10, started)
        started[1].send_signal(signal.SIGKILL)
        (status, _, errors), _ = processes.finish(started)
    processes.assert_told_of_loss(status, errors)
    assert status != LOST_STATUS or "--resume" in errors
    last = CheckpointStore(run).sound_step()
    hdvpd.train.main(with_train(endless, num_steps=last + 4), run_dir=run, resume="auto")
    hdvpd.train.main(with_train(endless, num_steps=last + 4), run_dir=tmp_path / "never")
    ours, never = ({step: x for (kind, step), x in losses(r).items() if kind == "train"}
                   for r in (run, tmp_path / "never"))  # fmt: skip
    assert list(ours) == list(range(1, last + 5))
    np.testing.assert_allclose(list(ours.values()), list(never.values()), rtol=2e-5)


def test_one_process_is_a_team_without_any_exchange() -> None:
    team = Team.here()
    assert (team.number, team.count, team.primary) == (0, 1, True)
    assert team.any(True)
    assert not team.any(False)
    assert team.from_primary(7) == 7
    assert team.together(lambda: "done") == "done"
    with pytest.raises(UserError, match="as it is"):
        team.together(lambda: refuse("as it is"))


def refuse(words: str) -> None:
    raise UserError(words)


def test_a_wrong_number_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PROCESS_ID", "first")
    with pytest.raises(UserError, match="JAX_PROCESS_ID is 'first'"):
        join("127.0.0.1:1", 2)
