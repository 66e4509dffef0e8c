"""Everything that is saved: its file names, its fields, and the checks every reader applies."""
