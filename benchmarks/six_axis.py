"""A full P-condition record with cached prefixes and shared batches against the plain way.

    python -m benchmarks.six_axis [--model NAME] [--pairs 32] [--position -1] [--threads 1] [--out FILE]

The plain way hooks the model once the contrasts are known and makes one full forward per prompt, dose and readout: both
sides unpatched, ten doses, reversal, every readout of the feedback loop, and 32 off-target prompts with and without the
patch. Its readouts of the feedback loop beyond the first `--plain-feedback` are not run but counted at the time of the
others. The support is what Driver-OMP selects. The last line is the ratio plain / ours.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import click
import numpy as np
import torch

from benchmarks.common import clock, report
from sparse_control.metrics.preservation import kl_divergence
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.sites import add_at_sites, all_sites
from sparse_control.protocol.effects import first_order_effects
from sparse_control.protocol.feedback import FeedbackPlan
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.measurement import DOSES, measure
from sparse_control.protocol.panels import OFF_TARGET, build_pairs
from sparse_control.protocol.preservation import OffTargetPanel
from sparse_control.protocol.selectors import driver_omp
from sparse_control.protocol.splits import Split, margins
from sparse_control.threads import pin_threads

TASK = "ioi"


class PlainWay:
    """One hooked full forward per prompt and patch; the forwards are timed together, contrasts are given."""

    def __init__(self, lm: LanguageModel, intervention: Intervention, split: Split) -> None:
        self.lm, self.intervention, self.split = lm, intervention, split
        self.seconds, self.forwards = 0.0, 0

    @torch.no_grad()
    def logits(self, ids: Sequence[int], pair: int = 0, dose: float = 0.0) -> torch.Tensor:
        """(V,) at the last token, under the contrast of a pair."""
        start = clock()
        contrasts = {site: value[pair : pair + 1] for site, value in self.split.contrasts.items()}
        added = {site: value[0] for site, value in self.intervention.additions([dose], contrasts, 1).items()}
        with add_at_sites(self.lm, added, length=len(ids)) if dose else nullcontext():
            output = self.lm.model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits[0, -1]
        self.seconds += clock() - start
        self.forwards += 1
        return output

    def margins(self, side: str, dose: float = 0.0) -> list[float]:
        """The readout of every pair."""
        ids = [getattr(pair, f"{side}_ids") for pair in self.split.pairs]
        rows = torch.stack([self.logits(prompt, index, dose) for index, prompt in enumerate(ids)])
        return margins(rows[:, None], self.split.pairs)[:, 0].tolist()


def difference(left: Sequence[float], right: Sequence[float]) -> float:
    """Largest absolute difference."""
    return float(np.abs(np.subtract(left, right)).max())


@click.command()
@click.option("--model", default="smollm2-135m-instruct", show_default=True)
@click.option("--pairs", "n", default=32, show_default=True)
@click.option("--position", default=-1, show_default=True, help="Of the candidate sites.")
@click.option("--plain-feedback", default=2, show_default=True, help="Readouts of the loop that the plain way runs.")
@click.option("--threads", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: benchmarks/results/six_axis.json.")
def main(model: str, n: int, position: int, plain_feedback: int, threads: int, out: Path | None) -> None:
    """Time both ways in one run."""
    pin_threads(threads)
    lm = load_model(model)
    sites = all_sites(lm, position=position)
    fit = Split.read(lm, build_pairs(TASK, lm, "fit", 12, 0), sites)
    chosen = driver_omp(first_order_effects(fit, sites), fit.gap, 4, 0.05, 4.0)
    intervention = Intervention(tuple(sites[index] for index in chosen.support), chosen.strengths)
    pairs = build_pairs(TASK, lm, "evaluate", n, 0)

    start = clock()
    split = Split.read(lm, pairs, intervention.support)
    low, high = float(split.y_source.mean()), float(split.y_target.mean())
    plan = FeedbackPlan(
        targets=tuple(low + (high - low) * step / 8 for step in range(1, 9)), gain=0.5 / (high - low), tolerance=0.3
    )
    panel = OffTargetPanel.read(lm, OFF_TARGET, intervention.support)
    record = measure(lm, intervention, split, feedback=plan, off_target=panel)
    seconds = clock() - start

    plain = PlainWay(lm, intervention, split)
    differences = [
        difference(plain.margins("source"), record["evaluate"]["source"]),
        difference(plain.margins("target"), record["evaluate"]["target"]),
        difference(plain.margins("target", -1.0), record["reversal"]["reversed"]),
        *(
            difference(plain.margins("source", dose), row)
            for dose, row in zip(DOSES, record["evaluate"]["patched"], strict=True)
        ),
    ]
    for index, prompt in enumerate(OFF_TARGET):
        ids = lm.encode(prompt.text).tolist()
        kl = kl_divergence(*(plain.logits(ids, index % n, dose).double().numpy() for dose in (0.0, 1.0)))
        differences.append(abs(kl - record["preservation"]["kl"][index]))
    readouts = sum(endpoint["readouts"] - 1 for endpoint in record["feedback"]["endpoints"])
    before, counted = plain.seconds, plain.forwards
    for dose in np.linspace(0.3, 0.7, plain_feedback):
        plain.margins("source", float(dose))
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
        "largest_difference_logits": max(differences),
        "ratio": plain_seconds / seconds,
    }
    report("six_axis", result, "ratio", out)


if __name__ == "__main__":
    main()
