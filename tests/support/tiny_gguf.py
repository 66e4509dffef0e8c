"""A tiny Qwen2 model as a GGUF file, whole or in parts."""

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, Qwen2Config

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WIDTH, LAYERS, HEADS = 32, 2, 4


def tiny_qwen2():
    config = Qwen2Config(
        vocab_size=258,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def gguf_tensors(model) -> dict[str, np.ndarray]:
    """Tensors by their GGUF names."""
    found = {}
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        layer = ""
        if module.startswith("model.layers."):
            _, _, number, module = module.split(".", 3)
            layer = f"blk.{number}."
        found[f"{layer}{NAMES[module]}.{kind}"] = tensor.numpy()
    return found


def write_gguf(path: Path, tensors: dict[str, np.ndarray], **metadata: int) -> Path:
    """Write tensors with the metadata of `tiny_qwen2`; matrices as Q8_0, vectors as F32."""
    writer = GGUFWriter(path, "qwen2")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, "th", "<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(len(tokens) - 1)
    for key, value in metadata.items():
        writer.add_uint16(key.replace("_", "."), value)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor.astype(np.float32))
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_parts(folder: Path, stem: str, tensors: dict[str, np.ndarray], count: int) -> list[Path]:
    """The same in parts, as `gguf-split` leaves them."""
    names = list(tensors)
    paths = []
    for number in range(count):
        part = {name: tensors[name] for name in names[number::count]}
        path = folder / f"{stem}-{number + 1:05}-of-{count:05}.gguf"
        paths.append(write_gguf(path, part, split_no=number, split_count=count))
    return paths
