"""Writes the golden trajectories for tests/train/golden_test.cpp.

Run by hand when a model or an optimizer here changes; no test needs Python:

    python3 -m venv venv && venv/bin/pip install torch safetensors numpy
    venv/bin/python tests/golden/make_goldens.py

It writes mlp.safetensors, lenet.safetensors and resnet.safetensors to its own folder. Each holds

    inputs (batches, examples, ...), labels (batches, examples)   step i uses batch i % batches
    initial/<variable>                                            at the start of every trajectory
    <optimizer>/losses (20)                                       before each of the 20 updates
    <optimizer>/final/<variable>                                  after them

in Lockstep's layouts: images (N, H, W, C), Dense kernels (in, out), Conv2D kernels (h, w, in, out).

The gradients are autograd's. The updates are torch.optim's wherever that computes what
lockstep/graph/ops/update.h says:

    sgd, momentum, nesterov   unchanged
    adam, adamw               with epsilon / sqrt(1 - beta_2^t) as torch's epsilon, because torch adds
    it after the bias correction of v and Keras before it
    adagrad                   with epsilon 0 and an accumulator that starts epsilon higher, which
    gives Keras's sqrt(a + epsilon)
    Keras adds RMSprop's epsilon inside the square root, torch outside it, and torch has no LARS or LAMB:
    those three are implemented here, and RMSprop is compared with torch's at an epsilon of 1e-30, where
    the two agree. BatchNormalization's moving variance is Keras's (of the biased variance; torch uses
    the unbiased one), so the moving averages are implemented here, too.
    Everything is computed in double precision and stored in single. A rounding error that moves an
    element across a ReLU's kink changes a gradient abruptly, and batch normalisation then spreads the
    change. Each model therefore uses the first seed for which, over all trajectories, no ReLU's input
    comes within MARGIN of 0 and no two elements of a pooling window within MARGIN of a tie for the
    largest. Every trajectory is also computed in single precision and must agree to 1e-5, otherwise the
    script fails. So any correct implementation can be expected to agree to 1e-4.
"""

import itertools
import json
import pathlib

import numpy
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

STEPS = 20
BATCHES = 5
CLASSES = 5
MARGIN = 5e-6


class NearKink(Exception):
    """A trajectory came so close to a kink that rounding could decide its side."""


class Rmsprop:
    def __init__(self, parameters, lr, rho, momentum, epsilon, centered):
        self.parameters = list(parameters)
        self.lr, self.rho, self.momentum = lr, rho, momentum
        self.epsilon, self.centered = epsilon, centered
        self.v = [torch.zeros_like(p) for p in self.parameters]
        self.m = [torch.zeros_like(p) for p in self.parameters]
        self.mean = [torch.zeros_like(p) for p in self.parameters]

    def step(self):
        for p, v, m, mean in zip(self.parameters, self.v, self.m, self.mean):
            g = p.grad
            v.copy_(self.rho * v + (1 - self.rho) * g * g)
            mean.copy_(self.rho * mean + (1 - self.rho) * g)
            d = v - mean * mean if self.centered else v
            m.copy_(self.momentum * m + self.lr * g / torch.sqrt(d + self.epsilon))
            p -= m


class Lars:
    def __init__(self, parameters, lr, momentum, weight_decay, trust, epsilon):
        self.parameters = list(parameters)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.trust, self.epsilon = trust, epsilon
        self.v = [torch.zeros_like(p) for p in self.parameters]

    def step(self):
        for p, v in zip(self.parameters, self.v):
            g = p.grad
            p_norm, g_norm = p.norm(), g.norm()
            local = 1.0
            if p_norm > 0 and g_norm > 0:
                local = self.trust * p_norm / (g_norm + self.weight_decay * p_norm + self.epsilon)
            v.copy_(self.momentum * v + local * self.lr * (g + self.weight_decay * p))
            p -= v


class Lamb:
    def __init__(self, parameters, lr, beta_1, beta_2, epsilon, weight_decay):
        self.parameters = list(parameters)
        self.lr, self.beta_1, self.beta_2 = lr, beta_1, beta_2
        self.epsilon, self.weight_decay = epsilon, weight_decay
        self.m = [torch.zeros_like(p) for p in self.parameters]
        self.v = [torch.zeros_like(p) for p in self.parameters]
        self.t = 0

    def step(self):
        self.t += 1
        for p, m, v in zip(self.parameters, self.m, self.v):
            g = p.grad
            m += (g - m) * (1 - self.beta_1)
            v += (g * g - v) * (1 - self.beta_2)
            m_hat = m / (1 - self.beta_1**self.t)
            v_hat = v / (1 - self.beta_2**self.t)
            u = m_hat / (torch.sqrt(v_hat) + self.epsilon) + self.weight_decay * p
            p_norm, u_norm = p.norm(), u.norm()
            ratio = p_norm / u_norm if p_norm > 0 and u_norm > 0 else 1.0
            p -= self.lr * ratio * u


class KerasEpsilon:
    """torch's Adam or AdamW, with epsilon added where Keras adds it."""

    def __init__(self, inner, epsilon):
        self.inner, self.epsilon, self.t = inner, epsilon, 0

    def step(self):
        self.t += 1
        for group in self.inner.param_groups:
            group["eps"] = self.epsilon / (1 - group["betas"][1] ** self.t) ** 0.5
        self.inner.step()


# The options must match those of golden.h.
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "adam": lambda p: KerasEpsilon(torch.optim.Adam(p, lr=0.002), 1e-7),
    "adamw": lambda p: KerasEpsilon(torch.optim.AdamW(p, lr=0.002, weight_decay=0.05), 1e-7),
    "rmsprop": lambda p: Rmsprop(p, 0.001, 0.9, 0.0, 1e-7, False),
    "rmsprop_momentum": lambda p: Rmsprop(p, 0.0005, 0.9, 0.8, 1e-7, False),
    "rmsprop_centered": lambda p: Rmsprop(p, 0.0005, 0.9, 0.5, 1e-5, True),
    "adagrad": lambda p: torch.optim.Adagrad(
        p, lr=0.01, eps=0.0, initial_accumulator_value=0.1 + 1e-7),
    "lars": lambda p: Lars(p, 0.5, 0.9, 1e-3, 0.01, 1e-8),
    "lamb": lambda p: Lamb(p, 0.005, 0.9, 0.999, 1e-6, 0.01),
}


def same(x, kernel, stride):
    """Pads (N, C, H, W) as TensorFlow does: an odd row or column goes to the bottom or right."""
    pads = []
    for extent in (x.shape[3], x.shape[2]):
        total = max((-(-extent // stride) - 1) * stride + kernel - extent, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads)


class Model:
    """Variables by name, in Lockstep's layouts, and a forward pass that reads them."""

    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)
        self.variables = {}
        self.trainable = []
        self.build()
        self.inputs = self.random.standard_normal(
            (BATCHES, self.examples) + self.shape).astype(numpy.float32)
        self.labels = self.random.integers(0, CLASSES, (BATCHES, self.examples))

    def add(self, name, shape, deviation, mean=0.0, trainable=True):
        values = mean + deviation * self.random.standard_normal(shape)
        self.variables[name] = torch.tensor(values.astype(numpy.float32))
        if trainable:
            self.trainable.append(name)

    def add_dense(self, name, inputs, outputs):
        self.add(f"{name}/kernel", (inputs, outputs), (1.0 / inputs) ** 0.5)
        self.add(f"{name}/bias", (outputs,), 0.1)

    def add_conv(self, name, kernel, inputs, outputs, bias):
        self.add(f"{name}/kernel", (kernel, kernel, inputs, outputs),
                 (1.5 / (kernel * kernel * inputs)) ** 0.5)
        if bias:
            self.add(f"{name}/bias", (outputs,), 0.1)

    def add_norm(self, name, channels):
        self.add(f"{name}/gamma", (channels,), 0.1, 1.0)
        self.add(f"{name}/beta", (channels,), 0.1)
        self.add(f"{name}/moving_mean", (channels,), 0.0, trainable=False)
        self.add(f"{name}/moving_variance", (channels,), 0.0, 1.0, trainable=False)

    def dense(self, v, name, x):
        return x @ v[f"{name}/kernel"] + v[f"{name}/bias"]

    def conv(self, v, name, x, stride=1):
        # Both must be contiguous: on permuted views torch 2.15 gives wrong values here, or crashes.
        kernel = v[f"{name}/kernel"].permute(3, 2, 0, 1).contiguous()
        x = same(x, kernel.shape[2], stride).contiguous()
        return F.conv2d(x, kernel, v.get(f"{name}/bias"), stride)

    def relu(self, x):
        self.expect_margin(x.abs())
        return torch.relu(x)

    def max_pool(self, x):
        """2 × 2 windows. If all are 0, after a ReLU, it does not matter which is the largest."""
        n, c, h, w = x.shape
        windows = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(3, 4).reshape(-1, 4)
        top = windows.topk(2).values
        self.expect_margin((top[:, 0] - top[:, 1])[top[:, 0] > 0])
        return F.max_pool2d(x, 2)

    def expect_margin(self, distances):
        if distances.dtype == torch.float64 and distances.min() < MARGIN:
            raise NearKink

    def norm(self, v, name, x, momentum=0.9, epsilon=1e-3):
        mean = x.mean(dim=(0, 2, 3))
        variance = x.var(dim=(0, 2, 3), unbiased=False)
        with torch.no_grad():
            for key, batch in (("moving_mean", mean), ("moving_variance", variance)):
                moving = v[f"{name}/{key}"]
                moving.copy_(momentum * moving + (1 - momentum) * batch)
        return F.batch_norm(x, None, None, v[f"{name}/gamma"], v[f"{name}/beta"], True, 0.0,
                            epsilon)


class Mlp(Model):
    shape = (20,)
    examples = 8

    def build(self):
        self.add_dense("hidden", 20, 16)
        self.add_dense("logits", 16, CLASSES)

    def forward(self, v, x):
        return self.dense(v, "logits", self.relu(self.dense(v, "hidden", x)))


class LeNet(Model):
    shape = (8, 8, 1)
    examples = 8

    def build(self):
        self.add_conv("conv1", 3, 1, 5, bias=True)
        self.add_conv("conv2", 3, 5, 8, bias=True)
        self.add_dense("hidden", 2 * 2 * 8, 16)
        self.add_dense("logits", 16, CLASSES)

    def forward(self, v, x):
        x = x.permute(0, 3, 1, 2)
        x = self.max_pool(self.relu(self.conv(v, "conv1", x)))
        x = self.max_pool(self.relu(self.conv(v, "conv2", x)))
        x = x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)
        return self.dense(v, "logits", self.relu(self.dense(v, "hidden", x)))


class ResNet(Model):
    shape = (8, 8, 3)
    examples = 4

    def build(self):
        self.add_conv("stem", 3, 3, 4, bias=False)
        self.add_norm("stem_norm", 4)
        for block, inputs, outputs in (("block1", 4, 4), ("block2", 4, 8)):
            self.add_conv(f"{block}_conv1", 3, inputs, outputs, bias=False)
            self.add_norm(f"{block}_norm1", outputs)
            self.add_conv(f"{block}_conv2", 3, outputs, outputs, bias=False)
            self.add_norm(f"{block}_norm2", outputs)
        self.add_conv("block2_projection", 1, 4, 8, bias=False)
        self.add_norm("block2_projection_norm", 8)
        self.add_dense("logits", 8, CLASSES)

    def block(self, v, name, x, stride):
        y = self.relu(self.norm(v, f"{name}_norm1", self.conv(v, f"{name}_conv1", x, stride)))
        y = self.norm(v, f"{name}_norm2", self.conv(v, f"{name}_conv2", y))
        if stride != 1:
            x = self.conv(v, f"{name}_projection", x, stride)
            x = self.norm(v, f"{name}_projection_norm", x)
        return self.relu(x + y)

    def forward(self, v, x):
        x = x.permute(0, 3, 1, 2)
        x = self.relu(self.norm(v, "stem_norm", self.conv(v, "stem", x)))
        x = self.block(v, "block1", x, 1)
        x = self.block(v, "block2", x, 2)
        return self.dense(v, "logits", x.mean(dim=(2, 3)))


def trajectory(model, make_optimizer, dtype):
    """The losses of STEPS steps and the variables after them."""
    v = {name: value.to(dtype, copy=True) for name, value in model.variables.items()}
    for name in model.trainable:
        v[name].requires_grad_()
    optimizer = make_optimizer([v[name] for name in model.trainable])
    losses = []
    for step in range(STEPS):
        x = torch.tensor(model.inputs[step % BATCHES], dtype=dtype)
        y = torch.tensor(model.labels[step % BATCHES])
        loss = F.cross_entropy(model.forward(v, x), y)
        for name in model.trainable:
            v[name].grad = None
        loss.backward()
        with torch.no_grad():
            optimizer.step()
        losses.append(loss.item())
    final = {name: value.detach().to(torch.float64).numpy() for name, value in v.items()}
    return numpy.array(losses), final


def difference(a, b):
    """The largest relative difference of any loss, and of any variable (in norm)."""
    worst = numpy.max(numpy.abs(a[0] - b[0]) / numpy.abs(b[0]))
    for name, value in b[1].items():
        worst = max(worst, numpy.linalg.norm(a[1][name] - value) / numpy.linalg.norm(value))
    return worst


def check_rmsprop(model):
    for momentum, centered in ((0.0, False), (0.8, False), (0.5, True)):
        ours = trajectory(model, lambda p: Rmsprop(p, 0.0001, 0.9, momentum, 1e-30, centered),
                          torch.float64)
        torchs = trajectory(
            model,
            lambda p: torch.optim.RMSprop(p, lr=0.0001, alpha=0.9, eps=1e-30, momentum=momentum,
                                          centered=centered), torch.float64)
        assert difference(ours, torchs) < 1e-9, (momentum, centered, difference(ours, torchs))


def first_tame(kind):
    """The first model of a kind whose trajectories avoid kinks, with its seed and trajectories."""
    for seed in itertools.count(1):
        try:
            model = kind(seed)
            return seed, model, {name: trajectory(model, make, torch.float64)
                                 for name, make in OPTIMIZERS.items()}
        except NearKink:
            pass


def main():
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).parent
    for file, kind in (("mlp", Mlp), ("lenet", LeNet), ("resnet", ResNet)):
        seed, model, trajectories = first_tame(kind)
        if kind is Mlp:
            check_rmsprop(model)
        tensors = {"inputs": model.inputs, "labels": model.labels.astype(numpy.int32)}
        for name, value in model.variables.items():
            tensors[f"initial/{name}"] = value.numpy()
        for optimizer, (losses, final) in trajectories.items():
            single = trajectory(model, OPTIMIZERS[optimizer], torch.float32)
            apart = difference(single, (losses, final))
            moved = max(numpy.linalg.norm(final[name] - model.variables[name].numpy()) /
                        numpy.linalg.norm(final[name]) for name in model.trainable)
            print(f"{file} {optimizer}: loss {losses[0]:.4f} to {losses[-1]:.4f}, "
                  f"weights moved by up to {moved:.3f}, single precision {apart:.1e} apart")
            assert apart < 1e-5, "this trajectory is too sensitive to rounding"
            tensors[f"{optimizer}/losses"] = losses.astype(numpy.float32)
            for name, value in final.items():
                tensors[f"{optimizer}/final/{name}"] = value.astype(numpy.float32)
        metadata = {"made_by": "tests/golden/make_goldens.py", "torch": torch.__version__,
                    "seed": str(seed), "optimizers": json.dumps(list(OPTIMIZERS))}
        save_file({name: numpy.ascontiguousarray(tensor) for name, tensor in tensors.items()},
                  here / f"{file}.safetensors", metadata)


if __name__ == "__main__":
    main()
