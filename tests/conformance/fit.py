"""Complete calls of fit: histories, weights and callbacks, compared with keras.Model.fit."""

import os
import tempfile

import keras
import numpy as np
from case import Case, array
from layers import normal
from optimizers import KERAS as OPTIMIZERS

RULES = {"halve": lambda epoch, rate: rate * 0.5,
         "step": lambda epoch, rate: rate if epoch < 3 else rate * 0.1,
         "inverse": lambda epoch, rate: 0.1 / (epoch + 1)}
SMALL = [["Dense", {"units": 8, "activation": "relu"}], ["Dense", {"units": 3}]]
SOFTMAX = [["Dense", {"units": 8, "activation": "relu"}],
           ["Dense", {"units": 3, "activation": "softmax"}]]
LINEAR = [["Dense", {"units": 6, "activation": "tanh"}], ["Dense", {"units": 1}]]
SIGMOID = [["Dense", {"units": 6, "activation": "tanh"}],
           ["Dense", {"units": 1, "activation": "sigmoid"}]]
IMAGES = [["Conv2D", {"filters": 4, "kernel_size": 3, "padding": "same", "activation": "relu"}],
          ["MaxPooling2D", {"pool_size": 2}], ["Flatten", {}], ["Dense", {"units": 3}]]
NORMED = [["Conv2D", {"filters": 4, "kernel_size": 3, "use_bias": False}],
          ["BatchNormalization", {}], ["Activation", {"activation": "relu"}],
          ["GlobalAveragePooling2D", {}], ["Dense", {"units": 3}]]
SPARSE = {"loss": "sparse_categorical_crossentropy", "loss_options": {"from_logits": True}}


def callback(row, folder):
    given = dict(row)
    kind = given.pop("kind")
    if kind == "LearningRateScheduler":
        return keras.callbacks.LearningRateScheduler(RULES[given["rule"]])
    if kind == "ModelCheckpoint":
        return keras.callbacks.ModelCheckpoint(os.path.join(folder, "best.weights.h5"),
                                               save_weights_only=True, **given)
    if kind == "CSVLogger":
        return keras.callbacks.CSVLogger(os.path.join(folder, "log.csv"))
    return getattr(keras.callbacks, kind)(**given)


def model_of(options, inputs):
    model = keras.Sequential([keras.Input(inputs["x"].shape[1:])])
    for kind, given in options["layers"]:
        model.add(getattr(keras.layers, kind)(**given))
    loss = {"sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
            "categorical_crossentropy": "CategoricalCrossentropy",
            "binary_crossentropy": "BinaryCrossentropy", "mean_squared_error": "MeanSquaredError",
            "mean_absolute_error": "MeanAbsoluteError", "huber": "Huber"}[options["loss"]]
    model.compile(OPTIMIZERS[options.get("optimizer", "sgd")](
        **options.get("optimizer_options", {})),
        getattr(keras.losses, loss)(**options.get("loss_options", {})),
        metrics=list(options.get("metrics", [])),
        weighted_metrics=list(options.get("weighted_metrics", [])) or None)
    weights = []
    while f"weight{len(weights)}" in inputs:
        weights.append(inputs[f"weight{len(weights)}"])
    model.set_weights(weights)
    return model


def run_fit(options, inputs, folder):
    model = model_of(options, inputs)
    more = {}
    if "validation_x" in inputs:
        more["validation_data"] = (inputs["validation_x"], inputs["validation_y"])
    if "class_weight" in options:
        more["class_weight"] = {int(k): v for k, v in options["class_weight"].items()}
    history = model.fit(inputs["x"], inputs["y"], batch_size=options.get("batch_size", 32),
                        epochs=options.get("epochs", 3),
                        initial_epoch=options.get("initial_epoch", 0), shuffle=False, verbose=0,
                        validation_split=options.get("validation_split", 0.0),
                        sample_weight=inputs.get("sample_weight"),
                        callbacks=[callback(row, folder) for row in options.get("callbacks", [])],
                        **more)
    results = {name: np.array(series, dtype=np.float32)
               for name, series in history.history.items() if name != "learning_rate"}
    results["rate"] = np.float32(array(model.optimizer.learning_rate))
    if options.get("checkpoint"):
        model.load_weights(os.path.join(folder, "best.weights.h5"))
    if options.get("csv"):
        with open(os.path.join(folder, "log.csv")) as file:
            names, *rows = [line.strip().split(",") for line in file]
        for name, column in zip(names, zip(*rows)):
            results[f"csv_{name}"] = np.array([float(v) for v in column], dtype=np.float32)
    return results, model


def run_on_batch(options, inputs):
    model = model_of(options, inputs)
    weights = inputs.get("sample_weight")
    results = {}

    def keep(prefix, logs):
        for name, value in logs.items():
            results[prefix + name] = np.array([value], dtype=np.float32)

    keep("test_", model.test_on_batch(inputs["x"], inputs["y"], weights, return_dict=True))
    model.reset_metrics()
    for i in range(3):
        keep(f"train{i}_", model.train_on_batch(inputs["x"], inputs["y"], weights,
                                                return_dict=True))
        model.reset_metrics()
    results["predictions"] = array(model.predict_on_batch(inputs["x"]))
    return results, model


def run_evaluate(options, inputs):
    model = model_of(options, inputs)
    logs = model.evaluate(inputs["x"], inputs["y"], batch_size=options.get("batch_size", 32),
                          sample_weight=inputs.get("sample_weight"), verbose=0, return_dict=True)
    results = {name: np.array([value], dtype=np.float32) for name, value in logs.items()}
    results["predictions"] = model.predict(inputs["x"], batch_size=options.get("batch_size", 32),
                                           verbose=0)
    return results, model


def run(what, options, inputs):
    with tempfile.TemporaryDirectory() as folder:
        if what == "fit":
            results, model = run_fit(options, inputs, folder)
        else:
            results, model = (run_on_batch if what == "on_batch" else run_evaluate)(options, inputs)
    for i, weight in enumerate(model.get_weights()):
        results[f"weight{i}"] = weight
    return results


def weights_for(layers, shape, random):
    """New weights in the order of the layers, which Keras and Lockstep share."""
    model = keras.Sequential([keras.Input(shape)])
    for kind, given in layers:
        model.add(getattr(keras.layers, kind)(**given))
    found = []
    for variable in model.weights:
        if "variance" in variable.path:
            found.append((random.random(variable.shape) + 0.5).astype(np.float32))
        else:
            found.append(normal(random, tuple(variable.shape), 0.5))
    return found


def data(kind, count, random):
    if kind == "images":
        x = normal(random, (count, 6, 6, 2))
        return x, np.argmax(x.mean((1, 2)) @ random.normal(size=(2, 3)), -1).astype(np.int32)
    x = normal(random, (count, 5))
    target = x @ random.normal(size=(5, 3)) + random.normal(size=(count, 3)) * 0.3
    if kind == "classes":
        return x, np.argmax(target, -1).astype(np.int32)
    if kind == "one-hot":
        return x, np.eye(3, dtype=np.float32)[np.argmax(target, -1)]
    if kind == "binary":
        return x, (target[:, :1] > 0).astype(np.float32)
    return x, target[:, :1].astype(np.float32)


def make(name, what, kind, options, seed, validation=False, weighted=False, count=50, **more):
    random = np.random.default_rng(seed)
    x, y = data(kind, count, random)
    inputs = {"x": x, "y": y}
    if validation:
        inputs["validation_x"], inputs["validation_y"] = data(kind, 24, random)
    if weighted:
        inputs["sample_weight"] = random.random(count).astype(np.float32)
    for i, weight in enumerate(weights_for(options["layers"], x.shape[1:], random)):
        inputs[f"weight{i}"] = weight
    options = dict(options)
    names = ["loss", *options.get("metrics", []), *options.get("weighted_metrics", [])]
    if validation or options.get("validation_split"):
        names += [f"val_{name}" for name in names]
    options["results"] = names
    return Case(f"keras/{name}", what, options, inputs, lambda: run(what, options, inputs),
                **{"roundings": 2048, **more})


def optimizers_and_losses():
    seed = 0
    problems = (("classes", SMALL, SPARSE), ("classes", SOFTMAX,
                                            {"loss": "sparse_categorical_crossentropy"}),
                ("one-hot", SMALL, {"loss": "categorical_crossentropy",
                                    "loss_options": {"from_logits": True}}),
                ("one-hot", SOFTMAX, {"loss": "categorical_crossentropy"}),
                ("binary", LINEAR, {"loss": "binary_crossentropy",
                                    "loss_options": {"from_logits": True}}),
                ("binary", SIGMOID, {"loss": "binary_crossentropy"}),
                ("numbers", LINEAR, {"loss": "mean_squared_error"}),
                ("numbers", LINEAR, {"loss": "mean_absolute_error"}),
                ("numbers", LINEAR, {"loss": "huber"}))
    for optimizer in ("sgd", "adam", "rmsprop", "adagrad", "adamw"):
        for kind, layers, loss in problems:
            seed += 1
            metrics = ["mae"] if kind == "numbers" else ["accuracy"]
            logits = "logits" if loss.get("loss_options") else "plain"
            yield make(f"fit/{optimizer}/{loss['loss']}/{logits}", "fit", kind,
                       {"layers": layers, "optimizer": optimizer, **loss, "metrics": metrics,
                        "epochs": 4, "batch_size": 16, "optimizer_options":
                        {"learning_rate": 0.05 if optimizer in ("sgd", "adagrad") else 0.005}},
                       seed, validation=True, golden=optimizer == "adam")
    for layers, name in ((IMAGES, "images"), (NORMED, "batch norm")):
        for optimizer in ("sgd", "adam"):
            seed += 1
            yield make(f"fit/{optimizer}/{name}", "fit", "images",
                       {"layers": layers, "optimizer": optimizer, **SPARSE,
                        "metrics": ["accuracy"], "epochs": 3, "batch_size": 16,
                        "optimizer_options": {"learning_rate": 0.01}}, seed, validation=True,
                       roundings=16384)


def habits():
    """Batch sizes, splits, epochs and weights."""
    base = {"layers": SMALL, **SPARSE, "metrics": ["accuracy"],
            "optimizer_options": {"learning_rate": 0.1}}
    for seed, size in enumerate((1, 7, 32, 50, 64)):
        yield make(f"batches/{size}", "fit", "classes", {**base, "batch_size": size}, 100 + seed,
                   golden=True)
    for seed, split in enumerate((0.2, 0.5, 0.37)):
        yield make(f"split/{split}", "fit", "classes", {**base, "validation_split": split},
                   110 + seed, golden=True)
    yield make("initial epoch", "fit", "classes", {**base, "initial_epoch": 2, "epochs": 5}, 120,
               golden=True)
    for seed, weights in enumerate(({"0": 2.0, "1": 0.5, "2": 1.0}, {"0": 0.0, "1": 1.0, "2": 3.0})):
        yield make(f"class weights/{seed}", "fit", "classes",
                   {**base, "class_weight": weights, "weighted_metrics": ["sparse_categorical_accuracy"]},
                   130 + seed, golden=True)
    for seed, kind in enumerate(("classes", "numbers")):
        options = base if kind == "classes" else {**base, "layers": LINEAR,
                                                  "loss": "mean_squared_error", "loss_options": {},
                                                  "metrics": ["mae"]}
        extra = ["sparse_categorical_accuracy"] if kind == "classes" else ["mse"]
        yield make(f"sample weights/{kind}", "fit", kind, {**options, "weighted_metrics": extra},
                   140 + seed, weighted=True, golden=True)
    for seed, size in enumerate((7, 32, 50)):
        for weighted in (False, True):
            yield make(f"evaluate/{size}/{'weights' if weighted else 'plain'}", "evaluate",
                       "classes", {**base, "batch_size": size}, 150 + seed, weighted=weighted,
                       golden=True)
            yield make(f"on batch/{size}/{'weights' if weighted else 'plain'}", "on_batch",
                       "classes", base, 160 + seed, weighted=weighted, count=size, golden=True)


def stopping():
    # A learning rate so large that the loss goes up and down.
    wild = {"layers": SMALL, **SPARSE, "metrics": ["accuracy"], "epochs": 12, "batch_size": 10,
            "optimizer_options": {"learning_rate": 0.9}}
    rows = [{}, {"patience": 1}, {"patience": 2}, {"patience": 3}, {"monitor": "loss"},
            {"monitor": "val_accuracy"}, {"monitor": "val_accuracy", "patience": 2},
            {"monitor": "accuracy", "mode": "max", "patience": 1}, {"min_delta": 0.05},
            {"min_delta": 0.05, "patience": 2}, {"mode": "min", "patience": 1},
            {"mode": "max", "patience": 1}, {"start_from_epoch": 3},
            {"start_from_epoch": 2, "patience": 1}, {"baseline": 0.1, "patience": 2},
            {"baseline": 10.0, "patience": 2}, {"baseline": 0.5, "patience": 1},
            {"baseline": 0.1, "patience": 0},
            {"monitor": "val_accuracy", "baseline": 0.99, "patience": 3}]
    for number, row in enumerate(rows):
        for restore in (False, True):
            given = {"kind": "EarlyStopping", **row, **({"restore_best_weights": True} if restore
                                                        else {})}
            title = ",".join(f"{k}={v}" for k, v in given.items() if k != "kind") or "defaults"
            yield make(f"EarlyStopping/{title}", "fit", "classes", {**wild, "callbacks": [given]},
                       300 + number, validation=True, golden=True, roundings=65536)


def callbacks():
    wild = {"layers": SMALL, **SPARSE, "metrics": ["accuracy"], "epochs": 10, "batch_size": 10,
            "optimizer_options": {"learning_rate": 0.9}}
    rows = [{"patience": 1}, {"patience": 2}, {"patience": 0, "factor": 0.5},
            {"patience": 1, "factor": 0.3, "min_lr": 0.2}, {"patience": 1, "cooldown": 2},
            {"patience": 1, "min_delta": 0.2}, {"monitor": "loss", "patience": 1},
            {"monitor": "val_accuracy", "mode": "max", "patience": 1, "factor": 0.5},
            {"monitor": "accuracy", "patience": 1, "factor": 0.5}]
    for number, row in enumerate(rows):
        title = ",".join(f"{k}={v}" for k, v in row.items())
        yield make(f"ReduceLROnPlateau/{title}", "fit", "classes",
                   {**wild, "callbacks": [{"kind": "ReduceLROnPlateau", **row}]}, 400 + number,
                   validation=True, golden=True, roundings=65536)
    for number, rule in enumerate(RULES):
        yield make(f"LearningRateScheduler/{rule}", "fit", "classes",
                   {**wild, "optimizer_options": {"learning_rate": 0.2},
                    "callbacks": [{"kind": "LearningRateScheduler", "rule": rule}]}, 420 + number,
                   golden=True)
    for number, row in enumerate(({"save_best_only": True},
                                  {"save_best_only": True, "monitor": "val_accuracy"},
                                  {"save_best_only": True, "monitor": "loss", "mode": "min"}, {})):
        title = ",".join(f"{k}={v}" for k, v in row.items()) or "defaults"
        yield make(f"ModelCheckpoint/{title}", "fit", "classes",
                   {**wild, "checkpoint": True, "callbacks": [{"kind": "ModelCheckpoint", **row}]},
                   440 + number, validation=True, golden=True, roundings=65536)
    yield make("CSVLogger", "fit", "classes",
               {**wild, "epochs": 3, "csv": True, "callbacks": [{"kind": "CSVLogger"}]}, 450,
               validation=True, golden=True)
    nothing = {"layers": LINEAR, "loss": "mean_squared_error", "epochs": 5, "batch_size": 10,
               "optimizer_options": {"learning_rate": 1e30},
               "callbacks": [{"kind": "TerminateOnNaN"}]}
    yield make("TerminateOnNaN", "fit", "numbers", nothing, 460)


def cases():
    for group in (optimizers_and_losses, habits, stopping, callbacks):
        yield from group()
