"""Programs compiled at once are the ones that were asked for, traced while others are compiled."""

import functools
import threading
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.stages import Compiled, Lowered

from hdvpd.kernels.together import compile_together, compiling_beside
from hdvpd.model.compiled import lower


def test_each_program_is_the_one_asked_for() -> None:
    x = jnp.arange(3.0)
    factors = 2.0, 3.0, 5.0
    compiled = compile_together(
        [lambda factor=factor: jax.jit(lambda x: factor * x).lower(x) for factor in factors]
    )
    assert [float(program(x)[1]) for program in compiled] == [2.0, 3.0, 5.0]


class _Traced(Lowered):
    """A program that calls no host function."""

    def __init__(self):
        pass

    def compiler_ir(self, dialect: str | None = None) -> Any:
        return jax.jit(jnp.sin).lower(0.0).compiler_ir(dialect)


class _Waits(_Traced):
    """A program whose compilation ends once another one has been traced."""

    def __init__(self, traced: threading.Event):
        self.traced = traced

    def compile(self, *_: Any, **__: Any) -> Compiled:
        assert self.traced.wait(60)
        assert threading.current_thread() is not threading.main_thread()
        return jax.jit(jnp.sin).lower(0.0).compile()


def test_one_is_traced_while_another_is_compiled() -> None:
    traced, threads = threading.Event(), []

    def first() -> Lowered:
        threads.append(threading.current_thread())
        return cast(Lowered, _Waits(traced))

    def second() -> Lowered:
        threads.append(threading.current_thread())
        traced.set()
        return cast(Lowered, _Waits(traced))

    assert len(compile_together([first, second])) == 2
    assert threads == [threading.current_thread()] * 2


def test_what_goes_wrong_in_a_compilation_is_raised() -> None:
    x = jnp.arange(3.0)

    class Broken(_Traced):
        def compile(self, *_: Any, **__: Any) -> Any:
            raise ValueError("no such program")

    with pytest.raises(ValueError, match="no such program"):
        compile_together([lambda: jax.jit(jnp.sin).lower(x), lambda: cast(Lowered, Broken())])


def test_a_call_after_its_program_was_compiled_beside_others_compiles_nothing():
    compiled: list[str] = []  # for the rest of the process, for listeners cannot be taken back

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event and duration_secs >= 0:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    part = functools.partial(jax.jit(lambda state, x: jnp.sin(x) + state), jnp.float32(2.0))
    on_device = jnp.ones(3)
    with compiling_beside() as compile_:
        program = lower(part, np.zeros(3, np.float32))
        compile_(program)
    before = len(compiled)
    assert before > 0
    np.testing.assert_allclose(part(np.ones(3, np.float32)), np.sin(1.0) + 2.0, rtol=1e-6)
    np.testing.assert_allclose(part(on_device), np.sin(1.0) + 2.0, rtol=1e-6)
    assert len(compiled) == before
    assert jax.tree.leaves(program.out_info)[0].shape == (3,)
