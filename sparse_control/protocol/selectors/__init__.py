"""Which sites, and how strongly: selectors and controls over effect columns. numpy and scipy alone, float64.

The source document names Driver-OMP and Coverage-Driver without defining them; the definitions are this project's and
are stated as such in the paper. The others are controls at the same number of sites.
"""

from sparse_control.protocol.selectors.controls import chosen_sites, random_supports, top_k
from sparse_control.protocol.selectors.coverage import coverage_driver
from sparse_control.protocol.selectors.omp import driver_omp, driver_omp_remeasured
from sparse_control.protocol.selectors.selection import Selection

__all__ = [
    "Selection", "chosen_sites", "coverage_driver", "driver_omp", "driver_omp_remeasured", "random_supports", "top_k",
]  # fmt: skip
