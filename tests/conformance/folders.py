"""Folders of images as data sets, compared with keras.utils.image_dataset_from_directory."""

import pathlib
import tempfile

import keras
import numpy as np
from case import Case
from pictures import encoded, scene
from PIL import Image

# Lockstep interpolates in fixed point, with an error below 1/16 of the distance of two byte values.
FIXED_POINT = 1 / 16


def files(classes, per_class, size=(12, 15), formats=("png",), seed=0):
    found = {}
    for c, name in enumerate(classes):
        for i in range(per_class):
            kind = formats[i % len(formats)]
            image = Image.fromarray(scene(seed + 100 * c + i, size[0] + i, size[1] - c))
            found[f"{name}/{i}.{kind}"] = (encoded(image, format="PNG") if kind == "png" else
                                           encoded(image, format="JPEG", quality=90))
    return found


def text(lines):
    return np.frombuffer("".join(line + "\n" for line in lines).encode(), dtype=np.uint8)


def keras_run(inputs, options):
    given = {k: v for k, v in options.items() if k not in ("fast_dct", "scaled_decoding")}
    given["image_size"] = (given.pop("height", 256), given.pop("width", 256))
    if given.get("label_mode") == "none":
        given["label_mode"], given["labels"] = None, None
    with tempfile.TemporaryDirectory() as folder:
        for name, data in inputs.items():
            path = pathlib.Path(folder) / name
            if name.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.tobytes())
        dataset = keras.utils.image_dataset_from_directory(folder, shuffle=False, verbose=False,
                                                           **given)
        images, labels = [], []
        for batch in dataset:
            parts = batch if isinstance(batch, tuple) else (batch,)
            images.append(parts[0].numpy())
            if len(parts) > 1:
                labels.append(parts[1].numpy())
        names = [str(pathlib.Path(p).relative_to(folder)) for p in dataset.file_paths]
        results = {"images": np.concatenate(images), "batches": np.int64(len(images)),
                   "files": text(names)}
        if labels:
            results["labels"] = np.concatenate(labels)
            results["classes"] = text(dataset.class_names)
        return results


def rows():
    three, two = ["ant", "bee", "cat"], ["no", "yes"]
    small = {"height": 8, "width": 10}
    for mode in ("int", "categorical"):
        yield f"labels/{mode}", files(three, 3), {**small, "label_mode": mode}
    yield "labels/binary", files(two, 3), {**small, "label_mode": "binary"}
    yield "labels/binary of three", files(three, 1), {**small, "label_mode": "binary"}
    yield "labels/none", {f"{i}.png": data for i, data in enumerate(files(["x"], 4).values())}, {
        **small, "label_mode": "none"}
    yield "classes/an order", files(three, 2), {**small, "class_names": ["cat", "ant", "bee"]}
    yield "classes/a wrong name", files(three, 2), {**small, "class_names": ["cat", "ant", "dog"]}
    yield "classes/capitals and digits", files(["B", "a", "10", "9"], 1), small
    yield "classes/hidden folder", files(["ant", ".thumbnails", "bee"], 2), small
    for size in (1, 2, 4, 100):
        yield f"batches/{size}", files(three, 3), {**small, "batch_size": size}
    for mode in ("grayscale", "rgb", "rgba"):
        yield f"colours/{mode}", files(three, 2), {**small, "color_mode": mode}
    # TensorFlow decodes JPEGs with the less exact transform, which is an option in Lockstep.
    for mode in ("grayscale", "rgb"):
        yield f"colours/{mode} of JPEGs", files(three, 2, formats=("jpg",)), {
            **small, "color_mode": mode, "fast_dct": True}
    yield "exact JPEGs", files(three, 2, formats=("jpg",)), small
    yield "JPEGs and PNGs", files(three, 4, formats=("jpg", "png")), {**small, "fast_dct": True}
    for interpolation in ("nearest", "bilinear", "bicubic", "area", "lanczos3", "lanczos5",
                          "gaussian", "mitchellcubic"):
        # Even sizes: with odd ones the edge of the truncated Gaussian falls exactly on a pixel.
        for height, width in ((8, 10), (20, 32)):
            yield f"interpolation/{interpolation}/{height}x{width}", files(two, 2), {
                "height": height, "width": width, "interpolation": interpolation}
    for height, width in ((8, 8), (6, 20), (30, 9)):
        yield f"aspect/{height}x{width}", files(two, 3), {"height": height, "width": width,
                                                        "crop_to_aspect_ratio": True}
    for split in (0.2, 0.5):
        for subset in ("training", "validation"):
            yield f"split/{split}/{subset}", files(three, 4), {
                **small, "validation_split": split, "subset": subset}
    yield "size/as Keras's default", files(two, 1, size=(40, 50)), {}
    nested = {f"ant/deep/{i}.png": data for i, data in enumerate(files(["x"], 2).values())}
    yield "folders/nested", {**files(two, 2), **nested}, small
    mixed = files(two, 2)
    mixed["no/notes.txt"] = text(["not a picture"])
    yield "folders/a text file among them", mixed, small
    yield "folders/an upper-case ending", {
        f"{name[:-4]}.PNG" if name.endswith(".png") else name: data
        for name, data in files(two, 2).items()}, small
    yield "folders/many files, in which order", {
        f"{c}/{i}.png": data for c in two for i, data in
        enumerate(files(["x"], 11, formats=("png",)).values())}, small
    yield "folders/no picture at all", {"ant/": np.zeros(0, dtype=np.uint8)}, small
    large = files(two, 2, size=(120, 140), formats=("jpg",))
    yield "large JPEGs/8x10", large, {**small, "fast_dct": True}
    yield "large JPEGs/30x30", large, {"height": 30, "width": 30, "fast_dct": True}
    yield "large JPEGs, all pixels/30x30", large, {"height": 30, "width": 30, "fast_dct": True,
                                                  "scaled_decoding": False}


def cases():
    for name, inputs, options in rows():
        yield Case(f"keras/{name}", "folder", options, inputs,
                   lambda a=(inputs, options): keras_run(*a), roundings=64, absolute=FIXED_POINT,
                   golden=name.startswith(("labels", "classes", "aspect", "split")))
