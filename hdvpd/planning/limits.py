"""Ranges of what plans are made of, beside those of `config.settings`."""

from typing import Annotated

import numpy as np

from hdvpd.config.settings import Limit

# An infinite width or reach times a candidate of 0 would be no number.
Amount = Annotated[float, Limit(lambda x: 0 < x < np.inf, "use a positive, finite number")]
AmountOrZero = Annotated[
    float, Limit(lambda x: 0 <= x < np.inf, "use 0 or a positive, finite number")
]
Share = Annotated[float, Limit(lambda x: 0 <= x <= 1, "use a number from 0 to 1")]
Corner = Annotated[
    tuple[float, float, float],
    Limit(
        lambda x: np.shape(x) == (3,) and bool(np.isfinite(x).all()),
        "use three finite numbers, x, y and z in metres",
    ),
]
