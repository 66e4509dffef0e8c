"""What declarations say of their tables: what each is made of, which models it is of, and where the README has it."""

import re
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from sparse_control.provenance.sources import sources_of
from sparse_control.records import manifest
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.paths import ModelPaths
from sparse_control.records.read import Records, read_records
from sparse_control.tables.parts import all_tables, parts
from sparse_control.tables.registry import TABLES
from sparse_control.tables.shown import shown
from tests.support.measured_iss import iss_files
from tests.support.measured_root import MEDIUM, MODEL, build_root, write_iss, write_six_axis

PROJECT = Path(__file__).parent.parent.parent
FIELDS = [field.name for field in fields(IssRecords)]
EVERY = ["six_axis", "published", *FIELDS, *(f"nulls.{name}" for name in FIELDS)]


@pytest.fixture(scope="module")
def records(built_whole_root):
    """The toy model, which has everything, and a medium one."""
    found = read_records(built_whole_root, PROJECT)
    return replace(found, models=tuple(sorted(found.models, key=lambda model: model.name != MODEL)))


def without(records, *names):
    """Records without some of what there is to read."""
    empty = {field.name: field.default for field in fields(IssRecords)}
    lost = {name: empty[name] for name in names if name in empty}
    of_nulls = {name.partition(".")[2]: empty[name.partition(".")[2]] for name in names if "." in name}
    models = tuple(
        replace(
            model,
            six_axis=() if "six_axis" in names else model.six_axis,
            iss=replace(model.iss, **lost),
            nulls={null: replace(iss, **of_nulls) for null, iss in model.nulls.items()},
        )
        for model in records.models
    )
    return Records(models=models, published={} if "published" in names else records.published)


def made(table, records):
    """A table as the .csv has it and as it is shown."""
    frame = table.frame(records)
    return frame.to_csv(), shown(table, frame, parts(records)[0])


def watched(record, seen, prefix=""):
    """A copy that notes which of its fields are asked for."""

    class Watched(type(record)):
        def __getattribute__(self, name):
            seen.add(prefix + name)
            return super().__getattribute__(name)

    return Watched(**{field.name: getattr(record, field.name) for field in fields(record)})


def read_by(table, records):
    """What a table asks the records for while it is made."""
    seen = set()
    models = tuple(
        watched(
            replace(
                model,
                iss=watched(model.iss, seen),
                nulls={name: watched(iss, seen, "nulls.") for name, iss in model.nulls.items()},
            ),
            seen,
        )
        for model in records.models
    )
    table.frame(watched(replace(records, models=models), seen))
    return seen


@pytest.mark.parametrize("name", TABLES)
def test_a_table_reads_what_it_says_and_nothing_else(records, name):
    table = TABLES[name]
    assert set(table.reads) <= set(EVERY)
    assert made(table, without(records, *(set(EVERY) - set(table.reads)))) == made(table, records)
    # before the freeze the status of a layer comes from the attempts
    assert set(table.reads) <= read_by(table, records) | read_by(table, without(records, "freeze"))


def test_a_page_says_where_its_tables_come_from(built_whole_root):
    """Every measured file that a table reads, and no other, of every model that has it."""
    measured = manifest.measured_files(built_whole_root)
    study = f"{MODEL}/nulls/redrawn_weights/jacobian_iss"
    assert sources_of("nulls/redrawn_weights/lam_rel_sweep", measured) == [f"{study}/iss_model_summary.json"]
    beside = sources_of("nulls", measured)
    assert len(beside) == 4 and {name.rpartition("/")[2] for name in beside} == {"iss_model_summary.json"}
    assert {name.partition("/")[0] for name in sources_of("ladder", measured)} == {MODEL, MEDIUM}
    assert all("/six_axis/" in name for name in sources_of("gate", measured))
    assert set(beside) < set(sources_of("index", measured)) < set(measured)


# --- any number of models -------------------------------------------------------------------------------------------


def test_further_models_are_in_every_table_they_belong_to(tmp_path):
    """Folders beside the first are all it takes: one with everything, one with ISS and a null, one with six axes."""
    root = build_root(tmp_path, model="first", tables=False)
    for model in ("first", "second", "third"):
        for null in ("shuffled_tokens", "redrawn_weights") if model == "first" else ("redrawn_weights",):
            write_iss(ModelPaths(root, model, null), iss_files(model, null=null))
        write_iss(ModelPaths(root, model), iss_files(model))
    write_six_axis(root, "second")
    write_six_axis(root, "zeroth/axes")
    frames = all_tables(read_records(root, PROJECT))
    iss, axes = ["first", "second", "third"], ["first", "second", "zeroth/axes"]
    for name, frame in frames.items():
        null, table = name.rpartition("/")[0], TABLES[name.rpartition("/")[2]]
        expected = axes if table.group in ("protocol", "published") else [*iss, "zeroth/axes"]
        expected = iss if table.group == "iss" else expected
        expected = expected[:1] if null.endswith("shuffled_tokens") else expected
        expected = ["first, second", "first, third", "first, zeroth/axes"][:2] if name == "rank_transfer" else expected
        assert list(dict.fromkeys(frame["model"])) == expected, name


# --- the README -----------------------------------------------------------------------------------------------------


def readme_map():
    """(tables, saved measurements, code) of each row of the README's map; measurements as patterns below MODEL/."""
    text = (PROJECT / "README.md").read_text().partition("## What is measured where")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    for line in lines[1:]:
        tables, saved, code = (re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[2:5])
        patterns = [path.removeprefix("MODEL/").replace("/NAME/", "/*/") for path in saved]
        yield [name for name in tables if "/" not in name], patterns, code


def test_the_readme_says_what_every_table_is_made_of():
    rows = list(readme_map())
    assert sorted(name for tables, _, _ in rows for name in tables) == sorted(TABLES), "every table once"
    for tables, saved, code in rows:
        read = {pattern for name in tables for pattern in TABLES[name].files()}
        assert [path for path in read if not any(fnmatchcase(path, pattern) for pattern in saved)] == [], tables
        for pattern in saved:
            assert any(fnmatchcase(path, pattern) for path in read) or (PROJECT / pattern).is_file(), pattern
        assert [path for path in code if not (PROJECT / "sparse_control" / path).exists()] == []
