"""Chat prompts: a system prompt and one user turn through a tokenizer's own template, up to where the reply begins."""

from typing import Any

from sparse_control.errors import UnsupportedModel


def chat_text(tokenizer: Any, user: str, system: str) -> str:
    """The template's text, special tokens written out, ending where the model's reply begins.

    Args:
        tokenizer: a Hugging Face tokenizer.
        user: the request.
        system: the system prompt, always explicit: many templates put in one of their own where it is left out.

    Raises:
        UnsupportedModel: there is no chat template, or it refuses the messages, takes no system prompt, or alters or
            drops one of the two texts.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UnsupportedModel(
            "the model's tokenizer has no chat template; chat prompts are not supported by this model"
        )
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # templates raise errors of their own, which say what they do not take
        reason = " ".join(str(error).split())
        raise UnsupportedModel(f"the chat template takes no system prompt with a user turn ({reason})") from error
    for name, part in (("system prompt", system), ("user turn", user)):
        if part not in text:
            raise UnsupportedModel(f"the chat template drops or alters the {name} {part!r}")
    return text


def chat_ids(tokenizer: Any, user: str, system: str) -> tuple[int, ...]:
    """Token ids of `chat_text`; nothing is added, as the template writes its own special tokens."""
    return tuple(tokenizer(chat_text(tokenizer, user, system), add_special_tokens=False)["input_ids"])
