"""Stages A to D of the source document (section 4), and the named alternatives: paths and plain values in, files out.

Each module has `run(*, corpus, root, settings) -> Receipt`. What a stage hands on is files below the root, so that any
of them can be run, resumed and checked by itself; `flows.official_iss` is the order of the whole on one page.
"""
