"""params.yaml: presets, and one line for every mistake."""

import pytest
import yaml

from sparse_control.errors import InputError
from sparse_control.project import project_folder
from sparse_control.settings import load_settings

PARAMS = project_folder() / "params.yaml"


def edited(tmp_path, **changes):
    """The project's params.yaml with dotted keys changed; None deletes."""
    content = yaml.safe_load(PARAMS.read_text())
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        section = content
        for step in path:
            section = section[step]
        if value is None:
            del section[last]
        else:
            section[last] = value
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_the_shipped_presets_are_valid(preset):
    settings = load_settings(PARAMS, preset)
    assert settings.preset == preset
    settings.check_width(576, 30)


def test_a_preset_lies_over_the_base_key_by_key():
    smoke, paper = load_settings(PARAMS, "smoke"), load_settings(PARAMS, "paper")
    assert smoke.iss.facts_per_relation == 16 and paper.iss.facts_per_relation == 24
    assert smoke.iss.lam_rel_sweep == paper.iss.lam_rel_sweep


def test_a_task_has_its_own_seeds_where_it_names_some():
    protocol = load_settings(PARAMS, "paper").protocol
    assert len(protocol.seeds_of("ioi")) == 10 and protocol.seeds_of("refusal") == protocol.seeds == list(range(8))


def test_model_argument_replaces_the_file():
    assert load_settings(PARAMS, model="other").model == "other"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimator__rank": [1]}, r"estimator.rank: unknown key; did you mean 'ranks'\?"),
        ({"estimator__ranks": None, "estimator__rank": [1]}, r"estimator.rank: unknown key; did you mean 'ranks'\?"),
        ({"colour": 1}, "colour: unknown key; known keys: "),
        ({"threads": None}, "threads: is missing; add it"),
        ({"threads": "two"}, "threads: .*got 'two'"),
        ({"threads": True}, "threads: .*got True"),
        ({"threads": 0}, "threads: .*got 0"),
        ({"validation__median_cosine": float("nan")}, "validation.median_cosine: .*got nan"),
        ({"validation__median_cosine": 1.5}, "validation.median_cosine: .*got 1.5"),
        ({"estimator__ranks": [64, 32]}, "estimator: .*ranks must be ascending"),
        ({"estimator__sketch_seeds": [0, 1]}, "estimator.sketch_seeds: .*at least 3"),
        ({"estimator__sketch_seeds": [0, 1, 1]}, "sketch_seeds must differ"),
        ({"estimator__probe": "uniform"}, "estimator.probe: .*'gaussian' or 'rademacher'"),
        ({"protocol__doses": [0.5, 1]}, "doses must contain 0"),
        ({"protocol__feedback__targets": {"ioi": 8}}, "feedback.targets has no entry for task 'sentiment'"),
        ({"protocol__seeds": [0, 0]}, "seeds must be without repeats"),
        ({"protocol__task_seeds": {"ioi": [1, 1]}}, r"task_seeds.ioi must be without repeats, got \[1, 1\]"),
        ({"protocol__positions": [-1, -1]}, "positions must be without repeats"),
        ({"protocol__positions": [True]}, "protocol.positions.0: .*got True"),
        ({"protocol__components": ["attention"]}, "protocol.components.0: .*got 'attention'"),
        ({"protocol__random_supports": 0}, "protocol.random_supports: .*got 0"),
        ({"iss__layers": [6, 6]}, "layers must be without repeats"),
        ({"protocol__feedback__dose_limits": [1, 2]}, "dose_limits must be one negative and one positive"),
        ({"protocol__minimum_pairs": 13}, "minimum_pairs is more than a split has, got 13"),
        ({"iss": 3}, "iss: .*got 3"),
        ({"presets__smoke": 3}, "presets.smoke: expected a mapping"),
    ],
)
def test_mistakes_name_the_field_and_the_value(tmp_path, changes, message):
    file = edited(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_settings(file)
    assert str(caught.value).startswith(f"{file}: ") and "\n" not in str(caught.value)


def test_unknown_preset():
    with pytest.raises(InputError, match="no preset 'full'; there are: smoke, medium, paper"):
        load_settings(PARAMS, "full")


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [", "\x00", "a: &a [*a]", "a: !!python/object/apply:os.system ['true']"]
)
def test_not_a_settings_file(tmp_path, text):
    file = tmp_path / "params.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match="params.yaml: ") as caught:
        load_settings(file)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="absent.yaml: cannot be read"):
        load_settings(tmp_path / "absent.yaml")


def test_ranks_and_layers_that_do_not_fit_the_model():
    settings = load_settings(PARAMS)
    with pytest.raises(InputError, match="estimator.ranks: 512 is not below the width 512 .* use ranks 1..511"):
        settings.check_width(512, 30)
    with pytest.raises(InputError, match="iss.layers: 24 is not a source layer .* use 0..23"):
        settings.check_width(576, 24)


def test_all_mistakes_are_told_together(tmp_path):
    file = edited(tmp_path, threads="two", estimator__ranks=None, estimator__rank=[1], validation__activations=0)
    with pytest.raises(InputError) as error:
        load_settings(file)
    told = str(error.value).removeprefix(f"{file}: ").split("; ")
    assert told[:2] == ["estimator.rank: unknown key", "did you mean 'ranks'?"]
    assert [one.partition(":")[0] for one in told[2:]] == ["threads", "validation.activations"]
    with pytest.raises(InputError, match="; and .* more$"):
        load_settings(edited(tmp_path, **{f"colour{n}": n for n in range(20)}))
