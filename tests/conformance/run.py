"""Compares Lockstep with Keras and PyTorch: run.py --driver PROGRAM [AREA...]

Prints a line per area: the number of cases, and how many agree up to rounding, differ as intended
(deviations.json) and differ otherwise. The exit code is 1 if any case differs otherwise, or if a
listed deviation no longer occurs.
"""

import argparse
import fnmatch
import importlib
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
AREAS = ["optimizers", "schedules", "initializers", "losses", "logits", "metrics", "layers", "pooling",
         "images", "colors", "decoding", "folders", "resnets", "fit"]
# Keras's backend per area: PyTorch, except where TensorFlow itself is the peer.
BACKENDS = dict.fromkeys(["losses", "logits", "metrics", "pooling", "images", "decoding",
                          "folders"],
                         "tensorflow")
PACKAGES = ["keras", "torch", "torchvision", "tensorflow", "tensorflow-cpu", "numpy", "pillow"]


def versions():
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def deviations():
    return json.loads((HERE / "deviations.json").read_text())["deviations"]


def peer_results(case):
    """The peer's results. If the peer refuses a case, Lockstep must refuse it, too."""
    if case.raises or case.check:
        return {}
    try:
        return case.peer()
    except Exception as error:  # each framework raises different ones
        case.raises = True
        case.refusal = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return {}


def run_area(area, arguments):
    """Computes both sides of one area; returns the counts and the cases that differ."""
    from case import compare, read, write
    module = importlib.import_module(area)
    cases = list(module.cases())
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"{area}: two cases are called {sorted(twice)[0]}"
    if arguments.only:
        cases = [case for case in cases if fnmatch.fnmatch(case.name, arguments.only)]
    expected = [peer_results(case) for case in cases]
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = f"{folder}/cases.safetensors", f"{folder}/results.safetensors"
        write(inputs, cases)
        subprocess.run([arguments.driver, area, inputs, outputs], check=True)
        results = read(outputs, len(cases))
    meant = [row for row in deviations() if row["area"] == area]
    counts = {"cases": len(cases), "agree": 0, "meant": 0, "differ": 0}
    differing, seen, golden = [], set(), []
    for case, want, (got, error) in zip(cases, expected, results):
        why = compare(case, got, error, want)
        row = next((row for row in meant if fnmatch.fnmatch(case.name, row["cases"])), None)
        if why is None:
            counts["agree"] += 1
            golden += [(case, want)] if case.golden else []
        elif row is not None:
            counts["meant"] += 1
            seen.add(row["cases"])
        else:
            counts["differ"] += 1
            differing.append(f"{case.name}: {why}")
    if arguments.write_golden and golden:
        write(HERE / "golden" / f"{area}.safetensors", [case for case, _ in golden],
              [want for _, want in golden], {"versions": json.dumps(versions())})
    if not arguments.only:
        for row in meant:
            if row["cases"] not in seen:
                counts["differ"] += 1
                differing.append(f"{row['cases']}: a listed deviation that no case shows")
    return {"counts": counts, "differing": differing}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("areas", nargs="*", metavar="AREA", help=", ".join(AREAS))
    parser.add_argument("--driver", required=True, help="the program conformance_driver")
    parser.add_argument("--verbose", action="store_true", help="name every case that differs")
    parser.add_argument("--only", help="only cases whose name matches this pattern")
    parser.add_argument("--write-golden", action="store_true",
                        help="store the peers' results of some cases in golden/")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [area for area in arguments.areas if area not in AREAS]
    if unknown:
        parser.error(f"there is no area {unknown[0]}; there are: {', '.join(AREAS)}")

    if arguments.child:
        result = run_area(arguments.areas[0], arguments)
        pathlib.Path(arguments.child).write_text(json.dumps(result))
        return 0

    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    print(f"{'area':<14} {'cases':>6} {'agree':>6} {'meant':>6} {'differ':>6} {'s':>6}")
    total = {"cases": 0, "agree": 0, "meant": 0, "differ": 0}
    failed = False
    for area in arguments.areas or AREAS:
        began = time.monotonic()
        # A process per area: the peers' frameworks do not work well together in one process.
        environment = {**os.environ, "KERAS_BACKEND": BACKENDS.get(area, "torch"),
                       "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0",
                       "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1",
                       # The tensors are too small to gain from threads.
                       "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "result.json"
            command = [sys.executable, __file__, area, "--driver", arguments.driver,
                       "--child", str(path)]
            if arguments.only:
                command += ["--only", arguments.only]
            if arguments.write_golden:
                command.append("--write-golden")
            finished = subprocess.run(command, env=environment, cwd=HERE)
            if finished.returncode != 0 or not path.exists():
                print(f"{area:<14} did not finish")
                failed = True
                continue
            result = json.loads(path.read_text())
        counts = result["counts"]
        print(f"{area:<14} {counts['cases']:>6} {counts['agree']:>6} {counts['meant']:>6} "
              f"{counts['differ']:>6} {time.monotonic() - began:>6.0f}", flush=True)
        if result["differing"]:
            shown = result["differing"] if arguments.verbose else result["differing"][:5]
            for line in shown:
                print(f"    {line}")
            if len(shown) < len(result["differing"]):
                print(f"    … {len(result['differing']) - len(shown)} more: --verbose")
        for key in total:
            total[key] += counts[key]
    print(f"{'all':<14} {total['cases']:>6} {total['agree']:>6} {total['meant']:>6} "
          f"{total['differ']:>6}")
    return 1 if failed or total["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
