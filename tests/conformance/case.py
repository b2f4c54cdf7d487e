"""A case: what Lockstep computes on one side and a peer on the other, from the same inputs."""

import dataclasses
import json
from typing import Any, Callable

import numpy as np
from safetensors import numpy as safetensors_numpy
from safetensors import safe_open

# The distance of 1 to the next number of a type.
EPSILON = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclasses.dataclass
class Case:
    name: str
    what: str  # what the driver does: "adam", "conv2d"
    options: dict[str, Any]
    inputs: dict[str, np.ndarray]
    # The peer's results by name; called once. Raises where the peer refuses.
    peer: Callable[[], dict[str, np.ndarray]]
    # How many roundings of the result's type, of numbers as large as the tensor's largest, may lie
    # between the two results. 0: the same to the bit.
    roundings: float = 64
    golden: bool = False  # kept with its results in golden/, for the test that needs no peer
    raises: bool = False  # the peer refuses, and Lockstep must
    refusal: str = ""  # how the peer said it
    # More than rounding, where a result is defined only so far: pixels of a decoder, say.
    absolute: float = 0.0
    # Where results are defined by a rule, not by the peer's numbers: outputs → why they break it.
    check: Callable[[dict[str, np.ndarray]], str | None] | None = None


def array(value, dtype=None):
    """NumPy's form of a peer's result."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    value = np.asarray(value)
    return value.astype(dtype) if dtype is not None else value


def write(path, cases, expected=None, metadata=None):
    """One file with all cases of an area: the list as JSON in its metadata, and the tensors."""
    tensors = {}
    listed = []
    for number, case in enumerate(cases):
        listed.append({
            "name": case.name,
            "what": case.what,
            "options": case.options,
            "inputs": sorted(case.inputs),
            "roundings": case.roundings,
            "absolute": case.absolute,
            "raises": case.raises,
        })
        for name, value in case.inputs.items():
            tensors[f"{number}/in/{name}"] = np.array(value, order="C")
        for name, value in (expected[number] if expected else {}).items():
            tensors[f"{number}/out/{name}"] = np.array(value, order="C")
    safetensors_numpy.save_file(tensors, path,
                                metadata={"cases": json.dumps(listed), **(metadata or {})})


def read(path, count):
    """The driver's results: for each case (outputs by name, or None, and the error)."""
    results = [({}, None) for _ in range(count)]
    with safe_open(path, framework="np") as file:
        for key in file.keys():
            number, name = key.split("/", 1)
            results[int(number)][0][name] = file.get_tensor(key)
        for key, message in (file.metadata() or {}).items():
            if key.isdigit():  # Lockstep keeps its checksums there, too.
                results[int(key)] = (None, message)
    return results


def difference(got, want, roundings, absolute=0.0):
    """Why two tensors differ by more than rounding; None where they do not."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return f"shape {got.shape}, the peer's {want.shape}"
    if want.size == 0:
        return None
    if want.dtype.kind in "iub" and absolute == 0.0:
        different = int(np.sum(got.astype(np.int64) != want.astype(np.int64)))
        return f"{different} of {want.size} elements differ" if different else None
    epsilon = max(EPSILON.get(str(got.dtype), 0.0), EPSILON.get(str(want.dtype), 0.0))
    g, w = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(w)
    scale = np.max(np.abs(w[finite])) if finite.any() else 0.0
    with np.errstate(invalid="ignore"):
        bound = roundings * epsilon * (np.abs(w) + scale) / 2 + absolute
        far = np.where(finite, ~(np.abs(g - w) <= bound),
                       ~((g == w) | (np.isnan(g) & np.isnan(w))))
    if not far.any():
        return None
    place = np.unravel_index(int(np.argmax(np.where(far, np.nan_to_num(np.abs(g - w), nan=1e300), -1))),
                             w.shape)
    at = tuple(int(i) for i in place)
    return (f"{int(far.sum())} of {w.size} elements, at {at}: {g[place]:.9g}, the peer's "
            f"{w[place]:.9g} (allowed {np.broadcast_to(bound, w.shape)[place]:.2g})")


def compare(case, outputs, error, expected):
    """Why a case differs; None where it agrees."""
    if case.raises:
        return None if error else f"Lockstep takes what the peer refuses ({case.refusal})"
    if error:
        return f"Lockstep refuses: {error}"
    if case.check is not None:
        return case.check(outputs)
    if sorted(outputs) != sorted(expected):
        return f"results {sorted(outputs)}, the peer's {sorted(expected)}"
    for name in sorted(expected):
        found = difference(outputs[name], expected[name], case.roundings, case.absolute)
        if found:
            return f"{name}: {found}"
    return None
