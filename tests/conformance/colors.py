"""Normalisation and colour jitter, compared with torchvision."""

import numpy as np
import torch
import torchvision.transforms.functional as TF
from case import Case, array
from pictures import picture


def case(name, what, options, image, peer, **more):
    return Case(name, what, options, {"image": image}, lambda: {"image": array(peer())}, **more)


def normalizations():
    mean, deviation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    for seed, dtype in enumerate((np.uint8, np.float32)):
        image = picture(1200 + seed, (6, 7), dtype=dtype)
        chw = torch.tensor(image.transpose(2, 0, 1).astype(np.float32))
        for rescale in (1.0, 1 / 255):
            title = f"{np.dtype(dtype)}/rescale={rescale:.4f}"
            yield case(f"torchvision/normalize/{title}", "normalize",
                       {"rescale": rescale, "mean": mean, "deviation": deviation}, image,
                       lambda a=(chw, rescale): TF.normalize(a[0] * a[1], mean,
                                                             deviation).permute(1, 2, 0),
                       golden=True)


def jitters():
    steps = {"brightness": TF.adjust_brightness, "contrast": TF.adjust_contrast,
             "saturation": TF.adjust_saturation, "hue": TF.adjust_hue}

    def changed(image, order, factors):
        x = torch.tensor(image.transpose(2, 0, 1)) / 255
        for name in order:
            x = steps[name](x, factors[name])
        return (x * 255).permute(1, 2, 0)

    rows = []
    for name in ("brightness", "contrast", "saturation"):
        rows += [{name: factor} for factor in (0.0, 0.4, 0.9, 1.5, 2.0)]
    rows += [{"hue": turn} for turn in (-0.5, -0.3, -0.05, 0.1, 0.25, 0.5)]
    rows += [{"brightness": 0.7, "contrast": 1.3, "saturation": 0.5, "hue": 0.1},
             {"brightness": 1.4, "contrast": 0.6, "saturation": 1.7, "hue": -0.2}]
    seed = 2000
    for factors in rows:
        orders = [list(factors)]
        if len(factors) > 1:
            orders += [list(reversed(list(factors))), ["hue", "brightness", "saturation",
                                                       "contrast"]]
        for order in orders:
            for size in ((6, 7), (16, 9)):
                seed += 1
                image = picture(seed, size)
                rest = [name for name in steps if name not in order]
                title = ",".join(f"{name}={factors[name]}" for name in order)
                yield case(f"torchvision/jitter/{title}/{size[0]}x{size[1]}", "jitter",
                           {**factors, "order": order + rest}, image,
                           lambda a=(image, order, factors): changed(*a), roundings=512,
                           golden=size == (6, 7))


def cases():
    yield from normalizations()
    yield from jitters()
