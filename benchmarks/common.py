"""What the benchmarks share: timing, the machine's matrix rate, prompts, and the report."""

import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count
from transformers import AutoModelForCausalLM, LlamaConfig

from sparse_control.files import write_json
from sparse_control.models import LanguageModel, load_model

RESULTS = Path(__file__).parent / "results"
TEXT = "The lighthouse keeper wrote in the log that the storm had passed by morning and the boats were safe. "


def clock() -> float:
    """Seconds: of the processor with one thread, which other work on the machine hardly changes; else on the wall."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def timed(function: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Best time of some repeats, in seconds, and the last result."""
    best, result = float("inf"), None
    for _ in range(repeats):
        start = clock()
        result = function()
        best = min(best, clock() - start)
    return best, result


def matrix_rate(size: int = 2048) -> float:
    """Flops per second of a float32 matrix product."""
    left = torch.randn(size, size)
    seconds, _ = timed(lambda: left @ left, repeats=5)
    return 2 * size**3 / seconds


def random_config(width: int, layers: int) -> LlamaConfig:
    """A Llama of the usual proportions; its width is a multiple of 192, three query heads to a key/value head."""
    return LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 64 * 64,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64 // 3,
        max_position_embeddings=1024,
    )


def random_model(width: int, layers: int) -> LanguageModel:
    """The same with random weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(random_config(width, layers)).eval().requires_grad_(False)
    return LanguageModel.wrap(model, provenance={"name": f"random-{width}x{layers}"})


def benchmark_model(name: str) -> LanguageModel:
    """A model by its name, or a random one by its width and depth, as in `random-1920x6`."""
    size = re.fullmatch(r"random-(\d+)x(\d+)", name)
    return random_model(*map(int, size.groups())) if size else load_model(name)


def block_parameters(lm: LanguageModel) -> int:
    """P, parameters in the blocks."""
    return sum(parameter.numel() for block in lm.layout.blocks for parameter in block.parameters())


def prompts(lm: LanguageModel, n: int, tokens: int) -> list[Tensor]:
    """n different prompts of equal length: windows of one text, or made-up ids where there is no tokenizer."""
    if lm.tokenizer is None:
        return [(torch.arange(tokens) * 37 + shift) % 256 for shift in range(n)]
    ids = lm.encode(TEXT * (2 + (tokens + 7 * n) // 15))
    return [ids[7 * start : 7 * start + tokens] for start in range(n)]


class FlopCounter(TorchDispatchMode):
    """Flops of the matrix products and the attention inside, after vmap has made its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        output = function(*args, **(kwargs or {}))
        packet = function._overloadpacket
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=output)
        elif packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
            self.flops += sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
        return output


def counted_flops(function: Callable[[], Any]) -> int:
    """Flops of a call."""
    with FlopCounter() as counter:
        function()
    return counter.flops


def report(name: str, result: dict[str, Any], ratio: str, out: Path | None) -> None:
    """Print a result, the figure named `ratio` last, and write it with the machine's state."""
    machine = {
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "seconds_are": "processor" if torch.get_num_threads() == 1 else "wall",
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    write_json(out or RESULTS / f"{name}.json", {"benchmark": name, **machine, **result})
    for key in (*machine, *(key for key in result if key != ratio), ratio):
        value = (machine | result)[key]
        click.echo(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")
