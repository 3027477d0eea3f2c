"""`python -m studies vision`: small transformers on digits that differ in their attention only.

The comparison of arXiv 2410.03462, section 4 and appendix C.2, at a size for two CPU cores: images
of 8x8 pixels, each pixel a token on the grid graph, and a class token.
"""

from pathlib import Path

import numpy as np
from flax import nnx

from hdvpd.basics.errors import UserError, how_to_install
from studies.classification import Examples, family_of, run_study
from studies.settings import Variant, VisionSettings
from studies.vision_transformer import Encoder, ImageTransformer, patches

_PIXELS = 8
_NUM_CLASSES = 10
_BRIGHTEST = 16


def main(out: Path, settings: VisionSettings) -> None:
    """Run the study; see `run_study` for what it writes.

    Raises:
      UserError: `out` cannot be a folder, or scikit-learn is not installed.
    """

    def make(variant: Variant, positions: bool, rngs: nnx.Rngs) -> ImageTransformer:
        return make_model(variant, positions, settings, rngs=rngs)

    run_study(
        out,
        load_digits(settings.patch),
        settings.train_images,
        make,
        settings,
        reference="linear",
        title="digits",
    )


def load_digits(patch: int) -> Examples:
    """Return scikit-learn's 1,797 digits as patches, brightness in [-1, 1].

    Raises:
      UserError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise UserError(
            f"The images come with scikit-learn ({error}): {how_to_install('vision')}."
        ) from error
    images, labels = datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, _PIXELS, _PIXELS, 1).astype(np.float32) / (_BRIGHTEST / 2) - 1
    return Examples(patches(images, patch), labels.astype(np.int32))


def make_model(
    variant: Variant, positions: bool, settings: VisionSettings, *, rngs: nnx.Rngs
) -> ImageTransformer:
    """Build an untrained model.

    Args:
      variant: attention and mask.
      positions: whether every token has a learned position embedding.
      settings: sizes.
      rngs: streams `params` and `masks`.
    """
    side = _PIXELS // settings.patch
    encoder = Encoder(
        settings.patch**2,
        (side, side),
        width=settings.width,
        num_heads=settings.heads,
        depth=settings.depth,
        kind=variant.attention,
        family=family_of(variant, settings),
        positions=positions,
        rngs=rngs,
    )
    return ImageTransformer(encoder, settings.width, _NUM_CLASSES, rngs=rngs)
