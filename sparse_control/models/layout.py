"""Where a Hugging Face decoder keeps its blocks, final norm and sites: the only place that knows module names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from sparse_control.errors import UnsupportedModel
from sparse_control.models.own_attention import ADAPTERS, Adapter


@dataclass(frozen=True)
class Names:
    """Module paths of one layout: `attention_output` and `mlp` from a block, the others from the model."""

    blocks: str = "model.layers"
    final_norm: str = "model.norm"
    attention_output: str = "self_attn.o_proj"
    mlp: str = "mlp"
    decoder: str | None = None  # what the model itself calls, where that is not its `base_model`


# Layouts that differ from the usual one, by `config.model_type`.
ODD_LAYOUTS = {
    "bloom": Names("transformer.h", "transformer.ln_f", "self_attention.dense", "mlp.dense_4h_to_h"),
    "codegen": Names("transformer.h", "transformer.ln_f", "attn.out_proj", "mlp"),
    "falcon": Names("transformer.h", "transformer.ln_f", "self_attention.dense", "mlp"),
    "gpt_bigcode": Names("transformer.h", "transformer.ln_f", "attn.c_proj", "mlp"),
    "gptj": Names("transformer.h", "transformer.ln_f", "attn.out_proj", "mlp"),
    "granitemoe": Names(mlp="block_sparse_moe"),
    "granitemoe_swa": Names(mlp="block_sparse_moe"),
    "persimmon": Names("model.layers", "model.final_layernorm", "self_attn.dense", "mlp"),
    "gpt2": Names("transformer.h", "transformer.ln_f", "attn.c_proj", "mlp"),
    "gpt_neox": Names("gpt_neox.layers", "gpt_neox.final_layer_norm", "attention.dense", "mlp"),
    "mpt": Names("transformer.blocks", "transformer.norm_f", "attn.out_proj", "ffn.down_proj"),
    "opt": Names(
        "model.decoder.layers", "model.decoder.final_layer_norm", "self_attn.out_proj", "fc2", "model.decoder"
    ),
    "phi": Names("model.layers", "model.final_layernorm", "self_attn.dense", "mlp"),
}

LAYER_TYPES = ("full_attention", "sliding_attention")  # by the names of configurations
# What stands between an MLP and the residual stream, by its name in the block; `self_check` measures that it is all.
MLP_NORMS = ("post_feedforward_layernorm", "post_mlp_layernorm", "post_norm2")
MLP_FACTORS = ("residual_multiplier", "residual_scale", "mlp_beta_factor", "layer_scalar")


@dataclass(frozen=True)
class Layout:
    """The modules the library hooks.

    Attributes:
        adapter: how the attention of the blocks is called where they compute it in code of their own; else None.
        decoder: the module that maps token ids to the final state, without the unembedding.
        blocks: the L blocks in order; block l maps h^l to h^(l+1).
        final_norm: the norm after the last block; its input is h^L.
        attention_outputs: per block, the attention output projection; its input is the heads side by side.
        mlps: per block, the MLP, or the projection it ends with where it is no module.
        mlp_outputs: per block, the module whose output, times the factor, the MLP adds to the residual stream: the MLP
            itself, or the norm that follows it.
        mlp_factors: that factor; 1 in most architectures.
        n_heads: query heads of every block.
        head_dim: width of one head in the input of the output projection.
    """

    adapter: Adapter | None
    decoder: nn.Module
    blocks: tuple[nn.Module, ...]
    final_norm: nn.Module
    attention_outputs: tuple[nn.Module, ...]
    mlps: tuple[nn.Module, ...]
    mlp_outputs: tuple[nn.Module, ...]
    mlp_factors: tuple[float, ...]
    n_heads: int
    head_dim: int


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
        UnsupportedModel: a module is not where the layout says it is, or blocks have heads of different sizes.
    """
    model_type = model.config.model_type
    names = ODD_LAYOUTS.get(model_type, Names())
    blocks = _descend(model, names.blocks, model_type)
    if not isinstance(blocks, nn.ModuleList) or len(blocks) == 0:
        raise UnsupportedModel(f"model type {model_type!r}: {names.blocks!r} is no list of blocks")
    for kind in getattr(model.config.get_text_config(), "layer_types", None) or ():
        if kind not in LAYER_TYPES:
            raise UnsupportedModel(
                f"model type {model_type!r} has layers of kind {kind!r}; {' and '.join(LAYER_TYPES)} are read"
            )
    unembedding = getattr(model.get_output_embeddings(), "weight", None)
    width = model.config.get_text_config().hidden_size
    if unembedding is not None and unembedding.shape[-1] != width:
        raise UnsupportedModel(
            f"model type {model_type!r}: its unembedding reads {unembedding.shape[-1]} numbers and not the "
            f"{width} of the residual stream"
        )
    outputs = tuple(_descend(block, names.attention_output, model_type) for block in blocks)
    n_heads, head_dim = _heads(model, outputs)
    mlps = tuple(_descend(block, names.mlp, model_type) for block in blocks)
    return Layout(
        adapter=ADAPTERS.get(model_type),
        decoder=model.base_model if names.decoder is None else _descend(model, names.decoder, model_type),
        blocks=tuple(blocks),
        final_norm=_descend(model, names.final_norm, model_type),
        attention_outputs=outputs,
        mlps=mlps,
        mlp_outputs=tuple(_first(block, MLP_NORMS, mlp) for block, mlp in zip(blocks, mlps, strict=True)),
        mlp_factors=tuple(_number(_first(block, MLP_FACTORS, 1.0)) for block in blocks),
        n_heads=n_heads,
        head_dim=head_dim,
    )


def _heads(model: nn.Module, outputs: Sequence[nn.Module]) -> tuple[int, int]:
    """Heads of every block and the width of one, from what the output projections take.

    Raises:
        UnsupportedModel: the blocks differ, or the heads do not fill what the projection takes.
    """
    model_type = model.config.model_type
    widths = set()
    for module in outputs:
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim != 2:
            raise UnsupportedModel(f"model type {model_type!r}: an attention output projection is no matrix")
        widths.add(weight.shape[0] if isinstance(module, Conv1D) else weight.shape[1])
    try:
        n_heads = model.config.get_text_config().num_attention_heads
    except (AttributeError, ValueError) as error:  # absent, or one number per layer
        raise UnsupportedModel(f"model type {model_type!r} has no one number of attention heads") from error
    if len(widths) > 1:
        raise UnsupportedModel(f"model type {model_type!r} has heads of different sizes in different layers")
    (width,) = widths
    if not isinstance(n_heads, int) or n_heads < 1 or width % n_heads:
        raise UnsupportedModel(
            f"model type {model_type!r}: {n_heads} heads do not fill a projection of {width} numbers"
        )
    return n_heads, width // n_heads


def _first(block: nn.Module, names: tuple[str, ...], default: Any) -> Any:
    """The first of these attributes that the block has."""
    return next((getattr(block, name) for name in names if hasattr(block, name)), default)


def _number(value: Any) -> float:
    """A factor; 1 where the attribute is something else, on which the self-check decides."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, (int, float)) else 1.0
