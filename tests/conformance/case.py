"""A case: a computation that Lockstep and a peer both do on the same inputs."""

import dataclasses
import json
from typing import Any, Callable

import numpy as np
from safetensors import numpy as safetensors_numpy
from safetensors import safe_open

# The machine epsilon of each type: the distance from 1 to the next number.
EPSILON = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclasses.dataclass
class Case:
    name: str
    what: str  # what the driver does: "adam", "conv2d"
    options: dict[str, Any]
    inputs: dict[str, np.ndarray]
    # The peer's results by name; called once. Raises if the peer refuses the case.
    peer: Callable[[], dict[str, np.ndarray]]
    # The tolerance, in rounding errors of the result's type at the mean of the magnitudes of the
    # element and of the tensor's largest element. 0: bit-identical.
    roundings: float = 64
    golden: bool = False  # kept with its results in golden/, for the test that needs no peer
    raises: bool = False  # the peer refuses, so Lockstep must, too
    refusal: str = ""  # the peer's message
    # An absolute tolerance for results that are not defined exactly, such as decoded pixels.
    absolute: float = 0.0
    # For results that must obey a rule instead of matching the peer's numbers: given the outputs,
    # returns why they break it, or None.
    check: Callable[[dict[str, np.ndarray]], str | None] | None = None


def array(value, dtype=None):
    """A peer's result as a NumPy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    value = np.asarray(value)
    return value.astype(dtype) if dtype is not None else value


def write(path, cases, expected=None, metadata=None):
    """Writes all cases of an area to one file: tensors, and the list as JSON in the metadata."""
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
    """The driver's results: for each case, (outputs by name, None) or (None, the error)."""
    results = [({}, None) for _ in range(count)]
    with safe_open(path, framework="np") as file:
        for key in file.keys():
            number, name = key.split("/", 1)
            results[int(number)][0][name] = file.get_tensor(key)
        for key, message in (file.metadata() or {}).items():
            if key.isdigit():  # other keys are Lockstep's checksums
                results[int(key)] = (None, message)
    return results


def difference(got, want, roundings, absolute=0.0):
    """Why two tensors differ by more than rounding; None if they do not."""
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
    """Why a case differs; None if it agrees."""
    if case.raises:
        return None if error else f"Lockstep accepts what the peer refuses ({case.refusal})"
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
