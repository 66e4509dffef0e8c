"""The errors a caller can mend. The command line prints them as one line and exits with 2."""


class InputError(ValueError):
    """A file, field, argument or call that is wrong; the message names it, its value and what to do."""


class UnsupportedModel(InputError):
    """A model whose layout or numerics the library cannot vouch for; the message says which check failed."""


class NotAvailable(InputError):
    """A model, the corpus or an extra that a command needs is not on this machine; the message has the way to it."""
