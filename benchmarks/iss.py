"""ISS and its bootstrap at a large benchmark's size, against their limits of 10 s and 1 s.

    python -m benchmarks.iss [--threads 1] [--out FILE]

ISS of 300 facts x 15 queries in 8 layers of width 896; 10,000 bootstrap replicates over 1,000 facts in 12 relations.
The last line is the smaller of limit / seconds.
"""

from pathlib import Path

import click
import numpy as np

from benchmarks.common import report, timed
from sparse_control.iss.score import internal_state_stability
from sparse_control.iss.uncertainty import relation_bootstrap
from sparse_control.threads import pin_threads

FACTS, QUERIES, FAMILIES, WIDTH, LAYERS, RELATIONS = 300, 15, 5, 896, 8, 12
LIMITS = {"iss": 10.0, "bootstrap": 1.0}


@click.command()
@click.option("--threads", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: benchmarks/results/iss.json.")
def main(threads: int, out: Path | None) -> None:
    """Time both."""
    pin_threads(threads)
    draws = np.random.default_rng(0)
    rows = [(fact, query % FAMILIES) for fact in range(FACTS) for query in range(QUERIES)]
    facts, families = [f"fact {fact}" for fact, _ in rows], [f"family {family}" for _, family in rows]
    relations = [f"relation {fact % RELATIONS}" for fact, _ in rows]
    states = [draws.standard_normal((len(rows), WIDTH)) for _ in range(LAYERS)]
    iss_seconds, _ = timed(lambda: [internal_state_stability(z, facts, relations, families, 0.1) for z in states])
    values = draws.random(1000)
    bootstrap_seconds, _ = timed(lambda: relation_bootstrap(values, [f"relation {i % 12}" for i in range(1000)]))
    result = {
        "iss_rows": len(rows),
        "iss_layers": LAYERS,
        "iss_seconds": iss_seconds,
        "bootstrap_replicates": 10_000,
        "bootstrap_seconds": bootstrap_seconds,
        "ratio": min(LIMITS["iss"] / iss_seconds, LIMITS["bootstrap"] / bootstrap_seconds),
    }
    report("iss", result, "ratio", out)


if __name__ == "__main__":
    main()
