"""Python functions as custom calls: the same results as numpy, no copies, readable errors."""

import functools
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

import hdvpd
from hdvpd.kernels import ffi
from hdvpd.kernels.cores import share_cores
from hdvpd.kernels.ffi import HostFunction, ffi_call

ADDRESSES = []
COUNTED = []


def scale_rows(values, factors, scaled, total):
    """Multiply rows of int32 values by float factors."""
    ADDRESSES.append((values.ctypes.data, scaled.ctypes.data))
    scaled[:] = values * factors[:, None]
    total[...] = scaled.sum()


def count_threads(x, zero):
    in_main = threading.get_ident() == threading.main_thread().ident
    COUNTED.append((in_main, numba.get_num_threads()))
    zero[...] = 0


def called_by_xlas_threads(function):
    @jax.jit
    def ask(x):
        # So much work that it goes to XLA's own threads.
        for _ in range(4):
            x = jnp.tanh(x @ x)
            x += ffi_call(function, [jax.ShapeDtypeStruct((), np.float32)], x)[0]
        return x

    return ask


def refuse(values, result):
    raise ValueError(f"cannot work on shape {values.shape}")


def write_to_argument(values, result):
    values[0] = 1.0


@jax.jit
def call(values, factors):
    results = [jax.ShapeDtypeStruct(values.shape, np.float32), jax.ShapeDtypeStruct((), np.float32)]
    return ffi_call(scale_rows, results, values, factors)


def inputs(*batch, rows=5):
    values = jnp.arange(int(np.prod(batch)) * rows * 3, dtype=jnp.int32).reshape(*batch, rows, 3)
    return values, jnp.linspace(-1, 1, rows, dtype=jnp.float32)


@pytest.mark.parametrize("rows", [5, 1, 0])
def test_fills_results_of_several_types_and_sizes(rows):
    values, factors = inputs(rows=rows)
    scaled, total = call(values, factors)
    expected = np.asarray(values) * np.asarray(factors)[:, None]
    np.testing.assert_allclose(scaled, expected, rtol=1e-6)
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5, atol=1e-6)


def test_arguments_and_results_are_not_copied():
    values, factors = inputs(rows=7)
    ADDRESSES.clear()
    scaled, _ = jax.block_until_ready(call(values, factors))
    [(read, written)] = ADDRESSES
    assert read == values.unsafe_buffer_pointer()
    assert written == scaled.unsafe_buffer_pointer()


@pytest.mark.parametrize("transform", ["vmap", "scan", "checkpoint"])
def test_transformations_equal_a_loop(transform):
    values, factors = inputs(4)
    expected = np.asarray(values) * np.asarray(factors)[:, None]

    def one(values):
        return call(values, factors)[0]

    mapped = {
        "vmap": jax.vmap(one),
        "scan": functools.partial(jax.lax.map, one),
        "checkpoint": jax.vmap(jax.checkpoint(one)),
    }[transform]
    np.testing.assert_allclose(jax.jit(mapped)(values), expected, rtol=1e-6)


def test_runs_on_both_devices_and_on_sharded_arrays():
    values, factors = inputs(4)
    expected = np.asarray(values) * np.asarray(factors)[:, None]
    devices = jax.devices()[:2]
    apart = [call(*jax.device_put((values[0], factors), device))[0] for device in devices]
    for scaled in apart:
        np.testing.assert_allclose(scaled, expected[0], rtol=1e-6)
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    mapped = jax.jit(jax.vmap(lambda values: call(values, factors)[0]))
    np.testing.assert_allclose(mapped(jax.device_put(values, rows)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "message"),
    [(refuse, r"ValueError: cannot work on shape \(3,\)"), (write_to_argument, "read-only")],
)
def test_errors_arrive_with_their_traceback(function, message):
    result = [jax.ShapeDtypeStruct((3,), np.float32)]
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(jax.jit(lambda x: ffi_call(function, result, x))(jnp.zeros(3)))


WORKED = set()


def note_thread(result):
    WORKED.add(threading.get_ident())
    result[...] = 1.0


@pytest.mark.parametrize("cores", [2, 64])
def test_on_many_cores_one_thread_works_for_callers_of_any_thread(cores, monkeypatch):
    # Every thread that works keeps OpenMP workers of its own as long as it lives: few on few cores.
    monkeypatch.setattr(ffi, "usable_cores", lambda: cores)
    WORKED.clear()
    function = jax.jit(lambda: ffi_call(note_thread, [jax.ShapeDtypeStruct((), np.float32)]))
    called, end = threading.Semaphore(0), threading.Event()

    def run():
        jax.block_until_ready(function())
        called.release()
        end.wait()

    callers = [threading.Thread(target=run) for _ in range(6)]
    for caller in callers:
        caller.start()
        assert called.acquire(timeout=60)
    end.set()
    for caller in callers:
        caller.join()
    theirs = {caller.ident for caller in callers}
    assert threading.get_ident() not in WORKED
    if cores > 4:
        assert len(WORKED) == 1
        assert WORKED.isdisjoint(theirs)
    else:
        assert theirs >= WORKED


CALLS = threading.local()
NUMBERS = []


def number_calls(x, zero):
    CALLS.count = getattr(CALLS, "count", 0) + 1
    NUMBERS.append((threading.get_ident(), CALLS.count))
    zero[...] = 0


def test_python_keeps_what_it_knows_of_threads_of_xla():
    ask = called_by_xlas_threads(number_calls)
    NUMBERS.clear()
    for _ in range(8):
        jax.block_until_ready(ask(jnp.ones((1024, 1024))))
    main = threading.main_thread().ident
    of_xla = {thread for thread, _ in NUMBERS} - {main}
    assert of_xla
    for thread in of_xla:
        numbers = [number for ident, number in NUMBERS if ident == thread]
        assert numbers == list(range(1, len(numbers) + 1))


def test_calls_take_the_share_of_the_cores_that_is_their_devices():
    """Also after another share was taken."""
    ask = called_by_xlas_threads(count_threads)
    every = numba.config.NUMBA_NUM_THREADS
    try:
        for devices in (1, 2, every + 1, 1):
            COUNTED.clear()
            share_cores(devices)
            jax.block_until_ready(ask(jnp.ones((1024, 1024))))
            assert {count for _, count in COUNTED} == {max(every // devices, 1)}
            assert any(not in_main for in_main, _ in COUNTED)
    finally:
        share_cores(1)


def test_one_name_stands_for_one_function():
    # A program compiled for the first, from the cache on disk perhaps, would run the second.
    def make(value):
        def fill(result):
            result[...] = value

        return fill

    result = [jax.ShapeDtypeStruct((), np.float32)]
    fives, sixes = make(5), make(6)
    assert jax.jit(lambda: ffi_call(fives, result))()[0] == 5
    with pytest.raises(ValueError, match=r"two functions .*make.<locals>.fill"):
        ffi_call(sixes, result)


def test_threads_may_make_a_function_known_at_the_same_time(monkeypatch):
    # As the devices of an evaluation do, each of which traces its programs.
    def fill(result):
        result[...] = 7

    result = [jax.ShapeDtypeStruct((), np.float32)]
    with ThreadPoolExecutor(1) as pool:
        others, register = [], jax.ffi.register_ffi_target

        def register_beside_another(*arguments, **settings):
            others.append(pool.submit(lambda: jax.jit(lambda: ffi_call(fill, result))()))
            wait(others, timeout=0.2)
            register(*arguments, **settings)

        monkeypatch.setattr(jax.ffi, "register_ffi_target", register_beside_another)
        (ours,) = jax.jit(lambda: ffi_call(fill, result))()
        (other,) = others
        assert ours == other.result()[0] == 7


@numba.njit
def add_up(rows, counts, factor, marked, sums, total):
    """Add the rows times a factor that are marked; refuse more than a thousand."""
    if len(rows) > 1000:
        raise ValueError("too many")
    total[...] = counts.sum()
    for row in range(len(rows)):
        sums[row] = 0
        for column in range(rows.shape[1]):
            sums[row] += factor * rows[row, column] if marked[row] else 0


@numba.njit
def first_of(x, first):
    first[0] = x[0]


@numba.njit
def share_of(x, share):
    share[...] = numba.get_num_threads()


@pytest.fixture
def calls_of_python(monkeypatch):
    """Names of functions that are called from Python, on a machine of few cores."""
    names, call = [], HostFunction.__call__

    def count(self, *arrays):
        names.append(self.function.__name__)
        call(self, *arrays)

    monkeypatch.setattr(HostFunction, "__call__", count)
    monkeypatch.setattr(ffi, "usable_cores", lambda: 2)
    return names


@jax.jit
def sums_of(rows, counts, factor, marked):
    kinds = ((rows.shape[0],), np.float32), ((), np.int32)
    results = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
    return ffi_call(add_up, results, rows, counts, factor, marked)


def sums_expected(rows, counts, factor, marked):
    return np.where(marked, factor * rows.sum(-1), 0), counts.sum()


def drawn(count, seed):
    rng = np.random.default_rng(seed)
    rows, factor = rng.normal(size=(count, 3)).astype(np.float32), np.float32(rng.normal())
    return rows, rng.integers(0, 9, (2, 3, 4), np.int32), factor, rng.uniform(size=count) < 0.5


def test_what_numba_has_compiled_is_called_without_python_from_then_on(calls_of_python):
    for seed, count in enumerate([5, 5, 0, 1, 200]):
        given = drawn(count, seed)
        for found, expected in zip(sums_of(*given), sums_expected(*given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert calls_of_python == ["add_up"]


def test_what_was_called_for_no_element_is_compiled_later(calls_of_python):
    first = functools.partial(ffi_call, first_of, [jax.ShapeDtypeStruct((1,), np.float32)])
    mapped, one = jax.jit(jax.vmap(first)), jax.jit(first)
    assert mapped(np.zeros((0, 4), np.float32))[0].shape == (0, 1)
    for value in (3, 4, 5):
        assert one(np.full(4, value, np.float32))[0] == value
    assert calls_of_python[-1:] == ["first_of"]
    assert len(calls_of_python) <= 2


def test_other_arrays_and_mistakes_are_pythons(calls_of_python):
    sums_of(*drawn(4, 0))
    calls_of_python.clear()
    several = [drawn(6, seed) for seed in range(3)]
    batches = [np.stack(arrays) for arrays in zip(*several, strict=True)]
    sums, totals = jax.vmap(sums_of)(*batches)
    for place, given in enumerate(several):
        np.testing.assert_allclose(sums[place], sums_expected(*given)[0], rtol=1e-5, atol=1e-6)
        assert totals[place] == given[1].sum()
    assert calls_of_python == []
    twice, twice_totals = jax.vmap(jax.vmap(sums_of))(*(x[None] for x in batches))
    np.testing.assert_array_equal(twice[0], sums)
    np.testing.assert_array_equal(twice_totals[0], totals)
    assert calls_of_python == ["add_up"]
    # The same function for other types is another one.
    rows, *others = drawn(4, 1)
    with jax.enable_x64(True):
        doubled = sums_of(rows.astype(np.float64), *others)
    np.testing.assert_allclose(doubled[0], sums_expected(rows, *others)[0], rtol=1e-5, atol=1e-6)
    calls_of_python.clear()
    with pytest.raises(Exception, match=r"(?s)Traceback.*too many"):
        jax.block_until_ready(sums_of(*drawn(1001, 0)))
    assert calls_of_python == ["add_up"]


_KNOWN = np.zeros((1, 2), np.int64)


@numba.njit
def known_sum(table, values, total):
    if table[0, 0] != len(values):
        raise LookupError
    table[0, 1] += 1
    total[()] = values.sum()


@ffi.with_native(known_sum, _KNOWN)
def any_sum(values, total):
    _KNOWN[0, 0] = len(values)
    total[()] = values.sum()


def test_python_does_what_compiled_code_with_a_table_does_not(calls_of_python):
    ask = jax.jit(lambda x: ffi_call(any_sum, [jax.ShapeDtypeStruct((), np.float32)], x)[0])
    mapped = jax.jit(jax.vmap(ask))
    for length in (3, 3, 4, 4, 4, 3):
        values = np.arange(length, dtype=np.float32)
        assert ask(values) == values.sum()
        sums = mapped(np.stack([values, values + 1]))
        np.testing.assert_array_equal(sums, values.sum() + np.array([0, length]))
    assert calls_of_python == ["any_sum"] * 3
    # The other three calls for one array, and the six for two.
    assert _KNOWN[0, 1] == 3 * 1 + 6 * 2


def test_calls_without_python_keep_to_their_share_of_the_cores(calls_of_python):
    ask = jax.jit(lambda x: ffi_call(share_of, [jax.ShapeDtypeStruct((), np.int32)], x)[0])
    every = numba.config.NUMBA_NUM_THREADS
    try:
        for devices in (1, 2, every, 1):
            share_cores(devices)
            for _ in range(2):
                assert ask(np.zeros(3, np.float32)) == max(every // devices, 1)
    finally:
        share_cores(1)
    assert calls_of_python == ["share_of"]


def test_compiled_functions_are_kept_by_the_sources_of_all_kernels(tmp_path):
    # A function that a kernel calls from another file changes; the kernel's own file does not.
    copy = shutil.copytree(Path(hdvpd.__file__).parent / "kernels", tmp_path / "kernels")
    caller = "from kernels.compiled import SLAB, kept, njit\n@njit(cache=True)\ndef f(x):\n"
    (copy / "caller.py").write_text(caller + "    return kept(x)\n")
    (copy / "__init__.py").write_text("")
    source = (copy / "compiled.py").read_text()
    program = "from kernels.caller import f; print(f(1))"
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    environment["PYTHONPATH"] = str(tmp_path)
    # Python would take its own bytecode of a file that changes within a second, at equal size.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    for factor in (2, 3):
        called = f"\n\n@njit(cache=True)\ndef kept(x):\n    return {factor} * x\n"
        (copy / "compiled.py").write_text(source + called)
        printed = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True
        )
        assert printed.stdout.split() == [str(factor).encode()]


@pytest.mark.parametrize("chosen", [None, "active"])
def test_threads_of_kernels_sleep_while_they_wait_unless_the_user_says_otherwise(chosen):
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    if chosen:
        environment["OMP_WAIT_POLICY"] = chosen
    seen = "import os, hdvpd.kernels.neighbors_host; print(os.environ['OMP_WAIT_POLICY'])"
    command = [sys.executable, "-c", seen]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [chosen or "passive"]
