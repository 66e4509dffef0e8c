"""The errors a caller can mend. The command line prints them as one line and exits with 2."""


class InputError(ValueError):
    """A file, field, argument or call that is wrong; the message names it, its value and what to do."""


class UnsupportedModel(InputError):
    """A model whose layout or numerics the library cannot vouch for; the message says which check failed."""


class NotAvailable(InputError):
    """Something a command needs (a model, the corpus, an extra) is not on this machine; the message gives the command that brings it."""
