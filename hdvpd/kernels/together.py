"""Several programs compiled at once."""

from collections.abc import Callable, Iterable
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
    with ThreadPoolExecutor(thread_name_prefix="hdvpd-compile") as pool:
        compiling = [pool.submit(trace().compile) for trace in lower]
        return [program.result() for program in compiling]
