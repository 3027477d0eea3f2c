"""Compiled programs are kept, only where the user wants them, and never instead of a result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hdvpd.kernels import kept_programs

# A program with a host kernel; prints its result and how many programs were not compiled.
PROGRAM = """
import sys
import jax, numpy as np
from hdvpd.kernels.host import host_call
from hdvpd.kernels.kept_programs import keep_programs, kept_beside

folder = keep_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
hits = []
jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None
)

def kernel(x, y):
    y[:] = FACTOR * x

def program(x):
    return host_call(kernel, [jax.ShapeDtypeStruct(x.shape, x.dtype)], x + 1)[0]

result = jax.jit(program)(np.arange(3, dtype=np.float32))
print(*map(int, result), len(hits), folder, kept_beside("taught"))
"""


def run(folder: Path, factor: int = 2, **environment: str) -> list[str]:
    """Run the program in a process of its own and return the words it printed.

    As the `hdvpd` command does, it silences XLA, which on some processors takes its own programs
    for those of another machine, says so, and runs them (openxla/xla#44565).
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XDG_"))}
    kept["TF_CPP_MIN_LOG_LEVEL"] = "3"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("FACTOR", str(factor))],
        env=kept | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(folder)} | environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache folder after one run, and what that run printed."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, run(folder)


def entries(folder):
    return sorted((folder / "hdvpd" / "programs").rglob("*-cache"))


def test_a_second_process_compiles_nothing_and_calls_the_kernel_as_it_is_now(filled):
    folder, first = filled
    assert first[:4] == ["2", "4", "6", "0"]
    machine = Path(first[4]).name
    places = [folder / "hdvpd" / name / machine for name in ("programs", "taught")]
    assert [*map(Path, first[4:])] == places
    assert entries(folder)
    second = run(folder)
    assert second[:3] == ["2", "4", "6"]
    assert int(second[3]) == len(entries(folder))
    assert run(folder, factor=5)[:4] == ["5", "10", "15", second[3]]


def test_damaged_and_torn_entries_are_compiled_again_without_a_word(filled):
    folder, _ = filled
    (entry,) = (e for e in entries(folder) if e.name.startswith("jit_program"))
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2])
    others = str(len(entries(folder)) - 1)
    assert run(folder)[:4] == ["2", "4", "6", others]
    # Without its time of use it is half written: removed, and kept anew.
    entry.with_name(entry.name.removesuffix("-cache") + "-atime").unlink()
    assert run(folder)[:4] == ["2", "4", "6", others]
    assert len(entry.read_bytes()) == len(whole)


def test_the_user_turns_it_off_or_chooses_the_folder(tmp_path):
    off = run(tmp_path, JAX_ENABLE_COMPILATION_CACHE="false")
    assert off == ["2", "4", "6", "0", "None", "None"]
    assert not list(tmp_path.iterdir())
    own = tmp_path / "own"
    assert run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(own))[4:] == ["None", "None"]
    assert list(own.glob("jit_program*"))


def test_a_folder_that_cannot_be_made_does_not_stop_a_run(tmp_path):
    (tmp_path / "hdvpd").write_text("a file")
    assert run(tmp_path) == ["2", "4", "6", "0", "None", "None"]


def test_tests_do_not_write_into_the_users_cache():
    assert kept_programs.keep_programs() is None
