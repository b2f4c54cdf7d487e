"""Decoding of JPEG and PNG files, compared with TensorFlow and Pillow."""

import io

import numpy as np
import tensorflow as tf
from case import Case, array
from pictures import encoded, scene
from PIL import Image


def case(name, data, options, peer, **more):
    return Case(name, "decode", options, {"file": data}, lambda: {"pixels": array(peer())}, **more)


def tf_jpeg(data, **options):
    return tf.io.decode_jpeg(data.tobytes(), **{"channels": 3, "dct_method": "INTEGER_ACCURATE",
                                                **options})


def jpegs():
    seed = 0
    for size in ((1, 1), (7, 5), (16, 16), (33, 65), (64, 48), (100, 3)):
        for quality in (30, 75, 95):
            for subsampling in (0, 1, 2):
                for progressive in (False, True):
                    seed += 1
                    image = Image.fromarray(scene(seed, *size))
                    data = encoded(image, format="JPEG", quality=quality, subsampling=subsampling,
                                   progressive=progressive)
                    title = (f"{size[0]}x{size[1]}/quality={quality}/subsampling={subsampling}/"
                             f"{'progressive' if progressive else 'baseline'}")
                    yield case(f"tf/jpeg/{title}", data, {}, lambda a=data: tf_jpeg(a),
                               golden=size == (7, 5) and quality == 75)
    for size in ((9, 8), (40, 33)):
        seed += 1
        grey = Image.fromarray(scene(seed, *size, 1)[..., 0])
        colour = Image.fromarray(scene(seed, *size))
        for name, data in (("grey", encoded(grey, format="JPEG")),
                           ("colour", encoded(colour, format="JPEG"))):
            title = f"{name}/{size[0]}x{size[1]}"
            yield case(f"tf/jpeg/{title}/as grey", data, {"color_mode": "grayscale"},
                       lambda a=data: tf_jpeg(a, channels=1), golden=True)
            yield case(f"tf/jpeg/{title}/as colour", data, {"color_mode": "rgb"},
                       lambda a=data: tf_jpeg(a), golden=True)
            yield case(f"tf/jpeg/{title}/fast", data, {"fast_dct": True},
                       lambda a=data: tf_jpeg(a, dct_method="INTEGER_FAST"))
            yield case(f"pillow/jpeg/{title}", data, {"color_mode": "rgb"},
                       lambda a=data: Image.open(io.BytesIO(a.tobytes())).convert("RGB"))
            yield case(f"pillow/jpeg/{title}/as colour and alpha", data, {"color_mode": "rgba"},
                       lambda a=data: Image.open(io.BytesIO(a.tobytes())).convert("RGBA"))
    for denominator in (2, 4, 8):
        for size in ((64, 64), (80, 48)):
            seed += 1
            data = encoded(Image.fromarray(scene(seed, *size)), format="JPEG", quality=85)
            yield case(f"tf/jpeg/1 of {denominator}/{size[0]}x{size[1]}", data,
                       {"at_least_width": size[1] // denominator,
                        "at_least_height": size[0] // denominator},
                       lambda a=(data, denominator): tf_jpeg(a[0], ratio=a[1]))
    for subsampling in (0, 2):
        for x, y, width, height in ((0, 0, 20, 20), (5, 9, 30, 17), (33, 20, 15, 28), (47, 47, 1, 1)):
            seed += 1
            data = encoded(Image.fromarray(scene(seed, 48, 48)), format="JPEG",
                           subsampling=subsampling)
            # Decoding a region must give the same pixels as cropping the whole picture.
            yield case(f"tf/jpeg/region {x},{y},{width},{height}/subsampling={subsampling}", data,
                       {"region": [x, y, width, height]},
                       lambda a=(data, x, y, width, height):
                       tf_jpeg(a[0])[a[2]:a[2] + a[4], a[1]:a[1] + a[3]])
    cmyk = encoded(Image.fromarray(scene(900, 20, 24, 4), mode="CMYK"), format="JPEG")
    yield case("tf/jpeg/CMYK", cmyk, {}, lambda: tf_jpeg(cmyk))


def pngs():
    seed = 5000
    modes = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
    for size in ((1, 1), (8, 9), (31, 40)):
        for mode, channels in modes.items():
            seed += 1
            pixels = scene(seed, *size, channels)
            image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels, mode=mode)
            data = encoded(image, format="PNG")
            for wanted, count in (("grayscale", 1), ("rgb", 3), ("rgba", 4)):
                yield case(f"tf/png/{mode}/{size[0]}x{size[1]}/as {wanted}", data,
                           {"color_mode": wanted},
                           lambda a=(data, count): tf.io.decode_png(a[0].tobytes(), a[1]),
                           golden=size == (8, 9))
            if channels >= 3:
                yield case(f"pillow/png/{mode}/{size[0]}x{size[1]}/as grayscale", data,
                           {"color_mode": "grayscale"},
                           lambda a=image: np.asarray(a.convert("L"))[..., None], golden=True)
    for colours in (2, 16, 200):
        seed += 1
        palette = Image.fromarray(scene(seed, 12, 13)).quantize(colours)
        data = encoded(palette, format="PNG")
        yield case(f"tf/png/{colours} colours", data, {},
                   lambda a=data: tf.io.decode_png(a.tobytes(), 3), golden=True)
        yield case(f"pillow/png/{colours} colours", data, {},
                   lambda a=data: Image.open(io.BytesIO(a.tobytes())).convert("RGB"))
    deep = (scene(6000, 9, 10, 1)[..., 0].astype(np.uint16) * 257)
    data = encoded(Image.fromarray(deep), format="PNG")
    yield case("tf/png/16 bits", data, {"color_mode": "grayscale"},
               lambda: tf.io.decode_png(data.tobytes(), 1))
    bits = encoded(Image.fromarray(scene(6001, 9, 10, 1)[..., 0] > 128), format="PNG")
    yield case("tf/png/1 bit", bits, {}, lambda: tf.io.decode_png(bits.tobytes(), 3), golden=True)


def damaged():
    good = encoded(Image.fromarray(scene(7000, 40, 40)), format="JPEG")
    png = encoded(Image.fromarray(scene(7001, 40, 40)), format="PNG")
    text = np.frombuffer(b"this is no picture", dtype=np.uint8)
    for name, data in (("a JPEG cut in half", good[:good.size // 2]),
                       ("a PNG cut in half", png[:png.size // 2]), ("text", text),
                       ("a JPEG's first bytes", good[:20])):
        yield case(f"tf/damaged/{name}", data.copy(), {},
                   lambda a=data: tf.io.decode_image(a.tobytes(), 3))


def cases():
    yield from jpegs()
    yield from pngs()
    yield from damaged()
