"""One flow on the tiny model: `python -m tests.reliability.measuring FOLDER FLOW PARAMETERS`, the last one JSON."""

import json
import os
import sys
from pathlib import Path


def main() -> None:
    folder, flow, parameters = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    os.environ["SPARSE_CONTROL_CACHE"] = str(folder / "cache")
    import flows.parameters
    from flows.in_process import run_in_process
    from flows.official_iss import official_iss
    from flows.six_axis import six_axis

    flows.parameters.project_folder = lambda: folder
    run_in_process({"official_iss": official_iss, "six_axis": six_axis}[flow], {"preset": "tiny", **parameters})


if __name__ == "__main__":  # the workers of a local cluster import this module again
    main()
