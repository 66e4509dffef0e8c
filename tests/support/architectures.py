"""A tiny random model of every type of causal language model that transformers has."""

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
WIDTH, LAYERS, HEADS, VOCABULARY = 32, 3, 4, 100

# Fields of configurations, by whatever name; a configuration takes those it has.
SMALL: dict[str, Any] = (
    dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size"), WIDTH)
    | dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"), LAYERS)
    | dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), HEADS)
    | dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "decoder_ffn_dim"), 64)
    | dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads"), 2)
    | dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64)
    | dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
    | dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_topk", "num_experts_per_token", "moe_k"), 2)
    | dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size"), 16)
    | dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_shared_experts", "num_shared_experts"), 1)
    | {
        "vocab_size": VOCABULARY,
        "head_dim": 8,
        "sliding_window": 5,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "index_topk": 16,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
)
_MIXED = ["full_attention", "sliding_attention", "full_attention"]
# What a type needs besides, or in place of that; None leaves a field as it is by default.
OWN: dict[str, dict[str, Any]] = {
    "afmoe": {"global_attn_every_n_layers": 2},
    "bailing_hybrid": {"linear_num_heads": 4, "linear_head_dim": 8},
    "bamba": {"mamba_n_heads": 4, "mamba_d_head": 16, "attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "cpmant": {"dim_head": 8, "dim_ff": 64},
    "deepseek_v4": {"head_dim": 16, "qk_rope_head_dim": 8, "num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 8},
    "dory": {
        "n_input_layers": 2, "n_recurrent_layers": 2, "n_output_layers": 2, "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "sliding_attention", "mlp"],
    },
    "dots3_note": {"num_key_value_heads": HEADS, "head_dim": 8, "shared_experts_intermediate_size": 16},
    "dots1": {"moe_intermediate_size": 16, "n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "layer_types": _MIXED},
    "gemma3n": {
        "num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "num_hidden_layers": LAYERS, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
    },
    "gemma4": {
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "global_head_dim": 16,
        "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
    },
    "glm4_moe_lite": {"head_dim": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "window_size": 5},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "inkling2_text": {"unpadded_vocab_size": 100, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
        "swa_head_dim": 8, "sliding_window_size": 5, "rel_extent": 16},
    "kimi_linear": {"linear_num_heads": 4, "linear_head_dim": 8},
    "laguna": {"layer_types": _MIXED},
    "mellum": {"layer_types": _MIXED},
    "qwen2": {"use_sliding_window": True, "layer_types": _MIXED},
    "qwen3": {"use_sliding_window": True, "layer_types": _MIXED},
    "qwen2_moe": {"use_sliding_window": True, "layer_types": _MIXED},
    "smollm3": {"use_sliding_window": True, "layer_types": _MIXED},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16,
        "indexer_compress_ratio": 4},
    "reformer": {"is_decoder": True, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [8, 24]},
    "roc_bert": {"shape_vocab_size": 100, "pronunciation_vocab_size": 100},
    "xlm": {"emb_dim": 32},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_mem_heads": 2, "attention_hidden_size": 64, "attention_head_dim": 16, "mamba_dt_rank": 4},
    "zamba2": {"num_mem_blocks": 1},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
OWN |= {"gemma3n_text": OWN["gemma3n"], "gemma4_text": OWN["gemma4"], "gemma4_unified": OWN["gemma4"]}
OWN |= {
    "dots3_note_text": OWN["dots3_note"],
    "gemma4_unified_text": OWN["gemma4"],
    "qwen4_exp": OWN["qwen4_exp_text"],
    "inkling2_loop_text": OWN["inkling2_text"],
}
PER_LAYER = ("layer_types", "mlp_layer_types")
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY}
_LINE = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 64}
_VISION = _LINE | {"image_size": 16, "patch_size": 8}
_AUDIO = {"hidden_size": WIDTH, "num_filters": 4, "codebook_size": 16, "codebook_dim": 8, "upsampling_ratios": [2, 2]}
_DECODER = {"d_model": WIDTH, "decoder_layers": 2, "decoder_attention_heads": HEADS, "decoder_ffn_dim": 64}
_MUSIC = {
    "text_encoder": {"model_type": "t5", "d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": HEADS},
    "audio_encoder": {"model_type": "encodec"} | _AUDIO,
    "decoder": _LINE | {"ffn_dim": 64, "vocab_size": 16, "num_codebooks": 2},
}
# Types whose model is built from a configuration of several parts, or from one with parts for another use.
WHOLE: dict[str, dict[str, Any]] = {
    "blt": {
        "patcher_config": _LINE, "global_config": _LINE, "encoder_config": _LINE | {"hidden_size_global": WIDTH},
        "decoder_config": _LINE | {"hidden_size_global": WIDTH}, "encoder_hash_byte_group_vocab": 50,
    },
    "dbrx": {
        "d_model": WIDTH, "n_heads": HEADS, "n_layers": LAYERS, "max_seq_len": 64, "vocab_size": VOCABULARY,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "emu3": {"text_config": _LINE | _TOKENS | {"num_key_value_heads": 2},
        "vq_config": {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "codebook_size": 8}},
    "gemma4_assistant": {"text_config": "gemma4_text"},
    "gemma4_unified_assistant": {"text_config": "gemma4_unified_text"},
    "git": _LINE | {"vocab_size": VOCABULARY, "vision_config": _VISION},
    "mllama": {"text_config": _LINE | _TOKENS | {"num_key_value_heads": 2,
        "num_hidden_layers": 3, "cross_attention_layers": [1]},
        "vision_config": _VISION | {"num_global_layers": 1, "attention_heads": 4, "vision_output_dim": 64,
        "intermediate_layers_indices": [0]}},
    "musicgen": _MUSIC,
    "musicgen_melody": _MUSIC,
    "phi4_multimodal": _LINE | _TOKENS | {"num_key_value_heads": 2, "vision_config": _VISION,
        "audio_config": {"hidden_size": WIDTH, "num_blocks": 1, "num_attention_heads": 4, "intermediate_size": 64}},
    "plbart": _DECODER | {"vocab_size": VOCABULARY, "encoder_layers": 1, "encoder_attention_heads": 4},
    "whisper": _DECODER | {"vocab_size": VOCABULARY, "encoder_layers": 1, "encoder_attention_heads": 4,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    "zamba": _LINE | {"vocab_size": VOCABULARY, "num_hidden_layers": 4, "mamba_dt_rank": 4, "n_mamba_heads": 2,
        "attention_hidden_size": 64, "attention_head_dim": 16, "num_key_value_heads": 4, "mamba_d_state": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]},
    "zamba2": _LINE | {"vocab_size": VOCABULARY, "num_hidden_layers": 4, "mamba_d_state": 4, "n_mamba_heads": 2,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"], "num_mem_blocks": 1},
}  # fmt: skip


def tiny_config(model_type: str) -> Any:
    """A configuration of that type: a few layers of every kind it has, small windows and lengths."""
    kind = CONFIG_MAPPING[model_type]
    if whole := WHOLE.get(model_type):
        parts = {name: tiny_config(part).to_dict() for name, part in whole.items() if isinstance(part, str)}
        for part in parts.values():
            part |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
        return kind(**(whole | parts))
    text = kind().get_text_config(decoder=True)
    default = text.to_dict()
    fields = {name: value for name, value in SMALL.items() if name in default and name not in text.attribute_map}
    if "qk_rope_head_dim" in default:
        fields |= {"head_dim": fields["qk_rope_head_dim"], "num_key_value_heads": HEADS}
    for name in PER_LAYER:
        if isinstance(default.get(name), list):
            kinds = list(dict.fromkeys(default[name]))
            fields[name] = [kinds[layer % len(kinds)] for layer in range(LAYERS)]
    fields |= OWN.get(model_type, {})
    return type(text)(**{name: value for name, value in fields.items() if value is not None})


def tiny_architecture(model_type: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A random model of that type: weights large enough that every block matters, no vector left as it is set up."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(model_type), dtype=dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim >= 2:
                    parameter.mul_(5)
                elif parameter.is_floating_point():
                    parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval().requires_grad_(False)
