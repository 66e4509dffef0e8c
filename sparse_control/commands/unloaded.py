"""A model's tokenizer and structure without its weights, for what is told before anything is measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparse_control.errors import InputError

if TYPE_CHECKING:
    from sparse_control.models import LanguageModel
    from sparse_control.settings import Settings


def unloaded_tokenizer(settings: "Settings") -> Any:
    """The tokenizer of the settings' model.

    Raises:
        InputError: the model is not there, or its tokenizer cannot be read.
    """
    from transformers import AutoTokenizer

    return _read(settings, AutoTokenizer)


def unloaded_model(settings: "Settings") -> "LanguageModel":
    """The settings' model with its tokenizer, layers and sites, but no weights: it encodes, and cannot be run.

    Raises:
        InputError: the model is not there, or cannot be read.
        UnsupportedModel: its layers are not known.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from sparse_control.models import LanguageModel
    from sparse_control.models.identity import model_label

    config, tokenizer = _read(settings, AutoConfig), unloaded_tokenizer(settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.get_input_embeddings().to_empty(device="cpu")  # the device of what is encoded
    provenance = {"name": model_label(settings.model)}
    lm = LanguageModel.wrap(model.eval().requires_grad_(False), tokenizer, provenance=provenance)
    return lm.with_template_arguments(settings.protocol.template_arguments)


def _read(settings: "Settings", kind: Any) -> Any:
    from sparse_control.models.identity import model_identity
    from sparse_control.models.locate import check_model_name, locate
    from sparse_control.project import cache_folder

    check_model_name(settings.model)
    location = locate(settings.model)
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    folder = Path(location.folder)
    if location.is_gguf:
        source = model_identity(settings.model, settings.dtype).weights_sha256
        copies = sorted((cache_folder() / "models").glob(f"{source[:16]}-transformers-*/config.json"))
        folder = copies[-1].parent if copies else folder
        where |= {} if copies else {"gguf_file": location.files[0]}
    try:
        return kind.from_pretrained(str(folder), **where)
    except Exception as error:  # the readers raise many kinds
        reason = " ".join(str(error).split())
        raise InputError(f"{folder}: cannot be read as a language model ({reason:.200})") from error
