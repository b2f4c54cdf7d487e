"""Operations on images, compared with tf.image."""

import numpy as np
import tensorflow as tf
from case import Case, array
from pictures import picture

METHODS = ["nearest", "bilinear", "bicubic", "area", "lanczos3", "lanczos5", "gaussian",
           "mitchellcubic"]
# Odd sizes in the last: with even ones the edge of the truncated Gaussian falls exactly on a pixel.
SIZES = [((9, 7), (18, 14)), ((16, 16), (5, 5)), ((10, 13), (7, 29)), ((5, 5), (5, 5)),
         ((33, 20), (8, 9)), ((1, 1), (4, 3)), ((25, 31), (1, 1))]


def case(name, what, options, image, peer, **more):
    return Case(name, what, options, {"image": image}, lambda: {"image": array(peer())}, **more)


def resizes():
    seed = 0
    for method in METHODS:
        for antialias in (False, True):
            for (old, new) in SIZES:
                seed += 1
                image = picture(seed, old)
                title = f"{old[0]}x{old[1]}-{new[0]}x{new[1]}"
                yield case(f"tf/resize/{method}/antialias={antialias}/{title}", "resize",
                           {"method": method, "antialias": antialias, "height": new[0],
                            "width": new[1]}, image,
                           lambda a=(image, new, method, antialias):
                           tf.cast(tf.image.resize(a[0], a[1], a[2], antialias=a[3]), tf.float32),
                           golden=old == (10, 13))
        for channels in (1, 4):
            seed += 1
            image = picture(seed, (12, 9), channels, np.uint8)
            yield case(f"tf/resize/{method}/u8/{channels} channels", "resize",
                       {"method": method, "height": 17, "width": 6}, image,
                       lambda a=(image, method):
                       tf.cast(tf.image.resize(a[0], (17, 6), a[1]), tf.float32))


def moves():
    for seed, (x, y, width, height) in enumerate(((0, 0, 5, 5), (2, 1, 3, 4), (6, 7, 1, 1),
                                                  (0, 3, 9, 2))):
        for dtype in (np.uint8, np.float32):
            image = picture(1000 + seed, (8, 9), dtype=dtype)
            title = f"{x},{y},{width},{height}/{np.dtype(dtype)}"
            yield case(f"tf/crop/{title}", "crop",
                       {"x": x, "y": y, "width": width, "height": height}, image,
                       lambda a=(image, y, x, height, width): tf.image.crop_to_bounding_box(*a),
                       golden=True)
    for seed, size in enumerate(((4, 5), (1, 1), (7, 8), (3, 33))):
        for channels in (1, 3):
            image = picture(1100 + seed, size, channels)
            title = f"{size[0]}x{size[1]}x{channels}"
            yield case(f"tf/mirror/{title}", "mirror", {}, image,
                       lambda a=image: tf.image.flip_left_right(a), golden=True)
            yield case(f"tf/to_chw/{title}", "to_chw", {}, image,
                       lambda a=image: tf.transpose(a, (2, 0, 1)), golden=True)
            chw = np.ascontiguousarray(image.transpose(2, 0, 1))
            yield case(f"tf/to_hwc/{title}", "to_hwc", {}, chw,
                       lambda a=chw: tf.transpose(a, (1, 2, 0)), golden=True)


def conversions():
    # Values are rounded to the nearest byte and clamped.
    image = picture(1210, (5, 6)) * np.float32(1.4) - np.float32(50)
    yield case("tf/to_u8", "to_u8", {}, image,
               lambda: tf.cast(tf.round(tf.clip_by_value(image, 0, 255)), tf.uint8), golden=True)


def cases():
    yield from resizes()
    yield from moves()
    yield from conversions()
