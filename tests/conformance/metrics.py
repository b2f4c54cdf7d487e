"""Metrics over several batches, compared with keras.metrics."""

import keras
import numpy as np
from case import Case, array

BATCHES = (8, 8, 5)


def run(name, options, batches):
    metric = getattr(keras.metrics, name)(**options)
    results = []
    for labels, predictions, weights in batches:
        metric.update_state(labels, predictions, sample_weight=weights)
        results.append(float(array(metric.result())))
    return {"result": np.array(results, dtype=np.float32)}


def labels_for(name, random, shape, classes):
    if name in ("SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy"):
        return random.integers(0, classes, size=shape[:-1]).astype(np.int32)
    if name in ("CategoricalAccuracy", "TopKCategoricalAccuracy"):
        return np.eye(classes, dtype=np.float32)[random.integers(0, classes, size=shape[:-1])]
    if name == "Accuracy":
        return random.integers(0, 3, size=shape).astype(np.float32)
    if name in ("MeanSquaredError", "MeanAbsoluteError"):
        return random.normal(size=shape).astype(np.float32)
    return random.integers(0, 2, size=shape).astype(np.float32)


def predictions_for(name, random, shape, kind):
    if name == "Accuracy":
        return random.integers(0, 3, size=shape).astype(np.float32)
    if name in ("MeanSquaredError", "MeanAbsoluteError"):
        return random.normal(size=shape).astype(np.float32)
    if kind == "ties":
        return (random.integers(0, 5, size=shape) / 4).astype(np.float32)
    if kind == "logits":
        return (random.normal(size=shape) * 4).astype(np.float32)
    return random.random(shape).astype(np.float32)


def rows():
    class_shapes = ((10,), (3,), (4, 6))
    plain_shapes = ((1,), (5,), (2, 3))
    for name in ("SparseCategoricalAccuracy", "CategoricalAccuracy"):
        for tail in class_shapes:
            for kind in ("even", "ties", "logits"):
                yield name, {}, tail, kind
    for name in ("TopKCategoricalAccuracy", "SparseTopKCategoricalAccuracy"):
        for tail in ((10,), (6,)):
            for k in (None, 1, 3):
                for kind in ("even", "logits"):
                    yield name, {} if k is None else {"k": k}, tail, kind
    for name in ("BinaryAccuracy",):
        for tail in plain_shapes:
            for options in ({}, {"threshold": 0.3}, {"threshold": 0.75}):
                for kind in ("even", "ties"):
                    yield name, options, tail, kind
    for name in ("Precision", "Recall"):
        for tail in plain_shapes:
            for options in ({}, {"thresholds": 0.3}, {"thresholds": 0.75}):
                for kind in ("even", "ties"):
                    yield name, options, tail, kind
    for tail in plain_shapes:
        for options in ({}, {"num_thresholds": 5}, {"num_thresholds": 50}):
            for kind in ("even", "ties"):
                yield "AUC", options, tail, kind
        yield "AUC", {"from_logits": True}, tail, "logits"
    for name in ("Accuracy", "MeanSquaredError", "MeanAbsoluteError"):
        for tail in plain_shapes:
            yield name, {}, tail, "even"


def special():
    """Edge cases, one batch each."""
    nothing = np.zeros((4, 1), dtype=np.float32)
    sure = np.ones((4, 1), dtype=np.float32)
    for name in ("Precision", "Recall", "AUC", "BinaryAccuracy"):
        yield name, "no positives", [(nothing, sure, None)]
        yield name, "no negatives", [(sure, sure, None)]
        yield name, "nothing predicted", [(sure, nothing, None)]
        yield name, "at the threshold", [(sure, sure * np.float32(0.5), None)]
        yield name, "weights of zero", [(sure, sure, np.zeros(4, dtype=np.float32))]
    scores = np.array([[0.1, 0.9, 0.5], [0.2, 0.2, 0.6], [0.5, 0.5, 0.5]], dtype=np.float32)
    for name, labels in (("SparseCategoricalAccuracy", np.array([1, 0, 0], dtype=np.int32)),
                         ("CategoricalAccuracy", np.eye(3, dtype=np.float32)[[1, 0, 0]]),
                         ("SparseTopKCategoricalAccuracy", np.array([1, 0, 2], dtype=np.int32)),
                         ("TopKCategoricalAccuracy", np.eye(3, dtype=np.float32)[[1, 0, 2]])):
        yield name, "few classes", [(labels, scores, None)]
        broken = scores.copy()
        broken[0, 0] = np.nan
        yield name, "NaN in a row", [(labels, broken, None)]
        infinite = scores.copy()
        infinite[1, 1] = np.inf
        yield name, "infinity in a row", [(labels, infinite, None)]
    for name in ("SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy"):
        yield name, "labels out of range", [(np.array([7, -1, 2], dtype=np.int32), scores, None)]
        yield name, "labels in a column", [(np.array([[1], [2], [2]], dtype=np.int32), scores, None)]
        yield name, "labels as floats", [(np.array([1, 2, 2], dtype=np.float32), scores, None)]


def case_of(title, name, options, batches, golden):
    inputs = {}
    for number, (labels, predictions, weights) in enumerate(batches):
        inputs[f"labels{number}"], inputs[f"predictions{number}"] = labels, predictions
        if weights is not None:
            inputs[f"sample_weight{number}"] = weights
    mine = dict(options)
    if "thresholds" in mine:
        mine["threshold"] = mine.pop("thresholds")
    return Case(title, name, mine, inputs, lambda: run(name, options, batches), golden=golden)


def cases():
    seed = 0
    for name, options, tail, kind in rows():
        classes = tail[-1]
        for weighted in (False, True):
            seed += 1
            random = np.random.default_rng(seed)
            batches = []
            for size in BATCHES:
                shape = (size, *tail)
                counted = name in ("Precision", "Recall", "AUC")  # decisions, not means over the last axis
                places = (size,) if len(tail) == 1 else shape if counted else shape[:-1]
                weights = random.random(places).astype(np.float32) if weighted else None
                batches.append((labels_for(name, random, shape, classes),
                                predictions_for(name, random, shape, kind), weights))
            title = ",".join(f"{key}={value}" for key, value in options.items()) or "defaults"
            sizes = "x".join(map(str, tail))
            yield case_of(f"keras/{name}/{title}/{sizes}/{kind}/{'weights' if weighted else 'plain'}",
                          name, options, batches, golden=kind != "even" and tail != (2, 3))
    for name, note, batches in special():
        yield case_of(f"keras/{name}/{note}", name, {}, batches, golden=True)
