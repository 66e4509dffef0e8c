"""Stages A to D of the source document, section 4: paths and plain values in, files and a receipt out."""
