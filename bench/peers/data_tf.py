"""tf.data: decode and crop, random resized crop to 224, mirror, normalise, batches of 64."""
import json
import os
import pathlib
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf  # noqa: E402

folder, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
tf.config.threading.set_inter_op_parallelism_threads(threads)
tf.config.threading.set_intra_op_parallelism_threads(1)
files = sorted(str(path) for path in pathlib.Path(folder).glob("*/*.jpg"))
mean = tf.constant([0.485, 0.456, 0.406]) * 255
deviation = tf.constant([0.229, 0.224, 0.225]) * 255


def sample(path):
    data = tf.io.read_file(path)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(data), tf.zeros([1, 0, 4]), min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10,
        use_image_if_no_bounding_boxes=True)
    y, x, _ = tf.unstack(begin)
    height, width, _ = tf.unstack(size)
    image = tf.image.decode_and_crop_jpeg(data, tf.stack([y, x, height, width]), channels=3)
    image = tf.image.resize(image, [224, 224])
    image = tf.image.random_flip_left_right(image)
    return (image - mean) / deviation


data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
data = data.map(sample, num_parallel_calls=threads).batch(64).prefetch(tf.data.AUTOTUNE)
options = tf.data.Options()
options.threading.private_threadpool_size = threads
data = iter(data.with_options(options))
for _ in range(2):
    next(data)
begin, count = time.perf_counter(), 0
while time.perf_counter() - begin < seconds:
    count += next(data).shape[0]
print(json.dumps({"per_s": count / (time.perf_counter() - begin)}))
