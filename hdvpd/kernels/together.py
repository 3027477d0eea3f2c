"""Several programs compiled at once."""

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from jax.stages import Compiled, Lowered

Lower = Callable[[], Lowered]


def compile_together(lower: Iterable[Lower]) -> list[Compiled]:
    """Compile programs, each beside the tracing and the compilation of those after it.

    XLA transforms a program in one thread and only its machine code is made in several, so that
    two programs take hardly longer than the larger one as soon as there are two cores.

    Args:
      lower: traces each program, largest first; called one after another, in this thread.
    """
    with _garbage_kept(), ThreadPoolExecutor(thread_name_prefix="hdvpd-compile") as pool:
        compiling = [pool.submit(trace().compile) for trace in lower]
        return [program.result() for program in compiling]


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    """Look for no garbage: tracing makes many small objects that live, and hardly any that does.

    Looking through them again and again was a fifth of its time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
