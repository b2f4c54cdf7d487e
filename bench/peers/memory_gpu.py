"""The largest batch of ResNet-50 in f16 that trains within so much GPU memory, and how fast it is:
Lockstep with and without recomputation, PyTorch with and without its checkpointing. Memory is what each
system allocates; what the driver and the libraries take comes on top for both."""
import argparse
import json
import statistics
import subprocess
import sys

GIB = 2**30
STEP = 16  # batches are multiples of this


def largest(fits, low=STEP, high=4096):
    """The largest batch that fits; 0 if none does."""
    best = 0
    while low <= high:
        middle = (low + high) // 2 // STEP * STEP
        if fits(middle):
            best, low = middle, middle + STEP
        else:
            high = middle - STEP
    return best


def lockstep_command(program, verb, batch, *more):
    return [program, verb, "--model", "resnet50", "--batch-per-replica", str(batch), "--precision",
            "mixed_float16", "--devices", "cuda:0", *more, "--json", "-"]


def lockstep_largest(program, limit, recompute):
    def fits(batch):
        more = ["--recompute", f"{limit}B"] if recompute else []
        done = subprocess.run(lockstep_command(program, "plan", batch, *more), capture_output=True, text=True)
        if done.returncode != 0:
            return False  # no choice of what is computed again gets below the budget
        plan = json.loads(done.stdout[done.stdout.index("{"):])
        return plan["devices"][0]["resident_bytes"] <= limit
    return largest(fits)


def lockstep_bench(program, batch, limit, recompute):
    more = ["--recompute", f"{limit}B"] if recompute else []
    done = subprocess.run(lockstep_command(program, "bench", batch, *more), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    row = json.loads(done.stdout[done.stdout.index("{"):])["results"][0]
    return row["step_ms"], row["peak_bytes"]


def torch_step(batch, checkpoint):
    """A training step of torchvision's ResNet-50, with every block computed again if asked for."""
    import torch
    import torchvision
    from torch.utils.checkpoint import checkpoint as recomputed
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    if checkpoint:
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
            for block in layer:
                forward = block.forward
                block.forward = lambda x, forward=forward: recomputed(forward, x, use_reentrant=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (batch,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return step


def torch_worker(batch, checkpoint, limit, steps):
    """In a process of its own: memory of an attempt that failed is never in the way of the next."""
    import torch
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    step = torch_step(batch, checkpoint)
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(3 if steps else 0):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / steps)
    print(json.dumps({"step_ms": statistics.median(times) if times else 0,
                      "peak_bytes": torch.cuda.max_memory_reserved()}))


def torch_run(batch, checkpoint, limit, steps):
    done = subprocess.run([sys.executable, __file__, "--torch", str(batch), "--checkpoint", str(int(checkpoint)),
                           "--limit", str(limit), "--steps", str(steps)], capture_output=True, text=True)
    if done.returncode != 0:
        if "out of memory" not in done.stderr:
            sys.exit(done.stderr)
        return None
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lockstep")
    parser.add_argument("--limit", type=int, default=16 * GIB, help="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--torch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        torch_worker(options.torch, options.checkpoint, options.limit, options.steps)
        return
    rows = []
    for again in (False, True):
        batch = lockstep_largest(options.lockstep, options.limit, again)
        rows.append((f"Lockstep{', recomputing' if again else ''}", batch,
                     lambda batch=batch, again=again: lockstep_bench(options.lockstep, batch, options.limit, again)))
    for again in (False, True):
        batch = largest(lambda b, again=again: torch_run(b, again, options.limit, 0) is not None, high=1536)
        def run(batch=batch, again=again):
            row = torch_run(batch, again, options.limit, options.steps)
            return row["step_ms"], row["peak_bytes"]
        rows.append((f"PyTorch{', checkpointing' if again else ''}", batch, run))
    measured = {name: [] for name, _, _ in rows}
    for turn in range(options.rounds):
        for name, _, run in rows if turn % 2 == 0 else reversed(rows):
            measured[name].append(run())
    plain = None
    print(f"ResNet-50, f16, the largest batch in {options.limit / GIB:.1f} GiB ({options.rounds} rounds)")
    for name, batch, _ in rows:
        ms = statistics.median(m for m, _ in measured[name])
        speed = batch / ms * 1e3
        plain = plain or speed
        print(f"  {name:<24} batch {batch:5}  {measured[name][0][1] / GIB:6.2f} GiB  {ms:8.1f} ms  "
              f"{speed:7.0f} images/s  {speed / plain:.2f} of Lockstep without recomputation", flush=True)


if __name__ == "__main__":
    main()
