"""Chat prompts: a system prompt and one user turn through a tokenizer's own template, up to where the reply begins."""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta

from sparse_control.errors import InputError, UnsupportedModel

DATE = "2025-01-01"  # what templates that write today's date write, so that a prompt is tomorrow what it is today
CLOCK = re.compile(r"""strftime_now\s*\(\s*(?:format\s*=\s*)?(?P<quote>["'])(?P<format>.*?)(?P=quote)\s*\)""")
MARK = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")  # of replies, a tag of Hugging Face's own
RESERVED = (
    "messages", "add_generation_prompt", "tokenize", "chat_template", "strftime_now", "raise_exception", "tools",
    "documents",
)  # fmt: skip


def template_arguments(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a chat template is given besides the messages, with the date where none is given.

    Args:
        given: arguments by name, such as `enable_thinking`; `date` (YYYY-MM-DD) is what `strftime_now` of the template
            tells. Plain values alone, as records keep them.

    Raises:
        InputError: names the argument: a reserved name, a value that is not plain, or a date that is none.
    """
    arguments = {"date": DATE} | dict(given or {})
    for name, value in arguments.items():
        if name in RESERVED:
            raise InputError(f"template argument {name!r}: is set by the library; leave it out")
        if not isinstance(value, str | bool | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise InputError(f"template argument {name!r}: must be a text, a number, true or false, got {value!r}")
    try:
        date.fromisoformat(str(arguments["date"]))
    except ValueError as error:
        raise InputError(f"template argument 'date': must be YYYY-MM-DD, got {arguments['date']!r}") from error
    return dict(sorted(arguments.items()))


def check_read(tokenizer: Any, names: Iterable[str]) -> None:
    """Refuse arguments that a chat template does not read; `date` is given to every one and is never refused.

    Args:
        tokenizer: a Hugging Face tokenizer.
        names: of the arguments.

    Raises:
        InputError: names the argument, and those that the template reads.
        UnsupportedModel: there is no chat template, or it cannot be read.
    """
    asked = [name for name in names if name != "date"]
    if not asked:
        return
    _check_template(tokenizer)
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(MARK.sub("", tokenizer.get_chat_template()))
    except (TemplateSyntaxError, ValueError) as error:
        raise UnsupportedModel(f"the chat template cannot be read ({' '.join(str(error).split())})") from error
    read = meta.find_undeclared_variables(tree)
    known = read - set(RESERVED) - set(tokenizer.special_tokens_map) | {"date"}
    for name in asked:
        if name not in known:
            raise InputError(
                f"template argument {name!r:.80}: is not read by the model's chat template; it reads: "
                f"{', '.join(sorted(known))}"
            )


def _check_template(tokenizer: Any) -> None:
    if not getattr(tokenizer, "chat_template", None):
        raise UnsupportedModel(
            "the model's tokenizer has no chat template; chat prompts are not supported by this model"
        )


def chat_text(tokenizer: Any, user: str, system: str, arguments: Mapping[str, Any] | None = None) -> str:
    """The template's text, special tokens written out, ending where the model's reply begins.

    Args:
        tokenizer: a Hugging Face tokenizer.
        user: the request.
        system: the system prompt, always explicit: many templates put in one of their own where it is left out.
        arguments: of the template (`template_arguments`); the clock of this machine is never read.

    Raises:
        InputError: as `template_arguments`.
        UnsupportedModel: there is no chat template, or it refuses the messages, takes no system prompt, or alters or
            drops one of the two texts, or writes the date in a form that is only known when it is filled in.
    """
    _check_template(tokenizer)
    given = template_arguments(arguments)
    today = date.fromisoformat(given.pop("date"))
    if "strftime_now" in str(tokenizer.chat_template):
        given["chat_template"] = _dated(tokenizer.get_chat_template(), today)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **given)
    except Exception as error:  # templates raise errors of their own, which say what they do not take
        reason = " ".join(str(error).split())
        raise UnsupportedModel(f"the chat template takes no system prompt with a user turn ({reason})") from error
    for name, part in (("system prompt", system), ("user turn", user)):
        if part not in text:
            raise UnsupportedModel(f"the chat template drops or alters the {name} {part!r}")
    return text


def _dated(template: str, today: date) -> str:
    """The template with that date wherever it asks for today's.

    Raises:
        UnsupportedModel: it asks in a form that does not stand in it.
    """
    dated = CLOCK.sub(lambda call: repr(today.strftime(call["format"])), template)
    if re.search(r"strftime_now\s*\(", dated):
        raise UnsupportedModel("the chat template computes how it writes the date; such a prompt cannot be kept")
    return dated


def chat_ids(tokenizer: Any, user: str, system: str, arguments: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """Token ids of `chat_text`; nothing is added, as the template writes its own special tokens."""
    text = chat_text(tokenizer, user, system, arguments)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
