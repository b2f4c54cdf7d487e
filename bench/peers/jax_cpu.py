"""JAX's side of bench/compare: trains one model on random samples, the whole step compiled.

usage: jax_cpu.py {mlp,lenet} [--first-step]
Prints one JSON object: the median time of a step, in milliseconds.
"""
import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
ADAM = {"rate": 1e-3, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}


def dense(key, inputs, outputs):
    return {"kernel": jax.random.normal(key, (inputs, outputs)) / jnp.sqrt(inputs),
            "bias": jnp.zeros(outputs)}


def conv(key, inputs, outputs):
    return {"kernel": jax.random.normal(key, (3, 3, inputs, outputs)) / jnp.sqrt(9 * inputs),
            "bias": jnp.zeros(outputs)}


def apply_dense(layer, x):
    return x @ layer["kernel"] + layer["bias"]


def apply_conv(layer, x):
    y = jax.lax.conv_general_dilated(x, layer["kernel"], (1, 1), "SAME",
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y + layer["bias"])


def pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def mlp(layers, x):
    return apply_dense(layers[1], jax.nn.relu(apply_dense(layers[0], x)))


def lenet(layers, x):
    x = pool(apply_conv(layers[0], x))
    x = pool(apply_conv(layers[1], x))
    return mlp(layers[2:], x.reshape(x.shape[0], -1))


def parameters(name, key):
    keys = jax.random.split(key, 4)
    if name == "mlp":
        return [dense(keys[0], 784, 128), dense(keys[1], 128, 10)]
    return [conv(keys[0], 1, 32), conv(keys[1], 32, 64),
            dense(keys[2], 7 * 7 * 64, 128), dense(keys[3], 128, 10)]


# model, shape of a batch, steps per round, rounds to time
WORK = {"mlp": (mlp, (32, 784), 200, 10), "lenet": (lenet, (64, 28, 28, 1), 8, 5)}


def make_step(name):
    forward, shape, _, _ = WORK[name]
    key = jax.random.PRNGKey(0)
    weights = parameters(name, key)
    samples = jax.random.normal(key, shape)
    labels = jax.random.randint(key, (shape[0],), 0, 10)

    def loss(weights):
        scores = jax.nn.log_softmax(forward(weights, samples))
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    def update(state):
        weights, first, second, count = state
        grads = jax.grad(loss)(weights)
        count = count + 1
        first = jax.tree.map(lambda m, g: ADAM["beta_1"] * m + (1 - ADAM["beta_1"]) * g, first, grads)
        second = jax.tree.map(lambda v, g: ADAM["beta_2"] * v + (1 - ADAM["beta_2"]) * g * g, second,
                              grads)
        rate = ADAM["rate"] * jnp.sqrt(1 - ADAM["beta_2"]**count) / (1 - ADAM["beta_1"]**count)
        weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + ADAM["epsilon"]),
                               weights, first, second)
        return weights, first, second, count

    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = (weights, zeros, jax.tree.map(jnp.zeros_like, weights), jnp.float32(0))
    return jax.jit(update, donate_argnums=0), state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=WORK)
    parser.add_argument("--first-step", action="store_true", help="stop after the first step")
    options = parser.parse_args()

    step, state = make_step(options.model)
    state = jax.block_until_ready(step(state))
    if options.first_step:
        return
    _, _, count, rounds = WORK[options.model]
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        for _ in range(count):
            state = step(state)
        jax.block_until_ready(state)
        times.append((time.perf_counter() - begin) / count)
    # The first round warms up.
    print(json.dumps({"version": jax.__version__, "step_ms": statistics.median(times[1:]) * 1e3}))


main()
