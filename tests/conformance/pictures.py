"""Pictures that the image areas share."""

import io

import numpy as np


def picture(seed, size, channels=3, dtype=np.float32):
    random = np.random.default_rng(seed)
    values = random.random((*size, channels)) * 255
    return values.astype(np.uint8) if dtype == np.uint8 else values.astype(np.float32)


def scene(seed, height, width, channels=3):
    """Something between a photograph and noise: smooth shapes, edges, a little grain."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = []
    for _ in range(channels):
        a, b, c = random.random(3) * 6
        plane = 128 + 60 * np.sin(a * x / max(width, 2) + c) + 50 * np.cos(b * y / max(height, 2))
        plane[(x + y) % 11 < 2] += 40 * random.random()
        planes.append(plane + random.normal(size=plane.shape) * 6)
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def encoded(image, **options):
    stream = io.BytesIO()
    image.save(stream, **options)
    return np.frombuffer(stream.getvalue(), dtype=np.uint8)
