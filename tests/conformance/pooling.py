"""Pooling layers with gradients, compared with keras.layers on TensorFlow. On PyTorch, Keras pads
"same" with copies of the picture's edge if the two sides differ, which gives other means."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from case import array
from layers import make, normal


def keras_run(kind, options, inputs, training):
    layer = getattr(keras.layers, kind)(**options)
    x = tf.constant(inputs["x0"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(y * inputs["dy"])
    return {"y": array(y), "dx0": array(tape.gradient(loss, x))}


def cases():
    seed = 4000
    for kind in ("MaxPooling2D", "AveragePooling2D"):
        for pool, strides, padding in itertools.product((2, 3, [2, 3]), (None, 1, 2, [3, 1]),
                                                        ("valid", "same")):
            seed += 1
            random = np.random.default_rng(seed)
            options = {"pool_size": pool, "padding": padding}
            if strides is not None:
                options["strides"] = strides
            yield make(kind, options, [normal(random, (2, 8, 9, 3))], seed=seed,
                       compute=keras_run, golden=padding == "same")
        for shape in ((1, 2, 2, 1), (3, 5, 4, 17), (2, 16, 16, 8)):
            seed += 1
            yield make(kind, {"pool_size": 2}, [normal(np.random.default_rng(seed), shape)],
                       seed=seed, compute=keras_run)
    for kind in ("GlobalAveragePooling2D", "GlobalMaxPooling2D"):
        for shape, keep in itertools.product(((2, 4, 5, 3), (1, 1, 1, 1), (3, 7, 7, 16)),
                                             (False, True)):
            seed += 1
            yield make(kind, {"keepdims": keep}, [normal(np.random.default_rng(seed), shape)],
                       seed=seed, compute=keras_run, golden=True)
