"""Where a Hugging Face decoder keeps its blocks, final norm and sites: the only place that knows module names."""

from dataclasses import dataclass

from torch import nn

from sparse_control.errors import UnsupportedModel


@dataclass(frozen=True)
class Names:
    """Module paths of one layout: `blocks` and `final_norm` from the model, the other two from a block."""

    blocks: str = "model.layers"
    final_norm: str = "model.norm"
    attention_output: str = "self_attn.o_proj"
    mlp: str = "mlp"


# Layouts that differ from the usual one, by `config.model_type`.
ODD_LAYOUTS = {
    "gpt2": Names("transformer.h", "transformer.ln_f", "attn.c_proj", "mlp"),
    "gpt_neox": Names("gpt_neox.layers", "gpt_neox.final_layer_norm", "attention.dense", "mlp"),
    "phi": Names("model.layers", "model.final_layernorm", "self_attn.dense", "mlp"),
}


@dataclass(frozen=True)
class Layout:
    """The modules the library hooks.

    Attributes:
        blocks: the L blocks in order; block l maps h^l to h^(l+1).
        final_norm: the norm after the last block; its input is h^L.
        attention_outputs: per block, the attention output projection; its input is the heads side by side.
        mlps: per block, the MLP; its output is what the block adds.
    """

    blocks: tuple[nn.Module, ...]
    final_norm: nn.Module
    attention_outputs: tuple[nn.Module, ...]
    mlps: tuple[nn.Module, ...]


def _descend(root: nn.Module, path: str, model_type: str) -> nn.Module:
    module = root
    for name in path.split("."):
        module = getattr(module, name, None)
        if module is None:
            raise UnsupportedModel(
                f"model type {model_type!r} has no module {path!r} where decoders usually have it; "
                f"layouts known by name: {', '.join(ODD_LAYOUTS)}"
            )
    return module


def find_layout(model: nn.Module) -> Layout:
    """Find the blocks, final norm and site modules of a decoder.

    Raises:
        UnsupportedModel: a module is not where the layout says it is.
    """
    model_type = model.config.model_type
    names = ODD_LAYOUTS.get(model_type, Names())
    blocks = tuple(_descend(model, names.blocks, model_type))
    return Layout(
        blocks=blocks,
        final_norm=_descend(model, names.final_norm, model_type),
        attention_outputs=tuple(_descend(block, names.attention_output, model_type) for block in blocks),
        mlps=tuple(_descend(block, names.mlp, model_type) for block in blocks),
    )
