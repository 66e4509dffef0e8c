"""What the protocol is at some settings on a model of some shape, in rows of text; no model, no torch."""

from collections.abc import Sequence

from sparse_control.metrics.dose import ORDERED
from sparse_control.metrics.preservation import DELTA
from sparse_control.metrics.reachability import EPSILON
from sparse_control.metrics.reversal import MINIMUM_RATIO
from sparse_control.models.shape import ModelShape
from sparse_control.protocol.directions import CONDITIONS
from sparse_control.protocol.selectors.table import SELECTORS
from sparse_control.settings import ProtocolSettings

Rows = list[tuple[str, ...]]

WHERE = {
    "head": "slice of the attention output projection's input",
    "mlp": "output of the MLP",
    "resid": "output of the block, the residual stream",
}


def axes(settings: ProtocolSettings) -> Rows:
    """Axis, statistic, and when a seed passes."""
    tolerances = sorted({settings.feedback.tolerance[task] for task in settings.tasks})
    allowed = " or ".join(f"{tolerance:g}" for tolerance in tolerances)
    doses = ", ".join(f"{dose:g}" for dose in settings.doses)
    return [
        ("axis", "statistic", "passes"),
        ("01 reachability", "|y_tar - y_pat| / |y_tar - y_src|, whole readout vector at dose 1", f"<= {EPSILON:g}"),
        (
            "02 signed reversal",
            "|y_rev - y_tar| / |y_rev - y_src|, dose -1 on the target side",
            f">= {MINIMUM_RATIO:g}",
        ),
        ("03 dose response", f"Spearman of progress against dose at {doses}", f">= {ORDERED:g}"),
        (
            "04 feedback",
            f"|m* - M| after at most {settings.feedback.readouts} readouts, fixed gain",
            f"<= {allowed} logits",
        ),
        ("05 preservation", "mean KL(unpatched || patched) over 32 other prompts, nats", f"<= {DELTA:g}"),
        ("06 reuse", "(M_pat - M_src) / (M_tar - M_src) on unseen pairs, refitted and frozen", "no threshold"),
    ]


def tasks(settings: ProtocolSettings) -> Rows:
    """Task, its seeds, its feedback targets and tolerance."""
    return [
        ("task", "seeds", "feedback targets", "tolerance"),
        *(
            (
                task,
                ", ".join(map(str, settings.seeds_of(task))),
                str(settings.feedback.targets[task]),
                f"{settings.feedback.tolerance[task]:g}",
            )
            for task in settings.tasks
        ),
    ]


def choices(settings: ProtocolSettings) -> Rows:
    """Selectors and direction rules, and what each is."""
    return [
        ("selector", f"how {settings.support_size} sites and their strengths are chosen on the fitting split"),
        *((name, SELECTORS[name].description) for name in settings.selectors),
        ("direction", "what is added at a site"),
        *((name, CONDITIONS[name].description) for name in settings.conditions),
    ]


def pairs(settings: ProtocolSettings) -> str:
    """The splits and the gate, in a sentence."""
    counts = settings.pairs
    return (
        f"Pairs per seed: {counts.fit} to fit, {counts.evaluate} to evaluate, {counts.reuse} for reuse; one whose "
        f"gap is below {settings.minimum_gap:g} logits is dropped, and a task with fewer than "
        f"{settings.minimum_pairs} left in a split is not supported by the model. Effect columns are "
        + ("measured by patches." if settings.effects == "measured" else "first order, checked by patches.")
    )


def sites(
    shape: ModelShape, components: Sequence[str] = ("head", "mlp", "resid"), positions: Sequence[int] = (-1,)
) -> Rows:
    """Component, its sites by name, how many there are, their width and what they are."""
    last = shape.layers - 1
    rows = [("component", "sites", "count", "width", "where")]
    for position in positions:
        for component in components:
            part = {"head": ("head.0", f"head.{shape.heads - 1}")}.get(component, (component, component))
            rows.append((
                component,
                f"L00.{part[0]}@{position} .. L{last:02d}.{part[1]}@{position}",
                str(shape.sites_of(component)),
                str(shape.site_width(component)),
                WHERE[component],
            ))  # fmt: skip
    return rows
