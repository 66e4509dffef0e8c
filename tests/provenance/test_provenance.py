"""Every artefact says where it comes from, back to weights and corpus."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparse_control.errors import InputError
from sparse_control.provenance import provenance_lines
from sparse_control.records.manifest import read_manifest
from tests.support.measured_root import bless

PROJECT = Path(__file__).parent.parent.parent
ISS = "toy-model/jacobian_iss"
NULL = "toy-model/nulls/redrawn_weights/jacobian_iss"
MODEL = {"name": "toy-model", "revision": "r1", "weights_sha256": "a" * 64, "versions": {"torch": "2.13"}}


@pytest.fixture
def measured(whole_root):
    """With factors, references and states, as a run leaves them; the binaries are stand-ins."""
    base = whole_root / ISS
    factors = base / "low_rank_factors/toy-model/2"
    references = base / "full_reference/toy-model"
    for folder in (factors, base / "alternatives/svd/toy-model/2"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("Q.pt", "B.pt"):
            (folder / name).write_bytes(b"x")
        content = {"model": "toy-model", "layer": 2, "rank": 64, "random_seed": 0, "estimator": "qb"}
        content |= {"code_sha256": "c" * 64, "weights_sha256": "a" * 64, "corpus_sha256": "d" * 64}
        (folder / "metadata.json").write_text(json.dumps(content))
    references.mkdir(parents=True)
    (references / "2.safetensors").write_bytes(b"x")
    content = {"model": MODEL, "corpus_sha256": "d" * 64, "position": "final", "code_sha256": "c" * 64}
    (references / "metadata.json").write_text(json.dumps(content))
    (base / "transported_states/toy-model/benchmark").mkdir(parents=True)
    for name in ("calibration", "benchmark/2"):
        (base / f"transported_states/toy-model/{name}.safetensors").write_bytes(b"x")
    (whole_root / "corpus").mkdir()
    corpus = {"source": {"package": "somewhere==1"}, "windows_sha256": "d" * 64, "ids": [1, 2], "settings": {"seed": 0}}
    (whole_root / "corpus/corpus.json").write_text(json.dumps(corpus))
    bless(whole_root)
    return whole_root


def text(root, name):
    return "\n".join(provenance_lines(Path(name), root))


def test_a_table_leads_back_to_weights_and_corpus(measured):
    found = text(measured, "paper/tables/estimator_validation.csv")
    for part in (
        "rendered on the CPU by `reproduce`",
        f" {ISS}/validation/per_model_action_validation.jsonl\n",
        "stage B: the ladder",
        f"{ISS}/full_reference/toy-model/metadata.json",
        "weights sha256: " + "a" * 64,
        "versions: torch 2.13",
        "corpus/corpus.json\n",
        "package somewhere==1",
        "seeds: sketch 0, 1, 2; bootstrap 0",
        "code sha256: " + "c" * 64,
        f"{ISS}/low_rank_factors/toy-model/2/Q.pt",
    ):
        assert part in found, part
    depths: dict[str, int] = {}
    for line in found.splitlines():
        depths.setdefault(line.strip(), len(line) - len(line.lstrip()))
    assert depths["corpus/corpus.json"] > depths[f"{ISS}/validation/per_model_action_validation.jsonl"] > 0


@pytest.mark.parametrize(
    "name, parts",
    [
        (f"{ISS}/iss_model_summary.json", ["stage D", "params sha256: ", "freeze_manifest.json", "threads: 2"]),
        (f"{ISS}/iss_per_fact.jsonl", ["stage D", "weights sha256: aaaa"]),
        (f"{ISS}/raw_iss_ablation.json", ["stage D"]),
        (f"{ISS}/freeze_manifest.json", ["stage C", "low_rank_factors/toy-model/2/Q.pt", "calibration.safet"]),
        (f"{ISS}/configs/corpus_config.yaml", ["stage C: settings"]),
        (f"{ISS}/validation/small_model_full_comparison.json", ["stage A", "full_reference/toy-model/metadata"]),
        (f"{ISS}/validation/alternatives.jsonl", ["named alternatives"]),
        (f"{ISS}/low_rank_factors/toy-model/2", ["stage B", "full_reference/toy-model/2.safetensors", "rank 64"]),
        (f"{ISS}/low_rank_factors/toy-model/2/Q.pt", ["stage B: a factor", "seed: 0", "CHANGED"]),
        (f"{ISS}/alternatives/svd/toy-model/2/B.pt", ["never official", "full_reference/toy-model/2.safet"]),
        (f"{ISS}/full_reference/toy-model/2.safetensors", ["stage A", "revision: r1", "corpus.json"]),
        (f"{ISS}/transported_states/toy-model/benchmark/2.safetensors", ["stage D", "freeze_manifest.json"]),
        ("toy-model/six_axis/ioi.driver_omp.P.jsonl", ["six-axis", "seeds: 0, 1, 2", "params sha256: bbbb"]),
        (f"{NULL}/iss_model_summary.json", ["weights redrawn: seed 0", f"{NULL}/freeze", "null: redrawn_w"]),
        ("paper/tables/ladder.tex", ["medium-model/jacobian_iss/validation/per_model", f"{ISS}/validation/per_model"]),
        ("paper/tables/nulls/redrawn_weights/ladder.csv", [f"{NULL}/validation/per_model_action_validation.jsonl"]),
        ("paper/tables/nulls.csv", ["nulls/shuffled_tokens/jacobian_iss/iss_", f"{NULL}/iss_model_summary.json"]),
        ("paper/figures/dose.csv", ["toy-model/six_axis/ioi.coverage_driver.P.jsonl"]),
        ("paper/tables/values.tex", ["toy-model/six_axis/ioi", "medium-model/jacobian_iss/freeze_manifest.json"]),
        ("paper/tables/index.html", ["toy-model/six_axis/ioi", f"{ISS}/raw_iss_ablation.json"]),
        ("paper/tables/reuse.csv", ["toy-model/six_axis/sentiment.driver_omp.F.jsonl", "rendered on the CPU"]),
        ("corpus/corpus.json", ["built bit for bit", "(2 windows)"]),
    ],
)
def test_every_kind_of_artefact_answers(measured, name, parts):
    found = text(measured, name)
    for part in parts:
        assert part in found, part


def test_hashes_are_held_against_the_manifest(measured):
    name = f"{ISS}/iss_per_fact.jsonl"
    assert ", as listed" in text(measured, name).splitlines()[1]
    path = measured / name
    path.write_text(path.read_text() + "\n")
    assert f"CHANGED: MANIFEST.json lists {read_manifest(measured).measurements[name]}" in text(measured, name)


def test_what_is_not_here_is_said_with_its_listed_hash(measured):
    (measured / ISS / "low_rank_factors/toy-model/2/Q.pt").unlink()
    found = text(measured, f"{ISS}/freeze_manifest.json")
    assert "Q.pt: not in this folder, listed with SHA-256 " + "d" * 64 in found


def test_an_artefact_is_told_once(measured):
    found = text(measured, "paper/tables/official_iss.csv")
    told = [line.strip() for line in found.splitlines() if line.strip().endswith((".json", ".jsonl", ".pt"))]
    assert f"{ISS}/freeze_manifest.json" in told and len(told) == len(set(told)) and ": told already" in found


@pytest.mark.parametrize(
    "name, message",
    [
        ("paper/tables/none.csv", "no such file"),
        ("paper/notes.txt", "nothing that this project measures or renders"),
        ("MANIFEST.json", "nothing that this project"),
        ("../outside.json", "is not below"),
        (f"{ISS}/low_rank_factors/toy-model/2", "expected an object"),
        (f"{ISS}/full_reference/toy-model/2.safetensors", "metadata.json: expected an object"),
    ],
)
def test_what_cannot_answer_is_one_line(measured, name, message):
    (measured / "paper/notes.txt").write_text("x")
    (measured.parent / "outside.json").write_text("{}")
    for folder in ("low_rank_factors/toy-model/2", "full_reference/toy-model"):
        (measured / ISS / folder / "metadata.json").write_text("[]")
    with pytest.raises(InputError, match=message) as caught:
        provenance_lines(Path(name), measured)
    assert "\n" not in str(caught.value)


def test_no_line_drives_a_terminal(measured):
    path = measured / ISS / "low_rank_factors/toy-model/2/metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"probe": "a\x1b[2Jb", "code_sha256": "../../x"}))
    lines = provenance_lines(path.parent.relative_to(measured), measured)
    assert len(lines) > 5 and all(line.isprintable() for line in lines)


def test_it_needs_no_torch(measured):
    code = (
        "import sys; from pathlib import Path; from sparse_control.provenance import provenance_lines\n"
        f"provenance_lines(Path('paper/tables/findings.csv'), Path({str(measured)!r}))\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'prefect', 'dvc')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT).returncode == 0
