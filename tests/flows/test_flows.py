import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.cluster import check_dask
from flows.official_iss import official_iss
from flows.parameters import USES, checked_run, checked_settings, made_root
from flows.reproduce import reproduce
from flows.six_axis import six_axis
from sparse_control.errors import InputError, NotAvailable
from tests.support.facts import write_pararel
from tests.support.lock import held

PROJECT = Path(__file__).resolve().parents[2]
FLOWS = {"official-iss": official_iss, "six-axis": six_axis, "reproduce": reproduce}


def test_names_are_exact_in_flows_and_deployments():
    assert {flow.name for flow in FLOWS.values()} == set(FLOWS)
    deployments = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    assert [deployment["name"] for deployment in deployments] == list(FLOWS)
    for deployment in deployments:
        file, _, function = deployment["entrypoint"].partition(":")
        assert (PROJECT / file).is_file() and FLOWS[deployment["name"]].fn.__name__ == function


@pytest.mark.parametrize("flow", [official_iss, six_axis])
def test_settings_are_checked_before_any_work(flow, tmp_path):
    with pytest.raises(InputError, match="no preset 'tiny'"):
        flow.fn(preset="tiny", root=str(tmp_path / "root"))
    assert not (tmp_path / "root").exists()


@pytest.fixture
def params(tmp_path, monkeypatch):
    """The flows read a copy of params.yaml with some fields changed."""

    def change(**sections):
        content = yaml.safe_load((PROJECT / "params.yaml").read_text())
        for name, values in sections.items():
            content[name] |= values
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))

    monkeypatch.setattr("flows.parameters.project_folder", lambda: tmp_path)
    return change


@pytest.mark.parametrize(
    ("section", "values", "flow", "message"),
    [
        ("iss", {"layers": [0.2, 30]}, "official-iss", "iss.layers: 30 is not a source layer of smollm2-135m-instruct"),
        ("alternatives", {"layers": [30]}, "alternatives", "alternatives.layers: 30 is not a source layer"),
        ("nulls", {"layers": [30]}, "nulls", "nulls.layers: 30 is not a source layer"),
        ("estimator", {"ranks": [576]}, "experiment-a", "estimator.ranks: none is below the width 576"),
        ("alternatives", {"ranks": [1024]}, "alternatives", "alternatives.ranks: none is below the width 576"),
    ],
)
def test_sections_in_use_are_held_against_the_model_and_others_are_not(params, section, values, flow, message):
    params(**{section: values})
    for name, uses in USES.items():
        if section in uses:
            with pytest.raises(InputError, match=message):
                checked_settings("smoke", None, uses)
        else:
            checked_settings("smoke", None, uses)
    assert section in USES[flow]


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("iss", {"benchmark_relations": 99}, "more is asked for than the benchmark has.* relations: 99 asked"),
        ("iss", {"calibration_relations": 99}, "more is asked for than the calibration has.* relations: 99 asked"),
        ("iss", {"facts_per_relation": 999}, "facts_per_relation: 999 asked, there are"),
        ("iss", {"families": 9}, "families: 9 asked, there are 5"),
        ("iss", {"templates": 9}, "templates: 9 asked, there are"),
        (
            "validation",
            {"activations": 513},
            "validation.activations: 513 asked for, there are 512 calibration prompts",
        ),
    ],
)
def test_more_than_the_data_has_is_refused_before_any_work(params, tmp_path, section, values, message):
    params(**{section: values})
    for flow in USES.keys() - {"six-axis"}:
        with pytest.raises(InputError, match=message) as caught:
            checked_run(flow, "smoke", None, str(tmp_path / "root"))
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "root").exists()
    checked_run("six-axis", "smoke", None, str(tmp_path / "root"))


@pytest.mark.parametrize(
    "label",
    [
        "a b",
        "a'b",
        'a"b',
        "a:b",
        "a#b",
        "a{b}",
        "a,b",
        "-a",
        ".a",
        "a.",
        "$(a)",
        "a;b",
        "a*",
        "a" * 101,
        "code",
        "Paper",
    ],
)
def test_a_model_that_no_manifest_or_graph_can_name_is_refused_before_any_work(tmp_path, label):
    (tmp_path / label).mkdir()
    with pytest.raises(InputError, match="rename it"):
        official_iss.fn(model=str(tmp_path / label), root=str(tmp_path / "root"))
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("place", [(), ("presets", "smoke")])
def test_a_null_is_never_measured_as_official(tmp_path, monkeypatch, place):
    content = yaml.safe_load((PROJECT / "params.yaml").read_text())
    section = content
    for name in place:
        section = section[name]
    section["null"] = "shuffled_tokens"
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr("flows.parameters.project_folder", lambda: tmp_path)
    with pytest.raises(InputError, match="params.yaml: null: shuffled_tokens: is no setting of the file"):
        official_iss.fn(root=str(tmp_path / "root"))
    assert not (tmp_path / "root").exists()


def test_a_root_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made .* choose another --root"):
        made_root(tmp_path / "file" / "below")


def test_reproducing_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        reproduce.fn(root=str(tmp_path / "none"))


def test_dask_without_the_package_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    with pytest.raises(NotAvailable, match="pip install prefect-dask"):
        check_dask("tcp://127.0.0.1:8786")


def test_importing_the_flows_settles_the_environment_and_loads_no_torch(tmp_path):
    code = (
        "import flows.official_iss, flows.six_axis, flows.reproduce, os, sys\n"
        "print(os.environ['PREFECT_HOME'], os.environ['PREFECT_SERVER_ANALYTICS_ENABLED'], 'torch' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(PROJECT / ".prefect"), "false", "False"]
    assert done.stderr == ""


def test_all_wrong_parameters_are_told_together_and_nothing_is_made(tmp_path):
    root = tmp_path / "root"
    with pytest.raises(InputError) as error:
        official_iss.fn(preset="none", model="smollm3", root=str(root), dask="nowhere")
    told = str(error.value)
    assert told.startswith("3 parameters are wrong: (1) ") and "no preset 'none'" in told
    assert "(2) model 'smollm3': not in the registry" in told and "(3) dask nowhere: is not the address" in told
    assert not root.exists()


@pytest.mark.parametrize(("name", "model"), [("no such file", "a.gguf"), ("not in the registry", "smollm")])
def test_a_model_that_cannot_be_is_refused_before_any_work(tmp_path, name, model):
    with pytest.raises(InputError, match=name):
        six_axis.fn(model=model, root=str(tmp_path / "root"))
    assert not (tmp_path / "root").exists()


def test_a_second_run_in_a_folder_is_refused_before_any_work(tmp_path):
    with held(tmp_path), pytest.raises(InputError, match="another command is writing into it"):
        six_axis.fn(root=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("label", ["modèle", "模型", "nul\x01l"])
def test_a_model_no_record_can_be_called_after_is_refused_before_any_work(tmp_path, label):
    (tmp_path / label).mkdir()
    (tmp_path / f"{label}.gguf").write_text("")
    for model in (tmp_path / label, tmp_path / f"{label}.gguf", f"owner/{label}"):
        with pytest.raises(InputError, match="need printable ASCII; rename it"):
            official_iss.fn(model=str(model), root=str(tmp_path / "root"))
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("dask", ["tcp://a..b:80", "tcp://.:1", f"tcp://{'a' * 64}:80"])
def test_a_cluster_that_cannot_be_is_one_line(monkeypatch, dask):
    monkeypatch.setattr("flows.cluster._dask_task_runner", lambda dask: None)
    with pytest.raises(InputError, match=f"^dask {dask}: "):
        check_dask(dask)


def own_facts(flow="official-iss", **more):
    return lambda folder, root: checked_run(flow, "smoke", None, str(root), facts=str(folder), **more)


def test_the_key_of_work_has_the_facts_and_not_where_they_are(tmp_path):
    from tasks.official_iss import corpus, official, reference

    def keys(folder, name="pararel"):
        path = write_pararel(tmp_path / folder / name)
        settings = own_facts()(path, tmp_path / "root").settings
        arguments = {"root": "r", "corpus": PROJECT / "params.yaml", "settings": settings, "weights": "w", "reads": []}
        stages = [task.cache_key_fn(None, arguments) for task in (reference, official)]
        return [corpus.cache_key_fn(None, {"cache": "c", "settings": settings, "weights": "w", "reads": []}), *stages]

    first, same = keys("here"), keys("there")
    assert first == same
    path = tmp_path / "there" / "pararel" / "trex_lms_vocab" / "P1.jsonl"
    path.write_text(path.read_text().replace("Object1x0", "Else"))
    settings = own_facts()(path.parents[1], tmp_path / "root").settings
    arguments = {"root": "r", "corpus": PROJECT / "params.yaml", "settings": settings, "weights": "w", "reads": []}
    assert reference.cache_key_fn(None, arguments) != first[1]
    own = checked_run("official-iss", "smoke", None, str(tmp_path / "root")).settings
    assert "facts" not in own.model_dump(), "settings of the project's own facts are what they were"


@pytest.mark.parametrize(
    ("relations", "facts", "lemmas", "message"),
    [
        (2, 20, 3, r"pararel: relations: facts that can be asked are of 2 \(P1, P2\); 3 are needed"),
        (6, 8, 3, r"pararel: validation.activations: 64 asked for, there are 48 calibration prompts; .*, or add facts"),
        (
            6,
            20,
            1,
            r"pararel: no relation has two facts that can be asked; 6 dropped as relations with .*--prompts",
        ),
    ],
)
def test_too_few_facts_are_refused_before_any_work(tmp_path, relations, facts, lemmas, message):
    folder = write_pararel(tmp_path / "pararel", relations=relations, facts=facts, lemmas=lemmas)
    with pytest.raises(InputError, match=message) as caught:
        own_facts()(folder, tmp_path / "root")
    assert "\n" not in str(caught.value) and not (tmp_path / "root").exists()


def test_facts_and_prompts_are_files_that_belong_together(tmp_path):
    with pytest.raises(InputError, match="prompts x.csv: belong to facts of your own; give those with --facts"):
        checked_run("official-iss", "smoke", None, str(tmp_path / "root"), prompts="x.csv")
    with pytest.raises(InputError, match="absent.csv"):
        own_facts()(tmp_path / "absent.csv", tmp_path / "root")
    assert not (tmp_path / "root").exists()
