"""Host form of convolutions, by oneDNN."""

import functools
from typing import Any

import numpy as np

from hdvpd.kernels import onednn_native
from hdvpd.kernels.ffi import with_native
from hdvpd.kernels.onednn import (
    RESULT,
    RESULT_BAR,
    SOURCE,
    SOURCE_BAR,
    WEIGHTS,
    WEIGHTS_BAR,
    Handle,
    Operation,
    describe,
    dims,
    layout,
    threads,
)

Shape = tuple[int, ...]

# Operations are prepared for a number of threads: those of devices that share the cores take fewer.

_TRAINING, _DIRECT = 64, 1
_CREATE = "dnnl_convolution_{}_primitive_desc_create"


_FORWARD, _TO_IMAGES, _TO_KERNEL = (onednn_native.table() for _ in range(3))


@with_native(onednn_native.run, _FORWARD)
def forward(images: np.ndarray, kernel: np.ndarray, result: np.ndarray) -> None:
    """Fill in (b, h, w, o) from (b, h, w, i) and (r, s, i, o), zeros around the images."""
    operation = _operation(images.shape, kernel.shape, threads())
    onednn_native.run_and_add(_FORWARD, operation, (images, kernel, result))


@with_native(onednn_native.run, _TO_IMAGES)
def to_images(result_bar: np.ndarray, kernel: np.ndarray, images_bar: np.ndarray) -> None:
    """Fill in the cotangent of the images."""
    operation = _operation_to_images(images_bar.shape, kernel.shape, threads())
    onednn_native.run_and_add(_TO_IMAGES, operation, (result_bar, kernel, images_bar))


@with_native(onednn_native.run, _TO_KERNEL)
def to_kernel(images: np.ndarray, result_bar: np.ndarray, kernel_bar: np.ndarray) -> None:
    """Fill in the cotangent of the kernel."""
    operation = _operation_to_kernel(images.shape, kernel_bar.shape, threads())
    onednn_native.run_and_add(_TO_KERNEL, operation, (images, result_bar, kernel_bar))


@functools.cache
def _operation(images: Shape, kernel: Shape, _threads: int) -> Operation:
    source, result = _image_layouts(images, kernel)
    arguments = [(SOURCE, source), (WEIGHTS, _kernel_layout(kernel)), (RESULT, result)]
    return Operation(_describe_forward(images, kernel), arguments)


@functools.cache
def _operation_to_images(images: Shape, kernel: Shape, _threads: int) -> Operation:
    source, result = _image_layouts(images, kernel)
    weights = _kernel_layout(kernel)
    description = _describe_backward("backward_data", images, kernel, source, _free(kernel), result)
    return Operation(description, [(RESULT_BAR, result), (WEIGHTS, weights), (SOURCE_BAR, source)])


@functools.cache
def _operation_to_kernel(images: Shape, kernel: Shape, _threads: int) -> Operation:
    source, result = _image_layouts(images, kernel)
    weights = _kernel_layout(kernel)
    description = _describe_backward(
        "backward_weights", images, kernel, source, _free(kernel), None, result
    )
    return Operation(description, [(SOURCE, source), (RESULT_BAR, result), (WEIGHTS_BAR, weights)])


def _describe_forward(images: Shape, kernel: Shape) -> Handle:
    source, result = _image_layouts(images, kernel)
    layouts = source, _free(kernel), None, result
    return describe(_CREATE.format("forward"), _TRAINING, _DIRECT, *layouts, *_placement(kernel))


def _describe_backward(name: str, images: Shape, kernel: Shape, *layouts: Handle | None) -> Handle:
    hint = _describe_forward(images, kernel)
    return describe(_CREATE.format(name), _DIRECT, *layouts, *_placement(kernel), hint)


def _placement(kernel: Shape) -> tuple[Any, ...]:
    """Return strides, dilations and how many zeros lie before and after rows and columns."""
    before = [(length - 1) // 2 for length in kernel[:2]]
    after = [length // 2 for length in kernel[:2]]
    return dims((1, 1)), dims((0, 0)), dims(before), dims(after)


def _image_layouts(images: Shape, kernel: Shape) -> tuple[Handle, Handle]:
    b, h, w, _ = images
    source, result = (
        layout((b, c, h, w), (h * w * c, 1, w * c, c)) for c in (kernel[2], kernel[3])
    )
    return source, result


def _kernel_layout(kernel: Shape) -> Handle:
    r, s, i, o = kernel
    return layout((o, i, r, s), (1, o, s * i * o, i * o))


def _free(kernel: Shape) -> Handle:
    r, s, i, o = kernel
    return layout((o, i, r, s))
