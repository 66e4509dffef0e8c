"""Exact all-layer Jacobian against the full-sequence VJP loop and against the machine's own matrix rate.

    python -m benchmarks.exact [--model NAME] [--tokens 128] [--peer-batches 2] [--repeats 3] [--threads 1] [--out FILE]

The peer pulls 16 cotangents at a time back through a full forward of the same prompt, as public Jacobian-lens fitting
does; a few of its batches are timed and scaled to all of them. Both give the same Jacobian, which is checked.
`share_of_matrix_rate` counts 2 d P flops, what pulling d cotangents through the weights takes; the sweep does with
fewer, as it merges the matrices of an MLP. The last line is the ratio peer / ours.
"""

from pathlib import Path

import click
import torch

from benchmarks.common import benchmark_model, block_parameters, counted_flops, matrix_rate, prompts, report, timed
from sparse_control.jacobian import exact_jacobian
from sparse_control.models import LanguageModel
from sparse_control.models.decode import DecodeStep
from sparse_control.models.stream import first_input_as_leaf, full_stream
from sparse_control.threads import pin_threads

PEER_BATCH = 16


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
@click.option("--model", default="smollm2-135m-instruct", show_default=True, help="Or random-WIDTHxLAYERS.")
@click.option("--tokens", default=128, show_default=True)
@click.option("--peer-batches", default=2, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: benchmarks/results/exact.json.")
def main(model: str, tokens: int, peer_batches: int, repeats: int, threads: int, out: Path | None) -> None:
    """Time both ways in one run."""
    pin_threads(threads)
    lm = benchmark_model(model)
    (ids,) = prompts(lm, 1, tokens)
    exact_jacobian(lm, ids)  # warm
    seconds, jacobian = timed(lambda: exact_jacobian(lm, ids), repeats)
    prefix_seconds, step = timed(lambda: DecodeStep(lm, ids), repeats)
    stream_seconds, _ = timed(lambda: step.stream(rows=lm.width), repeats)
    peer_seconds, rows = timed(lambda: peer_rows(lm, ids, peer_batches))
    peer_seconds *= lm.width / (peer_batches * PEER_BATCH)
    ours = jacobian[:, : rows.shape[1]]
    done = counted_flops(lambda: exact_jacobian(lm, ids))
    rate = matrix_rate()
    swept = 2 * lm.width * block_parameters(lm)
    result = {
        "model": lm.name,
        "tokens": len(ids),
        "seconds": seconds,
        "seconds_prefix": prefix_seconds,
        "seconds_forward_and_merged_mlps": stream_seconds,
        "seconds_sweep": seconds - prefix_seconds - stream_seconds,
        "peer_seconds": peer_seconds,
        "peer_rows_timed": peer_batches * PEER_BATCH,
        "largest_relative_difference": max(float((a - b).norm() / b.norm()) for a, b in zip(ours, rows, strict=False)),
        "matrix_rate_gflops": rate / 1e9,
        "gflop_done": done / 1e9,
        "share_of_matrix_rate_done": done / seconds / rate,
        "gflop_2dP": swept / 1e9,
        "share_of_matrix_rate": swept / seconds / rate,
        "ratio": peer_seconds / seconds,
    }
    report("exact", result, "ratio", out)


if __name__ == "__main__":
    main()
