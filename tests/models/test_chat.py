"""Chat prompts are tomorrow what they are today, and say what they were made with."""

from datetime import datetime

import pytest

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models import load_model
from sparse_control.models.chat import DATE, chat_text, check_read, template_arguments
from tests.support.tiny import words_tokenizer

DATED = "{{ strftime_now('%d %B %Y') }} {% for m in messages %}{{ m.content }} {% endfor %}{% if think %}w9{% endif %}"


@pytest.fixture
def dated():
    tokenizer = words_tokenizer()
    tokenizer.chat_template = DATED
    return tokenizer


def test_a_template_that_writes_the_date_writes_that_of_the_settings(dated):
    assert chat_text(dated, "w5", "w6").startswith("01 January 2025 w6 w5")
    assert chat_text(dated, "w5", "w6", {"date": "2031-12-24"}).startswith("24 December 2031")


class _Tomorrow(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2040, 1, 1, tzinfo=tz)


def test_the_clock_is_not_read(dated, monkeypatch):
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", _Tomorrow)
    messages = [{"role": "user", "content": "w5"}]
    assert dated.apply_chat_template(messages, tokenize=False).startswith("01 January 2040"), "the trap"
    assert chat_text(dated, "w5", "w6").startswith("01 January 2025")


def test_a_template_that_computes_its_form_of_the_date_is_refused(dated):
    dated.chat_template = "{% set form = '%d' %}{{ strftime_now(form) }}" + DATED
    with pytest.raises(UnsupportedModel, match="computes how it writes the date"):
        chat_text(dated, "w5", "w6")


def test_other_arguments_reach_the_template(dated):
    assert "w9" not in chat_text(dated, "w5", "w6") and "w9" in chat_text(dated, "w5", "w6", {"think": True})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"date": "tomorrow"}, "'date': must be YYYY-MM-DD, got 'tomorrow'"),
        ({"messages": "x"}, "'messages': is set by the library"),
        ({"tools": "x"}, "'tools': is set by the library"),
        ({"think": ["x"]}, "'think': must be a text, a number, true or false"),
        ({"think": float("inf")}, "'think': must be a text, a number, true or false"),
    ],
)
def test_bad_arguments_are_named(dated, given, message):
    with pytest.raises(InputError, match=message):
        chat_text(dated, "w5", "w6", given)


def test_a_model_carries_them_into_its_records(directory):
    (directory / "chat_template.jinja").write_text(DATED)
    lm = load_model(str(directory))
    assert lm.provenance["template_arguments"] == {"date": DATE} == template_arguments()
    assert lm.with_template_arguments({"date": DATE}) is lm
    other = lm.with_template_arguments({"think": True})
    assert other.provenance["template_arguments"] == {"date": DATE, "think": True} and other.identity == lm.identity
    assert other.encode_chat("w5", system="w6").tolist()[-1] == 9 != lm.encode_chat("w5", system="w6").tolist()[-1]


MODERN = """{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}{{ date_string }}
{%- for message in messages %}{% if message.hidden %}{% continue %}{% endif %}
{%- generation %}{{ message.content }}{% endgeneration %}{% endfor %}
{%- if enable_thinking is defined and enable_thinking is false %}{{ raise_exception("no") }}{% endif %}
{{- bos_token }}"""


def test_an_argument_that_the_template_does_not_read_is_refused_by_name(dated):
    check_read(dated, ["think", "date"])
    dated.chat_template = MODERN
    check_read(dated, ["enable_thinking", "date_string", "date"])
    for name in ("think", "message", "content", "hidden", "bos_token"):  # the template's own are no arguments of it
        with pytest.raises(InputError, match=f"'{name}': is not read.*it reads: date, date_string, enable_thinking$"):
            check_read(dated, [name])


def test_a_model_without_a_template_takes_the_date_alone():
    tokenizer = words_tokenizer()
    check_read(tokenizer, ["date"])
    with pytest.raises(UnsupportedModel, match="no chat template"):
        check_read(tokenizer, ["think"])
