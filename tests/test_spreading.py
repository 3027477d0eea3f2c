"""Items worked off by several threads: all of them, in order, and none after one has failed."""

import threading
import time
from typing import Any

import jax
import pytest

from hdvpd.evaluation.spreading import AT_ONCE, SpreadModel
from hdvpd.model.compiled import CompiledModel
from hdvpd.training.processes import Team


def _never(*_: Any) -> Any:
    raise AssertionError("nothing here computes")


def spread(count: int = 1) -> SpreadModel:
    nothing = CompiledModel(_never, _never, _never, _never)
    return SpreadModel((nothing,) * count, tuple(jax.local_devices()[:1] * count), Team())


@pytest.mark.parametrize("devices", [1, 2])
def test_results_are_in_the_order_of_the_items(devices: int) -> None:
    def work(_: CompiledModel, item: int) -> int:
        time.sleep(0.01 * (item % 3))
        return item * item

    assert spread(devices).map(work, range(10)) == [item * item for item in range(10)]
    assert spread(devices).map(work, []) == []


def test_the_first_item_is_alone_and_those_after_it_are_not() -> None:
    together = threading.Barrier(AT_ONCE)

    def work(_: CompiledModel, item: int) -> int:
        if item:
            together.wait(60)  # breaks unless so many are worked on at once
        return item

    assert spread().map(work, range(1 + 2 * AT_ONCE)) == [*range(1 + 2 * AT_ONCE)]


def test_after_a_failure_nothing_is_begun() -> None:
    begun = []

    def work(_: CompiledModel, item: int) -> int:
        begun.append(item)
        raise ValueError("no such window")

    with pytest.raises(ValueError, match="no such window"):
        spread().map(work, range(100))
    assert begun == [0]
