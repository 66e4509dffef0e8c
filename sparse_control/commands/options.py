"""What several commands take: folders, preset and model, and where their progress goes."""

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from sparse_control.errors import InputError
from sparse_control.files import LARGEST_TEXT, check_size, parse_json
from sparse_control.notes import be_quiet
from sparse_control.project import project_folder


class Folder(click.Path):
    """A folder argument as a `Path`; an empty one is a slip of the shell and not the current folder."""

    def __init__(self, exists: bool = False, file_okay: bool = True) -> None:
        super().__init__(exists=exists, file_okay=file_okay, path_type=Path)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "":
            self.fail("is empty; name a folder", parameter, context)
        return super().convert(value, parameter, context)


class Text(click.ParamType):
    """An argument of Unicode text; bytes that are none reach Python as lone surrogates, which cannot be written."""

    name = "text"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("is not valid UTF-8 text", parameter, context)
        return value


class ModelName(click.ParamType):
    """A model argument; an empty one is a slip of the shell and not the model in the current folder."""

    name = "model"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        if not value.strip():
            self.fail("is empty; name a model", parameter, context)
        return value


class TemplateArgument(click.ParamType):
    """A chat template's argument as `key=value`; true, false and numbers are what they say, all else is text."""

    name = "key=value"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, str | bool | int | float]:
        name, equals, text = Text().convert(value, parameter, context).partition("=")
        if not equals or not name.isidentifier():
            self.fail(f"{value!r:.80} is no argument; write it like enable_thinking=false", parameter, context)
        return name, _plain(text)


def _plain(text: str) -> str | bool | int | float:
    try:
        value = parse_json(text, "value")
    except InputError:
        return text
    return value if isinstance(value, str | bool | int | float) else text


def _each_once(context: click.Context, parameter: click.Parameter, value: tuple[Any, ...]) -> dict[str, Any]:
    for name, _ in value:
        if [other for other, _ in value].count(name) > 1:
            raise click.BadParameter(f"{name} is given twice; once is enough", context, parameter)
    return dict(value)


Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def completing(names: Callable[[], Iterable[str]]) -> Complete:
    """For `shell_complete`: those of the names that begin with what is typed; asked for then and no earlier."""
    return lambda context, parameter, typed: [name for name in names() if name.startswith(typed)]


def _presets() -> Iterable[str]:
    from sparse_control.files import read_yaml

    return read_yaml(project_folder() / "params.yaml").get("presets", {})


def _models() -> Iterable[str]:
    from sparse_control.registry import registry

    return registry()


def known(kind: str) -> Complete:
    """Completes tasks, selectors or conditions."""

    def names() -> Iterable[str]:
        from sparse_control.protocol.grid import KNOWN

        return KNOWN[kind]

    return completing(names)


def template_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--template`, repeated; the arguments by name."""
    return click.option(
        "--template", multiple=True, type=TemplateArgument(), metavar="KEY=VALUE", callback=_each_once,
        help="Argument of the model's chat template, such as enable_thinking=false or date=2025-06-30; repeat for "
        "several. One that the template does not read is refused.",
    )(function)  # fmt: skip


def root_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--root` of the commands that read measurements."""
    return click.option(
        "--root", type=Folder(), default=None, metavar="DIR",
        help="Folder that was measured into; measurements/ of the project by default.",
    )(function)  # fmt: skip


def run_root_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--root` of the commands that measure."""
    return click.option(
        "--root", type=Folder(), default=None, metavar="DIR",
        help="Folder to measure into; runs/PRESET in the project by default, so that committed results stay.",
    )(function)  # fmt: skip


def wait_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--wait` of the commands that write into a root."""
    return click.option(
        "--wait", is_flag=True, help="If another command writes into the folder, wait for its end instead of refusing."
    )(function)


def preset_option(function: Callable[..., Any], default: str = "smoke") -> Callable[..., Any]:
    """`--preset`."""
    return click.option(
        "--preset", default=default, show_default=True, metavar="NAME", shell_complete=completing(_presets),
        help="Settings of params.yaml, such as smoke (minutes), paper (the whole study), qwen-0.5b (a larger model).",
    )(function)  # fmt: skip


def model_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--model`."""
    return click.option(
        "--model", type=ModelName(), metavar="NAME", shell_complete=completing(_models),
        help="Registry name (models list), hub id, directory or .gguf file; the preset's own by default.",
    )(function)  # fmt: skip


def preset_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--preset` and `--model`."""
    return preset_option(model_option(function))


def _source(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """A folder's CSV files or a file, before they are hashed: a pipe or a device has no end."""
    if value is not None:
        for path in sorted(value.rglob("*.csv")) if value.is_dir() else [value]:
            check_size(path, LARGEST_TEXT)
    return value


def source_options(off_target: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--mmlu`, `--xstest` and `--pairs`, and `--off-target` where wanted, as the argument `sources`."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    options = [
        click.option(
            "--mmlu", type=Folder(exists=True, file_okay=False), metavar="DIR", callback=_source,
            help="MMLU's folder of CSV files, in place of the project's own questions.",
        ),
        click.option(
            "--xstest", type=file, metavar="FILE", callback=_source,
            help="XSTest's CSV file, in place of the project's own requests.",
        ),
        click.option(
            "--pairs", type=file, metavar="FILE", callback=_source,
            help="Pairs of your own as a task: a .jsonl of source, target, source_answer, target_answer, or a .json of "
            "two lists, negative and positive. The task is called after the file.",
        ),
        click.option("--name", type=Text(), metavar="NAME", help="What the task of --pairs is called instead."),
        click.option(
            "--last-token-only", is_flag=True,
            help="Keep pairs of --pairs that are no minimal edits of equal length; only their last tokens are patched, "
            "and the record says so.",
        ),
    ]  # fmt: skip
    if off_target:
        options.append(click.option(
            "--off-target", type=file, metavar="FILE", callback=_source,
            help="Prompts that must stay as they are, in place of the project's panel: a .txt with one a line, or a "
            ".jsonl of prompt.",
        ))  # fmt: skip

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(
            *arguments: Any, mmlu: Path | None, xstest: Path | None, pairs: Path | None, name: str | None,
            last_token_only: bool, off_target: Path | None = None, **more: Any,
        ) -> Any:  # fmt: skip
            from sparse_control.protocol.panels import PairFile, PanelSources

            for flag, given in (("--name", name is not None), ("--last-token-only", last_token_only)):
                if given and pairs is None:
                    raise InputError(f"{flag}: says how --pairs FILE is read; give one")
            own = None if pairs is None else PairFile.of(pairs.resolve(), name, last_token_only)
            files = {"mmlu": mmlu, "xstest": xstest, "off_target": off_target}
            resolved = {key: path and path.resolve() for key, path in files.items()}
            return function(*arguments, sources=PanelSources(**resolved, pairs=own), **more)

        for option in reversed(options):
            call = option(call)
        return call

    return decorated


class Strength(click.ParamType):
    """A number, or `fit`, which is None."""

    name = "strength"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float | None:
        if value == "fit" or isinstance(value, float):
            return None if value == "fit" else value
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is no number; give one, or fit", parameter, context)


def layer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--layer` and `--row` of an intervention file."""
    layer = click.option(
        "--layer", type=click.IntRange(min=0), metavar="L",
        help="Block whose output the vector of the file is added to, from 0; of a file with a vector per layer, the "
        "only one taken.",
    )  # fmt: skip
    row = click.option(
        "--row", type=click.IntRange(min=0), metavar="N",
        help="Feature of the sparse autoencoder whose decoder the file has; needs --layer.",
    )  # fmt: skip
    return layer(row(function))


def _quiet(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        be_quiet()


QUIET = click.Option(
    ["--quiet"], is_flag=True, is_eager=True, expose_value=False, callback=_quiet,
    help="No progress and no notes; results, warnings and errors stay.",
)  # fmt: skip


def add_quiet(command: click.Command) -> None:
    """Give a command, or every command of a group, the option `--quiet`."""
    if not isinstance(command, click.Group):
        command.params.append(QUIET)
        return
    for each in command.commands.values():
        add_quiet(each)
