"""torchvision's DataLoader: decode, random resized crop to 224, mirror, normalise, batches of 64."""
import json
import sys
import time

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

folder, workers, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
data = datasets.ImageFolder(folder, transforms.Compose([
    transforms.RandomResizedCrop(224),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]))


class Again(torch.utils.data.Dataset):
    """Repeats the files: an epoch of so few would end before the workers are warm."""

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        return data[index % len(data)]


loader = iter(DataLoader(Again(), batch_size=64, num_workers=workers,
                         sampler=torch.utils.data.SequentialSampler(Again())))
for _ in range(2 * workers):
    next(loader)
begin, count = time.perf_counter(), 0
while time.perf_counter() - begin < seconds:
    images, _ = next(loader)
    count += len(images)
print(json.dumps({"per_s": count / (time.perf_counter() - begin)}))
