"""The commands of `python -m sparse_control`, one module per group. Each imports what it uses when it is called."""
