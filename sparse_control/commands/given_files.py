"""What becomes of pairs and off-target prompts of one's own, told before a model is loaded and anything is measured."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
    from sparse_control.protocol.panels.prompt_files import read_prompts_file

    if (pairs := sources.pairs) is not None:
        encoder, seed = _tokenizer(settings), settings.protocol.seeds_of(pairs.name)[0]
        yield str(pairs.checked(encoder, seed, settings.protocol.minimum_pairs))
    if sources.off_target is not None:
        yield str(read_prompts_file(sources.off_target, () if pairs is None else pairs.prompts())[1])


def _tokenizer(settings: "Settings") -> Any:
    """The tokenizer of the settings' model, without its weights; a GGUF file is converted once."""
    from transformers import AutoTokenizer

    from sparse_control.models.convert import converted
    from sparse_control.models.identity import model_identity
    from sparse_control.models.locate import check_model_name, locate

    check_model_name(settings.model)
    location = locate(settings.model)
    folder = location.folder
    if location.is_gguf:
        folder = converted(location, model_identity(settings.model, settings.dtype))
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
