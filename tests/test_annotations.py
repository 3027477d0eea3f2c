"""A call that its annotations do not allow fails in the tests, with shapes or without."""

from collections.abc import Callable
from typing import Literal

import jaxtyping
import numpy as np
import pytest
from annotations import has_shapes
from beartype.roar import BeartypeCallHintViolation

from hdvpd.basics.types import Float
from hdvpd.evaluation.metrics import psnr
from hdvpd.evaluation.videos import frames_per_second


def test_shapes_are_checked_across_a_call() -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="psnr"):
        psnr(np.zeros((4, 4, 3)), np.zeros((4, 5, 3)))


def test_types_are_checked_where_there_is_no_shape() -> None:
    assert frames_per_second(3.0) == 3
    with pytest.raises(BeartypeCallHintViolation, match="rate_hz"):
        frames_per_second("3")  # pyright: ignore[reportArgumentType]


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
