#!/usr/bin/env python3
"""Times torch on the shapes of bench_kernels_cuda: `gpu_peers.py OUTPUT.json`.

Writes {benchmark name: {"peer": ..., "seconds": ...}}, medians of 30 replays of a graph of 20 calls. torch's scaled
dot product attention reads contiguous K and V, so it is an upper bound for a paged kernel. Without torch it prints
a message and writes nothing. Exit status 1 if torch finds no GPU.
"""

import json
import pathlib
import statistics
import sys


def measure(torch, call, calls=20, samples=30):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    times = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3 / calls)
    return statistics.median(times)


def linear_peers(torch):
    for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
        copies = max(1, (256 << 20) // (n * k * 2))
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.05
                   for _ in range(copies)]
        for m in (1, 8, 16, 32, 64, 128, 256, 512, 4096):
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            seconds = measure(torch, lambda i: torch.nn.functional.linear(x, weights[i % copies]))
            yield f"BM_Linear/n:{n}/k:{k}/m:{m}", "torch linear (cuBLAS)", seconds


def attention_peers(torch):
    attend = torch.nn.functional.scaled_dot_product_attention
    shapes = ((1, 1024, 1, 32, 8, 128), (32, 4096, 1, 32, 8, 128), (64, 8192, 1, 32, 8, 128),
              (32, 4096, 1, 32, 32, 64), (1, 0, 2048, 32, 8, 128), (1, 0, 8192, 32, 8, 128),
              (1, 0, 8192, 32, 8, 64))
    for batch, cached, rows, heads, kv_heads, d in shapes:
        def random(h, t):
            return torch.randn(batch, h, t, d, device="cuda", dtype=torch.bfloat16)
        q, k, v = random(heads, rows), random(kv_heads, cached + rows), random(kv_heads, cached + rows)
        seconds = measure(torch, lambda _: attend(q, k, v, is_causal=rows > 1,
                                                  enable_gqa=heads != kv_heads))
        name = (f"BM_Attention/batch:{batch}/cached:{cached}/rows:{rows}/heads:{heads}"
                f"/kv_heads:{kv_heads}/d:{d}")
        for maps in (0, 1):
            yield f"{name}/maps:{maps}", "torch SDPA, contiguous", seconds


def main():
    try:
        import torch
    except ImportError:
        print("gpu_peers.py: torch is not installed, so there is no peer to time")
        return 0
    if not torch.cuda.is_available():
        print("gpu_peers.py: torch finds no GPU")
        return 1
    result = {}
    for peers in (linear_peers(torch), attention_peers(torch)):
        for name, peer, seconds in peers:
            result[name] = {"peer": f"{peer} {torch.__version__}", "seconds": seconds}
            print(f"{name}: {seconds * 1e6:.1f} us, {peer}")
    pathlib.Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
