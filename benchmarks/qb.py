"""Matrix-free randomized QB against the exact all-layer sweep on the same prompts.

    python -m benchmarks.qb [--model NAME] [--prompts 8] [--columns 96] [--threads 1] [--out FILE]

One middle layer at r columns, and all nested ranks from one run against the largest alone. The factors are held against
those of the exact matrix. The floor is what cannot be left out: the forward over the first tokens of a prompt, which
the exact sweep needs as well, and the products with 2 r columns at the machine's matrix rate. The last line is the
ratio QB / floor.
"""

from pathlib import Path

import click
import torch

from benchmarks.common import benchmark_model, block_parameters, matrix_rate, prompts, report, timed
from sparse_control.jacobian import DenseOperator, Factors, corpus_operator, exact_jacobian, randomized_qb
from sparse_control.models.decode import DecodeStep
from sparse_control.threads import pin_threads

NESTED = 6


@click.command()
@click.option("--model", default="smollm2-135m-instruct", show_default=True, help="Or random-WIDTHxLAYERS.")
@click.option("--tokens", default=128, show_default=True)
@click.option("--prompts", "n", default=8, show_default=True)
@click.option("--columns", default=96, show_default=True, help="r = k + p, with p = 32.")
@click.option("--repeats", default=2, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: benchmarks/results/qb.json.")
def main(model: str, tokens: int, n: int, columns: int, repeats: int, threads: int, out: Path | None) -> None:
    """Time both ways in one run."""
    pin_threads(threads)
    lm = benchmark_model(model)
    ids = prompts(lm, n, tokens)
    middle, rank = lm.n_layers // 2, columns - 32
    exact_jacobian(lm, ids[0])  # warm

    def mean() -> torch.Tensor:
        total = torch.zeros(lm.width, lm.width, dtype=torch.float64)
        for prompt in ids:
            total += exact_jacobian(lm, prompt)[middle]
        return total / n

    def qb() -> Factors:
        return randomized_qb(corpus_operator(lm, ids, middle), rank)

    def nested() -> list[Factors]:
        factors = qb()
        return [factors.truncate(max(1, rank * (step + 1) // NESTED)) for step in range(NESTED)]

    exact_seconds, matrix = timed(mean)
    seconds, factors = timed(qb, repeats)
    nested_seconds, _ = timed(nested, repeats)
    batches = [ids[start : start + 4] for start in range(0, n, 4)]
    prefix_seconds, _ = timed(lambda: [DecodeStep.batch(lm, batch) for batch in batches], repeats)
    dense = randomized_qb(DenseOperator(matrix), rank)
    reference = dense.Q @ dense.B
    rate = matrix_rate()
    products = 4 * columns * block_parameters(lm) * (lm.n_layers - middle) / lm.n_layers / rate  # seconds
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
        "products_floor_seconds_per_prompt": products,
        "matrix_rate_gflops": rate / 1e9,
        "difference_from_dense": float((factors.Q.double() @ factors.B.double() - reference).norm() / reference.norm()),
        "nested_ratio": nested_seconds / seconds,
        "exact_ratio": seconds / exact_seconds,
        "ratio": seconds / (prefix_seconds + n * products),
    }
    report("qb", result, "ratio", out)


if __name__ == "__main__":
    main()
