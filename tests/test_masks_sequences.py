"""Masks of sequences against their definitions."""

import numpy as np
import pytest
from mask_contract import check_mask

from hdvpd.attention.masks.sequences import PaddingMask


@pytest.mark.parametrize("real", [[True], [True, False, True, True], [False, False]])
def test_padding(real):
    real = np.array(real)
    check_mask(PaddingMask(real), np.outer(real, real).astype(float))
