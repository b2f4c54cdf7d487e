"""Runs Lockstep and its peers on one GPU in turn, round by round, and prints medians."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

PEERS = pathlib.Path(__file__).parent
# Work: model, batch, Lockstep's precision, the peers' precision, the goal in milliseconds.
WORK = {
    "mlp": ("mlp", 32, "float32", "f32", 0.03),
    "resnet50-f16": ("resnet50", 256, "mixed_float16", "f16", 28),
    "resnet50-bf16": ("resnet50", 256, "mixed_bfloat16", "bf16", 30),
    "resnet50-400": ("resnet50", 400, "mixed_float16", "f16", 400 / 9.0),
}


def contenders(work, lockstep):
    model, batch, ours, theirs, _ = WORK[work]
    python = sys.executable
    rows = [("Lockstep", [lockstep, "bench", "--model", model, "--batch-per-replica", str(batch),
                          "--precision", ours, "--devices", "cuda:0",
                          "--optimizer", "adam" if model == "mlp" else "sgd", "--json", "-"])]
    for mode in ("eager", "graph", "compile"):
        rows.append((f"PyTorch, {mode}", [python, PEERS / "torch_gpu.py", model, "--mode", mode,
                                          "--precision", theirs, "--batch", str(batch)]))
    rows.append(("JAX", [python, PEERS / "jax_gpu.py", model, "--precision", theirs, "--batch", str(batch)]))
    return rows


def run(command):
    """(milliseconds per step, peak bytes), or the reason why there are none."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return lines[-1][:160]
    lines = done.stdout.strip()
    result = json.loads(lines[lines.index("{"):])
    result = result["results"][0] if "results" in result else result
    return result["step_ms"], result.get("peak_bytes")


def compare(work, options):
    rows = contenders(work, options.lockstep)
    measured = {name: [] for name, _ in rows}
    failures = {}
    for turn in range(options.rounds):
        for name, command in rows if turn % 2 == 0 else reversed(rows):
            if name in failures:
                continue
            result = run(command)
            if isinstance(result, str):
                failures[name] = result
            else:
                measured[name].append(result)
    model, batch, precision, _, goal = WORK[work]
    print(f"\n{model}, batch {batch}, {precision} ({options.rounds} rounds)", flush=True)
    ours = None
    for name, _ in rows:
        if not measured[name]:
            print(f"  {name:<18} {failures.get(name, 'not run')}", flush=True)
            continue
        ms = statistics.median(m for m, _ in measured[name])
        peak = measured[name][0][1]
        ours = ms if name == "Lockstep" else ours
        text = f"  {name:<18} {ms:9.4f} ms  {batch / ms * 1e3:10.0f} samples/s"
        text += f"  {peak / 2**30:6.2f} GiB" if peak else " " * 12
        if name == "Lockstep":
            text += f"  goal {goal:.2f} ms: {'met' if ms <= goal else 'missed'}"
        elif ours is not None:
            text += f"  Lockstep is {ms / ours:.2f}x as fast"
        print(text, flush=True)
    return {"work": work, "measured": measured, "failures": failures}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--work", default=",".join(WORK))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    unknown = [work for work in options.work.split(",") if work not in WORK]
    if unknown:
        sys.exit(f"unknown work {', '.join(unknown)}: choose from {', '.join(WORK)}")
    results = [compare(work, options) for work in options.work.split(",")]
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1))


main()
