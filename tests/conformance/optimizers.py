"""Optimizers over 20 steps, compared with keras.optimizers and torch.optim."""

import keras
import numpy as np
import torch
from case import Case, array

from schedules import keras_schedule

STEPS = 20
KERAS = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam,
         "adamw": keras.optimizers.AdamW, "rmsprop": keras.optimizers.RMSprop,
         "adagrad": keras.optimizers.Adagrad, "lamb": keras.optimizers.Lamb}
# The options that each is tried with, besides its defaults.
VARIANTS = {
    "sgd": [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5},
            {"momentum": 0.99, "nesterov": True}],
    "adam": [{"beta_1": 0.8}, {"beta_2": 0.9}, {"epsilon": 1e-3}, {"beta_1": 0.5, "beta_2": 0.99},
             {"beta_1": 0.0}],
    "adamw": [{"beta_1": 0.8}, {"beta_2": 0.9}, {"epsilon": 1e-3}, {"beta_1": 0.0}],
    "rmsprop": [{"rho": 0.5}, {"momentum": 0.9}, {"centered": True}, {"epsilon": 1e-3},
                {"centered": True, "momentum": 0.9, "rho": 0.8}],
    "adagrad": [{"initial_accumulator_value": 0.0, "epsilon": 1e-3}, {"epsilon": 1e-3},
                {"initial_accumulator_value": 1.0}],
    "lamb": [{"beta_1": 0.8}, {"beta_2": 0.9}, {"epsilon": 1e-3}],
}
CLIPS = [{"clipvalue": 0.5}, {"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {"clipnorm": 1e-3},
         {"global_clipnorm": 100.0}]
SHAPES = {"vector": [(7,)], "layers": [(5, 4), (4,), (4, 3), (3,)], "scalar": [()],
          "kernel": [(3, 3, 2, 4)]}
SCHEDULES = [
    {"schedule": "exponential", "initial": 0.1, "decay_steps": 5, "decay_rate": 0.5},
    {"schedule": "exponential", "initial": 0.1, "decay_steps": 5, "decay_rate": 0.5,
     "staircase": True},
    {"schedule": "cosine", "initial": 0.1, "decay_steps": 15, "alpha": 0.1},
    {"schedule": "polynomial", "initial": 0.1, "decay_steps": 12, "end": 0.01, "power": 2.0},
    {"schedule": "piecewise", "boundaries": [4, 9], "values": [0.1, 0.05, 0.01]},
]


def data(shapes, seed, kind="normal"):
    random = np.random.default_rng(seed)
    start = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    gradients = []
    for shape in shapes:
        g = random.normal(size=(STEPS, *shape))
        if kind == "tiny":
            g *= 1e-6
        elif kind == "large":
            g *= 1e4
        elif kind == "sparse":
            g *= random.random(size=g.shape) < 0.2
        elif kind == "zero":
            g[:] = 0.0
        gradients.append(g.astype(np.float32))
    return start, gradients


def inputs_of(start, gradients):
    inputs = {f"start{i}": value for i, value in enumerate(start)}
    inputs.update({f"gradients{i}": value for i, value in enumerate(gradients)})
    return inputs


def keras_run(name, options, start, gradients, weight=1.0):
    options = dict(options)
    options.pop("weight", None)
    if isinstance(options.get("learning_rate"), dict):
        options["learning_rate"] = keras_schedule(options["learning_rate"])
    optimizer = KERAS[name](**options)
    variables = [keras.Variable(value) for value in start]
    seen = [[] for _ in variables]
    for step in range(STEPS):
        optimizer.apply([torch.tensor(g[step] / np.float32(weight)) for g in gradients], variables)
        for trace, variable in zip(seen, variables):
            trace.append(array(variable.value).copy())
    return {f"parameter{i}": np.stack(trace) for i, trace in enumerate(seen)}


def torch_run(make, start, gradients):
    parameters = [torch.nn.Parameter(torch.tensor(value)) for value in start]
    optimizer = make(parameters)
    seen = [[] for _ in parameters]
    for step in range(STEPS):
        for parameter, g in zip(parameters, gradients):
            parameter.grad = torch.tensor(g[step])
        optimizer.step()
        for trace, parameter in zip(seen, parameters):
            trace.append(array(parameter).copy())
    return {f"parameter{i}": np.stack(trace) for i, trace in enumerate(seen)}


def label(options):
    def text(value):
        return value["schedule"] if isinstance(value, dict) else value
    return ",".join(f"{key}={text(value)}" for key, value in options.items()) or "defaults"


def keras_cases():
    seed = 0
    for name in KERAS:
        tried = []
        for variant in [{}] + VARIANTS[name]:
            tried.append((variant, "layers", "normal"))
            tried.append(({**variant, "learning_rate": 0.05}, "layers", "normal"))
        for shape in SHAPES:
            tried.append(({"learning_rate": 0.1}, shape, "normal"))
        for kind in ("tiny", "large", "sparse", "zero"):
            tried.append(({"learning_rate": 0.02}, "layers", kind))
        for decay in (0.01, 0.1):
            tried.append(({"learning_rate": 0.05, "weight_decay": decay}, "layers", "normal"))
        for clip in CLIPS:
            tried.append(({"learning_rate": 0.05, **clip}, "layers", "normal"))
            tried.append(({"learning_rate": 0.05, **clip, "weight_decay": 0.01}, "layers", "large"))
        for i, schedule in enumerate(SCHEDULES):
            tried.append(({"learning_rate": schedule, **({"momentum": 0.9} if name == "sgd" and i % 2
                                                         else {})}, "vector", "normal"))
        tried.append(({"learning_rate": 0.05, "weight": 8.0}, "layers", "normal"))
        used = set()
        for options, shape, kind in tried:
            seed += 1
            title = f"keras/{name}/{label(options)}/{shape}/{kind}"
            while title in used:
                title += "'"
            used.add(title)
            start, gradients = data(SHAPES[shape], seed, kind)
            yield Case(title, name, options, inputs_of(start, gradients),
                       lambda a=(name, options, start, gradients, options.get("weight", 1.0)):
                       keras_run(*a), roundings=256, golden=shape == "vector" or not options)


def torch_cases():
    # Only where PyTorch's rule is the same. Its Adam and RMSprop add epsilon in another place, so
    # epsilon is chosen too small to matter.
    small = 1e-12
    rows = []
    for rate in (0.1, 0.01):
        for momentum in (0.0, 0.9):
            rows.append(("sgd", {"learning_rate": rate, "momentum": momentum},
                         lambda p, r=rate, m=momentum: torch.optim.SGD(p, r, momentum=m)))
        rows.append(("adam", {"learning_rate": rate, "epsilon": small},
                     lambda p, r=rate: torch.optim.Adam(p, r, eps=small)))
        rows.append(("adam", {"learning_rate": rate, "epsilon": small, "beta_1": 0.5,
                              "beta_2": 0.99},
                     lambda p, r=rate: torch.optim.Adam(p, r, (0.5, 0.99), eps=small)))
        for decay in (0.0, 0.1):
            rows.append(("adamw", {"learning_rate": rate, "epsilon": small, "weight_decay": decay},
                         lambda p, r=rate, d=decay: torch.optim.AdamW(p, r, eps=small,
                                                                      weight_decay=d)))
        rows.append(("rmsprop", {"learning_rate": rate, "epsilon": small},
                     lambda p, r=rate: torch.optim.RMSprop(p, r, alpha=0.9, eps=small)))
        rows.append(("adagrad", {"learning_rate": rate, "epsilon": small,
                                 "initial_accumulator_value": 0.1},
                     lambda p, r=rate: torch.optim.Adagrad(p, r, eps=small,
                                                           initial_accumulator_value=0.1)))
    for number, (name, options, make) in enumerate(rows):
        for shape in ("vector", "layers"):
            start, gradients = data(SHAPES[shape], 1000 + number)
            yield Case(f"torch/{name}/{label(options)}/{shape}", name, options,
                       inputs_of(start, gradients),
                       lambda a=(make, start, gradients): torch_run(*a), roundings=256)


def cases():
    yield from keras_cases()
    yield from torch_cases()
