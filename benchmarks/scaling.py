"""How cost grows with prompts n, width d, layers L, tokens T, columns r; and the cost model against measurements.

    python -m benchmarks.scaling [--models NAME ...] [--threads 1] [--out FILE]

Exponents are slopes of log time over log size on random models, where one number is varied. Flops of the cost model
are held against counted ones, memory against the peak of a fresh process, disk against the files, on two models. The
last line is the largest error of the cost model.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import torch

from benchmarks.common import counted_flops, prompts, random_config, random_model, report, timed
from sparse_control.cost import Shape, exact_cost, qb_cost, shape_of, six_axis_cost, states_cost, weights_bytes
from sparse_control.jacobian import exact_jacobian
from sparse_control.jacobian.layers import randomized_qb_layers
from sparse_control.jacobian.store import tensor_bytes
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.sites import Site
from sparse_control.models.stream import residual_stream
from sparse_control.protocol.prompts import read_prompts

BASE = {"d": 384, "L": 6, "T": 128, "n": 2, "r": 48}
SIZES = {
    "d": (192, 384, 768, 1152),
    "L": (3, 6, 12, 24),
    "T": (64, 128, 256, 512),
    "n": (1, 2, 4, 8),
    "r": (24, 48, 96, 192),
}


def seconds(way: str, size: dict[str, int]) -> float:
    """Time of one measurement on a random model of a given size."""
    lm = random_model(size["d"], size["L"])
    ids = [(torch.arange(size["T"]) * 37 + shift) % 256 for shift in range(size["n"])]
    if way == "exact":
        return timed(lambda: [exact_jacobian(lm, prompt) for prompt in ids], 2)[0]
    return timed(lambda: randomized_qb_layers(lm, ids, [size["L"] // 2], size["r"] - 8, 8), 2)[0]


def exponents() -> dict[str, dict[str, float]]:
    """Way -> size -> slope of log time over log size, and of the cost model's flops."""
    found = {}
    for way, names in (("exact", "dLTn"), ("qb", "dLTnr")):
        found[way], found[f"{way} flops"] = {}, {}
        for name in names:
            sizes = [BASE | {name: value} for value in SIZES[name]]
            found[way][name] = slope(SIZES[name], [seconds(way, size) for size in sizes])
            found[f"{way} flops"][name] = slope(SIZES[name], [flops(way, size) for size in sizes])
    return found


def slope(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Of log cost over log size, by least squares."""
    return round(float(np.polyfit(np.log(sizes), np.log(costs), 1)[0]), 2)


def flops(way: str, size: dict[str, int]) -> float:
    """What the cost model says of the same measurement."""
    shape = shape_of("random", random_config(size["d"], size["L"]))
    if way == "exact":
        return exact_cost(shape, tokens=size["T"], prompts=size["n"]).flops
    return qb_cost(shape, tokens=size["T"], prompts=size["n"], layers=(size["L"] // 2,), columns=size["r"]).flops


def layers_asked(lm: LanguageModel, ids: torch.Tensor) -> float:
    """Time of the exact Jacobian at all layers over that at the first alone."""
    (alone, _), (every, _) = (timed(lambda: exact_jacobian(lm, ids, layers), 3) for layers in ([0], None))
    return every / alone


PEAK = """
import json, sys, torch
from benchmarks.common import prompts
from sparse_control.jacobian import exact_jacobian
from sparse_control.models import load_model
def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))
torch.set_num_threads(int(sys.argv[2]))
lm = load_model(sys.argv[1])
(ids,) = prompts(lm, 1, 128)
exact_jacobian(lm, ids[:16], [lm.n_layers - 1])
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
total = torch.zeros(lm.n_layers, lm.width, lm.width, dtype=torch.float64)
total += exact_jacobian(lm, ids)
print(json.dumps(status("VmHWM") - before))
"""


def checks(lm: LanguageModel, shape: Shape, threads: int) -> dict[str, dict[str, float]]:
    """What -> predicted, measured and their relative difference."""
    tokens, middle, columns = 128, lm.n_layers // 2, 96
    ids = prompts(lm, 2, tokens)
    site = Site("mlp", middle)
    cached = read_prompts(lm, ids, (site,))
    exact = exact_cost(shape, tokens=tokens, prompts=1)
    qb = qb_cost(shape, tokens=tokens, prompts=2, layers=(middle,), columns=columns)
    pairs = {
        "weights, bytes": (weights_bytes(shape), sum(p.nbytes for p in lm.model.parameters())),
        "exact Jacobian, flops": (exact.flops, counted_flops(lambda: exact_jacobian(lm, ids[0]))),
        "QB, flops": (qb.flops, counted_flops(lambda: randomized_qb_layers(lm, ids, [middle], columns - 32))),
        "states, flops": (
            states_cost(shape, tokens=tokens, prompts=2, layers=1).flops,
            counted_flops(lambda: residual_stream(lm, torch.stack(ids))),
        ),
        "patched readouts, flops": (
            six_axis_cost(shape, tokens=tokens, pairs=0, readouts=32, first=middle, off_target=0).flops,
            counted_flops(lambda: cached.patched_logits({site: torch.ones(2, 16, lm.width)})),
        ),
        "QB factors, bytes on disk": (qb.disk, 2 * len(tensor_bytes(torch.zeros(lm.width, columns)))),
        "a layer's exact Jacobian, bytes on disk": (
            exact.disk / shape.layers, len(tensor_bytes(torch.zeros(lm.width, lm.width)))
        ),
    }
    if Path("/proc/self/clear_refs").exists():
        child = subprocess.run(
            [sys.executable, "-c", PEAK, lm.name, str(threads)], check=True, capture_output=True, text=True
        )
        pairs["exact Jacobian, bytes of memory"] = (exact.memory, json.loads(child.stdout.splitlines()[-1]))
    return {
        what: {"predicted": predicted, "measured": measured, "error": round(abs(predicted / measured - 1), 3)}
        for what, (predicted, measured) in pairs.items()
    }


@click.command()
@click.option(
    "--models", multiple=True, default=("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"), show_default=True
)
@click.option("--threads", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: benchmarks/results/scaling.json.")
def main(models: tuple[str, ...], threads: int, out: Path | None) -> None:
    """Measure exponents and the errors of the cost model."""
    torch.set_num_threads(threads)
    result = {"base": BASE, "sizes": {name: list(values) for name, values in SIZES.items()}, "exponents": exponents()}
    asked, cost_model = {}, {}
    for name in models:
        lm = load_model(name)
        asked[lm.name] = round(layers_asked(lm, prompts(lm, 1, 128)[0]), 3)
        cost_model[lm.name] = checks(lm, shape_of(lm.name, lm.model.config), threads)
    result |= {"all_layers_over_one": asked, "cost_model": cost_model}
    errors = [row["error"] for rows in cost_model.values() for row in rows.values()]
    report("scaling", result | {"largest_error": max(errors)}, "largest_error", out)


if __name__ == "__main__":
    main()
