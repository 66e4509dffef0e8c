"""The packages the project needs, by extra, and the command that installs them."""

from sparse_control.project import project_folder

BASE = ("numpy", "scipy", "pandas", "jinja2", "pyyaml", "pydantic", "click", "filelock")
EXTRAS = {
    "measure": (
        "torch",
        "transformers",
        "gguf",
        "accelerate",
        "safetensors",
        "mwparserfromhell",
        "scikit-learn",
        "threadpoolctl",
        "tqdm",
    ),
    "plots": ("matplotlib",),
    "flow": ("prefect", "psutil"),
    "cluster": ("prefect-dask",),
    "data": ("dvc",),
}
IMPORT_NAMES = {"scikit-learn": "sklearn", "pyyaml": "yaml", "prefect-dask": "prefect_dask"}


def extra_of(module: str) -> str | None:
    """The extra that brings an importable module; "" for a base dependency, None for a stranger."""
    for extra, packages in {"": BASE, **EXTRAS}.items():
        if module in {IMPORT_NAMES.get(package, package) for package in packages}:
            return extra
    return None


def install_command(extra: str) -> str:
    """The pip command that brings an extra, or the base dependencies: from the checkout where there is one."""
    project = project_folder()
    if not (project / "pyproject.toml").is_file():
        return f"python -m pip install 'sparse-control[{extra}]'" if extra else "python -m pip install sparse-control"
    pinned = "-c constraints.txt " if (project / "constraints.txt").is_file() else ""
    return f"python -m pip install {pinned}-e " + (f"'.[{extra}]'" if extra else ".")
