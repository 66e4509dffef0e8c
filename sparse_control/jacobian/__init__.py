"""Jacobians of the final residual stream: exact, matrix-free and factorised."""

from sparse_control.jacobian.exact import exact_jacobian
from sparse_control.jacobian.operator import DenseOperator, corpus_operator
from sparse_control.jacobian.qb import Factors, randomized_qb

__all__ = ["DenseOperator", "Factors", "corpus_operator", "exact_jacobian", "randomized_qb"]
