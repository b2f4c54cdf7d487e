"""Initialisers, compared with keras.initializers: the same distribution, other random numbers."""

import keras
import numpy as np
from case import Case, array

EXACT = {"Zeros", "Ones", "Constant"}
NAMES = {"GlorotUniform": {}, "GlorotNormal": {}, "HeUniform": {}, "HeNormal": {},
         "LecunUniform": {}, "LecunNormal": {}}
SHAPES = [(300, 500), (1000, 100), (3, 3, 64, 96), (7, 7, 3, 512), (1, 1, 256, 256), (65536,)]


def distance(a, b):
    """The two-sample Kolmogorov-Smirnov statistic."""
    every = np.concatenate([a, b])
    every.sort()
    below_a = np.searchsorted(np.sort(a), every, side="right") / a.size
    below_b = np.searchsorted(np.sort(b), every, side="right") / b.size
    return float(np.max(np.abs(below_a - below_b)))


def check(name, options, shape):
    """A check that returns how the numbers differ from the peer's distribution, or None."""

    def why(outputs):
        got = outputs["values"].astype(np.float64).ravel()
        initializer = getattr(keras.initializers, name)
        want = array(initializer(**options, **({} if name in EXACT else {"seed": 5}))(shape))
        want = want.astype(np.float64).ravel()
        if outputs["same_seed"] != 1:
            return "the same seed gives other numbers"
        if name in EXACT:
            return None if np.array_equal(got, want) else "other values"
        if outputs["other_seed"] != 0:
            return "another seed gives the same numbers"
        n, deviation = got.size, want.std()
        # Six standard errors of a difference of two samples; the normal's kurtosis bounds the others'.
        if abs(got.mean() - want.mean()) > 6 * deviation * np.sqrt(2 / n):
            return f"mean {got.mean():.6g}, the peer's {want.mean():.6g}"
        if abs(got.std() / deviation - 1) > 6 * np.sqrt(1 / n):
            return f"deviation {got.std():.6g}, the peer's {deviation:.6g}"
        if distance(got, want) > 2.7 * np.sqrt(2 / n):
            return f"another distribution: Kolmogorov-Smirnov distance {distance(got, want):.4f}"
        bounded = "Uniform" in name or "Truncated" in name or name in ("GlorotNormal", "HeNormal",
                                                                       "LecunNormal") or (
            name == "VarianceScaling" and options.get("distribution") != "untruncated_normal")
        if bounded:
            # Both samples come close to the bounds of the distribution and do not exceed them.
            reach = max(abs(want.min() - want.mean()), abs(want.max() - want.mean()))
            mine = max(abs(got.min() - got.mean()), abs(got.max() - got.mean()))
            if abs(mine / reach - 1) > 0.005:
                return f"reaches {mine:.6g} from the mean, the peer's {reach:.6g}"
        return None

    return why


def rows():
    for name, options in NAMES.items():
        for shape in SHAPES:
            yield name, options, shape
    for mode in ("fan_in", "fan_out", "fan_avg"):
        for distribution in ("truncated_normal", "untruncated_normal", "uniform"):
            for scale in (1.0, 2.0):
                yield "VarianceScaling", {"scale": scale, "mode": mode,
                                          "distribution": distribution}, (200, 700)
    for shape in ((50000,), (200, 300)):
        yield "RandomNormal", {}, shape
        yield "RandomNormal", {"mean": 1.0, "stddev": 0.5}, shape
        yield "TruncatedNormal", {}, shape
        yield "TruncatedNormal", {"mean": -1.0, "stddev": 2.0}, shape
        yield "RandomUniform", {}, shape
        yield "RandomUniform", {"minval": 0.0, "maxval": 3.0}, shape
        yield "Zeros", {}, shape
        yield "Ones", {}, shape
        yield "Constant", {"value": 0.3}, shape


def cases():
    for name, options, shape in rows():
        title = ",".join(f"{key}={value}" for key, value in options.items())
        sizes = "x".join(map(str, shape))
        yield Case(f"keras/{name}/{title}/{sizes}", name, {**options, "shape": list(shape)}, {},
                   dict, check=check(name, options, shape))
