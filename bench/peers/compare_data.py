"""Runs the input pipeline and its peers in turn, round by round, and prints medians.

Each measurement is a separate process and counts images per second. If a peer is not installed, its
line says so.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

PEERS = pathlib.Path(__file__).parent


def per_second(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1:] or ["failed"]
    return json.loads(done.stdout.strip().splitlines()[-1])["per_s"], None


def measure(rows, rounds):
    """Name → figures of all rounds; the contenders take turns."""
    figures = {name: [] for name, _ in rows}
    for round_number in range(rounds):
        for name, command in rows:
            value, complaint = per_second(command)
            if value is None:
                if round_number == 0:
                    print(f"  {name}: not measured ({complaint[0][:100]})")
                continue
            figures[name].append(value)
    return {name: values for name, values in figures.items() if values}


def show(figures, unit):
    for name, values in figures.items():
        print(f"  {name:<34} {statistics.median(values):>12,.0f} {unit}"
              f"   ({min(values):,.0f} … {max(values):,.0f})")


def verdict(text, ratio, goal):
    print(f"  {text}: {ratio:.2f}   goal {goal}: {'holds' if ratio >= goal else 'MISSED'}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--tf-python", default=sys.executable)
    parser.add_argument("--photos", default="made")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    folder, seconds = options.photos, options.seconds
    if folder == "made":
        subprocess.run([options.bench, "bare", "made", "--seconds", "0.1"], check=True,
                       capture_output=True)
        import tempfile
        folder = pathlib.Path(tempfile.gettempdir()) / "lockstep-made-jpegs"

    counts = sorted({1, options.cores})
    rows = []
    for cores in counts:
        ours = [options.bench, "images", folder, "--cores", cores, "--seconds", seconds]
        bare = [options.bench, "bare", folder, "--cores", cores, "--seconds", seconds]
        rows += [(f"Lockstep, {cores}", ours), (f"bare libjpeg-turbo, {cores}", bare),
                 (f"torchvision, {cores}",
                  [sys.executable, PEERS / "data_torch.py", folder, cores, seconds]),
                 (f"tf.data, {cores}",
                  [options.tf_python, PEERS / "data_tf.py", folder, cores, seconds])]
    print(f"\nimages of {folder}: decode, random resized crop to 224², mirror, normalise, batch 64\n"
          f"({options.rounds} rounds, medians; with the number of threads or workers)")
    figures = measure(rows, options.rounds)
    show(figures, "images/s")
    median = {name: statistics.median(values) for name, values in figures.items()}
    for cores in counts:
        ours = median[f"Lockstep, {cores}"]
        verdict(f"of bare libjpeg-turbo, {cores}", ours / median[f"bare libjpeg-turbo, {cores}"],
                0.85)
        for peer in ("torchvision", "tf.data"):
            if f"{peer}, {cores}" in median:
                verdict(f"times {peer}, {cores}", ours / median[f"{peer}, {cores}"], 1.5)
    if options.cores >= 2:
        two = per_pair(rows, options.rounds)
        verdict("from 1 to 2 threads", two, 1.9)

    print("\nFashion-MNIST in memory, shuffled, batch 64, one core")
    memory = measure([("Lockstep", [options.bench, "memory", "--cores", 1, "--seconds", seconds])],
                     options.rounds)
    show(memory, "samples/s")
    verdict("million samples per second", statistics.median(memory["Lockstep"]) / 1e6, 5)


def per_pair(rows, rounds):
    """The median ratio of neighbouring measurements: a slow minute affects both."""
    commands = dict(rows)
    ratios = []
    for _ in range(rounds):
        one, _ = per_second(commands["Lockstep, 1"])
        two, _ = per_second(commands["Lockstep, 2"])
        ratios.append(two / one)
    return statistics.median(ratios)


if __name__ == "__main__":
    main()
