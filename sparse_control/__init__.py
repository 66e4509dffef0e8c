"""How internal states of language models are measured (ISS) and controlled (the six-axis protocol)."""

__version__ = "0.1.0"
