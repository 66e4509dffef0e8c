"""What a model that is taken must do right, and which types of models are taken: the page docs/models.md.

python -m tests.support.examination        goes through every type and writes the page
"""

import sys
from collections import Counter
from typing import Any

import click
import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.files import write_text
from sparse_control.jacobian import corpus_operator, exact_jacobian
from sparse_control.models import LanguageModel
from sparse_control.models.decode import using_attention
from sparse_control.models.self_check import self_check
from sparse_control.models.sites import Site, add_at_sites, capturing_sites, site_width
from sparse_control.models.suffix import read_suffixes, run_unpatched, suffix_logits
from sparse_control.project import project_folder
from tests.support.architectures import TYPES, tiny_architecture
from tests.support.jacobian_reference import full_sequence_jacobian, relative

LENGTH = 14  # of prompts: more than a window, within every limit of the tiny configurations


def examine(lm: LanguageModel) -> None:
    """Hold Jacobians, products, sites and rerun suffixes of an accepted model against its plain forwards.

    Raises:
        AssertionError: names what differs.
    """
    ids = (torch.arange(1, LENGTH + 1) * 37 + 11) % lm.vocabulary
    exact, plain = exact_jacobian(lm, ids), full_sequence_jacobian(lm, ids)
    for layer in range(lm.n_layers):
        error = relative(exact[layer] - plain[layer], plain[layer])
        assert error < 1e-3, f"Jacobian of layer {layer} is {error:.1e} from full autograd"
        columns = corpus_operator(lm, [ids], layer).matmat(torch.eye(lm.width))
        error = relative(torch.as_tensor(columns) - plain[layer], plain[layer])
        assert error < 1e-3, f"forward products of layer {layer} are {error:.1e} from full autograd"
    _examine_heads(lm, ids)
    for length in (1, 5):
        _examine_suffix(lm, ids, length)


def _examine_heads(lm: LanguageModel, ids: Tensor) -> None:
    """What head h of the attention gives is what site `head.h` holds, and nothing else of the projection's input."""
    layer = lm.n_layers - 1
    sites = [Site("head", layer, head) for head in range(lm.n_heads)]

    def marked(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", _plain_attention)
        output = eager(module, *args, **kwargs)[0].clone()
        if module.layer_idx == layer and marked.head is not None:
            output[:, :, marked.head] += 1.0
        return output, None

    AttentionInterface.register("sparse_control_test_marked", marked)
    found = {}
    with using_attention(lm, "sparse_control_test_marked"):
        for marked.head in (None, *range(lm.n_heads)):
            with torch.no_grad(), capturing_sites(lm, sites) as captured:
                lm.model(input_ids=ids[None], use_cache=False)
            found[marked.head] = captured
    for head in range(lm.n_heads):
        for site in sites:
            moved = not torch.equal(found[head][site][0, 0], found[None][site][0, 0])
            assert moved == (site.head == head), f"site {site.name} does not hold head {site.head} alone"


def _plain_attention(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: None, *, scaling: float, alibi: Any
) -> tuple[Tensor, None]:
    """Causal attention with a bias by distance, of the types that have no such function themselves."""
    length = query.shape[2]
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for part in (key, value))
    scores = query @ key.mT * scaling + (0.0 if alibi is None else alibi(length)[None, :, None])
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    return (scores.masked_fill(later, -torch.inf).softmax(-1) @ value).transpose(1, 2), None


def _examine_suffix(lm: LanguageModel, ids: Tensor, length: int) -> None:
    """Patches of every kind of site on cached keys and values are those of full forwards, and act at the last token."""
    prompts = [ids, ids[3:], ids.flip(0)]
    suffixes, unpatched = run_unpatched(lm, read_suffixes(lm, prompts, length))
    sites = [Site("head", 0, lm.n_heads - 1, -length), Site("head", lm.n_layers - 1, 1, -length)]
    sites += [Site("mlp", 1, None, -length), Site("resid", 0, None, -length)]
    for site in sites:
        vector = torch.sin(torch.arange(site_width(lm, site)) * 1.7) * 2
        with torch.no_grad(), add_at_sites(lm, {site: vector}, length=length):
            found = suffix_logits(lm, suffixes, 1, first=site.layer)[:, 0]
        for index, prompt in enumerate(prompts):
            with torch.no_grad(), add_at_sites(lm, {site: vector}, length=len(prompt)):
                expected = lm.model(input_ids=prompt[None], use_cache=False).logits[0, -1]
            error = relative(found[index] - expected, expected)
            assert error < 1e-4, f"{site.name}: logits of a rerun suffix are {error:.1e} from a full forward's"
            if length == 1:
                assert relative(found[index] - unpatched[index], expected) > 1e-5, f"{site.name} moves nothing"


def outcome(model_type: str) -> tuple[str, str]:
    """Whether models of a type are taken (`supported`), `refused` or `not built`, and the one line that says why.

    Raises:
        AssertionError: the model is taken and is not exact, or a prompt beyond its limit is; or an error of two lines.
        Exception: anything but `UnsupportedModel`, of the library.
    """
    try:
        model = tiny_architecture(model_type)
    except Exception as error:  # of transformers: a part of a larger model, which is none by itself
        return "not built", " ".join(str(error).split())
    try:
        lm = LanguageModel.wrap(model, provenance={"name": model_type})
        self_check(lm)
    except UnsupportedModel as error:
        assert "\n" not in str(error), f"an error of several lines: {error}"
        return "refused", str(error)
    examine(lm)
    if (limit := lm.prompt_limit) is None:
        return "supported", ""
    try:
        exact_jacobian(lm, torch.ones(limit.tokens + 1, dtype=torch.long))
    except InputError:
        return "supported", f"prompts of up to the {limit.reason}"
    raise AssertionError(f"a prompt of more than the {limit.tokens} {limit.reason} is taken")


# --- the page of outcomes -------------------------------------------------------------------------------------------

PAGE = project_folder() / "docs" / "models.md"
HEAD = """\
# Which models can be measured

Every type of causal language model that transformers {version} has, built as a tiny random model and put through the
self-check of `load_model`. One that is taken is exact: its Jacobians, forward products, sites and rerun suffixes were
held against plain forwards and full autograd. One that is not is refused in one line; none of them does anything else.
Of {count} types {supported} are supported, {refused} are refused and {missing} are no model by themselves.

Written by `python -m tests.support.examination`; `tests/models/test_architectures.py` goes through all of them again.

| type | | |
|---|---|---|
"""


def read_page() -> dict[str, str]:
    """Type -> outcome, as the page has them."""
    rows = [line.split("|")[1:-1] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): cells[1].strip() for cells in rows}


def main() -> None:
    """Go through all types and write the page."""
    found = {}
    for model_type in TYPES:
        found[model_type] = outcome(model_type)
        click.echo(f"{model_type}: {': '.join(found[model_type])}", err=True)
    kinds = Counter(kind for kind, _ in found.values())
    head = HEAD.format(
        version=transformers.__version__, count=len(found), supported=kinds["supported"], refused=kinds["refused"],
        missing=kinds["not built"],
    )  # fmt: skip
    rows = [f"| `{name}` | {kind} | {reason.replace('|', ' ')} |\n" for name, (kind, reason) in sorted(found.items())]
    write_text(PAGE, head + "".join(rows))


if __name__ == "__main__":
    main()
