"""A training step and a transformer's inference in PyTorch, through the pool and through PyTorch's own allocator: the
results must be equal bit for bit; a table compares peak and time.

    python gpu_torch.py
"""

import json
import subprocess
import sys
import time


def workload():
    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []

    def step(length):
        x = torch.randn(16, length, 512, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.detach())

    lengths = [64, 128, 96, 200, 33, 128]
    for length in lengths:
        step(length)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(5):
        for length in lengths:
            step(length)
    torch.cuda.synchronize()
    training = time.perf_counter() - start

    model.eval()
    with torch.inference_mode():
        x = torch.randn(16, 256, 512, device="cuda")
        y = model(x)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(30):
            y = model(x)
        torch.cuda.synchronize()
        inference = time.perf_counter() - start
    results = [loss.item().hex() for loss in losses] + [float(value).hex() for value in y.double().sum(dim=(1, 2)).cpu()]
    return {"results": results, "training": training, "inference": inference}


def child(which):
    import torch

    if which == "trtalloc":
        import trtalloc

        trtalloc.use_for_torch()
        figures = workload()
        stats = trtalloc.stats()
        figures["peak"], figures["reserved"] = stats["allocated_peak"], stats["reserved_peak"]
    else:
        figures = workload()
        figures["peak"] = torch.cuda.max_memory_allocated()
        figures["reserved"] = torch.cuda.max_memory_reserved()
    print(json.dumps(figures))


def main():
    rows = {}
    for which in ("pytorch", "trtalloc"):
        command = [sys.executable, __file__, which]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows[which] = json.loads(done.stdout.splitlines()[-1])
    print(f"{'allocator':<10} {'peak MiB':>10} {'reserved MiB':>13} {'training s':>11} {'inference s':>12}")
    for which, row in rows.items():
        print(
            f"{which:<10} {row['peak'] / 2**20:>10.1f} {row['reserved'] / 2**20:>13.1f}"
            f" {row['training']:>11.3f} {row['inference']:>12.3f}"
        )
    assert rows["pytorch"]["results"] == rows["trtalloc"]["results"], "the results differ"
    print("results are equal")


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
