"""PyTorch's side of bench/compare: trains one model on random samples, in one process or in several
with DistributedDataParallel over Gloo.

usage: torch_cpu.py {mlp,lenet,resnet50} --threads N [--first-step] [--processes N]
Prints one JSON object: the median time of a step, in milliseconds.
"""
import argparse
import json
import os
import socket
import statistics
import time

import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def lenet():
    features = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(7 * 7 * 64, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*features, *head)


def resnet50():
    from torchvision.models import resnet50 as build
    return build()


# model, shape of a sample, classes, batch, steps to time
WORK = {
    "mlp": (mlp, (784,), 10, 32, 2000),
    "lenet": (lenet, (1, 28, 28), 10, 64, 40),
    "resnet50": (resnet50, (3, 224, 224), 1000, 16, 3),
}


def make_step(name, distributed=False):
    build, shape, classes, batch, _ = WORK[name]
    torch.manual_seed(0)
    model = build()
    samples = torch.randn(batch, *shape)
    labels = torch.randint(0, classes, (batch,))
    if name == "resnet50":  # PyTorch's faster layout for it
        model = model.to(memory_format=torch.channels_last)
        samples = samples.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters())
    if distributed:
        model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        criterion(model(samples), labels).backward()
        optimizer.step()

    return step


def measure(step, count):
    """The median time of a step in milliseconds, after a warm-up."""
    for _ in range(max(1, count // 10)):
        step()
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def work_in_group(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(options.threads)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=options.processes)
    step_ms = measure(make_step(options.model, distributed=True), WORK[options.model][-1])
    if rank == 0:
        print(json.dumps({"version": torch.__version__, "step_ms": step_ms}), flush=True)
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=WORK)
    parser.add_argument("--threads", type=int, required=True, help="threads per process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--first-step", action="store_true", help="stop after the first step")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(work_in_group, (options, port), options.processes)
        return

    step = make_step(options.model)
    step()
    if options.first_step:
        return
    step_ms = measure(step, WORK[options.model][-1])
    print(json.dumps({"version": torch.__version__, "step_ms": step_ms}))


if __name__ == "__main__":
    main()
