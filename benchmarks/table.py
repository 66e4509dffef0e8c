"""`docs/scaling.md` from the results of the other benchmarks and the cost model; no number in it is typed by hand.

python -m benchmarks.table
"""

import json
from pathlib import Path
from typing import Any

import click

from benchmarks.common import RESULTS
from benchmarks.cost import SHAPES, Shape, exact_cost, qb_cost, six_axis_cost, states_cost, weights_bytes
from benchmarks.scaling import errors, flop_exponents, predicted
from sparse_control.files import write_text

OUT = Path(__file__).parent.parent / "docs" / "scaling.md"
TOKENS, PROMPTS, COLUMNS, WINDOW = 128, 256, 288, 7
TARGETS = {
    "exact": (
        ("ratio", "times the full-sequence VJP loop", ">= 100"),
        ("share_of_matrix_rate", "share of the matrix rate, counted as 2 d P flops", ">= 0.6"),
        ("share_of_matrix_rate_done", "share of the matrix rate, flops that are done", ""),
        ("largest_relative_difference", "largest relative difference from the loop", "<= 1e-4"),
        ("seconds", "seconds a prompt", ""),
        ("seconds_prefix", "of which the forward over the first tokens", ""),
        ("seconds_forward_and_merged_mlps", "of which the last token's forward and the merged MLPs", ""),
        ("seconds_sweep", "of which the sweep", ""),
    ),
    "qb": (
        ("ratio", "one middle layer over its floor", "<= 1.2"),
        ("exact_ratio", "one middle layer over the exact all-layer sweep", ""),
        ("nested_ratio", "six nested ranks over the largest alone", "<= 1.1"),
        ("seconds_per_prompt", "seconds a prompt", ""),
        ("prefix_seconds_per_prompt", "of which the forward over the first tokens", ""),
        ("products_floor_seconds_per_prompt", "floor of the products at the matrix rate", ""),
        ("difference_from_dense", "relative difference from QB of the exact matrix", ""),
    ),
    "six_axis": (
        ("ratio", "times the plain way", ">= 15"),
        ("largest_difference_logits", "largest difference of a readout, logits", "<= 1e-4"),
        ("seconds", "seconds a record", ""),
        ("tokens_per_prompt", "tokens a prompt; those from the sites on run in every readout", ""),
    ),
    "iss": (
        ("iss_seconds", "ISS of 300 facts x 15 queries, d = 896, 8 layers, seconds", "<= 10"),
        ("bootstrap_seconds", "10,000 bootstrap replicates, 1,000 facts, seconds", "<= 1"),
    ),
    "reproduce": (
        ("reproduce_seconds", "`reproduce`, seconds", "<= 10"),
        ("verify_seconds", "`verify`, seconds", "<= 20"),
    ),
}


def _results() -> list[tuple[str, dict[str, Any]]]:
    found = [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    return [(result["benchmark"], result) for result in found if "benchmark" in result]


def _number(value: float) -> str:
    return f"{value:.3g}"


def _bytes(value: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e3:.3g} kB"


def _flops(value: float) -> str:
    for unit, size in (("E", 1e18), ("P", 1e15), ("T", 1e12)):
        if value >= size:
            return f"{value / size:.3g} {unit}flop"
    return f"{value / 1e9:.3g} Gflop"


def measured_table(results: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """One row per figure and run, with its limit."""
    lines = ["| benchmark | model | threads | load | figure | limit | measured |", "|---|---|---|---|---|---|---|"]
    for name, result in results:
        for key, label, limit in TARGETS.get(name, ()):
            model, threads, load = result.get("model", ""), result["threads"], result["load"]
            if "support" in result:
                position = result["support"][0].rpartition("@")[2]
                model += f", sites at {position}"
                if key == "ratio" and position != "-1":
                    limit = ""  # the limit is for the last position, where no token is run again
            cells = name, model, threads, load, label, limit, _number(result[key])
            lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def notes(results: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Where the time of QB goes."""
    lines = []
    for name, result in results:
        if name == "qb":
            exact, prefix = result["exact_seconds_per_prompt"], result["prefix_seconds_per_prompt"]
            floor = prefix + result["products_floor_seconds_per_prompt"]
            sizes = f"d = {result['width']}, T = {result['tokens']}, r = {result['columns']}"
            lines += [
                "",
                f"QB on {result['model']} ({sizes}): both ways need the forward over the",
                f"first tokens of a prompt, {prefix / exact:.0%} of the exact sweep's time. With the products at the",
                f"matrix rate beside it, QB cannot fall below {floor / exact:.0%}.",
            ]
    return lines and [
        *lines,
        "",
        "The exact sweep merges the matrices of each MLP, which pays for about d cotangents and not for r, so it takes",
        "fewer than 2 d P flops while QB does not. Several layers, seeds and probe kinds in the same passes, and power",
        "iterations on kept keys and values, share the forward; it is a smaller part of wider models.",
    ]


def exponent_table(scaling: dict[str, Any]) -> list[str]:
    """Slopes of log time over log size, beside those of the cost model's flops."""
    sizes, base = scaling["sizes"], scaling["base"]
    lines = [
        "| size | from | to | exact Jacobian: time | flops | QB of one middle layer: time | flops |",
        "|---|---|---|---|---|---|---|",
    ]
    flops = flop_exponents(base, sizes)
    for name, values in sizes.items():
        found = [slopes[way].get(name, "-") for way in ("exact", "qb") for slopes in (scaling["exponents"], flops)]
        lines.append(f"| {name} | {values[0]} | {values[-1]} | " + " | ".join(map(str, found)) + " |")
    asked = ", ".join(f"{model['all_layers_over_one']} ({name})" for name, model in scaling["models"].items())
    around = ", ".join(f"{name} = {value}" for name, value in base.items())
    return [
        "Slopes of log cost over log size on random models; short runs are held up by overheads that do not grow.",
        "",
        *lines,
        "",
        f"The other sizes are {around}. All layers take {asked} times the time of the first layer alone.",
    ]


def check_table(scaling: dict[str, Any]) -> list[str]:
    """Cost model against measurement."""
    lines = ["| model | what | cost model | measured | error |", "|---|---|---|---|---|"]
    for name, model in scaling["models"].items():
        said, off = predicted(Shape(**model["shape"])), errors(model)
        for what, value in model["measured"].items():
            shown = [(_flops if "flops" in what else _bytes)(number) for number in (said[what], value)]
            lines.append(f"| {name} | {what} | {shown[0]} | {shown[1]} | {100 * off[what]:.1f} % |")
    return lines


def model_tables() -> list[str]:
    """The cost model from the default up to 70B."""
    lines = [
        f"Corpus of {PROMPTS} prompts of {TOKENS} tokens; QB of {WINDOW} layers evenly spread, r = {COLUMNS}, no power",
        "iteration; states of 4,500 prompts of 24 tokens; a six-axis record of 32 pairs of 24 tokens and 1,000",
        "readouts from the middle block on. Memory is beside the weights, float32.",
        "",
        "| model | weights | exact, all layers: flops | memory | disk | QB: flops | memory | disk | states: flops "
        "| record: flops |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for shape in SHAPES:
        layers = tuple(shape.layers * (place + 1) // (WINDOW + 1) for place in range(WINDOW))
        exact = exact_cost(shape, tokens=TOKENS, prompts=PROMPTS)
        qb = qb_cost(shape, tokens=TOKENS, prompts=PROMPTS, layers=layers, columns=COLUMNS)
        states = states_cost(shape, tokens=24, prompts=4500, layers=WINDOW)
        record = six_axis_cost(shape, tokens=24, pairs=32, readouts=1000, first=shape.layers // 2)
        cells = [shape.name, _bytes(weights_bytes(shape))]
        for cost in (exact, qb):
            cells += [_flops(cost.flops), _bytes(cost.memory), _bytes(cost.disk)]
        lines.append("| " + " | ".join([*cells, _flops(states.flops), _flops(record.flops)]) + " |")
    return lines


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True)
def main(out: Path) -> None:
    """Write the page."""
    results = _results()
    parts = [
        "# Cost and scaling",
        "",
        "Written by `python -m benchmarks.table` from `benchmarks/results/` and `benchmarks/cost.py`.",
        "",
        "## Figures and their limits",
        "",
        "Ratios are taken within one run on one machine; seconds only show proportions. They are processor seconds",
        "with one thread and wall seconds with more. `load` is the machine's load when the run ended, other work",
        "included.",
        "",
        *measured_table(results),
        *notes(results),
    ]
    for name, result in results:
        if name == "scaling":
            parts += ["", "## How time grows", "", *exponent_table(result)]
            parts += ["", "## The cost model against measurement", "", *check_table(result)]
    parts += ["", "## Beyond one machine", "", *model_tables(), ""]
    write_text(out, "\n".join(parts))
    click.echo(out)


if __name__ == "__main__":
    main()
