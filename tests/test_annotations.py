"""A call that its annotations do not allow fails in the tests, with shapes or without."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jaxtyping
import numpy as np
import pytest
import scenes
from annotations import MOST, checked, has_shapes
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation

from hdvpd.basics.types import Float
from hdvpd.evaluation.metrics import psnr
from hdvpd.evaluation.videos import frames_per_second


def test_shapes_are_checked_across_a_call() -> None:
    with pytest.raises(BeartypeCallHintViolation, match="psnr"):
        psnr(np.zeros((4, 4, 3)), np.zeros((4, 5, 3)))


def test_shapes_of_results_and_of_dataclasses_are_checked() -> None:
    frames = scenes.unturned(np.zeros((2, 3)))
    with pytest.raises(BeartypeCallHintViolation, match="gripper"):
        dataclasses.replace(frames, gripper=np.zeros(3, np.float32))

    def shorten(x: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
        return x[1:]

    with pytest.raises(BeartypeCallHintViolation, match="return"):
        checked(beartype, shorten)(np.zeros((2, 3)))


def test_types_are_checked_where_there_is_no_shape() -> None:
    assert frames_per_second(3.0) == 3
    with pytest.raises(BeartypeCallHintViolation, match="rate_hz"):
        frames_per_second("3")  # pyright: ignore[reportArgumentType]


def test_of_many_calls_the_first_are_checked() -> None:
    def double(x: int) -> int:
        return 2 * x

    doubled = checked(beartype, double)
    for _ in range(MOST - 1):
        doubled(1)
    with pytest.raises(BeartypeCallHintViolation, match="double"):
        doubled("1")
    assert doubled("1") == "11"


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Float[np.ndarray, "n 3"], True),
        (tuple[Float[np.ndarray, "..."] | None, ...], True),
        (Callable[[Float[np.ndarray, "n 2"]], int], True),
        (jaxtyping.PyTree, True),
        ("Later", True),
        (dict[str, list["Later"]], True),  # noqa: F821 # pyright: ignore
        (Literal["n 3"], False),
        (np.ndarray | None, False),
        (Callable[[str], dict[str, int]], False),
        (None, False),
    ],
)
def test_an_annotation_has_shapes_wherever_it_names_one(annotation, expected) -> None:
    assert has_shapes(annotation) == expected
