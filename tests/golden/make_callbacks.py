"""Writes tests/golden/callbacks.h: how Keras's EarlyStopping and ReduceLROnPlateau react to given logs.

Made with keras 3.15.1 (torch 2.15.0 as its backend), Python 3.11:

    KERAS_BACKEND=torch python tests/golden/make_callbacks.py > tests/golden/callbacks.h

All values are multiples of 1/8, so that every comparison is exact in every type.
"""

import random

import keras


class Weights:
    """Stands in for a model: its weights are the number of the epoch they belong to."""

    def __init__(self):
        self.weights = 0
        self.stop_training = False
        self.metrics = []
        self.optimizer = keras.optimizers.SGD(learning_rate=1.0)

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights


def eighths(values):
    return "{" + ", ".join(f"{v:.17g}" for v in values) + "}"


def early_stopping(rng):
    count = rng.randint(3, 10)
    # A slow descent with noise, so that both improvements and plateaus occur.
    values = [max(0, 16 - rng.randint(0, 2) * e // 2 + rng.randint(-4, 4)) / 8 for e in range(count)]
    mode = rng.choice(["min", "max"])
    if mode == "max":
        values = [3 - v for v in values]
    baseline = rng.choice([None, None, rng.randint(4, 20) / 8])
    options = dict(
        patience=rng.randint(0, 3),
        min_delta=rng.choice([0, 0, 0.125, 0.25]),
        mode=mode,
        baseline=baseline,
        start_from_epoch=rng.choice([0, 0, 1, 3]),
        restore_best_weights=rng.random() < 0.7,
    )
    callback = keras.callbacks.EarlyStopping(monitor="val_loss", **options)
    model = Weights()
    callback.set_model(model)
    callback.on_train_begin()
    ran = 0
    for epoch, value in enumerate(values):
        model.weights = epoch
        callback.on_epoch_end(epoch, {"val_loss": value})
        ran += 1
        if model.stop_training:
            break
    callback.on_train_end()
    return (
        f"    {{{eighths(values)}, {options['patience']}, {options['min_delta']:g}, \"{mode}\", "
        f"{'std::nullopt' if baseline is None else f'{baseline:g}'}, {options['start_from_epoch']}, "
        f"{'true' if options['restore_best_weights'] else 'false'}, {ran}, {model.weights}}},"
    )


def reduce_lr(rng):
    count = rng.randint(4, 12)
    values = [rng.randint(4, 12) / 8 for _ in range(count)]
    options = dict(
        patience=rng.randint(1, 3),
        min_delta=rng.choice([0, 0.125]),
        mode=rng.choice(["min", "max"]),
        cooldown=rng.randint(0, 2),
        min_lr=rng.choice([0, 0.25]),
        factor=0.5,
    )
    callback = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", **options)
    model = Weights()
    callback.set_model(model)
    callback.on_train_begin()
    rates = []
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {"val_loss": value})
        rates.append(float(model.optimizer.learning_rate))
    return (
        f"    {{{eighths(values)}, {options['patience']}, {options['min_delta']:g}, \"{options['mode']}\", "
        f"{options['cooldown']}, {options['min_lr']:g}, {eighths(rates)}}},"
    )


def main():
    assert keras.__version__ == "3.15.1", keras.__version__
    rng = random.Random(18)
    print("// Written by tests/golden/make_callbacks.py with keras 3.15.1. Do not edit.")
    print("// clang-format off")
    print("#pragma once\n")
    print("#include <cstddef>\n#include <cstdint>\n#include <optional>\n#include <vector>\n")
    print("namespace lockstep::testing {\n")
    print("struct EarlyStoppingCase {")
    print("  std::vector<double> values;  // val_loss of each epoch")
    print("  std::int64_t patience;\n  double min_delta;\n  const char* mode;")
    print("  std::optional<double> baseline;\n  std::int64_t start_from_epoch;\n  bool restore_best_weights;")
    print("  std::size_t epochs;    // that ran")
    print("  std::int64_t weights;  // the epoch whose weights the model ends with\n};")
    print("inline const std::vector<EarlyStoppingCase> kEarlyStoppingCases = {")
    for _ in range(80):
        print(early_stopping(rng))
    print("};\n")
    print("struct ReduceLRCase {")
    print("  std::vector<double> values;\n  std::int64_t patience;\n  double min_delta;\n  const char* mode;")
    print("  std::int64_t cooldown;\n  double min_lr;\n  std::vector<double> rates;  // after each epoch\n};")
    print("inline const std::vector<ReduceLRCase> kReduceLRCases = {")
    for _ in range(40):
        print(reduce_lr(rng))
    print("};\n")
    print("}  // namespace lockstep::testing")


main()
