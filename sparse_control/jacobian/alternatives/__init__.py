"""Named alternatives to the official estimator (source document, 12.2), one file each. None is ever chosen silently.

Each has its own name, folder and validation. All answer to `Estimate`, so that one judge serves them and `Factors`.
"""

from sparse_control.jacobian.alternatives.activation import activation_factors
from sparse_control.jacobian.alternatives.deflated import DeflatedFactors, deflated_factors
from sparse_control.jacobian.alternatives.estimate import Estimate
from sparse_control.jacobian.alternatives.sketch import OutputSketch, output_sketch
from sparse_control.jacobian.alternatives.svd import svd_factors

__all__ = [
    "DeflatedFactors", "Estimate", "OutputSketch", "activation_factors", "deflated_factors", "output_sketch",
    "svd_factors",
]  # fmt: skip
