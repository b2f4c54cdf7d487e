"""PyTorch on one GPU, the same work as `lockstep bench`: prints one JSON object.

    torch_gpu.py mlp|resnet50 --mode eager|graph|compile [--precision f16|bf16|f32] [--batch N]

Times are medians over rounds of steps between two events. The inputs are already on the GPU, as they
are for Lockstep. f16 runs without loss scaling, which favours the peer.
"""
import argparse
import json
import statistics

import torch
import torch.nn.functional as F

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def mlp(batch):
    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    images = torch.randn(batch, 784, device="cuda")
    labels = torch.randint(0, 10, (batch,), device="cuda")
    return model.cuda(), images, labels, lambda p: torch.optim.Adam(p, fused=True, capturable=True)


def resnet50(batch):
    import torchvision
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    return model, images, labels, lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)


def make_step(options):
    model, images, labels, optimizer_of = {"mlp": mlp, "resnet50": resnet50}[options.work](options.batch)
    optimizer = optimizer_of(model.parameters())
    dtype = DTYPES[options.precision]
    forward = torch.compile(model) if options.mode == "compile" else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32,
                            cache_enabled=options.mode != "graph"):
            loss = F.cross_entropy(forward(images), labels)
        loss.backward()
        optimizer.step()

    if options.mode != "graph":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure(step, warm_up, steps, rounds=5):
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / steps)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["mlp", "resnet50"])
    parser.add_argument("--mode", choices=["eager", "graph", "compile"], default="eager")
    parser.add_argument("--precision", choices=list(DTYPES), default="f32")
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    step = make_step(options)
    small = options.work == "mlp"
    ms = measure(step, 50 if small else 10, 500 if small else 20)
    print(json.dumps({"step_ms": ms, "peak_bytes": torch.cuda.max_memory_allocated()}))


main()
