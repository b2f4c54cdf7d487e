"""Runs Lockstep and its peers in turn, round by round, and prints medians.

Every measurement is a separate process; its peak memory is what the system counted for it. Rounds
are interleaved, so that a slow minute of the machine affects all of them.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PEERS = pathlib.Path(__file__).parent
BATCH = {"mlp": 32, "lenet": 64, "resnet50": 16}
STEPS = {"mlp": 5000, "lenet": 60, "resnet50": 4}
# The goals: Lockstep's speed relative to the best configuration of each peer.
GOALS = {("mlp", "PyTorch"): 4.5, ("mlp", "JAX"): 1.5, ("lenet", "PyTorch"): 2.5,
         ("resnet50", "PyTorch"): 1.2}
# Two replicas: relative to PyTorch's DistributedDataParallel, and to twice one replica.
DDP_GOALS = {"mlp": 10, "lenet": 2.5}
EFFICIENCY_GOALS = {"lenet": 0.95, "resnet50": 0.97}
# The same for two workers, which are processes.
WORKER_DDP_GOALS = {"lenet": 2}
WORKER_EFFICIENCY_GOALS = {"lenet": 0.92}


def run(command):
    """The process's output, its seconds and its peak memory in bytes."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output = child.stdout.read()
    complaint = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{complaint.decode()[-2000:]}")
    return output.decode(), time.perf_counter() - begin, usage.ru_maxrss * 1024


def contenders(work, lockstep, cores):
    """Name, team and command of every contender for this work."""
    python = sys.executable
    threads = sorted({1, cores})
    rows = []
    for count in threads:
        rows.append((f"Lockstep, {count} core(s)", "Lockstep",
                     [lockstep, "bench", "--model", work, "--batch-per-replica", str(BATCH[work]),
                      "--replicas", "1", "--cores", str(count), "--steps", str(STEPS[work]),
                      "--json", "-"]))
    for count in threads:
        rows.append((f"PyTorch, {count} thread(s)", "PyTorch",
                     [python, PEERS / "torch_cpu.py", work, "--threads", str(count)]))
    if work != "resnet50":
        rows.append(("JAX", "JAX", [python, PEERS / "jax_cpu.py", work]))
    return rows


def step_ms(output):
    result = json.loads(output)
    return result["results"][0]["step_ms"] if "results" in result else result["step_ms"]


def compare_work(work, options):
    rows = contenders(work, options.lockstep, options.cores)
    times = {name: [] for name, _, _ in rows}
    memory = {name: [] for name, _, _ in rows}
    for turn in range(options.rounds):
        # Every other round runs in reverse order, so that neighbours change.
        for name, _, command in rows if turn % 2 == 0 else reversed(rows):
            output, _, peak = run(command)
            times[name].append(step_ms(output))
            memory[name].append(peak)
    result = {"work": work, "batch": BATCH[work], "rounds": options.rounds, "rows": []}
    best = {}
    for name, team, _ in rows:
        row = {"name": name, "team": team, "step_ms": statistics.median(times[name]),
               "all_ms": times[name], "peak_rss_bytes": max(memory[name])}
        result["rows"].append(row)
        if team not in best or row["step_ms"] < best[team]["step_ms"]:
            best[team] = row
    ours = best["Lockstep"]
    result["ratios"] = {team: row["step_ms"] / ours["step_ms"] for team, row in best.items()
                        if team != "Lockstep"}
    result["memory_ratios"] = {team: ours["peak_rss_bytes"] / row["peak_rss_bytes"]
                               for team, row in best.items() if team != "Lockstep"}
    return result


def compare_mirrored(work, options):
    """Two replicas on a core each, compared with one on one core and with DDP in two processes."""
    batch, steps = str(BATCH[work]), str(STEPS[work])
    ours = [options.lockstep, "bench", "--model", work, "--batch-per-replica", batch, "--steps",
            steps, "--json", "-", "--replicas"]
    ddp = [sys.executable, PEERS / "torch_cpu.py", work, "--threads", "1", "--processes", "2"]
    times = {"1 replica": [], "2 replicas": [], "PyTorch DDP": []}
    efficiencies, at_once = [], []
    for turn in range(options.rounds):
        for who in ["ours", "ddp"] if turn % 2 == 0 else ["ddp", "ours"]:
            if who == "ddp":
                times["PyTorch DDP"].append(step_ms(run(ddp)[0]))
                continue
            for result in json.loads(run([*ours, "1,2"])[0])["results"]:
                name = "1 replica" if result["replicas"] == 1 else "2 replicas"
                times[name].append(result["step_ms"])
                if result["replicas"] == 2:
                    efficiencies.append(result["efficiency"])
                    at_once.append(result["cores_at_once"])
    medians = {name: statistics.median(values) for name, values in times.items()}
    # Both take turns in the same process, a few steps each.
    efficiency = statistics.median(efficiencies)
    return {"work": work, "batch": BATCH[work], "rounds": options.rounds, "all_ms": times,
            "step_ms": medians, "efficiency": efficiency, "cores_at_once": statistics.median(at_once),
            "ddp_ratio": medians["PyTorch DDP"] / medians["2 replicas"]}


def bench_workers(work, lockstep):
    """One worker alone and two together, as worker 0 of a job of two measures them in turns."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "result.json"
        run([lockstep, "launch", "--workers", "2", "--cores-per-worker", "1", "--", lockstep, "bench",
             "--model", work, "--batch-per-replica", str(BATCH[work]), "--steps", str(STEPS[work]),
             "--strategy", "multi-worker", "--json", result])
        one, two = json.loads(result.read_text())["results"]
    return one, two


def compare_ddp(work, options):
    """Two workers, processes with a core each, compared with one on one core and with DDP."""
    ddp = [sys.executable, PEERS / "torch_cpu.py", work, "--threads", "1", "--processes", "2"]
    times = {"1 worker": [], "2 workers": []}
    if options.peers:
        times["PyTorch DDP"] = []
    efficiencies, at_once = [], []
    for turn in range(options.rounds):
        for who in ["ours", "ddp"] if turn % 2 == 0 else ["ddp", "ours"]:
            if who == "ours":
                one, two = bench_workers(work, options.lockstep)
                times["1 worker"].append(one["step_ms"])
                times["2 workers"].append(two["step_ms"])
                efficiencies.append(two["efficiency"])
                at_once.append(two["cores_at_once"])
                transport = two["transport"]
            elif options.peers:
                times["PyTorch DDP"].append(step_ms(run(ddp)[0]))
    medians = {name: statistics.median(values) for name, values in times.items()}
    result = {"work": work, "batch": BATCH[work], "rounds": options.rounds, "all_ms": times,
              "step_ms": medians, "efficiency": statistics.median(efficiencies),
              "cores_at_once": statistics.median(at_once), "transport": transport}
    if options.peers:
        result["ddp_ratio"] = medians["PyTorch DDP"] / medians["2 workers"]
    return result


def verdict(value, goal):
    if goal is None:
        return ""
    return f"   goal {goal}: {'holds' if value >= goal else 'MISSED'}"


def print_mirrored(result):
    print(f"\n{result['work']}, 2 × batch {result['batch']}, one core each "
          f"({result['rounds']} rounds, medians)")
    for name, values in result["all_ms"].items():
        print(f"  {name:<24}{result['step_ms'][name]:>12.3f} ms"
              f"   ({min(values):.3f} … {max(values):.3f})")
    print(f"  {result['ddp_ratio']:.2f}× as fast as PyTorch DDP"
          f"{verdict(result['ddp_ratio'], DDP_GOALS.get(result['work']))}")
    print(f"  {result['efficiency']:.3f} of twice one replica"
          f"{verdict(result['efficiency'], EFFICIENCY_GOALS.get(result['work']))}")
    print(f"  {result['cores_at_once']:.3f} is the cores' speed with both busy, relative to one alone")


def print_ddp(result):
    print(f"\n{result['work']}, 2 workers × batch {result['batch']}, one core each, over "
          f"{result['transport']} ({result['rounds']} rounds, medians)")
    for name, values in result["all_ms"].items():
        print(f"  {name:<24}{result['step_ms'][name]:>12.3f} ms"
              f"   ({min(values):.3f} … {max(values):.3f})")
    if "ddp_ratio" in result:
        print(f"  {result['ddp_ratio']:.2f}× as fast as PyTorch DDP over Gloo in two processes"
              f"{verdict(result['ddp_ratio'], WORKER_DDP_GOALS.get(result['work']))}")
    print(f"  {result['efficiency']:.3f} of twice one worker"
          f"{verdict(result['efficiency'], WORKER_EFFICIENCY_GOALS.get(result['work']))}")
    print(f"  {result['cores_at_once']:.3f} is the cores' speed with both busy, relative to one alone")


def check_torch(options):
    """Whether PyTorch takes part; says what to install where it is missing."""
    if options.peers and importlib.util.find_spec("torch") is None:
        sys.exit(f"{sys.executable} has no PyTorch: run '{sys.executable} -m pip install torch', name "
                 "an environment that has it (--venv DIR), or leave it out (--no-peers)")


def wire_table(options):
    """All-reduce between two processes: ours beside Gloo's and MPI's own."""
    command = ["mpirun", "-n", "2", "--bind-to", "none", "--oversubscribe"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return run([*command, options.wire_bench])[0]


def compare_start(options):
    """From the start of the process until the first training step of the MLP is done."""
    python = sys.executable
    rows = [("Lockstep", [options.lockstep, "bench", "--model", "mlp", "--batch-per-replica", "32",
                          "--steps", "1", "--json", "-"]),
            ("PyTorch", [python, PEERS / "torch_cpu.py", "mlp", "--threads", str(options.cores),
                         "--first-step"]),
            ("JAX", [python, PEERS / "jax_cpu.py", "mlp", "--first-step"])]
    seconds = {name: [] for name, _ in rows}
    for _ in range(max(options.rounds, 3)):
        for name, command in rows:
            seconds[name].append(run(command)[1])
    return {"work": "start", "seconds": {name: statistics.median(values)
                                         for name, values in seconds.items()}}


def print_work(result):
    print(f"\n{result['work']}, batch {result['batch']} ({result['rounds']} rounds, medians)")
    for row in result["rows"]:
        spread = f"{min(row['all_ms']):.3f} … {max(row['all_ms']):.3f}"
        print(f"  {row['name']:<24}{row['step_ms']:>12.3f} ms   ({spread})"
              f"   {row['peak_rss_bytes'] / 2**20:>8.0f} MiB")
    for team, ratio in result["ratios"].items():
        goal = GOALS.get((result["work"], team))
        verdict = "" if goal is None else f"   goal {goal}×: {'holds' if ratio >= goal else 'MISSED'}"
        print(f"  {ratio:.2f}× as fast as {team}, {result['memory_ratios'][team]:.2f}× its memory"
              f"{verdict}")


def print_start(result):
    print("\nprocess start until the first MLP step is done")
    for name, seconds in result["seconds"].items():
        print(f"  {name:<24}{seconds:>12.3f} s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--mirrored", action="store_true", help="two replicas instead of one")
    parser.add_argument("--ddp", action="store_true", help="two workers instead of one")
    parser.add_argument("--wire-bench", help="the program that times all-reduces, after --ddp")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="Lockstep alone")
    parser.add_argument("work", nargs="*")
    options = parser.parse_args()
    options.cores = len(os.sched_getaffinity(0))

    results = []
    if options.mirrored:
        for work in options.work or BATCH:
            results.append(compare_mirrored(work, options))
            print_mirrored(results[-1])
            sys.stdout.flush()
    if options.ddp:
        check_torch(options)
        for work in options.work or ["lenet"]:
            results.append(compare_ddp(work, options))
            print_ddp(results[-1])
            sys.stdout.flush()
        if options.wire_bench:
            results.append({"work": "all-reduce", "table": wire_table(options)})
            print(f"\nall-reduce between two processes\n{results[-1]['table']}", end="")
    for work in [] if options.mirrored or options.ddp else options.work or [*BATCH, "start"]:
        results.append(compare_start(options) if work == "start" else compare_work(work, options))
        (print_start if work == "start" else print_work)(results[-1])
        sys.stdout.flush()
    if options.json:
        text = json.dumps({"cores": options.cores, "results": results}, indent=2)
        if options.json == "-":
            print(text)
        else:
            pathlib.Path(options.json).write_text(text + "\n")


main()
