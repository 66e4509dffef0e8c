"""MLPs as one matrix against autograd through the MLP."""

import pytest
import torch

from sparse_control.models.decode import DecodeStep
from sparse_control.models.merge import merged_mlps
from tests.support.tiny import CONFIGS, WIDTH, prompt, tiny_model


def jacobian(function, hidden):
    return torch.autograd.functional.jacobian(lambda x: function(x).flatten(), hidden).squeeze()


def merged_and_plain(lm, layer=1):
    hidden = torch.sin(torch.arange(WIDTH) * 1.3)[None, None]
    mlp = lm.layout.mlps[layer]
    plain = mlp(hidden), jacobian(mlp, hidden)
    with merged_mlps(lm):
        taken = hidden.clone().requires_grad_()
        output = mlp(taken)
        names, node = [], output.grad_fn
        while node is not None:
            names.append(node.name())
            node = node.next_functions[0][0] if node.next_functions else None
        return plain, (output, jacobian(mlp, hidden)), names


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_is_merged_and_right(name):
    lm = tiny_model(name)
    (value, expected), (merged_value, found), graph = merged_and_plain(lm)
    assert torch.equal(value, merged_value)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert len(graph) < 8 and not any("Silu" in name or "Gelu" in name for name in graph)  # one product, no activation


def _mixing(module, _args, output):
    return output.roll(1, dims=-1)  # units act on their neighbours


@pytest.mark.parametrize("where", ["act_fn", "down_proj", "mlp", "scale"])
def test_mlps_of_another_form_are_left_to_autograd(where):
    lm = tiny_model()
    mlp = lm.layout.mlps[1]
    if where == "scale":
        mlp.register_forward_hook(lambda _module, _args, output: output * 0.5)
    else:
        (mlp if where == "mlp" else getattr(mlp, where)).register_forward_hook(_mixing)
    (value, expected), (merged_value, found), graph = merged_and_plain(lm)
    assert torch.equal(value, merged_value) and torch.allclose(found, expected, atol=1e-5)
    assert len(graph) >= 3


def test_hooks_are_removed_and_values_kept():
    lm = tiny_model()
    step = DecodeStep(lm, prompt())
    few, many = step.stream(rows=1), step.stream(rows=WIDTH)
    assert all(torch.equal(a, b) for a, b in zip(few, many))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in lm.model.modules())
