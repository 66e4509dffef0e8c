"""Matrix-free randomized QB against the exact all-layer sweep on the same prompts.

    python -m benchmarks.qb [--model NAME] [--prompts 8] [--columns 96] [--threads 1] [--out FILE]

One middle layer at r columns; all nested ranks from one run against the largest alone; several layers in shared passes
against one layer each. The factors are held against those of the exact matrix. A product with r columns is short beside
the forward over the tokens of a prompt that both ways need, so the time is also given against its two floors. The last
line is the ratio QB / exact sweep.
"""

from pathlib import Path

import click
import torch

from benchmarks.common import benchmark_model, block_parameters, matrix_rate, prompts, report, timed
from sparse_control.jacobian import DenseOperator, exact_jacobian, randomized_qb
from sparse_control.jacobian.layers import randomized_qb_layers
from sparse_control.models.decode import DecodeStep

NESTED = 6


@click.command()
@click.option("--model", default="smollm2-135m-instruct", show_default=True, help="Or random-WIDTHxLAYERS.")
@click.option("--tokens", default=128, show_default=True)
@click.option("--prompts", "n", default=8, show_default=True)
@click.option("--columns", default=96, show_default=True, help="r = k + p, with p = 32.")
@click.option("--layers", default=4, show_default=True, help="How many layers share passes in the second comparison.")
@click.option("--repeats", default=2, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: benchmarks/results/qb.json.")
def main(
    model: str, tokens: int, n: int, columns: int, layers: int, repeats: int, threads: int, out: Path | None
) -> None:
    """Time both ways in one run."""
    torch.set_num_threads(threads)
    lm = benchmark_model(model)
    ids = prompts(lm, n, tokens)
    middle, rank = lm.n_layers // 2, columns - 32
    spread = [lm.n_layers * (place + 1) // (layers + 1) for place in range(layers)]
    exact_jacobian(lm, ids[0])  # warm

    def mean() -> torch.Tensor:
        total = torch.zeros(lm.width, lm.width, dtype=torch.float64)
        for prompt in ids:
            total += exact_jacobian(lm, prompt)[middle]
        return total / n

    def nested() -> list:
        (factors,) = randomized_qb_layers(lm, ids, [middle], rank).values()
        return [factors.truncate(max(1, rank * (step + 1) // NESTED)) for step in range(NESTED)]

    exact_seconds, matrix = timed(mean)
    seconds, factors = timed(lambda: randomized_qb_layers(lm, ids, [middle], rank), repeats)
    nested_seconds, _ = timed(nested, repeats)
    shared_seconds, _ = timed(lambda: randomized_qb_layers(lm, ids, spread, rank))
    batches = [ids[start : start + 4] for start in range(0, n, 4)]
    prefix_seconds, _ = timed(lambda: [DecodeStep.batch(lm, batch) for batch in batches], repeats)
    (factors,) = factors.values()
    dense = randomized_qb(DenseOperator(matrix), rank)
    reference = dense.Q @ dense.B
    rate = matrix_rate()
    products = 4 * columns * block_parameters(lm) * (lm.n_layers - middle) / lm.n_layers
    result = {
        "model": lm.name,
        "width": lm.width,
        "tokens": tokens,
        "prompts": n,
        "layer": middle,
        "columns": columns,
        "exact_seconds_per_prompt": exact_seconds / n,
        "seconds_per_prompt": seconds / n,
        "prefix_seconds_per_prompt": prefix_seconds / n,
        "products_floor_seconds_per_prompt": products / rate,
        "shared_layers": layers,
        "shared_seconds_per_prompt_and_layer": shared_seconds / n / layers,
        "matrix_rate_gflops": rate / 1e9,
        "difference_from_dense": float((factors.Q.double() @ factors.B.double() - reference).norm() / reference.norm()),
        "nested_ratio": nested_seconds / seconds,
        "shared_ratio": shared_seconds / layers / exact_seconds,
        "without_prefix_ratio": (seconds - prefix_seconds) / exact_seconds,
        "ratio": seconds / exact_seconds,
    }
    report("qb", result, "ratio", out)


if __name__ == "__main__":
    main()
