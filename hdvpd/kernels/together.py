"""Several programs compiled at once."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from jax.stages import Compiled, Lowered

from hdvpd.kernels.rehearsal import rehearsals

Lower = Callable[[], Lowered]


def compile_together(lower: Iterable[Lower]) -> list[Compiled]:
    """Compile programs, each beside the tracing and the compilation of those after it.

    XLA transforms a program in one thread and only its machine code is made in several, so that
    two programs take hardly longer than the larger one as soon as there are two cores.

    Args:
      lower: traces each program, largest first; called one after another, in this thread.
    """
    with compiling_beside() as compile_:
        compiling = [compile_(trace()) for trace in lower]
    return [program.result() for program in compiling]


@contextlib.contextmanager
def compiling_beside() -> Iterator[Callable[[Lowered], Future[Compiled]]]:
    """Let programs be compiled beside whatever is done inside; all are ready at its end.

    So are the host functions that they call.

    Raises:
      Exception: what the first that failed to compile raised.
    """
    programs: list[Future[Compiled]] = []
    with ThreadPoolExecutor(thread_name_prefix="hdvpd-compile") as pool:

        def compile_(program: Lowered) -> Future[Compiled]:
            calls = rehearsals(program)  # before XLA's compiler may change what they are read from
            programs.append(pool.submit(program.compile))
            # One after another: numba compiles no two at once, and their arrays take memory.
            pool.submit(lambda: [call() for call in calls])
            return programs[-1]

        yield compile_
    for program in programs:
        program.result()
