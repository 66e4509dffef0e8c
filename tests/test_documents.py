"""What the documents tell a reader to type, open or import exists: commands, targets, extras, flows, files, links.

The site is built, the notebook runs, and the findings of the README are cells of the tables.
"""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pandas as pd
import pytest
import yaml

from sparse_control.cli import cli

PROJECT = Path(__file__).resolve().parents[1]
MEASUREMENTS = PROJECT / "measurements"
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "tests/*.md", "measurements/*.md", "examples/**/*.md", ".github/**/*.md")
    for path in PROJECT.glob(pattern)
)
CLI = "python -m sparse_control"
MAKEFILE = (PROJECT / "Makefile").read_text("utf-8")
BUILT = (  # not in a checkout
    *(
        "runs/",
        ".venv",
        ".prefect",
        ".cache",
        "corpus/windows.jsonl",
        "SPARSE_CONTROL_CACHE",
        "docs/_build",
        "replaced/",
    ),
    *("low_rank_factors/", "Q.pt", "B.pt"),
)
SUFFIXES = r"\.(?:py|md|yaml|yml|json|jsonl|csv|tex|toml|cff|txt|lock|dvc|pt|safetensors|html|gguf)"
PATH = re.compile(rf"[\w.{{}}*@-]*(?:/[\w.{{}}*@-]*)+|[\w.{{}}*-]+{SUFFIXES}")


def text_of(document: Path) -> str:
    return document.read_text("utf-8")


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(document), re.MULTILINE | re.DOTALL)


def inline(document: Path) -> list[str]:
    """Inline code, which may be wrapped, outside of blocks."""
    prose = re.sub(r"^```.*?^```$", "", text_of(document), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


def commands(document: Path) -> Iterator[list[str]]:
    """Words of every command line in a shell block, and of inline code that begins with the name of a tool."""
    lines = [line for block in blocks(document, "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines += [code for code in inline(document) if code.split()[0].rsplit("/")[-1] in ("python", "make", "dvc")]
    lines += [f"{CLI} {code}" for code in inline(document) if re.match(rf"({'|'.join(cli.commands)}) [a-zA-Z-]", code)]
    for line in lines:
        for part in re.split(r"&&|;|\s&$", line):
            if words := shlex.split(part, comments=True):
                while re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                words = words[: words.index(">")] if ">" in words else words
                yield [words[0].rsplit("/")[-1] if words[0] != "." else ".", *words[1:]]


FOUND = [(document, words) for document in DOCUMENTS for words in commands(document)]


def ids(value):
    return value.relative_to(PROJECT).as_posix() if isinstance(value, Path) else " ".join(value)[:80]


def of_tool(*beginning):
    chosen = [
        (document, words[len(beginning) :]) for document, words in FOUND if words[: len(beginning)] == [*beginning]
    ]
    assert chosen, beginning
    return pytest.mark.parametrize(("document", "words"), chosen, ids=ids)


@of_tool(*CLI.split())
def test_the_command_line_takes_it(document, words, monkeypatch):
    """Parsed to the last option, and nothing run."""
    if {"COMMAND", "TABLE"} & {*words}:
        pytest.skip("a placeholder")
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: None)
    monkeypatch.chdir(PROJECT)
    try:
        cli.main(words, standalone_mode=False)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError) as error:  # named without its arguments
        assert len(words) <= 2, error


@of_tool("make")
def test_the_makefile_has_it(document, words):
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert name in (variables if is_variable else targets), word


def test_dvc_takes_it():
    parser = pytest.importorskip("dvc.cli.parser").get_main_parser()
    told = [words[1:] for _, words in FOUND if words[0] == "dvc" and words[1:]]
    assert told
    for words in told:
        assert parser.parse_args(words).func, words


def test_flows_of_deployments_exist():
    names = {deployment["name"] for deployment in yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]}
    told = [name for document in DOCUMENTS for name in re.findall(r"deployment run '([\w-]+)/\1'", text_of(document))]
    told += [name for document in DOCUMENTS for name in re.findall(r"make deployed FLOW=([\w-]+)", text_of(document))]
    assert told and set(told) <= names


def test_extras_exist():
    extras = set(tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
    places = [*DOCUMENTS, PROJECT / "Makefile", *(PROJECT / "sparse_control").rglob("*.py")]
    told = {
        (place.name, extra)
        for place in places
        for listed in re.findall(r"(?:sparse-control|'\.|\"\.|-e \.)\[([\w,]+)\]", text_of(place))
        for extra in listed.split(",")
    }
    assert told and {(name, extra) for name, extra in told if extra not in extras} == set()


@cache
def file_names() -> set[str]:
    """Names of the project's files, wherever they are."""
    top = ("sparse_control", "flows", "tasks", "tests", "measurements", "paper", "docs", "examples", "benchmarks")
    return {path.name for folder in top for path in (PROJECT / folder).rglob("*")}


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_files_exist(document):
    """Paths in links and inline code; {braces} and WORDS in capitals stand for any name, a bare name for any file."""
    missing = []
    links = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(document)) if "://" not in target]
    folders = (PROJECT, document.parent, PROJECT / "sparse_control", MEASUREMENTS, *MEASUREMENTS.iterdir())
    for code in [*links, *inline(document)]:
        whole = code.rstrip("/")
        if not PATH.fullmatch(code) or code.startswith((*BUILT, "/")) or whole in file_names():
            continue
        whole = re.sub(r"^\.\.\./", "**/", whole)
        patterns = (whole, re.sub(r"\{[^}]*\}|\b[A-Z][A-Z_]*\b", "*", whole))
        if not any(next(folder.glob(pattern), None) for folder in folders for pattern in patterns):
            missing.append(code)
    assert not missing, missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_modules_and_names_exist(document):
    """`sparse_control.a.b.name`, and what Python blocks import."""
    told = set(
        re.findall(r"\b(?:sparse_control|flows|tasks|benchmarks|tests)(?:\.[a-z_]\w*)+", "\n".join(inline(document)))
    )
    for block in blocks(document, "python"):
        for module, names in re.findall(r"^from ([\w.]+) import (.+)$", block, re.MULTILINE):
            told |= {f"{module}.{name.strip()}" for name in names.split(",")}
    missing = []
    for name in sorted(told):
        parts = name.split(".")
        files = [Path(*parts[:n]) for n in range(len(parts), 0, -1)]
        found = next((n for n, f in enumerate(files) if _source(f)), None)
        if found is None or found > 1:
            missing.append(name)
        elif found == 1 and not re.search(rf"\b{parts[-1]}\b", _source(files[1]).read_text("utf-8")):
            missing.append(name)
    assert [name for name in missing if name.split(".")[0] in ("sparse_control", "flows", "tasks", "tests")] == []


def _source(path: Path) -> Path | None:
    choices = (PROJECT / path.with_suffix(".py"), PROJECT / path / "__init__.py", PROJECT / path)
    return next((choice for choice in choices if choice.is_file()), None)


PYTHON = [(document, block) for document in DOCUMENTS for block in blocks(document, "python")]


@pytest.mark.slow
@pytest.mark.parametrize(("document", "block"), PYTHON, ids=lambda value: ids(value) if isinstance(value, Path) else "")
def test_python_blocks_run(document, block, default_model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # what they write is no part of the project
    exec(compile(block, str(document), "exec"), {})


# --- the site and the notebook --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(
            r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["'](https?:)?//""", page.read_text("utf-8")
        )
        assert not loaded, f"{page.name} is not readable without a network"


def test_the_reference_has_every_public_name():
    """Names that `__all__` of a package lists, and the functions of the statistics."""
    pytest.importorskip("torch")
    for package in ("models", "jacobian", "iss", "protocol"):
        text = text_of(PROJECT / "docs" / "reference" / f"{package}.md")
        names = import_module(f"sparse_control.{package}").__all__
        assert names and [name for name in names if f":: sparse_control.{package}.{name}\n" not in text] == []
    text = text_of(PROJECT / "docs" / "reference" / "metrics.md")
    for file in (PROJECT / "sparse_control" / "metrics").glob("[a-z]*.py"):
        if file.stem not in ("sums", "over_seeds"):  # helpers, and a page of its own
            names = re.findall(r"^def ([a-z]\w*)", text_of(file), re.MULTILINE)
            assert names and [name for name in names if f".{file.stem}.{name}\n" not in text] == []


NOTEBOOK = PROJECT / "examples" / "steer_and_measure.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(default_model, monkeypatch):
    """In a kernel of its own, from the folder it is in; what it asserts at its end is what the text says."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells), "strip its outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(PROJECT)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in shown), "a plot"


# --- findings in the README -----------------------------------------------------------------------------------------

FINDINGS = "smollm2-135m-instruct"


def cell(table: str, column: str, **where: str) -> str:
    rows = pd.read_csv(PROJECT / "paper" / "tables" / f"{table}.csv", dtype=str)
    found = rows[(rows[["model", *where]] == [FINDINGS, *where.values()]).all(axis=1)]
    assert len(found) == 1, (table, where)
    return found[column].item()


def finding(name: str) -> str:
    return cell("findings", "value", finding=name)


def thousandths(value: str) -> str:
    return f"{abs(float(value)):.3f}".removeprefix("0")


def reached(task: str, condition: str, column: str = "passes_0.40", table: str = "reachability") -> str:
    return cell(table, column, task=task, selector="coverage_driver", condition=condition)


def test_findings_of_the_readme_are_cells_of_the_tables():
    """Every number of the section, in order."""
    section = text_of(PROJECT / "README.md").partition("## What was found\n")[2].partition("\nThese are of")[0]
    told = re.findall(r"(?<![\w.-])\.?\d+(?:\.\d+)?(?![\w.]*\d)", section.replace("95 % interval", "interval"))
    lowest, highest = finding("layer of the smallest ISS - Raw-ISS"), finding("layer of the largest ISS - Raw-ISS")
    seeds = {task: reached(task, "P", "n_seeds") for task in ("ioi", "mcqa_cue", "sentiment")}
    expected = [
        finding("layers of the window"),
        *map(thousandths, (finding("ISS"), finding("ISS, BCa low"), finding("ISS, BCa high"))),
        thousandths(finding("Raw-ISS over validated layers")),
        thousandths(finding("smallest ISS - Raw-ISS of a layer")),
        lowest, thousandths(finding("largest ISS - Raw-ISS of a layer")), highest,
        finding("validated layers"), finding("smallest k"), "576",
        finding("depths where the small rank passes on the medium model"), finding("depths compared"),
        *(number for task in seeds for number in (reached(task, "P"), seeds[task])),
        reached("sentiment", "F"), seeds["sentiment"],
        reached("ioi", "F"), seeds["ioi"], reached("mcqa_cue", "F"), seeds["mcqa_cue"],
    ]  # fmt: skip
    assert told == expected
    assert highest == finding("layer of the largest official difference")
    assert float(finding("shuffled_tokens: share of the official difference at that layer")) == pytest.approx(
        1, abs=0.05
    )
    assert {reached(task, "P", "seed_mean_passes", "preservation") for task in seeds} == {"0"}, "preservation on none"
