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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.common import counted_flops, prompts, random_config, random_model, report, timed
from benchmarks.cost import Shape, exact_cost, qb_cost, shape_of, six_axis_cost, states_cost, weights_bytes
from sparse_control.jacobian import corpus_operator, exact_jacobian, randomized_qb
from sparse_control.jacobian.store import tensor_bytes
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.sites import Site
from sparse_control.models.stream import residual_stream
from sparse_control.protocol.prompts import read_prompts
from sparse_control.threads import pin_threads

BASE = {"d": 384, "L": 6, "T": 128, "n": 2, "r": 48}
SIZES = {
    "d": (192, 384, 768, 1152),
    "L": (3, 6, 12, 24),
    "T": (64, 128, 256, 512),
    "n": (1, 2, 4, 8),
    "r": (24, 48, 96, 192),
}
WAYS = {"exact": "dLTn", "qb": "dLTnr"}
TOKENS, COLUMNS = 128, 96  # of the checks of the cost model


def seconds(way: str, size: dict[str, int]) -> float:
    """Time of one measurement on a random model of a given size."""
    lm = random_model(size["d"], size["L"])
    ids = [(torch.arange(size["T"]) * 37 + shift) % 256 for shift in range(size["n"])]
    if way == "exact":
        return timed(lambda: [exact_jacobian(lm, prompt) for prompt in ids], 2)[0]
    return timed(lambda: randomized_qb(corpus_operator(lm, ids, size["L"] // 2), size["r"] - 8, 8), 2)[0]


def exponents() -> dict[str, dict[str, float]]:
    """Way -> size -> slope of log time over log size."""
    return {
        way: {name: slope(SIZES[name], [seconds(way, BASE | {name: value}) for value in SIZES[name]]) for name in names}
        for way, names in WAYS.items()
    }


def flop_exponents(base: dict[str, int], sizes: dict[str, Sequence[int]]) -> dict[str, dict[str, float]]:
    """The same slopes of the cost model's flops."""
    return {
        way: {name: slope(sizes[name], [flops(way, base | {name: value}) for value in sizes[name]]) for name in names}
        for way, names in WAYS.items()
    }


def slope(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Of log cost over log size, by least squares."""
    return round(float(np.polyfit(np.log(sizes), np.log(costs), 1)[0]), 2)


def flops(way: str, size: dict[str, int]) -> float:
    """What the cost model says of `seconds`."""
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
from sparse_control.threads import pin_threads
def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))
pin_threads(int(sys.argv[2]))
lm = load_model(sys.argv[1])
(ids,) = prompts(lm, 1, 128)
exact_jacobian(lm, ids[:16], [lm.n_layers - 1])
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
total = torch.zeros(lm.n_layers, lm.width, lm.width, dtype=torch.float64)
total += exact_jacobian(lm, ids)
print(json.dumps(status("VmHWM") - before))
"""


def predicted(shape: Shape) -> dict[str, float]:
    """What the cost model says of `measured`."""
    middle = shape.layers // 2
    exact = exact_cost(shape, tokens=TOKENS, prompts=1)
    qb = qb_cost(shape, tokens=TOKENS, prompts=2, layers=(middle,), columns=COLUMNS)
    patched = six_axis_cost(shape, tokens=TOKENS, pairs=0, readouts=32, first=middle, off_target=0)
    return {
        "weights, bytes": weights_bytes(shape),
        "exact Jacobian, flops": exact.flops,
        "exact Jacobian, bytes of memory": exact.memory,
        "a layer's exact Jacobian, bytes on disk": exact.disk / shape.layers,
        "QB, flops": qb.flops,
        "QB factors, bytes on disk": qb.disk,
        "states, flops": states_cost(shape, tokens=TOKENS, prompts=2, layers=1).flops,
        "patched readouts, flops": patched.flops,
    }


def measured(lm: LanguageModel, threads: int) -> dict[str, float]:
    """Flops, bytes of memory and of files of the same work; memory where the system can tell the peak."""
    middle = lm.n_layers // 2
    ids = prompts(lm, 2, TOKENS)
    site = Site("mlp", middle)
    cached = read_prompts(lm, ids, (site,))
    patches = {site: torch.ones(2, 16, lm.width)}
    found = {
        "weights, bytes": sum(parameter.nbytes for parameter in lm.model.parameters()),
        "exact Jacobian, flops": counted_flops(lambda: exact_jacobian(lm, ids[0])),
        "a layer's exact Jacobian, bytes on disk": len(tensor_bytes(torch.zeros(lm.width, lm.width))),
        "QB, flops": counted_flops(lambda: randomized_qb(corpus_operator(lm, ids, middle), COLUMNS - 32)),
        "QB factors, bytes on disk": 2 * len(tensor_bytes(torch.zeros(lm.width, COLUMNS))),
        "states, flops": counted_flops(lambda: residual_stream(lm, torch.stack(ids))),
        "patched readouts, flops": counted_flops(lambda: cached.patched_logits(patches)),
    }
    if Path("/proc/self/clear_refs").exists():
        child = [sys.executable, "-c", PEAK, lm.name, str(threads)]
        output = subprocess.run(child, check=True, capture_output=True, text=True).stdout
        found["exact Jacobian, bytes of memory"] = json.loads(output.splitlines()[-1])
    return found


def errors(model: dict[str, Any]) -> dict[str, float]:
    """Relative errors of the cost model for one entry of `models`."""
    said = predicted(Shape(**model["shape"]))
    return {what: abs(said[what] / value - 1) for what, value in model["measured"].items()}


@click.command()
@click.option(
    "--models", multiple=True, default=("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"), show_default=True
)
@click.option("--threads", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: benchmarks/results/scaling.json.")
def main(models: tuple[str, ...], threads: int, out: Path | None) -> None:
    """Measure exponents and the errors of the cost model."""
    pin_threads(threads)
    result = {"base": BASE, "sizes": {name: list(values) for name, values in SIZES.items()}, "exponents": exponents()}
    found = {}
    for name in models:
        lm = load_model(name)
        found[lm.name] = {
            "shape": asdict(shape_of(lm.name, lm.model.config)),
            "measured": measured(lm, threads),
            "all_layers_over_one": round(layers_asked(lm, prompts(lm, 1, TOKENS)[0]), 3),
        }
    largest = max(error for model in found.values() for error in errors(model).values())
    report("scaling", result | {"models": found, "largest_error": largest}, "largest_error", out)


if __name__ == "__main__":
    main()
