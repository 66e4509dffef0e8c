"""A full P-condition record with cached prefixes and shared batches against the plain way.

    python -m benchmarks.six_axis [--model NAME] [--pairs 32] [--position -1] [--threads 1] [--out FILE]

The plain way hooks the model and makes one full forward per prompt, dose and readout: both sides unpatched, ten doses,
reversal, every readout of the feedback loop, and 32 off-target prompts with and without the patch. Its readouts of the
feedback loop beyond the first `--plain-feedback` are not run but counted at the time of the others. The support is what
Driver-OMP selects. The last line is the ratio plain / ours.
"""

import time
from pathlib import Path

import click
import numpy as np
import torch

from benchmarks.common import report
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.sites import all_sites
from sparse_control.protocol.effects import first_order_effects
from sparse_control.protocol.intervention import Intervention, patched
from sparse_control.protocol.measurement import DOSES, FeedbackPlan, OffTargetPanel, measure
from sparse_control.protocol.panels import OFF_TARGET, build_pairs
from sparse_control.protocol.selectors import driver_omp
from sparse_control.protocol.splits import Split, margins

TASK = "ioi"


class PlainWay:
    """One full forward per prompt and patch; the forwards are timed together."""

    def __init__(self, lm: LanguageModel, intervention: Intervention) -> None:
        self.lm, self.intervention = lm, intervention
        self.seconds, self.forwards = 0.0, 0

    @torch.no_grad()
    def logits(self, ids, dose: float = 0.0, pair=None) -> torch.Tensor:
        """(V,) at the last token."""
        start = time.perf_counter()
        tokens = torch.tensor([ids])
        if dose == 0:
            output = self.lm.model(input_ids=tokens, use_cache=False).logits[0, -1]
        else:
            with patched(self.lm, self.intervention, dose=dose, pair=pair):
                output = self.lm.model(input_ids=tokens, use_cache=False).logits[0, -1]
        self.seconds += time.perf_counter() - start
        self.forwards += 1
        return output

    def margin(self, pair, ids, dose: float = 0.0) -> float:
        """The readout of one pair."""
        return float(margins(self.logits(ids, dose, pair)[None, None], [pair])[0, 0])


@click.command()
@click.option("--model", default="smollm2-135m-instruct", show_default=True)
@click.option("--pairs", "n", default=32, show_default=True)
@click.option("--position", default=-1, show_default=True, help="Of the candidate sites.")
@click.option("--plain-feedback", default=1, show_default=True, help="Readouts of the loop that the plain way runs.")
@click.option("--threads", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: benchmarks/results/six_axis.json.")
def main(model: str, n: int, position: int, plain_feedback: int, threads: int, out: Path | None) -> None:
    """Time both ways in one run."""
    torch.set_num_threads(threads)
    lm = load_model(model)
    sites = all_sites(lm, position=position)
    fit = Split.read(lm, build_pairs(TASK, lm, "fit", 12, 0), sites)
    chosen = driver_omp(first_order_effects(fit, sites), fit.gap, 4, 0.05, 4.0)
    intervention = Intervention(tuple(sites[index] for index in chosen.support), chosen.strengths)
    pairs = build_pairs(TASK, lm, "evaluate", n, 0)

    start = time.perf_counter()
    split = Split.read(lm, pairs, intervention.support)
    low, high = float(split.y_source.mean()), float(split.y_target.mean())
    plan = FeedbackPlan(
        targets=tuple(low + (high - low) * step / 8 for step in range(1, 9)), gain=0.5 / (high - low), tolerance=0.3
    )
    panel = OffTargetPanel.read(lm, OFF_TARGET, intervention.support)
    record = measure(lm, intervention, split, feedback=plan, off_target=panel)
    seconds = time.perf_counter() - start

    plain = PlainWay(lm, intervention)
    difference = 0.0
    for pair, source, target in zip(pairs, record["evaluate"]["source"], record["evaluate"]["target"]):
        difference = max(difference, abs(plain.margin(pair, pair.source_ids) - source))
        difference = max(difference, abs(plain.margin(pair, pair.target_ids) - target))
    for dose, row in zip(DOSES, record["evaluate"]["patched"]):
        for pair, value in zip(pairs, row):
            difference = max(difference, abs(plain.margin(pair, pair.source_ids, dose) - value))
    for pair, value in zip(pairs, record["reversal"]["reversed"]):
        difference = max(difference, abs(plain.margin(pair, pair.target_ids, -1.0) - value))
    for prompt in OFF_TARGET:  # the patched half costs as much as the other; its direction is that of a pair
        ids = lm.encode(prompt.text).tolist()
        plain.logits(ids)
        plain.logits(ids)
    readouts = sum(endpoint["readouts"] - 1 for endpoint in record["feedback"]["endpoints"])
    before, counted = plain.seconds, plain.forwards
    for dose in np.linspace(0.3, 0.7, plain_feedback):
        for pair in pairs:
            plain.margin(pair, pair.source_ids, float(dose))
    per_readout = (plain.seconds - before) / plain_feedback
    plain_seconds = before + per_readout * readouts
    result = {
        "model": lm.name,
        "task": TASK,
        "pairs": n,
        "tokens_per_prompt": float(np.mean([len(pair.source_ids) for pair in pairs])),
        "support": [site.name for site in intervention.support],
        "doses": len(DOSES),
        "feedback_readouts": readouts,
        "plain_forwards": counted + readouts * n,
        "plain_forwards_run": plain.forwards,
        "plain_seconds": plain_seconds,
        "seconds": seconds,
        "largest_difference_logits": difference,
        "ratio": plain_seconds / seconds,
    }
    report("six_axis", result, "ratio", out)


if __name__ == "__main__":
    main()
