"""Files of figures: what `reproduce` writes, what it leaves alone, and what `verify` makes of them."""

import shutil

import pytest

from sparse_control import paper
from sparse_control.figures import FIGURES
from sparse_control.project import project_folder
from sparse_control.records.paths import ModelPaths
from sparse_control.records.read import read_records
from sparse_control.records.six_axis_files import measurement_files
from sparse_control.verify import verify
from sparse_control.verify.figures import figure_checks
from tests.support.measured_root import MODEL, bless

SUFFIXES = {".csv", ".tex", ".pdf", ".svg"}


@pytest.fixture(scope="module")
def drawn_root(built_root, tmp_path_factory):
    pytest.importorskip("matplotlib")
    root = tmp_path_factory.mktemp("drawn") / "root"
    shutil.copytree(built_root, root)
    paper.reproduce(root)
    return root


@pytest.fixture
def drawn(drawn_root, tmp_path):
    shutil.copytree(drawn_root, tmp_path / "root")
    return tmp_path / "root"


def files(root):
    return {path.name: path for path in (root / "paper" / "figures").iterdir()}


def failures(root):
    return [check for check in verify(root, project_folder()) if check.status == "FAIL"]


def test_a_figure_has_numbers_caption_and_pictures_and_is_drawn_once(drawn):
    found = files(drawn)
    stems = {path.stem for path in found.values()}
    assert set(found) == {f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES}
    assert {"layers", "rank", "dose", "selectors", "divergence"} <= stems <= set(FIGURES)
    before = {name: path.stat().st_mtime_ns for name, path in found.items()}
    assert paper.undrawn(paper.reproduce(drawn)) == []
    assert {name: path.stat().st_mtime_ns for name, path in files(drawn).items()} == before
    assert failures(drawn) == []


def test_other_numbers_are_drawn_again_and_only_those(drawn):
    before = {name: path.read_bytes() for name, path in files(drawn).items()}
    for path in measurement_files(ModelPaths(drawn, MODEL)):
        if "random_support" in path.name:
            path.unlink()
    bless(drawn)
    paper.reproduce(drawn)
    changed = {path.stem for name, path in files(drawn).items() if path.read_bytes() != before[name]}
    assert {"cost", "selectors"} <= changed and not {"layers", "rank", "dose"} & changed
    assert [failure for failure in failures(drawn) if "figures" in failure.name] == []


def test_without_matplotlib_no_picture_of_other_numbers_stays(drawn, monkeypatch):
    for module in ("sparse_control.paper", "sparse_control.verify.figures"):
        monkeypatch.setattr(f"{module}.can_draw", lambda: False)
    for path in measurement_files(ModelPaths(drawn, MODEL)):
        if "random_support" in path.name:
            path.unlink()
    bless(drawn)
    left_out = paper.undrawn(paper.reproduce(drawn))
    assert {"cost", "selectors"} <= set(left_out) and "layers" not in left_out
    found = files(drawn)
    assert not any(f"{name}.pdf" in found or f"{name}.svg" in found for name in left_out)
    assert all(f"{name}.csv" in found and f"{name}.tex" in found for name in left_out)
    checks = list(figure_checks(drawn, project_folder(), read_records(drawn, project_folder()), ()))
    assert [check for check in checks if check.status == "FAIL"] == []
    assert "drawing of layers" in {check.name for check in checks if check.status == "skip"}


@pytest.mark.parametrize(
    ("name", "edit", "check"),
    [
        ("dose.csv", lambda files: files["dose.csv"].write_text(edited(files["dose.csv"])), "recomputed"),
        ("dose.tex", lambda files: files["dose.tex"].write_text("figures/cost.pdf"), "rendered"),
        ("dose.pdf", lambda files: shutil.copy(files["cost.pdf"], files["dose.pdf"]), "picture"),
        ("dose.svg", lambda files: files["dose.svg"].unlink(), "picture"),
    ],
)
def test_verify_notices_a_figure_of_other_numbers_though_its_hash_was_renewed(drawn, name, edit, check):
    from sparse_control.records import manifest

    edit(files(drawn))
    manifest.write_rendered_manifest(drawn / "paper", manifest.rendered_files(drawn / "paper"))
    assert f"{check} paper/figures/{name}" in {failure.name for failure in failures(drawn)}


def edited(path):
    """The text of a .csv with another number in its last row."""
    *rows, last = path.read_text().splitlines()
    *cells, _ = last.split(",")
    return "\n".join([*rows, ",".join([*cells, "0.123"])]) + "\n"


def test_a_figure_that_nothing_makes_is_noticed_and_removed(drawn):
    from sparse_control.records import manifest

    shutil.copy(files(drawn)["dose.csv"], drawn / "paper" / "figures" / "old.csv")
    manifest.write_rendered_manifest(drawn / "paper", manifest.rendered_files(drawn / "paper"))
    assert [failure.name for failure in failures(drawn)] == ["rendered paper/figures/old.csv"]
    paper.reproduce(drawn)
    assert "old.csv" not in files(drawn) and failures(drawn) == []


def test_a_link_in_place_of_the_folder_is_not_followed(drawn, tmp_path):
    from sparse_control.errors import InputError

    folder = drawn / "paper" / "figures"
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "elsewhere").iterdir())
    with pytest.raises(InputError, match="figures"):
        paper.reproduce(drawn)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "elsewhere").iterdir()) == before
