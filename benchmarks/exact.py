"""Exact all-layer Jacobian against the full-sequence VJP loop and against the machine's own matrix rate.

    python benchmarks/exact.py [--tokens 128] [--peer-batches 2] [--repeats 3] [--threads 2] [--out FILE]

The peer pulls 16 cotangents at a time back through a full forward of the same prompt, as public Jacobian-lens fitting
does; a few of its batches are timed and scaled to all of them. Both give the same Jacobian, which is checked.
The last line is the ratio peer / ours.
"""

import time
from pathlib import Path

import click
import torch

from sparse_control.files import write_json
from sparse_control.jacobian import exact_jacobian
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.stream import first_input_as_leaf, full_stream

PEER_BATCH = 16
TEXT = "The lighthouse keeper wrote in the log that the storm had passed by morning and the boats were safe. "


def timed(function, repeats: int) -> tuple[float, object]:
    """Best wall time of some repeats, in seconds, and the last result."""
    best, result = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - start)
    return best, result


def matrix_rate(size: int = 2048) -> float:
    """Flops per second of a float32 matrix product."""
    left = torch.randn(size, size)
    seconds, _ = timed(lambda: left @ left, repeats=5)
    return 2 * size**3 / seconds


def peer_rows(lm: LanguageModel, ids: torch.Tensor, batches: int) -> torch.Tensor:
    """The first `batches * PEER_BATCH` rows of every layer's Jacobian, (L, rows, d), by full-sequence VJPs."""
    rows = []
    for batch in range(batches):
        repeated = ids.expand(PEER_BATCH, -1)
        with torch.enable_grad(), first_input_as_leaf(lm):
            stream = full_stream(lm, repeated)
        cotangent = torch.zeros_like(stream[-1])
        for row in range(PEER_BATCH):
            cotangent[row, -1, batch * PEER_BATCH + row] = 1.0
        pulled = torch.autograd.grad(stream[-1], stream[:-1], cotangent)
        rows.append(torch.stack([state[:, -1] for state in pulled]))
    return torch.cat(rows, dim=1)


@click.command()
@click.option("--model", default="smollm2-135m-instruct", show_default=True)
@click.option("--tokens", default=128, show_default=True)
@click.option("--peer-batches", default=2, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("benchmarks/results/exact.json"), show_default=True)
def main(model: str, tokens: int, peer_batches: int, repeats: int, threads: int, out: Path) -> None:
    """Time both ways in one run."""
    torch.set_num_threads(threads)
    lm = load_model(model)
    ids = lm.encode(TEXT * (tokens // 10))[:tokens]
    exact_jacobian(lm, ids)  # warm
    seconds, jacobian = timed(lambda: exact_jacobian(lm, ids), repeats)
    start = time.perf_counter()
    rows = peer_rows(lm, ids, peer_batches)
    peer = (time.perf_counter() - start) * lm.width / (peer_batches * PEER_BATCH)
    ours = jacobian[:, : rows.shape[1]]
    difference = max(float((a - b).norm() / b.norm()) for a, b in zip(ours, rows))
    parameters = sum(p.numel() for block in lm.layout.blocks for p in block.parameters())
    rate = matrix_rate()
    share = 2 * lm.width * parameters / seconds / rate
    result = {
        "model": lm.name,
        "tokens": len(ids),
        "threads": threads,
        "seconds": seconds,
        "peer_seconds": peer,
        "peer_rows_timed": peer_batches * PEER_BATCH,
        "largest_relative_difference": difference,
        "matrix_rate_gflops": rate / 1e9,
        "share_of_matrix_rate": share,
        "ratio": peer / seconds,
    }
    write_json(out, result)
    for name, value in result.items():
        click.echo(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    main()
