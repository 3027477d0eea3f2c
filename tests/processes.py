"""Trainings in several real processes, for tests: the tiny model, one device each, on 127.0.0.1."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hdvpd.config import Config
from hdvpd.config.experiments import to_toml
from hdvpd.training.processes import LOST_STATUS

COMMAND = """
import sys
from hdvpd.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
TRAIN = """
from hdvpd.training import step
import scenes
step.Model = scenes.{model}
"""


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def paths() -> list[str]:
    """Return where a process finds the tests and the package."""
    return [str(Path(__file__).parent), str(Path(__file__).parents[1])]


def start_training(
    config: Config,
    run_dir: Path,
    count: int,
    *words: str,
    devices: int = 1,
    model: str = "TinyModel",
) -> list[subprocess.Popen[str]]:
    """Start the processes of one training; `finish` waits for them and leaves none behind."""
    file = run_dir.parent / f"{run_dir.name}.toml"
    file.write_text(to_toml(config))
    train = ["train", str(file), "--runs-dir", str(run_dir.parent), "--name", run_dir.name, *words]
    return start(train, count, devices=devices, before=TRAIN.format(model=model))


def start(
    words: Sequence[str], count: int, *, devices: int = 1, before: str = ""
) -> list[subprocess.Popen[str]]:
    """Start a command in several processes that join, each with so many devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths()),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,  # the last of equal flags counts
    }
    port = free_port()
    command = [sys.executable, "-c", before + COMMAND, *words]
    if count > 1:
        command += ["--distributed", "--coordinator", f"127.0.0.1:{port}"]
        command += ["--num-processes", str(count), "--process-id"]
    return [
        subprocess.Popen(
            [*command, *([str(number)] if count > 1 else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(count)
    ]


@contextlib.contextmanager
def running(*arguments: Any, **settings: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes of a training; whatever happens, none is left behind."""
    started = start_training(*arguments, **settings)
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def finish(
    processes: Sequence[subprocess.Popen[str]], seconds: float = 500
) -> list[tuple[int, str, str]]:
    """Wait for processes, not for ever; return exit status, output and errors of each."""
    done = []
    try:
        for process in processes:
            out, errors = process.communicate(timeout=seconds)
            done.append((process.returncode, out, errors))
    finally:
        for process in processes:
            process.kill()
    return done


def told(done: Sequence[tuple[int, str, str]]) -> str:
    """Return all that processes wrote; of a tuple, pytest would leave the middle out."""
    return "\n".join(f"status {status}\n{out}\n{errors}" for status, out, errors in done)


def assert_told_of_loss(status: int, errors: str) -> None:
    """A process whose partner was killed at any moment has said so and has ended.

    jax itself ends one whose coordinator is lost, or that waits in a saving (docs/scaling.md).
    """
    assert status in (LOST_STATUS, -signal.SIGABRT), errors
    told = ("is gone", "preempted/died", "tasks are unhealthy")
    assert any(words in errors for words in told), errors
