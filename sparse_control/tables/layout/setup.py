"""How the table of what was measured is shown."""

from sparse_control.tables.layout.columns import Column, Layout, in_words, label


def _task_in_words(quantity: str) -> str:
    task, colon, rest = quantity.partition(":")
    return f"{in_words(task)}{colon}{rest}" if colon else quantity


LAYOUTS: dict[str, Layout] = {
    "setup": Layout(
        title="What was measured",
        caption="Sizes as the records have them; pairs of a task are counted over its seeds.",
        section="Jacobian-Transported ISS, 8, 9 and 13; Six-axis protocol, What every axis needs",
        group="setup",
        columns=(
            Column("Quantity", lambda row: _task_in_words(row["quantity"]), "l"),
            label("value", "Value"),
        ),
    ),
}
