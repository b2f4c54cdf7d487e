"""JAX on one GPU, the same work as `lockstep bench`: prints one JSON object.

    jax_gpu.py mlp|resnet50 [--precision f16|bf16|f32] [--batch N]

Parameters and updates are f32; activations and products have the given precision.
"""
import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp

DTYPES = {"f16": jnp.float16, "bf16": jnp.bfloat16, "f32": jnp.float32}
STAGES = [(3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)]  # blocks, channels, stride


def convolve(x, kernel, stride=1):
    return jax.lax.conv_general_dilated(x, kernel.astype(x.dtype), (stride, stride), "SAME",
                                        dimension_numbers=("NHWC", "HWIO", "NHWC"))


def normalise(x, scale, shift):
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = (wide * wide).mean((0, 1, 2)) - mean * mean
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift).astype(x.dtype)


class Parameters:
    """Draws parameters in the order in which the model asks for them, or replays given values."""

    def __init__(self, values=None):
        self.values, self.next, self.key = values or [], 0, jax.random.PRNGKey(0)

    def take(self, make):
        if self.next == len(self.values):
            self.values.append(make())
        self.next += 1
        return self.values[self.next - 1]

    def kernel(self, *shape):
        self.key, key = jax.random.split(self.key)
        fan_in = 1
        for extent in shape[:-1]:
            fan_in *= extent
        return self.take(lambda: jax.random.normal(key, shape) * (2.0 / fan_in) ** 0.5)

    def norm(self, x):
        channels = x.shape[-1]
        return normalise(x, self.take(lambda: jnp.ones(channels)), self.take(lambda: jnp.zeros(channels)))


def resnet50(parameters, images):
    def conv_norm(x, size, channels, stride=1):
        return parameters.norm(convolve(x, parameters.kernel(size, size, x.shape[-1], channels), stride))

    x = jax.nn.relu(conv_norm(images, 7, 64, 2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for blocks, channels, first_stride in STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            y = jax.nn.relu(conv_norm(x, 1, channels))
            y = jax.nn.relu(conv_norm(y, 3, channels, stride))
            y = conv_norm(y, 1, 4 * channels)
            shortcut = conv_norm(x, 1, 4 * channels, stride) if block == 0 else x
            x = jax.nn.relu(y + shortcut)
    x = x.mean((1, 2)).astype(jnp.float32)
    return x @ parameters.kernel(2048, 1000) + parameters.take(lambda: jnp.zeros(1000))


def mlp(parameters, images):
    x = images @ parameters.kernel(784, 128) + parameters.take(lambda: jnp.zeros(128))
    return jax.nn.relu(x) @ parameters.kernel(128, 10) + parameters.take(lambda: jnp.zeros(10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["mlp", "resnet50"])
    parser.add_argument("--precision", choices=list(DTYPES), default="f32")
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    small = options.work == "mlp"
    model = mlp if small else resnet50
    shape, classes = ((784,), 10) if small else ((224, 224, 3), 1000)
    images = jax.random.normal(jax.random.PRNGKey(1), (options.batch, *shape))
    labels = jax.random.randint(jax.random.PRNGKey(2), (options.batch,), 0, classes)
    dtype = DTYPES[options.precision]
    drawn = Parameters()
    model(drawn, images[:1])
    values = drawn.values

    def loss(values):
        logits = model(Parameters(values), images.astype(dtype)).astype(jnp.float32)
        return -jax.nn.log_softmax(logits)[jnp.arange(options.batch), labels].mean()

    def sgd(values, slots):
        slots = [0.9 * m + g + 1e-4 * p for m, g, p in zip(slots, jax.grad(loss)(values), values)]
        return [p - 0.1 * m for p, m in zip(values, slots)], slots

    def adam(values, slots):
        m, v, t = slots
        grads = jax.grad(loss)(values)
        m = [0.9 * a + 0.1 * g for a, g in zip(m, grads)]
        v = [0.999 * a + 0.001 * g * g for a, g in zip(v, grads)]
        t = t + 1
        rate = 1e-3 * jnp.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
        return [p - rate * a / (jnp.sqrt(b) + 1e-7) for p, a, b in zip(values, m, v)], (m, v, t)

    zeros = [jnp.zeros_like(p) for p in values]
    slots = (zeros, [jnp.zeros_like(p) for p in values], jnp.float32(0)) if small else zeros
    step = jax.jit(adam if small else sgd, donate_argnums=(0, 1))
    steps = 1000 if small else 20
    times = []
    for round_number in range(4):
        jax.block_until_ready(values)
        begin = time.perf_counter()
        for _ in range(steps):
            values, slots = step(values, slots)
        jax.block_until_ready(values)
        if round_number > 0:
            times.append((time.perf_counter() - begin) / steps)
    print(json.dumps({"step_ms": statistics.median(times) * 1e3}))


main()
