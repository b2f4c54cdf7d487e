"""Writes ops.safetensors to its own folder: the results of other programs for single ops.

Run by hand; no test needs Python. Made with numpy 2.4.6, torch 2.15.0,
torchvision 0.29.2, keras 3.15.1, tensorflow 2.21.0 and safetensors 0.8.0; other versions are refused:

    KERAS_BACKEND=torch python tests/golden/make_ops.py

    reduce/… shape/…   NumPy, in double, stored in single; x0, x1, … are the inputs, y the result
    dropout/…          masks from TensorFlow's Philox 4x32-10, raw words for a key and a counter
    update/…           keras.optimizers over five steps; torch's epsilons differ, Keras has no LARS
    loss/…             torch.nn.functional from logits, keras.losses (on torch) from probabilities
    color/…            torchvision.transforms.functional on colours divided by 255, times 255
    crop/means         area and log of the ratio of torchvision's RandomResizedCrop, 500 × 375 pixels
    tfrecord/file      two records of tf.train.Example in a file by tf.io.TFRecordWriter
    resnet/parameters  number in torchvision's ResNet-18, 34, 50, 101 and 152
"""

import os
import pathlib
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import tensorflow as tf
import torch
import torchvision
from safetensors.numpy import save_file
from torch.nn import functional as F
from torchvision.transforms import functional as images

VERSIONS = {
    "numpy": (np.__version__, "2.4.6"),
    "torch": (torch.__version__.split("+")[0], "2.15.0"),
    "torchvision": (torchvision.__version__.split("+")[0], "0.29.2"),
    "keras": (keras.__version__, "3.15.1"),
    "tensorflow": (tf.__version__, "2.21.0"),
}
for name, (found, wanted) in VERSIONS.items():
    assert found == wanted, f"{name} is {found}, not {wanted}"

rng = np.random.default_rng(18)
out = {}


def single(x):
    return np.array(x, dtype=np.float32, order="C")


def put(name, inputs, result):
    for i, x in enumerate(inputs):
        out[f"{name}/x{i}"] = np.array(x, order="C")
    out[f"{name}/y"] = np.array(result, order="C")  # a scalar stays one


def normal(*shape):
    return single(rng.standard_normal(shape))


def reductions():
    forms = {  # name: shape, axes, keepdims
        "all": ((3, 5, 2), None, False),
        "leading": ((7, 5), (0,), False),
        "leading_two": ((3, 4, 5), (0, 1), False),
        "trailing": ((7, 5), (-1,), False),
        "trailing_two": ((3, 4, 5), (1, 2), True),
        "middle": ((3, 4, 5), (1,), False),
        "around": ((3, 4, 5), (0, 2), False),
        "alternating": ((2, 3, 4, 5), (1, 3), False),
        "alternating_from_the_front": ((2, 3, 4, 5), (0, 2), True),
        "long_row": ((1, 5003), (1,), False),
        "wide_columns": ((9, 203), (0,), False),
    }
    for form, (shape, axes, keepdims) in forms.items():
        x = normal(*shape)
        wide = x.astype(np.float64)
        for op, f in (("sum", np.sum), ("mean", np.mean), ("max", np.max)):
            put(f"reduce/{op}_{form}", [x], single(f(wide, axis=axes, keepdims=keepdims)))
    x = normal(4, 5, 6)
    for axis in (0, 1, 2):
        put(f"reduce/argmax_{axis}", [x], np.argmax(x, axis).astype(np.int64))


def movements():
    for name, shape, axes in (
        ("matrix", (17, 35), (1, 0)),
        ("rotated", (3, 5, 7), (1, 2, 0)),
        ("reversed", (2, 3, 4, 5), (3, 2, 1, 0)),
        ("swapped_middle", (2, 3, 4, 5), (0, 2, 1, 3)),
    ):
        x = normal(*shape)
        put(f"shape/transpose_{name}", [x], np.transpose(x, axes))
    x = normal(3, 4, 5)
    put("shape/reshape", [x], x.reshape(5, -1))
    for axis in (0, 1, 2):
        shapes = [[2, 3, 4], [2, 3, 4]]
        shapes[1][axis] = 5
        parts = [normal(*s) for s in shapes]
        put(f"shape/concat_{axis}", parts, np.concatenate(parts, axis))
        whole = [2, 3, 4]
        whole[axis] = 6
        x = normal(*whole)
        put(f"shape/split_{axis}", [x], np.split(x, [1, 4], axis)[1])
    x = normal(5, 6, 3)
    put("shape/slice", [x], x[1:4, 2:, :2])
    x = normal(3, 4)
    put("shape/pad", [x], np.pad(x, ((1, 2), (0, 3)), constant_values=np.float32(0.5)))
    x = normal(2, 3, 3, 2)
    put("shape/pad_images", [x], np.pad(x, ((0, 0), (1, 1), (2, 1), (0, 0))))
    x = normal(3, 1)
    put("shape/broadcast_columns", [x], np.broadcast_to(x, (2, 3, 4)))
    classes = rng.integers(-2, 6, (4, 3)).astype(np.int32)
    put("shape/one_hot", [classes], single(classes[..., None] == np.arange(5)))
    table, rows = normal(7, 3), rng.integers(0, 7, (4, 2))
    put("shape/gather", [table, rows], table[rows])
    dy, rows = normal(6, 3), rng.integers(0, 4, 6).astype(np.int32)
    grad = np.zeros((4, 3))
    np.add.at(grad, rows, dy.astype(np.float64))
    put("shape/gather_grad", [dy, rows], single(grad))


def combine(a, b):
    """SplitMix64's finaliser of a + (b + 1) golden ratios: derives a key from a seed and a layer."""
    mask = (1 << 64) - 1
    x = (a + 0x9E3779B97F4A7C15 * (b + 1)) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def dropouts():
    """Drops where a Philox word over 2^32 is below the rate; counters are (element, sample, step)."""
    for name, rate, seed, key, step, shape in (
        ("half", 0.5, 3, 8, 5, (7, 33)),
        ("few", 0.125, 3, 0, 0x1_0000_0007, (3, 60)),
        ("most", 0.75, 1, 1, 2, (4, 200)),
    ):
        mask = np.zeros(shape, np.float32)
        for sample in range(shape[0]):
            words = tf.raw_ops.StatelessRandomUniformFullIntV2(
                shape=[shape[1]],
                key=tf.constant([combine(seed, key)], tf.uint64),
                counter=tf.constant([sample << 32, step], tf.uint64),
                alg=1,
                dtype=tf.uint32,
            ).numpy()
            mask[sample] = np.where(words / 2.0**32 < rate, 0, 1 / (1 - rate))
        put(f"dropout/{name}", [], mask)


def updates():
    optimizers = keras.optimizers
    rules = {
        "sgd": optimizers.SGD(0.1),
        "sgd_decayed": optimizers.SGD(0.1, weight_decay=0.1),
        "sgd_momentum": optimizers.SGD(0.1, momentum=0.9),
        "sgd_nesterov": optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "sgd_clipped_by_value": optimizers.SGD(0.1, clipvalue=0.5),
        "sgd_clipped_by_norm": optimizers.SGD(0.1, clipnorm=1.5),
        "sgd_clipped_by_global_norm": optimizers.SGD(0.1, global_clipnorm=1.5),
        "adam": optimizers.Adam(0.01),
        "adamw": optimizers.AdamW(0.01, weight_decay=0.01),
        "rmsprop": optimizers.RMSprop(0.01),
        "rmsprop_momentum": optimizers.RMSprop(0.01, momentum=0.5),
        "rmsprop_centered": optimizers.RMSprop(0.01, centered=True),
        "adagrad": optimizers.Adagrad(0.01, weight_decay=0.1),
        "lamb": optimizers.Lamb(0.01),
    }
    start = [normal(7), normal(33, 5)]
    steps = [[normal(7), normal(33, 5)] for _ in range(5)]
    for i in range(2):
        out[f"update/start{i}"] = start[i]
        out[f"update/gradients{i}"] = np.stack([step[i] for step in steps])
    for name, rule in rules.items():
        variables = [keras.Variable(x, dtype="float32") for x in start]
        for step in steps:
            rule.apply(
                [keras.ops.convert_to_tensor(g) for g in step], variables if not rule.built else None
            )
        for i, variable in enumerate(variables):
            out[f"update/{name}/{i}"] = keras.ops.convert_to_numpy(variable.value)


def losses():
    def put_loss(name, labels, predictions, per_example):
        put(f"loss/{name}", [labels, single(predictions)], single(per_example))

    logits = single([[1, 2, 0.5], [0.1, -1, 3], [2, 2, -1]])
    t = torch.tensor(logits, dtype=torch.float64)
    classes = np.array([1, 2, 0])
    one_hot = np.eye(3)[classes]
    for smoothing, suffix in ((0, ""), (0.1, "_smoothed")):
        value = F.cross_entropy(t, torch.tensor(classes), reduction="none", label_smoothing=smoothing)
        put_loss("sparse_logits" + suffix, classes, logits, value)
        put_loss("categorical_logits" + suffix, single(one_hot), logits, value)
    p = single([[0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [1, 0, 0]])
    keras_loss = keras.losses
    put_loss(
        "sparse_probabilities",
        np.array([1, 2, 1]),
        p,
        keras_loss.sparse_categorical_crossentropy(np.array([1, 2, 1]), p).cpu(),
    )
    q = single([[1, 3, 4], [0.5, 0.25, 0.25]])  # the first row does not sum to 1
    truth = single([[0, 1, 0], [0, 0, 1]])
    put_loss("categorical_probabilities", truth, q, keras_loss.categorical_crossentropy(truth, q).cpu())
    scores, truth = single([[0.5, -1], [2, 0]]), single([[1, 0], [1, 1]])
    for smoothing, suffix in ((0, ""), (0.2, "_smoothed")):
        target = torch.tensor(truth * (1 - smoothing) + 0.5 * smoothing, dtype=torch.float64)
        value = F.binary_cross_entropy_with_logits(
            torch.tensor(scores, dtype=torch.float64), target, reduction="none"
        ).mean(-1)
        put_loss("binary_logits" + suffix, truth, scores, value)
    p, truth = single([[0.9, 0.2], [0.4, 1]]), single([[1, 0], [1, 0]])
    put_loss("binary_probabilities", truth, p, keras_loss.binary_crossentropy(truth, p).cpu())
    labels = single([[1, 2, 3], [0, -1, 5]])
    predictions = single([[1.5, 2, 1], [0, 1, 1.5]])
    y, x = torch.tensor(labels, dtype=torch.float64), torch.tensor(predictions, dtype=torch.float64)
    for name, f in (("mse", F.mse_loss), ("mae", F.l1_loss), ("huber", F.huber_loss)):
        put_loss(name, labels, predictions, f(x, y, reduction="none").mean(-1))


def colors():
    rgb = np.array(
        [200, 30, 90, 10, 250, 130, 60, 70, 240, 128, 128, 128]
        + [255, 255, 0, 0, 0, 0, 90, 200, 210, 33, 44, 22],
        np.float32,
    ).reshape(2, 4, 3)
    x = torch.tensor(rgb).permute(2, 0, 1) / 255
    changes = {
        "brightness": images.adjust_brightness(x, 1.4),
        "contrast": images.adjust_contrast(x, 0.6),
        "saturation": images.adjust_saturation(x, 1.7),
        "hue": images.adjust_hue(x, 0.2),
        "hue_back": images.adjust_hue(x, -0.35),
    }
    for name, y in changes.items():
        put(f"color/{name}", [rgb], single((y * 255).permute(1, 2, 0)))


def crops():
    torch.manual_seed(18)
    image = torch.zeros(3, 375, 500)
    draws = [
        torchvision.transforms.RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3))
        for _ in range(50_000)
    ]
    height, width = np.array(draws, np.float64)[:, 2:].T
    out["crop/means"] = np.array(
        [np.mean(height * width) / (500 * 375), np.mean(np.log(width / height))]
    )


def records():
    def example(image, label, weights):
        feature = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=label)),
            "weights": tf.train.Feature(float_list=tf.train.FloatList(value=weights)),
        }
        made = tf.train.Example(features=tf.train.Features(feature=feature))
        return made.SerializeToString(deterministic=True)

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "two.tfrecord"
        with tf.io.TFRecordWriter(str(file)) as writer:
            writer.write(example(b"\xff\xd8\0jpeg", [3], [0.5, -1.25, 3e38]))
            writer.write(example(b"", [-1, 1 << 40], []))
        out["tfrecord/file"] = np.frombuffer(file.read_bytes(), np.uint8)


def resnets():
    makers = [getattr(torchvision.models, f"resnet{d}") for d in (18, 34, 50, 101, 152)]
    counts = [sum(p.numel() for p in make(weights=None).parameters()) for make in makers]
    out["resnet/parameters"] = np.array(counts, np.int64)


for make in (reductions, movements, dropouts, updates, losses, colors, crops, records, resnets):
    make()
path = pathlib.Path(__file__).parent / "ops.safetensors"
save_file(out, path, metadata={name: found for name, (found, _) in VERSIONS.items()})
print(f"{path.name}: {len(out)} tensors, {path.stat().st_size} bytes")
