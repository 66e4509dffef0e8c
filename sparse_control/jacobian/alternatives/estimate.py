"""What every estimator of a Jacobian offers."""

from typing import Protocol

from sparse_control.jacobian.operator import Array


class Estimate(Protocol):
    """`Factors`, `DeflatedFactors` or `OutputSketch`.

    `rank` is the target rank k, `r` the number of stored rows, `reduce(h)` the coordinates whose cosines are those of
    the transported state, `apply(h)` the transported state itself, `truncate` the nested estimator of a smaller rank.
    """

    @property
    def rank(self) -> int: ...

    @property
    def r(self) -> int: ...

    def reduce(self, h: Array) -> Array: ...

    def apply(self, h: Array) -> Array: ...

    def truncate(self, rank: int, oversampling: int | None = None) -> "Estimate": ...
