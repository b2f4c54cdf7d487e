"""ResNets with the same weights, compared with torchvision.models."""

import functools

import numpy as np
import torch
import torchvision
from case import Case, array

NAMES = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean",
         "running_var": "moving_variance"}


def place(key):
    """Lockstep's name of a PyTorch tensor: layer1.0.conv1.weight is layer1_0_conv1/kernel."""
    layer, part = key.rsplit(".", 1)
    layer = layer.replace(".", "_")
    norm = "bn" in layer or layer.endswith("downsample_1")
    if norm:
        return f"{layer}/{NAMES[part]}"
    return f"{layer}/{'kernel' if part == 'weight' else 'bias'}"


def moved(value):
    """From PyTorch's layout to ours: (out, in, rows, columns) to (rows, columns, in, out)."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    return value.T if value.ndim == 2 else value


def network(depth, classes, small, seed, firm):
    """With `firm`, no rounding can flip the sign of a relu's input, which would change gradients."""
    torch.manual_seed(seed)
    made = getattr(torchvision.models, f"resnet{depth}")(weights=None, num_classes=classes)
    if small:
        made.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        made.maxpool = torch.nn.Identity()
    for name, module in made.named_modules():
        if not isinstance(module, torch.nn.BatchNorm2d):
            continue
        # A new norm has only ones and zeros, with which mistakes would go unnoticed.
        torch.nn.init.normal_(module.running_mean, std=0.1)
        torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
        if firm:
            # Far from zero on either side; a shortcut is too small to change the sign of a sum.
            off = -50.0 if not name.endswith("downsample.1") else 1.0
            torch.nn.init.uniform_(module.weight, 0.05, 0.1)
            module.bias.data = torch.where(torch.rand(module.bias.shape) < 0.25, off, 1.0)
        else:
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.1)
    return made


def run(made, options, images, labels):
    """Computes in double, so that only our own rounding remains."""
    net = made().double()
    start = {key: value.clone() for key, value in net.state_dict().items()}
    x, y = torch.tensor(images.transpose(0, 3, 1, 2)).double(), torch.tensor(labels).long()
    results = {"inference": array(net.eval()(x), np.float32)}
    wanted = options.get("gradients", [])
    if wanted:
        net.train()
        logits = net(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        loss.backward()
        results["training"], results["loss"] = array(logits, np.float32), array(loss, np.float32)
        for key, parameter in net.named_parameters():
            if wanted == ["all"] or place(key) in wanted:
                results[f"gradient/{place(key)}"] = moved(array(parameter.grad, np.float32))
    if options.get("steps"):
        net.load_state_dict(start)
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
        losses = []
        for _ in range(options["steps"]):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results["losses"] = np.array(losses, dtype=np.float32)
        for key, value in net.state_dict().items():
            if key.startswith("fc.") or key.endswith("running_mean"):
                results[f"after/{place(key)}"] = moved(array(value, np.float32))
    return results


def rows():
    """Rows of (depth, size, small stem, batch, firm norms, options)."""
    last = ["fc/kernel", "fc/bias"]
    ends = ["conv1/kernel", "bn1/gamma", "layer1_0_conv1/kernel", "layer4_0_downsample_0/kernel",
            *last]
    for depth in (18, 34, 50):
        for firm in (False, True):
            yield depth, 64, False, 4, firm, {"gradients": ends if firm else last}
            yield depth, 16, True, 4, firm, {"gradients": ends if firm else last}
    yield 18, 16, True, 4, True, {"gradients": ["all"]}
    yield 50, 64, False, 5, True, {"gradients": ["all"]}
    yield 18, 16, True, 8, True, {"steps": 3}
    yield 18, 64, False, 4, True, {"steps": 3}
    yield 50, 64, False, 4, True, {"steps": 2}
    yield 101, 64, False, 2, False, {}
    yield 152, 64, False, 1, False, {}
    for height, width in ((33, 47), (64, 96)):
        yield 18, (height, width), False, 2, True, {"gradients": ends}


def cases():
    for seed, (depth, size, small, batch, firm, more) in enumerate(rows()):
        height, width = (size, size) if isinstance(size, int) else size
        random = np.random.default_rng(seed)
        images = random.normal(size=(batch, height, width, 3)).astype(np.float32)
        labels = random.integers(0, 10, size=batch).astype(np.int32)
        made = functools.partial(network, depth, 10, small, seed, firm)
        inputs = {"images": images, "labels": labels}
        for key, value in made().state_dict().items():
            if not key.endswith("num_batches_tracked"):
                inputs[f"weight/{place(key)}"] = moved(array(value)).copy()
        options = {"depth": depth, "classes": 10, **({"small_input": True} if small else {}), **more}
        what = "gradients" if "gradients" in more else "steps" if "steps" in more else "logits"
        note = (" of all" if more.get("gradients") == ["all"] else
                " of the last layer" if more and not firm else "")
        # A generous tolerance: up to 152 layers in a row, each with sums of hundreds of products;
        # and some gradients are zero because the next norm cancels the effect of a bias.
        yield Case(f"torchvision/resnet{depth}/{batch}x{height}x{width}/"
                   f"{'small/' if small else ''}{what}{note}", "resnet", options, inputs,
                   lambda a=(made, options, images, labels): run(*a), roundings=8192, absolute=1e-6)
