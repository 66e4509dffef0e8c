"""README.md of a root: what was measured on which model, and which command made it; written with the manifest."""

from collections.abc import Iterable, Sequence

from sparse_control.records.paths import ISS_FILES, JACOBIAN_ISS, NULLS, SIX_AXIS

NAME = "README.md"
HEAD = f"""\
# Measurements

Written from `MANIFEST.json` by the run that measured last; `python -m sparse_control verify` checks every file.

| file | what it is |
|---|---|
| `MANIFEST.json` | SHA-256 of every file that a run measured |
| `code/HASH.json` | hash of every file of the code that measured; records have HASH as their `code_sha256` |
| `MODEL/{SIX_AXIS}/TASK.SELECTOR.CONDITION.jsonl` | six-axis records, a line a seed |
| `MODEL/{JACOBIAN_ISS}/` | Jacobian-transported ISS: the output tree of its source document, section 14 |
| `.../full_reference/` | stage A: exact finite-corpus Jacobians |
| `.../validation/`, `.../low_rank_factors/` | stage B: the ladder of estimators, and the chosen factors |
| `.../configs/`, `.../freeze_manifest.json` | stage C: every choice, and the hash of what it rests on |
| `.../iss_*`, `.../raw_iss_ablation.json` | stage D: ISS and Raw-ISS on the benchmark |
| `.../alternatives/` | named alternatives to the official estimator, never part of ISS |
| `MODEL/{NULLS}/NAME/{JACOBIAN_ISS}/` | the same output tree, with something taken away from model or corpus |

Tensors (`.pt`, `.safetensors`) are large and not in git: `dvc pull` brings what the store holds, a run the rest. Each
field of a record is explained where it is declared, in `sparse_control/records/`.
"""


def readme(measured: Iterable[str], tensors: Iterable[str]) -> str:
    """The text for what a manifest lists, each by its path relative to the root."""
    tensors = set(tensors)
    names = sorted({*measured, *tensors})
    parts = [HEAD]
    for model in sorted({name.split("/")[0] for name in names}):
        inside = [name.partition("/")[2] for name in names if name.startswith(f"{model}/")]
        large = {name.partition("/")[2] for name in tensors if name.startswith(f"{model}/")}
        lines = [f"## {model}", "", "| folder | measured | files | tensors | `python -m sparse_control run` |"]
        lines.append("|---|---|---:|---:|---|")
        for folder, what, found, command in _studies(inside):
            count = len(large.intersection(found))
            lines.append(f"| `{folder}` | {what} | {len(found) - count} | {count} | `{command} --model {model}` |")
        parts.append("\n".join([*lines, ""]))
    return "\n".join(parts)


def _studies(names: Sequence[str]) -> Iterable[tuple[str, str, list[str], str]]:
    """Folder, what was measured, files and command of each study of a model."""
    alternatives = [name for name in names if "alternatives" in name and name.startswith(f"{JACOBIAN_ISS}/")]
    official = [name for name in names if name.startswith(f"{JACOBIAN_ISS}/") and name not in alternatives]
    if official:
        whole = f"{JACOBIAN_ISS}/{ISS_FILES['summary']}" in names
        stages, command = ("stages A to D", "official-iss") if whole else ("stages A and B", "experiment-b")
        yield f"{JACOBIAN_ISS}/", stages, official, command
    if alternatives:
        kept = {name.split("/")[2] for name in alternatives if name.startswith(f"{JACOBIAN_ISS}/alternatives/")}
        what = f"alternatives; kept: {_words(kept)}" if kept else "alternatives; none kept"
        yield f"{JACOBIAN_ISS}/alternatives/", what, alternatives, "alternatives"
    for null in sorted({name.split("/")[1] for name in names if name.startswith(f"{NULLS}/")}):
        found = [name for name in names if name.startswith(f"{NULLS}/{null}/")]
        yield f"{NULLS}/{null}/", f"stages A to D, null: {null.replace('_', ' ')}", found, "nulls"
    if records := [name for name in names if name.startswith(f"{SIX_AXIS}/")]:
        keys = [name.split("/")[-1].split(".") for name in records]
        tasks, selectors, conditions = (_words(key[part] for key in keys) for part in range(3))
        what = f"tasks {tasks}; selectors {selectors}; direction rules {conditions}"
        yield f"{SIX_AXIS}/", what, records, "six-axis"


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
