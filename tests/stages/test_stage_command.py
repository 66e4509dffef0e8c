"""`stage`: one stage by itself holds the root's lock, lists what it wrote, and takes no corpus of other settings."""

import pytest
import yaml

from sparse_control import cli
from sparse_control.commands import stage as command
from sparse_control.corpus import load_corpus
from sparse_control.records.manifest import changed_measurements, read_manifest
from sparse_control.records.paths import STAGES
from tests.support.corpus import windows, write_corpus
from tests.support.lock import held


@pytest.fixture
def run(small_settings, small_corpus, tmp_path, monkeypatch, capsys):
    content = small_settings.model_dump(exclude={"preset", "null"}) | {"presets": {"smoke": {}}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(command, "project_folder", lambda: tmp_path)

    def call(*names, corpus=small_corpus, **options):
        given = [text for name, value in options.items() for text in (f"--{name}", value)]
        where = ["--root", str(tmp_path / "root"), "--corpus", str(corpus)]
        code = cli.main(["stage", *names, *where, *given])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return call


def test_stages_list_what_they_wrote_in_the_manifest(run, tmp_path, paths_of):
    root = tmp_path / "root"
    code, out, _ = run("reference", "validate")
    assert code == 0 and out and changed_measurements(root) == []
    code, more, _ = run("freeze", "official")
    assert code == 0 and changed_measurements(root) == []
    manifest = read_manifest(root)
    assert {*out, *more} == {*manifest.measurements, *manifest.binaries}
    assert paths_of(root).iss_file("summary").relative_to(root).as_posix() in manifest.measurements


def test_a_null_goes_into_its_own_folder_of_the_same_root(run, tmp_path, paths_of):
    assert run("reference", null="shuffled_tokens")[0] == 0
    assert paths_of(tmp_path / "root", "shuffled_tokens").reference(0).is_file()
    assert not paths_of(tmp_path / "root").base.exists() and changed_measurements(tmp_path / "root") == []


@pytest.mark.parametrize("name", STAGES)
def test_one_writer_at_a_time(run, tmp_path, name):
    (tmp_path / "root").mkdir()
    with held(tmp_path / "root"):
        code, out, err = run(name)
    assert code == 2 and out == [] and "another command is writing into it" in err


def test_a_corpus_of_another_length_is_one_line_and_nothing_is_written(run, tmp_path, small_corpus):
    tokenizer = load_corpus(small_corpus).metadata.tokenizer_sha256
    other = write_corpus(tmp_path / "other", windows(length=8), tokenizer_sha256=tokenizer)
    code, out, err = run("reference", corpus=other)
    assert code == 2 and out == [] and "sequence_length: was built with 8" in err and err.count("\n") == 1
    assert [path.name for path in (tmp_path / "root").iterdir()] == [".lock"]
