"""Losses of the output of a softmax or sigmoid: Keras on TensorFlow computes them from the logits
in front of it, so that a saturated output still learns."""

import numpy as np
from case import Case
from losses import keras_run


def cases():
    seed = 0
    for name, activation in (("sparse_categorical_crossentropy", "softmax"),
                             ("categorical_crossentropy", "softmax"),
                             ("binary_crossentropy", "sigmoid")):
        for shape in ((2, 2), (8, 5), (3, 4, 6)):
            for spread in (1.0, 10.0, 40.0):
                for kind in ("plain", "weights"):
                    seed += 1
                    random = np.random.default_rng(seed)
                    scores = (random.normal(size=shape) * spread).astype(np.float32)
                    if name.startswith("sparse"):
                        labels = random.integers(0, shape[-1], size=shape[:-1]).astype(np.int32)
                    elif name.startswith("categorical"):
                        labels = np.eye(shape[-1], dtype=np.float32)[
                            random.integers(0, shape[-1], size=shape[:-1])]
                    else:
                        labels = random.integers(0, 2, size=shape).astype(np.float32)
                    weights = (random.random(shape[:-1]).astype(np.float32)
                               if kind == "weights" else None)
                    inputs = {"labels": labels, "predictions": scores}
                    if weights is not None:
                        inputs["sample_weight"] = weights
                    sizes = "x".join(map(str, shape))
                    yield Case(f"keras/{name}/{activation}/{sizes}/spread={spread}/{kind}", name,
                               {"activation": activation}, inputs,
                               lambda a=(name, {}, labels, scores, weights, activation): keras_run(*a),
                               absolute=1e-9, golden=shape == (8, 5))
