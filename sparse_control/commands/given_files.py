"""What becomes of pairs and off-target prompts of one's own, told before a model is loaded and anything is measured."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparse_control.protocol.panels import PanelSources
    from sparse_control.settings import Settings


def given_reports(settings: "Settings", sources: "PanelSources") -> Iterator[str]:
    """A line for each file: how many of its pairs or prompts are used, and why the others are not.

    Args:
        settings: their model's tokenizer makes tokens of the pairs; the splits are those of the first seed.
        sources: the files.

    Raises:
        InputError: a file that cannot be used, or a split with fewer pairs than the protocol needs.
    """
    from sparse_control.commands.unloaded import unloaded_tokenizer
    from sparse_control.protocol.panels.prompt_files import read_prompts_file

    if (pairs := sources.pairs) is not None:
        encoder, seed = unloaded_tokenizer(settings), settings.protocol.seeds_of(pairs.name)[0]
        yield str(pairs.checked(encoder, seed, settings.protocol.minimum_pairs))
    if sources.off_target is not None:
        yield str(read_prompts_file(sources.off_target, () if pairs is None else pairs.prompts())[1])
