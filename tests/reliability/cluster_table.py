"""The table of docs/cluster.md, from the code's own cost model: `python -m tests.reliability.cluster_table`."""

from collections.abc import Iterator

from benchmarks.cost import SHAPES, exact_cost, qb_cost, six_axis_cost, weights_bytes

TOKENS, BLOCK, COLUMNS = 128, 32, 288  # of a window; prompts of a unit; k + p at k = 256
SPEED = 1e13  # flop/s
HEADER = (
    "model", "weights, float32", "A: block of 32 prompts", "memory beside weights", "checkpoint",
    "B: one middle layer, n = 256, r = 288", "six-axis record",
)  # fmt: skip


def rows() -> Iterator[tuple[str, ...]]:
    for shape in SHAPES:
        exact = exact_cost(shape, tokens=TOKENS, prompts=BLOCK)
        middle = qb_cost(shape, tokens=TOKENS, prompts=256, layers=(shape.layers // 2,), columns=COLUMNS)
        record = six_axis_cost(shape, tokens=32, pairs=24, readouts=1000)
        yield (
            shape.name,
            size(weights_bytes(shape)),
            span(exact.flops),
            size(exact.memory),
            size(8 * shape.layers * shape.width**2),
            span(middle.flops),
            span(record.flops),
        )


def size(number: float) -> str:
    return f"{number / 1e9:.3g} GB"


def span(flops: float) -> str:
    seconds = flops / SPEED
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.2g} s"


def table() -> str:
    lines = [HEADER, tuple("---" for _ in HEADER), *rows()]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    print(table(), end="")
