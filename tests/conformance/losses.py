"""Losses with gradients, compared with keras.losses and torch.nn.functional."""

import keras
import numpy as np
import tensorflow as tf
import torch
import torch.nn.functional as F
from case import Case, array

KERAS = {"sparse_categorical_crossentropy": keras.losses.SparseCategoricalCrossentropy,
         "categorical_crossentropy": keras.losses.CategoricalCrossentropy,
         "binary_crossentropy": keras.losses.BinaryCrossentropy,
         "mean_squared_error": keras.losses.MeanSquaredError,
         "mean_absolute_error": keras.losses.MeanAbsoluteError,
         "huber": keras.losses.Huber}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def keras_run(name, options, labels, predictions, weights=None, activation=None):
    loss = KERAS[name](**options)
    scores = tf.constant(predictions)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        seen = scores if activation is None else getattr(keras.activations, activation)(scores)
        mean = loss(labels, seen, sample_weight=weights)
        # Keras averages a vector to one number; as a column it gives a loss per example.
        plain = predictions.ndim == 1
        each = loss.call(tf.constant(labels[:, None] if plain else labels),
                         seen[:, None] if plain else seen)
    each = tf.reduce_mean(tf.reshape(each, (predictions.shape[0], -1)), -1)
    return {"loss": array(mean), "per_example": array(each),
            "gradient": array(tape.gradient(mean, scores))}


def torch_run(f, labels, predictions):
    """f returns a loss per example."""
    scores = torch.tensor(predictions, requires_grad=True)
    each = f(scores, torch.tensor(labels))
    each = each.reshape(each.shape[0], -1).mean(-1)
    each.mean().backward()
    return {"loss": array(each.mean()), "per_example": array(each), "gradient": array(scores.grad)}


def scores_for(random, shape, spread, logits, binary):
    x = random.normal(size=shape) * spread
    if logits:
        return x.astype(np.float32)
    return (sigmoid(x) if binary else softmax(x)).astype(np.float32)


def labels_for(name, random, shape):
    if name == "sparse_categorical_crossentropy":
        return random.integers(0, shape[-1], size=shape[:-1]).astype(np.int32)
    if name == "categorical_crossentropy":
        return np.eye(shape[-1], dtype=np.float32)[random.integers(0, shape[-1], size=shape[:-1])]
    return random.integers(0, 2, size=shape).astype(np.float32)


def weights_for(kind, random, shape):
    """One weight per example, or per position if examples have several."""
    if kind == "weights":
        return random.random(shape[:-1]).astype(np.float32)
    if kind == "some zero":
        return random.integers(0, 2, size=shape[:-1]).astype(np.float32)
    return None


def crossentropies():
    seed = 0
    for name in ("sparse_categorical_crossentropy", "categorical_crossentropy",
                 "binary_crossentropy"):
        binary = name == "binary_crossentropy"
        smoothings = (0.0,) if name.startswith("sparse") else (0.0, 0.1)
        for shape in ((8, 5), (1, 10), (3, 4, 6), (64, 2)):
            for logits in (True, False):
                for smoothing in smoothings:
                    for spread in (1.0, 8.0):
                        for kind in ("plain", "weights"):
                            seed += 1
                            random = np.random.default_rng(seed)
                            options = {"from_logits": logits}
                            if smoothing:
                                options["label_smoothing"] = smoothing
                            yield (name, options, shape, kind, f"spread={spread}",
                                   labels_for(name, random, shape),
                                   scores_for(random, shape, spread, logits, binary),
                                   weights_for(kind, random, shape))


def soft_labels():
    for seed, shape in enumerate(((6, 4), (2, 3, 5))):
        random = np.random.default_rng(500 + seed)
        for logits in (True, False):
            yield ("categorical_crossentropy", {"from_logits": logits}, shape, "plain", "soft",
                   softmax(random.normal(size=shape)).astype(np.float32),
                   scores_for(random, shape, 2.0, logits, False), None)
            yield ("binary_crossentropy", {"from_logits": logits}, shape, "plain", "soft",
                   random.random(shape).astype(np.float32),
                   scores_for(random, shape, 2.0, logits, True), None)
    # Probabilities that do not add up to 1 are divided by their sum.
    random = np.random.default_rng(510)
    yield ("categorical_crossentropy", {"from_logits": False}, (5, 4), "plain", "unnormalised",
           np.eye(4, dtype=np.float32)[random.integers(0, 4, 5)],
           (random.random((5, 4)) + 0.1).astype(np.float32), None)


def edges():
    one = np.eye(3, dtype=np.float32)
    extreme = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32)
    yield ("categorical_crossentropy", {}, (3, 3), "plain", "probabilities 0 and 1", one, extreme,
           None)
    yield ("categorical_crossentropy", {}, (3, 3), "plain", "certain and wrong", one,
           np.roll(extreme, 1, axis=0), None)
    classes = np.array([0, 1, 2], dtype=np.int32)
    yield ("sparse_categorical_crossentropy", {}, (3, 3), "plain", "probabilities 0 and 1", classes,
           extreme, None)
    yield ("sparse_categorical_crossentropy", {}, (3, 3), "plain", "certain and wrong", classes,
           np.roll(extreme, 1, axis=0), None)
    column = classes[:, None]
    yield ("sparse_categorical_crossentropy", {"from_logits": True}, (3, 3), "plain",
           "labels in a column", column, extreme, None)
    yield ("sparse_categorical_crossentropy", {"from_logits": True}, (3, 3), "plain",
           "labels as i64", classes.astype(np.int64), extreme, None)
    yield ("sparse_categorical_crossentropy", {"from_logits": True}, (3, 3), "plain",
           "logits of 100", classes, extreme * 100, None)
    yield ("categorical_crossentropy", {"from_logits": True}, (3, 3), "plain", "logits of 1000", one,
           np.roll(extreme, 1, axis=0) * 1000, None)
    binary = np.array([[0], [1], [0], [1]], dtype=np.float32)
    sure = np.array([[0], [1], [1], [0]], dtype=np.float32)
    yield ("binary_crossentropy", {}, (4, 1), "plain", "probabilities 0 and 1", binary, sure, None)
    yield ("binary_crossentropy", {"from_logits": True}, (4, 1), "plain", "logits of 200", binary,
           sure * 400 - 200, None)


def regressions():
    seed = 900
    for name, variants in (("mean_squared_error", [{}]), ("mean_absolute_error", [{}]),
                           ("huber", [{}, {"delta": 0.5}, {"delta": 2.0}])):
        for options in variants:
            for shape in ((7,), (8, 1), (8, 5), (3, 4, 2)):
                for scale in (1.0, 100.0):
                    for kind in ("plain", "weights", "some zero"):
                        if len(shape) == 1 and kind != "plain":
                            continue
                        seed += 1
                        random = np.random.default_rng(seed)
                        yield (name, options, shape, kind, f"scale={scale}",
                               (random.normal(size=shape) * scale).astype(np.float32),
                               (random.normal(size=shape) * scale).astype(np.float32),
                               weights_for(kind, random, shape))
    equal = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    for name in ("mean_squared_error", "mean_absolute_error", "huber"):
        yield (name, {}, (2, 2), "plain", "no error", equal, equal.copy(), None)


def keras_cases():
    for rows in (crossentropies(), soft_labels(), edges(), regressions()):
        for name, options, shape, kind, note, labels, predictions, weights in rows:
            title = ",".join(f"{key}={value}" for key, value in options.items())
            sizes = "x".join(map(str, shape))
            inputs = {"labels": labels, "predictions": predictions}
            if weights is not None:
                inputs["sample_weight"] = weights
            yield Case(f"keras/{name}/{title}/{sizes}/{kind}/{note}", name, options, inputs,
                       lambda a=(name, options, labels, predictions, weights): keras_run(*a),
                       golden=shape in ((8, 5), (3, 3), (4, 1), (3, 4, 2)))


def torch_cases():
    def last(f):
        return lambda x, y: f(x, y, reduction="none")

    for number, shape in enumerate(((8, 5), (32, 10), (2, 3, 7), (1, 2))):
        random = np.random.default_rng(2000 + number)
        sizes = "x".join(map(str, shape))
        logits = (random.normal(size=shape) * 3).astype(np.float32)
        classes = random.integers(0, shape[-1], size=shape[:-1]).astype(np.int64)

        def cross(x, y, smoothing=0.0):
            flat = F.cross_entropy(x.reshape(-1, x.shape[-1]), y.reshape(-1), reduction="none",
                                   label_smoothing=smoothing)
            return flat.reshape(y.shape)

        yield Case(f"torch/sparse_categorical_crossentropy/{sizes}",
                   "sparse_categorical_crossentropy", {"from_logits": True},
                   {"labels": classes, "predictions": logits},
                   lambda a=(cross, classes, logits): torch_run(*a))
        for smoothing in (0.1, 0.3):
            yield Case(f"torch/sparse_categorical_crossentropy/label_smoothing={smoothing}/{sizes}",
                       "sparse_categorical_crossentropy",
                       {"from_logits": True, "label_smoothing": smoothing},
                       {"labels": classes, "predictions": logits},
                       lambda a=(lambda x, y, s=smoothing: cross(x, y, s), classes, logits):
                       torch_run(*a))
        soft = softmax(random.normal(size=shape)).astype(np.float32)
        yield Case(f"torch/categorical_crossentropy/{sizes}", "categorical_crossentropy",
                   {"from_logits": True}, {"labels": soft, "predictions": logits},
                   lambda a=(lambda x, y: F.cross_entropy(
                       x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]),
                       reduction="none").reshape(y.shape[:-1]), soft, logits): torch_run(*a))
        target = random.random(shape).astype(np.float32)
        yield Case(f"torch/binary_crossentropy/{sizes}", "binary_crossentropy",
                   {"from_logits": True}, {"labels": target, "predictions": logits},
                   lambda a=(last(F.binary_cross_entropy_with_logits), target, logits):
                   torch_run(*a))
        for name, f in (("mean_squared_error", F.mse_loss), ("mean_absolute_error", F.l1_loss),
                        ("huber", F.huber_loss)):
            yield Case(f"torch/{name}/{sizes}", name, {}, {"labels": target, "predictions": logits},
                       lambda a=(last(f), target, logits): torch_run(*a))


def cases():
    yield from keras_cases()
    yield from torch_cases()
