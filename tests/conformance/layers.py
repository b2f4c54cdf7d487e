"""Layers with gradients, compared with keras.layers and torch.nn.functional."""

import itertools

import keras
import numpy as np
import torch
import torch.nn.functional as F
from case import Case, array

ACTIVATIONS = ["linear", "relu", "relu6", "leaky_relu", "gelu", "silu", "tanh", "sigmoid",
               "softplus", "softmax", "log_softmax"]


def normal(random, shape, scale=1.0):
    return (random.normal(size=shape) * scale).astype(np.float32)


def keras_run(kind, options, inputs, training):
    given = dict(options)
    for name in ("kernel_regularizer", "bias_regularizer"):
        if name in given:
            given[name] = keras.regularizers.L1L2(**{"l1": 0.0, "l2": 0.0, **given[name]})
    if "activation" in given and kind != "Activation":
        given["activation"] = given["activation"] or None
    if kind == "Activation" and "negative_slope" in given:
        slope = given["negative_slope"]
        layer = keras.layers.Activation(lambda x: keras.activations.leaky_relu(x, slope))
    elif kind == "Activation" and given["activation"] == "gelu_tanh":
        layer = keras.layers.Activation(lambda x: keras.activations.gelu(x, approximate=True))
    else:
        layer = getattr(keras.layers, kind)(**given)
    xs = []
    while f"x{len(xs)}" in inputs:
        x = torch.tensor(inputs[f"x{len(xs)}"])
        xs.append(x.requires_grad_() if x.is_floating_point() else x)
    if kind not in ("Add", "Multiply", "Concatenate"):
        layer.build(tuple(xs[0].shape))
    weights = []
    while f"weight{len(weights)}" in inputs:
        weights.append(inputs[f"weight{len(weights)}"])
    if weights:
        layer.set_weights([w.reshape(v.shape) for w, v in zip(weights, layer.weights)])
    y = layer(xs if len(xs) > 1 else xs[0], training=training)
    loss = (y * torch.tensor(inputs["dy"])).sum() + sum(layer.losses)
    results = {"y": array(y)}
    if torch.is_tensor(loss) and loss.requires_grad:
        loss.backward()
    for i, x in enumerate(xs):
        if x.is_floating_point():
            results[f"dx{i}"] = array(x.grad)
    for i, variable in enumerate(layer.trainable_variables):
        shape = weights[i].shape if weights else variable.shape
        results[f"dw{i}"] = array(variable.value.grad).reshape(shape)
    if training and weights:
        for i, value in enumerate(layer.get_weights()):
            results[f"after{i}"] = value.reshape(weights[i].shape)
    return results


def make(kind, options, xs, weights=(), training=False, seed=0, peer=None, note="",
         compute=keras_run, **more):
    """A case for a layer; the gradient of its output is drawn from the seed."""
    inputs = {f"x{i}": x for i, x in enumerate(xs)}
    inputs.update({f"weight{i}": w for i, w in enumerate(weights)})
    shape = more.pop("shape", None)
    if shape is None:
        tensors = [keras.KerasTensor(x.shape, str(x.dtype)) for x in xs]
        known = {k: v for k, v in options.items()
                 if k not in ("kernel_regularizer", "bias_regularizer", "activation",
                              "negative_slope")}
        if kind == "Activation":
            shape = xs[0].shape
        else:
            layer = getattr(keras.layers, kind)(**known)
            shape = layer(tensors if len(tensors) > 1 else tensors[0]).shape
    inputs["dy"] = normal(np.random.default_rng(seed + 77), shape)
    title = ",".join(f"{k}={v}" for k, v in options.items())
    sizes = " ".join("x".join(map(str, x.shape)) for x in xs)
    mode = "/training" if training else ""
    extra = f"/{note}" if note else ""
    mine = {**options, **({"training": True} if training else {})}
    run = peer or (lambda: compute(kind, options, inputs, training))
    source = "torch" if peer else "keras"
    return Case(f"{source}/{kind}/{title}/{sizes}{mode}{extra}", kind, mine, inputs, run, **more)


def dense():
    for seed, (shape, units) in enumerate((((4, 6), 3), ((1, 1), 1), ((2, 3, 5), 4),
                                           ((8, 32), 16), ((2, 2, 2, 3), 5))):
        for bias in (True, False):
            random = np.random.default_rng(seed)
            weights = [normal(random, (shape[-1], units))] + ([normal(random, (units,))] if bias
                                                              else [])
            yield make("Dense", {"units": units, "use_bias": bias}, [normal(random, shape)],
                       weights, seed=seed, golden=True)
    for seed, activation in enumerate(ACTIVATIONS):
        random = np.random.default_rng(100 + seed)
        yield make("Dense", {"units": 4, "activation": activation}, [normal(random, (5, 3))],
                   [normal(random, (3, 4)), normal(random, (4,))], seed=seed, golden=True)
    for seed, penalty in enumerate(({"l1": 0.1}, {"l2": 0.1}, {"l1": 0.02, "l2": 0.3})):
        for name in ("kernel_regularizer", "bias_regularizer"):
            random = np.random.default_rng(200 + seed)
            yield make("Dense", {"units": 4, name: penalty}, [normal(random, (5, 3))],
                       [normal(random, (3, 4)), normal(random, (4,))], seed=seed, golden=True)


def convolution_weights(random, options, channels):
    kernel = options.get("kernel_size", 3)
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    filters, groups = options["filters"], options.get("groups", 1)
    weights = [normal(random, (rows, columns, channels // groups, filters), 0.3)]
    if options.get("use_bias", True):
        weights.append(normal(random, (filters,)))
    return weights


def convolutions():
    seed = 1000
    for kernel, strides, padding in itertools.product((1, 2, 3, [3, 2], 5), (1, 2, [2, 1]),
                                                      ("valid", "same")):
        seed += 1
        random = np.random.default_rng(seed)
        options = {"filters": 6, "kernel_size": kernel, "strides": strides, "padding": padding}
        yield make("Conv2D", options, [normal(random, (2, 9, 8, 4))],
                   convolution_weights(random, options, 4), seed=seed, golden=strides == 2)
    for dilation, kernel, padding in itertools.product((2, 3, [1, 2]), (2, 3), ("valid", "same")):
        seed += 1
        random = np.random.default_rng(seed)
        options = {"filters": 5, "kernel_size": kernel, "dilation_rate": dilation,
                   "padding": padding}
        yield make("Conv2D", options, [normal(random, (2, 10, 9, 3))],
                   convolution_weights(random, options, 3), seed=seed)
    for groups, kernel, strides in itertools.product((2, 4), (1, 3), (1, 2)):
        seed += 1
        random = np.random.default_rng(seed)
        options = {"filters": 8, "kernel_size": kernel, "strides": strides, "groups": groups}
        yield make("Conv2D", options, [normal(random, (2, 8, 8, 4))],
                   convolution_weights(random, options, 4), seed=seed)
    for shape, filters in (((1, 5, 5, 1), 1), ((3, 7, 12, 3), 16), ((1, 3, 3, 32), 8),
                           ((2, 16, 16, 16), 32)):
        for bias in (True, False):
            seed += 1
            random = np.random.default_rng(seed)
            options = {"filters": filters, "kernel_size": 3, "use_bias": bias}
            yield make("Conv2D", options, [normal(random, shape)],
                       convolution_weights(random, options, shape[-1]), seed=seed, roundings=128)
    for activation in ("relu", "tanh", "gelu", "softmax", "sigmoid"):
        seed += 1
        random = np.random.default_rng(seed)
        options = {"filters": 6, "kernel_size": 3, "activation": activation}
        yield make("Conv2D", options, [normal(random, (2, 6, 6, 3))],
                   convolution_weights(random, options, 3), seed=seed)
    for penalty in ({"l1": 0.1}, {"l2": 0.1}):
        seed += 1
        random = np.random.default_rng(seed)
        options = {"filters": 4, "kernel_size": 3, "kernel_regularizer": penalty}
        yield make("Conv2D", options, [normal(random, (2, 6, 6, 3))],
                   convolution_weights(random, options, 3), seed=seed)


def torch_convolution(options, inputs):
    x, kernel = torch.tensor(inputs["x0"], requires_grad=True), torch.tensor(inputs["weight0"],
                                                                             requires_grad=True)
    bias = torch.tensor(inputs["weight1"], requires_grad=True)
    (top, bottom), (left, right) = options["padding"]
    padded = F.pad(x.permute(0, 3, 1, 2), (left, right, top, bottom))
    y = F.conv2d(padded, kernel.permute(3, 2, 0, 1), bias, options.get("strides", 1), 0,
                 options.get("dilation_rate", 1), options.get("groups", 1)).permute(0, 2, 3, 1)
    (y * torch.tensor(inputs["dy"])).sum().backward()
    return {"y": array(y), "dx0": array(x.grad), "dw0": array(kernel.grad),
            "dw1": array(bias.grad)}


def torch_convolutions():
    seed = 2000
    for padding, kernel, strides, groups in itertools.product(
            ([[1, 1], [1, 1]], [[0, 1], [2, 0]], [[3, 3], [3, 3]]), (1, 3, 7), (1, 2), (1, 2)):
        seed += 1
        random = np.random.default_rng(seed)
        options = {"filters": 4, "kernel_size": kernel, "strides": strides, "padding": padding,
                   "groups": groups}
        x = normal(random, (2, 11, 10, 4))
        weights = convolution_weights(random, options, 4)
        (top, bottom), (left, right) = padding
        shape = (2, (11 + top + bottom - kernel) // strides + 1,
                 (10 + left + right - kernel) // strides + 1, 4)
        inputs = {"x0": x, "weight0": weights[0], "weight1": weights[1],
                  "dy": normal(np.random.default_rng(seed + 77), shape)}
        yield make("Conv2D", options, [x], weights, seed=seed, shape=shape, roundings=128,
                   peer=lambda a=(options, inputs): torch_convolution(*a))


def depthwise():
    seed = 3000
    for kernel, strides, padding, multiplier in itertools.product((2, 3), (1, 2), ("valid", "same"),
                                                                  (1, 2, 3)):
        seed += 1
        random = np.random.default_rng(seed)
        options = {"kernel_size": kernel, "strides": strides, "padding": padding,
                   "depth_multiplier": multiplier}
        yield make("DepthwiseConv2D", options, [normal(random, (2, 8, 7, 4))],
                   [normal(random, (kernel, kernel, 1, 4 * multiplier)),
                    normal(random, (4 * multiplier,))], seed=seed, golden=multiplier == 2)
    for dilation, bias in itertools.product((2, 3), (True, False)):
        seed += 1
        random = np.random.default_rng(seed)
        options = {"kernel_size": 3, "dilation_rate": dilation, "use_bias": bias}
        weights = [normal(random, (3, 3, 1, 4))] + ([normal(random, (4,))] if bias else [])
        yield make("DepthwiseConv2D", options, [normal(random, (2, 9, 9, 4))], weights, seed=seed)


def normalization():
    seed = 5000
    for shape, training in itertools.product(((8, 5), (4, 3, 3, 6), (4, 7, 5), (64, 2)),
                                             (False, True)):
        for options in ({}, {"momentum": 0.9, "epsilon": 1e-5}, {"center": False},
                        {"scale": False}, {"center": False, "scale": False}):
            seed += 1
            random = np.random.default_rng(seed)
            count = shape[-1]
            weights = []
            if options.get("scale", True):
                weights.append(normal(random, (count,)) + np.float32(1))
            if options.get("center", True):
                weights.append(normal(random, (count,)))
            weights += [normal(random, (count,)), (random.random(count) + 0.5).astype(np.float32)]
            x = normal(random, shape, 2.0) + np.float32(0.5)
            yield make("BatchNormalization", options, [x], weights, training, seed=seed,
                       roundings=256, golden=shape == (8, 5))
    for shape in ((6, 5), (2, 3, 8), (2, 3, 3, 16), (4, 1000)):
        for options in ({}, {"epsilon": 1e-5}, {"center": False}, {"scale": False}):
            seed += 1
            random = np.random.default_rng(seed)
            count = shape[-1]
            weights = []
            if options.get("scale", True):
                weights.append(normal(random, (count,)) + np.float32(1))
            if options.get("center", True):
                weights.append(normal(random, (count,)))
            yield make("LayerNormalization", options, [normal(random, shape, 2.0)], weights,
                       seed=seed, roundings=256, golden=shape == (6, 5))


def embeddings():
    for seed, (shape, dtype) in enumerate(itertools.product(((5,), (2, 7), (3, 2, 4)),
                                                            (np.int32, np.int64))):
        random = np.random.default_rng(6000 + seed)
        x = random.integers(0, 6, size=shape).astype(dtype)
        yield make("Embedding", {"input_dim": 6, "output_dim": 4}, [x], [normal(random, (6, 4))],
                   seed=seed, note=str(np.dtype(dtype)), golden=True)


def activations():
    seed = 7000
    for activation in ACTIVATIONS + ["gelu_tanh"]:
        for shape, scale in (((4, 5), 1.0), ((2, 3, 4), 10.0), ((3, 50), 60.0), ((1, 1), 1.0)):
            seed += 1
            x = normal(np.random.default_rng(seed), shape, scale)
            yield make("Activation", {"activation": activation}, [x], seed=seed,
                       note=f"scale={scale}", roundings=128, golden=shape == (4, 5))
    for slope in (0.01, 0.3):
        seed += 1
        yield make("Activation", {"activation": "leaky_relu", "negative_slope": slope},
                   [normal(np.random.default_rng(seed), (4, 5))], seed=seed, golden=True)


def merges():
    seed = 8000
    for kind in ("Add", "Multiply"):
        for shapes in ([(3, 4), (3, 4)], [(2, 3, 4, 5)] * 3, [(3, 4), (3, 1)],
                       [(2, 4, 4, 3), (2, 1, 1, 3)]):
            seed += 1
            random = np.random.default_rng(seed)
            yield make(kind, {}, [normal(random, shape) for shape in shapes], seed=seed,
                       golden=True)
    for shapes, axis in (([(3, 4), (3, 2)], -1), ([(2, 3, 4), (2, 5, 4)], 1),
                         ([(2, 3, 3, 4), (2, 3, 3, 1), (2, 3, 3, 2)], 3), ([(3, 1), (3, 1)], 1)):
        seed += 1
        random = np.random.default_rng(seed)
        yield make("Concatenate", {"axis": axis}, [normal(random, shape) for shape in shapes],
                   seed=seed, golden=True)


def shapes():
    seed = 9000
    for shape in ((3, 4), (2, 3, 4), (2, 3, 4, 5), (6,)):
        seed += 1
        yield make("Flatten", {}, [normal(np.random.default_rng(seed), shape)], seed=seed,
                   golden=True)
    for shape, target in (((2, 12), [3, 4]), ((2, 3, 4), [-1]), ((2, 3, 4), [4, -1]),
                          ((5, 8), [2, 2, 2])):
        seed += 1
        yield make("Reshape", {"target_shape": target},
                   [normal(np.random.default_rng(seed), shape)], seed=seed, golden=True)
    for padding in (1, 2, [1, 2], [[0, 1], [2, 3]]):
        seed += 1
        yield make("ZeroPadding2D", {"padding": padding},
                   [normal(np.random.default_rng(seed), (2, 3, 4, 2))], seed=seed, golden=True)
    for scale, offset in ((1 / 255, 0.0), (1 / 127.5, -1.0), (2.0, 3.0)):
        seed += 1
        random = np.random.default_rng(seed)
        options = {"scale": scale, "offset": offset}
        yield make("Rescaling", options, [normal(random, (2, 3, 4))], seed=seed, golden=True)
        yield make("Rescaling", options, [random.integers(0, 256, (2, 3, 4)).astype(np.uint8)],
                   seed=seed, note="u8", golden=True)
    for rate in (0.0, 0.5):
        yield make("Dropout", {"rate": rate}, [normal(np.random.default_rng(seed), (4, 6))],
                   training=rate == 0.0, golden=True)
    for rate in (0.1, 0.5, 0.9):
        yield dropout_in_training(rate)


def dropout_in_training(rate):
    """Checks how many elements are dropped and how the others are scaled; which ones is random."""
    ones = np.ones((400, 250), dtype=np.float32)

    def check(outputs):
        y, dx = outputs["y"], outputs["dx0"]
        kept = y != 0
        error = 6 * np.sqrt(rate * (1 - rate) / y.size)
        if abs(kept.mean() - (1 - rate)) > error:
            return f"keeps {kept.mean():.4f}, not {1 - rate}"
        if not np.allclose(y[kept], 1 / (1 - rate), rtol=1e-6):
            return f"scales by {y[kept][0]}, not {1 / (1 - rate)}"
        return None if np.allclose(dx, y, rtol=1e-6) else "the gradient has another mask"

    return Case(f"keras/Dropout/rate={rate}/training", "Dropout", {"rate": rate, "training": True},
                {"x0": ones, "dy": ones}, dict, check=check)


def cases():
    for group in (dense, convolutions, torch_convolutions, depthwise, normalization,
                  embeddings, activations, merges, shapes):
        yield from group()
