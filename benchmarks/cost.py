"""What a measurement costs before it is made: flops, memory and disk from a model's shape.

Flops count a multiplication and an addition each, of matrix products and attention alone. Checked against counted
flops, peak memory and file sizes of two models by `benchmarks/scaling.py`.
"""

from dataclasses import dataclass
from typing import Any

FLOAT32, FLOAT64 = 4, 8  # bytes


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of a decoder that costs follow from.

    Attributes:
        name: of the model.
        width: d.
        layers: L.
        hidden: MLP units.
        heads, key_value_heads, head_dim: of the attention.
        vocabulary: V.
        gated: whether the MLP has three matrices and not two.
        tied: whether the embedding is the unembedding.
    """

    name: str
    width: int
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_dim: int
    vocabulary: int
    gated: bool = True
    tied: bool = True

    @property
    def attention(self) -> int:
        """Parameters of one block's attention."""
        return 2 * self.width * self.head_dim * (self.heads + self.key_value_heads)

    @property
    def mlp(self) -> int:
        """Parameters of one block's MLP."""
        return (3 if self.gated else 2) * self.width * self.hidden

    @property
    def block(self) -> int:
        """Parameters of one block, P / L."""
        return self.attention + self.mlp

    @property
    def parameters(self) -> int:
        """Parameters of the model; norms and biases are left out."""
        return self.layers * self.block + (1 if self.tied else 2) * self.vocabulary * self.width


# Shapes of published models, up to 70B.
_PUBLISHED = (  # d, L, hidden, heads, key/value heads, head_dim, V, tied
    ("SmolLM2-135M", 576, 30, 1536, 9, 3, 64, 49152, True),
    ("Qwen2.5-0.5B", 896, 24, 4864, 14, 2, 64, 151936, True),
    ("Llama-3.2-1B", 2048, 16, 8192, 32, 8, 64, 128256, True),
    ("Qwen2.5-7B", 3584, 28, 18944, 28, 4, 128, 152064, False),
    ("Qwen2.5-32B", 5120, 64, 27648, 40, 8, 128, 152064, False),
    ("Llama-3.1-70B", 8192, 80, 28672, 64, 8, 128, 128256, False),
)
SHAPES = tuple(
    Shape(
        name=name, width=width, layers=layers, hidden=hidden, heads=heads, key_value_heads=key_value_heads,
        head_dim=head_dim, vocabulary=vocabulary, tied=tied,
    )
    for name, width, layers, hidden, heads, key_value_heads, head_dim, vocabulary, tied in _PUBLISHED
)  # fmt: skip


def shape_of(name: str, config: Any) -> Shape:
    """The shape in a Hugging Face configuration of the Llama kind.

    Args:
        config: with hidden_size, num_hidden_layers, intermediate_size, num_attention_heads, vocab_size.
    """
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        name=name,
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        hidden=config.intermediate_size,
        heads=config.num_attention_heads,
        key_value_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=head_dim,
        vocabulary=config.vocab_size,
        tied=bool(config.tie_word_embeddings),
    )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What some work takes.

    Attributes:
        flops: in all.
        memory: bytes held at once beside the weights.
        disk: bytes written.
    """

    flops: float
    memory: float
    disk: float


def weights_bytes(shape: Shape) -> int:
    """Bytes of the model in float32."""
    return FLOAT32 * shape.parameters


def _forward(shape: Shape, tokens: int) -> float:
    """Flops of the blocks over one prompt: weights, and scores and mixing of every pair of tokens."""
    attention = 4 * shape.heads * shape.head_dim * tokens**2
    return shape.layers * (2 * shape.block * tokens + attention)


def _cache_bytes(shape: Shape, tokens: int) -> float:
    return FLOAT32 * 2 * shape.layers * shape.key_value_heads * shape.head_dim * tokens


def _decode_step(shape: Shape, tokens: int) -> float:
    """Flops of one token whose attention becomes one matrix per head."""
    return shape.layers * (2 * shape.block + 2 * shape.heads * shape.head_dim**2 * tokens)


def _per_vector(shape: Shape) -> float:
    """Flops of one tangent or cotangent in one block's attention core: three matrices per head."""
    return 6 * shape.heads * shape.head_dim**2


def exact_cost(shape: Shape, *, tokens: int, prompts: int, layers: int | None = None) -> Cost:
    """Exact finite-corpus Jacobians of `layers` source layers (None: all) from one sweep per prompt; flops are those of
    all layers, as the sweep passes through every block."""
    layers = shape.layers if layers is None else layers
    width = shape.width
    merging = shape.layers * (2 * width**2 * shape.hidden + 4 * shape.mlp)  # the product, and its check
    sweep = width * shape.layers * (2 * shape.attention + 2 * width**2 + _per_vector(shape))
    prompt = _forward(shape, tokens - 1) + _decode_step(shape, tokens) + merging + sweep
    # merged MLPs, the gradients and their stack in float32; the sum and the float64 copy that is added to it
    matrices = width**2 * (FLOAT32 * (shape.layers + 2 * layers) + FLOAT64 * 2 * layers)
    heads = FLOAT32 * 3 * shape.layers * shape.heads * shape.head_dim**2  # the attention's
    memory = matrices + heads + _cache_bytes(shape, tokens)
    return Cost(flops=prompts * prompt, memory=memory, disk=FLOAT32 * layers * width**2)


def qb_cost(
    shape: Shape,
    *,
    tokens: int,
    prompts: int,
    layers: tuple[int, ...],
    columns: int,
    power_iterations: int = 0,
    sketches: int = 1,
    kept_bytes: int = 1 << 30,
) -> Cost:
    """Matrix-free randomized QB of some source layers, r columns each, all in shared passes."""
    passes = 2 * power_iterations + 2
    kept = min(prompts, int(kept_bytes // _cache_bytes(shape, tokens)))
    reading = (prompts + (passes - 1) * (prompts - kept)) * _forward(shape, tokens - 1)
    blocks = sum(shape.layers - layer for layer in layers)  # that the vectors of all layers pass
    deepest = shape.layers - min(layers)
    step = _decode_step(shape, tokens) + deepest * shape.block  # a push has one more backward pass: half of the passes
    products = sketches * columns * blocks * (2 * shape.block + _per_vector(shape))
    held = FLOAT64 * 4 * len(layers) * sketches * columns * shape.width
    return Cost(
        flops=reading + passes * prompts * (step + products),
        memory=kept * _cache_bytes(shape, tokens) + held,
        disk=FLOAT32 * 2 * len(layers) * sketches * columns * shape.width,
    )


def states_cost(shape: Shape, *, tokens: int, prompts: int, layers: int) -> Cost:
    """Query-end states of `prompts` prompts at `layers` source layers."""
    return Cost(
        flops=prompts * _forward(shape, tokens),
        memory=FLOAT32 * (prompts * layers * shape.width + 1024 * (shape.layers + 1) * shape.width),
        disk=FLOAT32 * prompts * layers * shape.width,
    )


def six_axis_cost(
    shape: Shape, *, tokens: int, pairs: int, readouts: int, first: int = 0, off_target: int = 32
) -> Cost:
    """One record: both sides of every pair and the off-target prompts read once, then one token per readout.

    Args:
        tokens: of a prompt.
        pairs: evaluation pairs.
        readouts: prompt-patch rows in all: doses, reversal and feedback of every pair, off-target prompts.
        first: the first patched block.
    """
    prompts = 2 * pairs + off_target
    unembedding = 2 * shape.vocabulary * shape.width
    live = shape.layers - first
    row = live * (2 * shape.block + 4 * shape.heads * shape.head_dim * tokens) + unembedding
    states = FLOAT32 * prompts * (shape.layers + 1) * shape.width
    return Cost(
        flops=prompts * (_forward(shape, tokens) + unembedding) + readouts * row,
        memory=prompts * _cache_bytes(shape, tokens) + states + FLOAT32 * 128 * shape.vocabulary,
        disk=40 * readouts,  # one number of a record
    )
