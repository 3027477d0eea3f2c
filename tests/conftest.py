"""What every test runs under: two fake CPU devices, quick compilation, shape checks, strict jax.

What decides how long the suite takes (`make test` lists the processor time of files and tests, and
`slowest.md` says what the fifty slowest are for): a quarter of the processes' time was XLA's when
it was last profiled, a fifth tracing, a seventh lowering, the rest Python and waiting for commands,
which import for seconds each. So tests that need a model share one of their file or of
`small_runs.py`, arrays are numpy's where nothing is learned from compiling, operations on jax's
arrays are one jitted program, shapes are few, an evaluation is small and draws its plots once, and
what a command says is asked of `main` unless a process of its own is the point. Repetitions of one
property beyond a few belong to `--long`.

Twelve minutes on two cores are wanted. At commit 278d3d3 3,224 tests took 9 min 33 s alone on two
idle ones (all of `.ci/run` 11:38, 19.8 minutes of processor time), at 3e55db0, 14 tests less, on
two slower ones 12 min 22 s; earlier ones took 18 to 20.
At commit b88b0e7 the suite of 3,126 tests took 37.0 of processor time (`time`, user and system of
all processes, a fresh checkout, three processes on a core that others used too), at c232392 the
tests of it 30.2 (3,094 passed, `make test`'s own list, starts and collecting not counted, other
programs on both cores for some of the 26 minutes). What came since was measured in parts, once
each, while two to five programs shared the cores, which makes the same file cost up to half as
much more: collecting 14.1 to 11.3 s in each process where bytecode is there, KeOps two formulas of
11 s, the examples of the formats 32 to 26 s, three studies of planning 36 to 25 s, thirty tests of
the calibration 33.4 to 30.7 s by checking the first hundred calls only, programs of the masks of
graphs 540 to 292. Much of the rest is compiling what is proven nowhere else, once each: of 200 s
of whole models 35 were tracing, 26 lowering, 73 compiling, 38 other processes and 29 all else.
"""

import gc
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

# Before jax is imported anywhere. JAX_PLATFORMS=cuda runs the suite on a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MUJOCO_GL", "egl")
# Most of the suite's time is compilation: a third less of it without optimisation, and two thirds
# less of the rest without fusion emitters; from jaxlib 0.11 on there is nothing else, and no flag.
# Pieces of a program cost up to a sixth more than one, and processes keep the cores busy anyway.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0 "
    + "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    * version("jaxlib").startswith("0.10.")
    + os.environ.get("XLA_FLAGS", "")  # the last of equal flags counts
).strip()

# A program is compiled once for all processes of this run, in a folder of the run's own: the
# user's cache is left alone, and nothing is carried from one run to the next.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _PROGRAMS = tempfile.TemporaryDirectory(prefix="hdvpd-programs-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _PROGRAMS.name
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import jax
import pytest
from annotations import calls, check_annotations
from kernels_once import compile_once

# Bytecode is kept, here and by the commands that tests start, also where the environment says not
# to: half of the time in which a process collects the tests was compiling them and the package.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

check_annotations("hdvpd", "studies")
compile_once()

from hdvpd.config import Config  # noqa: E402 - after the hook
from hdvpd.config.experiments import load_config  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

# Tracing makes many small objects that live long; looking through them again and again was a fifth
# of its time.
gc.freeze()
gc.set_threshold(100_000, 50, 100)


pytest_plugins = ["extras", "small_runs", "browsers", "disks", "processor_time"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="repeat randomised tests far more often (make longtest)",
    )
    parser.addoption(
        "--soak",
        action="store_true",
        help="run the tests that take minutes each (make soak)",
    )


# Files of long tests, which processes take first: begun last, one would keep a single core busy
# while the others have ended.
LONGEST = (
    "test_eval_main", "test_train_main", "test_using_docs", "test_calibration", "test_gpu_ready",
    "test_parallel", "test_compare", "test_packaging", "test_members", "test_processes",
    "test_simulation", "test_world", "test_plan_command", "test_floor", "test_spread",
    "test_view_runs", "test_view_browser", "test_report_browser", "test_import_docs",
    "test_grf_study", "test_videos",
)  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
    if not config.getoption("--soak"):
        later = pytest.mark.skip(reason="takes minutes: make soak")
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(later)
    if jax.default_backend() == "cpu":
        no_gpu = pytest.mark.skip(reason="needs an accelerator")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(no_gpu)


def pytest_runtest_setup() -> None:
    calls.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests say that they measured, also where several processes run them."""
    for report in terminalreporter.stats.get("passed", []):
        for name, text in report.user_properties:
            if name == "measured":
                terminalreporter.write_line(f"{report.nodeid}: {text}")


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> bool:
    """Whether this is the longer suite."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def key() -> jax.Array:
    """Fixed random key."""
    return jax.random.key(0)


@pytest.fixture(scope="session")
def debug_config() -> Config:
    """Experiment `debug` unchanged: 32x40 pixels, 512 particles, two layers of width 32."""
    return load_config("debug")


@pytest.fixture(scope="session")
def synthetic_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Analytic scene with exact RGB-D and motion: 10 episodes (8 train, 1, 1) of 6 steps."""
    from hdvpd.data.simulation.synthetic import write_synthetic_dataset

    path = tmp_path_factory.mktemp("data") / "synthetic"
    write_synthetic_dataset(path, episodes=10, steps=6, height=32, width=40, seed=0)
    return path
