"""Learning-rate schedules, compared with keras.optimizers.schedules."""

import keras
import numpy as np
from case import Case, array


class Constant(keras.optimizers.schedules.LearningRateSchedule):
    """A constant rate; Keras has no such schedule."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, step):
        return np.float32(self.rate)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up before a schedule, like the one built into CosineDecay."""

    def __init__(self, schedule, first, start, steps):
        self.schedule, self.first, self.start, self.steps = schedule, first, start, steps

    def __call__(self, step):
        step = int(step)
        if step < self.steps:
            return np.float32(self.first * (self.start + (1 - self.start) * step / self.steps))
        return self.schedule(step - self.steps)


def keras_schedule(options):
    schedules = keras.optimizers.schedules
    kind, initial = options["schedule"], options.get("initial", 0.1)
    steps = options.get("decay_steps", 1000)
    warm, start = options.get("warmup_steps", 0), options.get("warmup_start", 0.0)
    if kind == "cosine":
        if warm:
            return schedules.CosineDecay(initial * start, steps, options.get("alpha", 0.0),
                                         warmup_target=initial, warmup_steps=warm)
        return schedules.CosineDecay(initial, steps, options.get("alpha", 0.0))
    if kind == "exponential":
        made = schedules.ExponentialDecay(initial, steps, options.get("decay_rate", 0.96),
                                          options.get("staircase", False))
    elif kind == "polynomial":
        made = schedules.PolynomialDecay(initial, steps, options.get("end", 1e-4),
                                         options.get("power", 1.0))
    elif kind == "piecewise":
        made = schedules.PiecewiseConstantDecay(options["boundaries"], options["values"])
        initial = options["values"][0]
    else:
        made = Constant(initial)
    return WarmUp(made, initial, start, warm) if warm else made


def rows():
    for initial in (1.0, 0.1, 3e-4):
        for steps in (1, 7, 100, 1000):
            for rate in (0.96, 0.5):
                for staircase in (False, True):
                    yield {"schedule": "exponential", "initial": initial, "decay_steps": steps,
                           "decay_rate": rate, "staircase": staircase}
            for alpha in (0.0, 0.1):
                yield {"schedule": "cosine", "initial": initial, "decay_steps": steps,
                       "alpha": alpha}
            for power in (1.0, 2.0, 0.5):
                yield {"schedule": "polynomial", "initial": initial, "decay_steps": steps,
                       "power": power}
    for boundaries, values in (([10], [0.1, 0.01]), ([1, 2, 3], [1.0, 0.5, 0.25, 0.125]),
                               ([5, 100], [0.3, 0.2, 0.1]), ([0], [1.0, 0.5])):
        yield {"schedule": "piecewise", "boundaries": boundaries, "values": values}
    for warm in (1, 10):
        for start in (0.0, 0.25):
            extra = {"initial": 0.4, "decay_steps": 50, "warmup_steps": warm, "warmup_start": start}
            yield {"schedule": "cosine", **extra}
            yield {"schedule": "cosine", "alpha": 0.2, **extra}
            yield {"schedule": "exponential", **extra}
            yield {"schedule": "polynomial", "end": 0.01, **extra}
            yield {"schedule": "constant", **extra}


def iterations_for(options):
    near = {0, 1, 2, 3, 4, 5, 9, 10, 11, 33, 50, 51, 60, 61, 500, 1500}
    steps = options.get("decay_steps", 10)
    near |= {steps - 1, steps, steps + 1, 2 * steps, steps // 2}
    return np.array(sorted(near), dtype=np.int64)


def run(options, iterations):
    schedule = keras_schedule(options)
    rates = np.array([float(array(schedule(int(i)))) for i in iterations], dtype=np.float32)
    return {"host": rates, "device": rates}


def cases():
    for options in rows():
        iterations = iterations_for(options)
        title = ",".join(f"{key}={value}" for key, value in options.items())
        # The relative error of an exponential grows with its exponent, ln(rate) * steps.
        decayed = options["schedule"] == "exponential"
        yield Case(f"keras/{title}", options["schedule"], options, {"iterations": iterations},
                   lambda a=(options, iterations): run(*a), roundings=64 if decayed else 16,
                   golden=options.get("initial", 0) in (0.1, 0.4))
