"""A loaded causal language model with what the library needs to know of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models.chat import chat_ids, check_read, template_arguments
from sparse_control.models.identity import ModelIdentity, identity_in_memory
from sparse_control.models.layout import Layout, find_layout
from sparse_control.models.limits import PromptLimit, prompt_limit


def _hashed_parts(model: nn.Module, tokenizer: Any) -> dict[str, str]:
    """SHA-256 of the configuration, of every tensor with its name, type and shape, and of the tokenizer."""
    weights = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        weights.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    texts = {"configuration": model.config.to_json_string(use_diff=False)}
    if tokenizer is not None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        texts["tokenizer"] = backend.to_str() if backend else repr(sorted(tokenizer.get_vocab().items()))
        texts["chat template"] = str(tokenizer.chat_template)
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    return hashes | {"weights": weights.hexdigest()}


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A decoder in evaluation mode, its tokenizer and its provenance.

    Attributes:
        model: the Hugging Face causal language model; never altered by the library.
        tokenizer: its tokenizer, or None for models built from a configuration alone.
        provenance: what records say of it: name, source, revision, identity and its parts, SHA-256 of weights and
            tokenizer, device, BOS.
        layout: the modules that are hooked.
    """

    model: Any
    tokenizer: Any
    provenance: dict[str, Any]
    layout: Layout

    @classmethod
    def wrap(cls, model: Any, tokenizer: Any = None, provenance: dict[str, Any] | None = None) -> "LanguageModel":
        """Wrap a model that is already in memory; `load_model` also checks it.

        Raises:
            UnsupportedModel: its blocks, norm or projections are not found.
        """
        return cls(model=model, tokenizer=tokenizer, provenance=provenance or {}, layout=find_layout(model))

    def __repr__(self) -> str:
        return f"LanguageModel({self.name!r}, n_layers={self.n_layers}, width={self.width})"

    @cached_property
    def identity(self) -> ModelIdentity:
        """What the model's outputs depend on: of the files it was loaded from, or of what it held when first asked."""
        loaded = ModelIdentity.from_provenance(self.provenance)
        return loaded or identity_in_memory(_hashed_parts(self.model, self.tokenizer), str(self.model.dtype)[6:])

    @property
    def name(self) -> str:
        return self.provenance.get("name", self.model.config.model_type)

    def check_evaluation_mode(self) -> None:
        """Refuse a model that is not wholly in evaluation mode.

        Raises:
            UnsupportedModel: a submodule in training mode, whose dropout draws anew in every forward.
        """
        for name, module in self.model.named_modules():
            if module.training:
                raise UnsupportedModel(
                    f"{self.name}: submodule {name or 'model'!r} is in training mode; call model.eval()"
                )

    @property
    def template_arguments(self) -> dict[str, Any]:
        """What its chat template is given besides the messages; kept in the provenance, and so in every record."""
        return template_arguments(self.provenance.get("template_arguments"))

    def with_template_arguments(self, given: Mapping[str, Any]) -> "LanguageModel":
        """The same model with other arguments of its chat template; itself where they are as they were.

        Raises:
            InputError: as `template_arguments`, or one that the template does not read.
            UnsupportedModel: arguments beside the date, and there is no chat template that could read them.
        """
        if (arguments := template_arguments(given)) == self.template_arguments:
            return self
        check_read(self.tokenizer, arguments)
        return replace(self, provenance=self.provenance | {"template_arguments": arguments})

    @property
    def n_layers(self) -> int:
        return len(self.layout.blocks)

    @property
    def width(self) -> int:
        return self.model.config.get_text_config().hidden_size

    @property
    def n_heads(self) -> int:
        return self.layout.n_heads

    @property
    def head_dim(self) -> int:
        return self.layout.head_dim

    @property
    def vocabulary(self) -> int:
        """Number of token ids the model embeds."""
        return self.model.get_input_embeddings().num_embeddings

    @cached_property
    def prompt_limit(self) -> PromptLimit | None:
        return prompt_limit(self.model)

    def check_length(self, tokens: int, name: str = "prompt") -> None:
        """Refuse a prompt of more tokens than the model reads as it reads shorter ones.

        Args:
            tokens: of the prompt, with what is generated after it.
            name: what the message calls it.

        Raises:
            InputError: it is too long.
        """
        limit = self.prompt_limit
        if limit is not None and tokens > limit.tokens:
            raise InputError(
                f"{name}: {tokens} tokens, beyond the {limit.tokens} {limit.reason} ({self.name}); shorten it"
            )

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def encode(self, text: str) -> Tensor:
        """Token ids (T,) of a text with the tokenizer's own BOS policy, unpadded."""
        return torch.tensor(self.tokenizer(text)["input_ids"], device=self.device)

    def encode_chat(self, user: str, *, system: str) -> Tensor:
        """Token ids (T,) of one user turn in the model's chat template, up to where the reply begins.

        Args:
            user: the request.
            system: the system prompt; always explicit, as templates may put in one of their own.

        Raises:
            UnsupportedModel: no chat template, or it takes no system prompt.
        """
        ids = chat_ids(self.tokenizer, user, system, self.template_arguments)
        return torch.tensor(ids, device=self.device)
