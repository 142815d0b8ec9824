#!/usr/bin/env python3
"""Times torch on the shapes of bench_kernels_cuda: `gpu_peers.py OUTPUT.json [BENCHMARK...]`.

Writes {benchmark: {"peer": ..., "seconds": ...}}. `seconds` is the median of 30 replays of a CUDA graph of 20 calls.
Measures first the named benchmarks that torch can run, then SHAPES. The file is valid after each shape. torch's scaled
dot product attention reads contiguous K and V, so its speed is an upper bound for a paged kernel. The exit status is 77
without torch or a GPU that torch can use.
"""

import json
import pathlib
import re
import statistics
import sys

NAME = re.compile(r"BM_(?:Linear/n:(\d+)/k:(\d+)/m:(\d+)"
                  r"|Attention/batch:(\d+)/cached:(\d+)/rows:(\d+)/heads:(\d+)/kv_heads:(\d+)/d:(\d+)/maps:\d)/?")
SHAPES = [f"BM_Linear/n:{n}/k:{k}/m:{m}" for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
          for m in (1, 8, 16, 32, 64, 128, 256, 512, 4096)]
SHAPES += [f"BM_Attention/batch:{batch}/cached:{cached}/rows:{rows}/heads:{heads}/kv_heads:{kv_heads}/d:{d}/maps:{maps}"
           for batch, cached, rows, heads, kv_heads, d in (
               (1, 1024, 1, 32, 8, 128), (32, 4096, 1, 32, 8, 128), (64, 8192, 1, 32, 8, 128), (32, 4096, 1, 32, 32, 64),
               (1, 0, 2048, 32, 8, 128), (1, 0, 8192, 32, 8, 128), (1, 0, 8192, 32, 8, 64))
           for maps in (0, 1)]


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


def linear(torch, n, k, m):
    copies = max(1, (256 << 20) // (n * k * 2))
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.05 for _ in range(copies)]
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    return measure(torch, lambda i: torch.nn.functional.linear(x, weights[i % copies]))


def attention(torch, batch, cached, rows, heads, kv_heads, d):
    q, k, v = (torch.randn(batch, h, t, d, device="cuda", dtype=torch.bfloat16)
               for h, t in ((heads, rows), (kv_heads, cached + rows), (kv_heads, cached + rows)))
    return measure(torch, lambda _: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=rows > 1, enable_gqa=heads != kv_heads))


def main():
    try:
        import torch
    except ImportError:
        print("torch is not installed, so there is no peer to time")
        return 77
    if not torch.cuda.is_available():
        print("torch finds no GPU")
        return 77
    output, result = pathlib.Path(sys.argv[1]), {}
    for name in dict.fromkeys(name.rstrip("/") for name in [*sys.argv[2:], *SHAPES]):
        match = NAME.fullmatch(name)
        if not match:
            continue
        sizes = [int(size) for size in match.groups() if size]
        peer, time = ("torch linear (cuBLAS)", linear) if len(sizes) == 3 else ("torch SDPA, contiguous", attention)
        seconds = time(torch, *sizes)
        result[name] = {"peer": f"{peer} {torch.__version__}", "seconds": seconds}
        print(f"{name}: {seconds * 1e6:.1f} us, {peer}")
        part = output.with_name(output.name + ".part")
        part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        part.replace(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
