"""Numbers and names as print has them, and columns made of them. The only place that rounds a number."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

EMPTY = "—"
LARGE = Decimal("1e15")  # from here on the decimals of a double are not its own
Row = dict[str, Any]


def fixed(value: float | None, digits: int) -> str:
    """A number with `digits` decimals, halves rounded away from zero as people do; an em-dash for None.

    From 1e15 on in powers of ten, with `digits` decimals of the mantissa.
    """
    if value is None:
        return EMPTY
    number = Decimal(repr(float(value)))
    if abs(number) >= LARGE:
        return f"{number:.{digits}e}".replace("-", "−")
    rounded = number.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    return f"{abs(rounded) if rounded == 0 else rounded:f}".replace("-", "−")


def with_sign(value: float | None, digits: int) -> str:
    """`fixed`, with a plus sign where the rounded number is positive."""
    text = fixed(value, digits)
    positive = value is not None and value > 0 and any(digit in text for digit in "123456789")
    return f"+{text}" if positive else text


def significant(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, in powers of ten below 0.0001 and from 1e15; an em-dash for None."""
    if value is None:
        return EMPTY
    number = Decimal(repr(float(value)))
    if number == 0:
        return "0"
    if abs(number) >= LARGE:
        return fixed(value, digits - 1)
    exponent = number.adjusted()
    rounded = number.quantize(Decimal(1).scaleb(exponent - digits + 1), rounding=ROUND_HALF_UP)
    if exponent >= -4:
        return fixed(float(rounded), max(0, digits - 1 - rounded.adjusted()))
    mantissa = fixed(float(rounded.scaleb(-rounded.adjusted())), digits - 1)
    return f"{mantissa}e−{-rounded.adjusted()}"


@dataclass(frozen=True)
class Column:
    """One shown column: its heading (line breaks allowed), the text of a row, and how it is aligned."""

    heading: str
    text: Callable[[Row], str]
    align: str = "r"  # or l; or w and a width in mm: words that print wraps


def label(name: str, heading: str) -> Column:
    """A column of words; None is an em-dash."""
    return Column(heading, lambda row: EMPTY if row[name] is None else str(row[name]), "l")


def whole(name: str, heading: str) -> Column:
    """A column of whole numbers."""
    return Column(heading, lambda row: EMPTY if row[name] is None else str(row[name]))


def decimal(name: str, heading: str, digits: int = 3) -> Column:
    """A column of numbers with fixed decimals."""
    return Column(heading, lambda row: fixed(row[name], digits))


def small(name: str, heading: str) -> Column:
    """A column of numbers over several orders of magnitude."""
    return Column(heading, lambda row: significant(row[name]))


def of(count: Any, total: Any) -> str:
    return EMPTY if count is None or total is None else f"{count}/{total}"


def out_of(name: str, total: str, heading: str) -> Column:
    """A count over its total."""
    return Column(heading, lambda row: of(row[name], row[total]))


def with_deviation(name: str, deviation: str, heading: str, digits: int = 3) -> Column:
    """A mean with its sample standard deviation, where there is one."""

    def text(row: Row) -> str:
        spread = "" if row[deviation] is None else f" ± {fixed(row[deviation], digits)}"
        return fixed(row[name], digits) + spread

    return Column(heading, text)


def signed(name: str, heading: str, digits: int = 3) -> Column:
    """A difference, with its sign."""
    return Column(heading, lambda row: with_sign(row[name], digits))


def yes_no(name: str, heading: str) -> Column:
    """A column of truth values; None is an em-dash."""
    return Column(heading, lambda row: EMPTY if row[name] is None else "yes" if row[name] else "no", "l")


def interval(name: str, heading: str, digits: int = 3) -> Column:
    """A confidence interval."""

    def text(row: Row) -> str:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        return EMPTY if low is None else f"[{fixed(low, digits)}, {fixed(high, digits)}]"

    return Column(heading, text)


def with_count(value: Callable[[Row], str], count: Callable[[Row], str], heading: str) -> Column:
    """A number, and behind it in parentheses the count that goes with it."""

    def text(row: Row) -> str:
        first, second = value(row), count(row)
        return first if second == EMPTY else f"{first} ({second})"

    return Column(heading, text)


NAMES = {
    "ioi": "IOI",
    "ioi_same_panel": "IOI (same panel)",
    "sentiment": "Sentiment",
    "refusal": "Refusal",
    "mcqa_stem": "MCQA STEM",
    "mcqa_humanities": "MCQA Humanities",
    "mcqa_cue": "MCQA cue",
    "coverage_driver": "Coverage-Driver",
    "driver_omp": "Driver-OMP",
    "driver_omp_remeasured": "Driver-OMP, re-measured",
    "coverage_driver_k8": "Coverage-Driver, k = 8",
    "diff_in_means": "difference in means",
    "diff_in_means_all": "difference in means, all layers",
    "pca": "first principal direction",
    "probe": "logistic probe",
    "ablate": "affine ablation",
    "top_k": "top-k",
    "random_support": "random sites",
    "random_direction": "random directions",
    "qb": "QB (official)",
    "qb_deflated": "deflated QB",
    "qb_activation": "activation probes",
    "output_sketch": "output sketch",
    "svd": "SVD, the floor",
    "rel_tar_mean": "mean Rel_tar",
    "passes_0.40": "seeds ≤ .40",
    "ratio_mean": "mean ratio",
    "passes": "seeds ≥ 2",
    "rho_mean": "mean ρ",
    "ordered": "seeds ρ ≥ .95",
    "reversed": "seeds ρ ≤ −.95",
    "mae": "MAE",
    "median": "median KL",
    "mean": "mean KL",
    "seed_mean_passes": "seeds ≤ .001",
    "every_prompt_passes": "seeds, every prompt ≤ .001",
    "refit_mean": "refit",
    "frozen_mean": "frozen",
}  # fmt: skip


def named(name: str, heading: str) -> Column:
    """A column of identifiers, in words."""
    return Column(heading, lambda row: EMPTY if row[name] is None else in_words(row[name]), "l")


def in_words(identifier: str) -> str:
    """The name by which the paper calls a task, selector, statistic or relation."""
    return NAMES.get(identifier, identifier.replace("_", " "))


MODEL = label("model", "Model")
