"""The files of `jacobian_iss/validation/`: what every estimator lost, and on what grounds one was chosen."""

from typing import Literal

from pydantic import model_validator

from sparse_control.records.base import Count, Name, NonNegative, Record, Seed, same_length

Probe = Literal["gaussian", "rademacher"]
Alternative = Literal["svd", "qb_deflated", "qb_activation", "output_sketch"]


class ComparisonRow(Record):
    """One low-rank estimator against the full empirical Jacobian reference (Experiment A)."""

    layer: Count
    estimator: Name  # qb, or a named alternative
    probe: Probe
    oversampling: Count  # p
    power_iterations: Count  # q
    seed: Seed  # of the sketch
    k: Count  # rank
    r: Count  # columns kept, k + p or the width
    E_F: NonNegative  # relative Frobenius error
    E_vec: NonNegative  # mean relative error of transported vectors
    C_vec: float  # mean cosine of transported vectors
    E_vec_centred: NonNegative  # the same with the mean activation taken off
    C_vec_centred: float
    E_ISS: NonNegative | None  # |ISS_full - ISS_k|
    rho_fact: float | None  # Spearman of per-fact ISS; null where either side is constant
    reason: Name | None = None  # why E_ISS is null
    svd_floor_E_F: NonNegative  # the same errors of the best matrix of rank r
    svd_floor_E_vec: NonNegative


class NoiseFloor(Record):
    """Two disjoint halves of the corpus against each other: the corpus error at n/2."""

    layer: Count
    E_F: NonNegative
    E_vec: NonNegative
    C_vec: float
    E_vec_centred: NonNegative  # with the mean activation taken off
    C_vec_centred: float
    E_ISS: NonNegative | None  # difference of calibration ISS between the halves
    reason: Name | None = None  # why it is null


class FullComparison(Record):
    """validation/small_model_full_comparison.json."""

    model: Name
    corpus_size: Count  # n
    rows: list[ComparisonRow]
    noise_floor: list[NoiseFloor]


class ActionValidation(Record):
    """One rung of the failure ladder at one layer, validation/per_model_action_validation.jsonl."""

    model: Name
    layer: Count
    k: Count  # rank
    k_over_d: NonNegative  # rank over width
    r: Count  # columns kept
    oversampling: Count  # p
    power_iterations: Count  # q
    corpus_size: Count  # n
    direct_action: Literal["exact_reference", "jvp"]  # where J h comes from
    median_cosine: float | None  # of J h and its estimate over held-out activations
    median_relative_error: NonNegative | None
    iss_rank_difference: NonNegative | None  # |ISS(2k) - ISS(k)|
    iss_seed_deviation: NonNegative | None  # sample sd of ISS over sketch seeds
    iss: float | None  # calibration ISS at this rung
    partner_r: Count | None  # columns of the comparison partner, 2k + p or the width
    passed: bool  # whether all criteria hold
    step: Name  # what the ladder enlarged to get here
    reason: str | None  # the criteria that failed, or a remark on the one that passed
    chosen: bool  # whether this rung is the frozen one

    @model_validator(mode="after")
    def _chosen_passed(self) -> "ActionValidation":
        if self.chosen and not self.passed:
            raise ValueError("chosen must be false where passed is false: a failed rung is never frozen")
        return self


class RankConvergence(Record):
    """validation/rank_convergence.jsonl."""

    model: Name
    layer: Count
    k: Count
    r: Count
    oversampling: Count
    power_iterations: Count
    corpus_size: Count
    seed: Seed
    iss: float | None  # calibration ISS


class CorpusConvergence(Record):
    """validation/corpus_convergence.jsonl: n prompts against 2n; the largest n has nothing to be held against."""

    model: Name
    layer: Count
    n: Count
    cosine_to_2n: float | None  # median over held-out activations, of transported vectors
    relative_error_to_2n: NonNegative | None
    iss_difference: NonNegative | None  # |ISS_n - ISS_2n| on the calibration set
    converged: bool  # whether the fixed rule holds at n
    chosen: bool  # the n the ladder starts at: the smallest converged one, else the largest

    @model_validator(mode="after")
    def _converged_is_compared(self) -> "CorpusConvergence":
        if self.converged and None in (self.cosine_to_2n, self.iss_difference):
            raise ValueError("converged must be false where there is no comparison with 2n")
        return self


class SeedStability(Record):
    """validation/seed_stability.jsonl: one metric over sketch seeds."""

    model: Name
    layer: Count
    k: Count
    oversampling: Count
    power_iterations: Count
    corpus_size: Count
    metric: Name  # a registered metric of transported states, mean_cosine or mean_relative_error
    seeds: list[Seed]
    values: list[float]  # per seed
    mean: float
    sd: NonNegative  # sample standard deviation

    @model_validator(mode="after")
    def _shapes(self) -> "SeedStability":
        same_length("seeds", len(self.seeds), values=self.values)
        return self


class AlternativeAttempt(Record):
    """One named alternative at one setting, validation/alternatives.jsonl; never the official estimator."""

    model: Name
    layer: Count
    estimator: Alternative
    probe: Probe | None  # null where nothing is drawn
    power_iterations: Count | None
    oversampling: Count | None
    seed: Seed | None  # the preregistered one
    k: Count
    r: Count  # columns kept
    corpus_size: Count  # n
    E_F: NonNegative | None  # this and the next six: null for an output sketch, which has no action
    E_vec: NonNegative | None
    C_vec: float | None
    E_vec_centred: NonNegative | None
    C_vec_centred: float | None
    median_cosine: float | None
    median_relative_error: NonNegative | None
    E_ISS: NonNegative | None
    rho_fact: float | None
    iss: float | None
    iss_rank_difference: NonNegative | None
    iss_seed_deviation: NonNegative | None  # 0 where nothing is drawn
    passed: bool  # by the criteria of the official estimator
    reason: str | None  # the criteria that failed, or a remark on the one that passed
    chosen: bool  # whether its factors were kept

    @model_validator(mode="after")
    def _chosen_passed(self) -> "AlternativeAttempt":
        if self.chosen and not self.passed:
            raise ValueError("chosen must be false where passed is false")
        return self
