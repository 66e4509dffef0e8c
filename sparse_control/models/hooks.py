"""Hooks that act in every forward of a model within a context, or raise.

A hook that compiled code passes over, that fires for another thread, or that fires twice for one forward gives wrong
numbers and no error. So the hooks of a context are its own; every forward of the decoder counts that each of them fired
once; and a context in which no forward ran did nothing and says so.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models.language_model import LanguageModel

Act = Callable[[Tensor], Tensor | None]  # activation (B, T, width) -> what replaces it; None: it stays

# the contexts that the running code is within
_contexts: ContextVar[tuple["_Context", ...]] = ContextVar("contexts", default=())


@dataclass(frozen=True)
class Forward:
    """One call of the decoder.

    Attributes:
        tokens: (B, T) ids; None where embeddings were passed instead.
        length: T.
        start: position of the first token: how many are in the cache of keys and values.
        arguments: by name, as they were passed.
    """

    tokens: Tensor | None
    length: int
    start: int
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, args: tuple, kwargs: Mapping[str, Any]) -> "Forward":
        """From the arguments of a decoder of the transformers library."""
        tokens = args[0] if args else kwargs.get("input_ids")
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        shape = (kwargs["inputs_embeds"] if tokens is None else tokens).shape
        return cls(tokens, shape[1], 0 if cache is None else int(cache.get_seq_length()), kwargs)


@contextmanager
def hooking(
    lm: LanguageModel,
    inputs: Mapping[nn.Module, Act],
    outputs: Mapping[nn.Module, Act],
    begin: Callable[[Forward], None] = lambda forward: None,
) -> Iterator[None]:
    """Let functions read or replace activations in every forward of the decoder within the context.

    Own hooks alone are removed, on any exit.

    Args:
        lm: the model.
        inputs: module -> function of its first positional argument.
        outputs: module -> function of its output, or of the first part of a tuple.
        begin: called with each forward before it runs.

    Raises:
        InputError: a module did not run exactly once in a forward, ran outside of one, or in another thread or
            asynchronous task; at the end, no forward ran at all.
        UnsupportedModel: the model is compiled or traced, or in training mode.
    """
    everything = tuple(lm.model.modules())
    check_eager(lm)
    context = _Context(lm, everything, frozenset([*inputs, *outputs]), begin)
    decoder = lm.layout.decoder
    _contexts.set((*_contexts.get(), context))
    try:
        with ExitStack() as hooks:
            hooks.callback(context.close)
            handles = [
                decoder.register_forward_pre_hook(context.begins(), with_kwargs=True),
                decoder.register_forward_hook(context.ends()),
                *(module.register_forward_pre_hook(context.before(act)) for module, act in inputs.items()),
                *(module.register_forward_hook(context.after(act)) for module, act in outputs.items()),
            ]
            for handle in handles:
                hooks.callback(handle.remove)
            yield
    finally:
        _contexts.set(tuple(other for other in _contexts.get() if other is not context))
    context.check_used()


def is_compiled(module: nn.Module) -> bool:
    """Whether other code runs in place of the module's own, past which hooks may not be called."""
    return (
        module._compiled_call_impl is not None
        or "_orig_mod" in module._modules
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        or isinstance(module, torch.jit.ScriptModule)
    )


def check_eager(lm: LanguageModel) -> None:
    """Refuse a model with a compiled submodule.

    Raises:
        UnsupportedModel: names the submodule.
    """
    for name, module in lm.model.named_modules():
        if is_compiled(module):
            raise UnsupportedModel(
                f"{lm.name}: submodule {name or 'model'!r} is compiled, and compiled code passes hooks over; "
                "load the model without torch.compile"
            )


@dataclass(eq=False)
class _Context:
    """The hooks of one `hooking`: whose they are, and what has run.

    Hooks are functions and no bound methods, so that a copy of the model does not copy the context with them.
    """

    lm: LanguageModel
    everything: tuple[nn.Module, ...]  # modules of the model
    modules: frozenset[nn.Module]  # those with hooks
    begin: Callable[[Forward], None]
    thread: int = field(default_factory=threading.get_ident)
    running: set[nn.Module] | None = None  # in a forward: the modules that have run
    began: int = 0  # forwards
    length: int = 0  # tokens of the one that runs
    strangers: bool = False  # whether another thread or task ran the model
    closed: bool = False

    def close(self) -> None:
        self.closed = True

    def begins(self) -> Callable[[nn.Module, tuple, dict[str, Any]], None]:
        """The hook before a forward of the decoder."""

        def hook(decoder: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            if self.closed:  # a copy of the model, or code compiled within the context, still has the hook
                return
            self._check_owner()
            if decoder is not self.lm.layout.decoder:
                raise InputError(f"{self.lm.name}: a copy of the model was made while it was hooked; copy it outside")
            if torch.compiler.is_compiling() or torch.jit.is_tracing():
                raise UnsupportedModel(f"{self.lm.name}: cannot be compiled or traced while it is hooked")
            if any(module.training for module in self.everything):
                self.lm.check_evaluation_mode()
            self.began += 1
            self.running = None
            forward = Forward.of(args, kwargs)
            self.length = forward.length
            self.begin(forward)
            self.running = set()

        return hook

    def ends(self) -> Callable[[nn.Module, tuple, Any], None]:
        """The hook after it."""

        def hook(_decoder: nn.Module, _args: tuple, _output: Any) -> None:
            if self.closed or self.running is None:
                return
            missed, self.running = self.modules - self.running, None
            if missed:
                raise InputError(f"{self.lm.name}: {self._names(missed)} did not run in a forward; a hook did not act")

        return hook

    def before(self, act: Act) -> Callable[[nn.Module, tuple], tuple | None]:
        """A hook on a module's input."""

        def hook(module: nn.Module, args: tuple) -> tuple | None:
            if self.closed:
                return None
            self._count(module)
            changed = act(args[0])
            return None if changed is None else (changed, *args[1:])

        return hook

    def after(self, act: Act) -> Callable[[nn.Module, tuple, Any], Any]:
        """A hook on a module's output, which is a tensor in some library versions and a tuple in others."""

        def hook(module: nn.Module, _args: tuple, output: Tensor | tuple) -> Tensor | tuple | None:
            if self.closed:
                return None
            self._count(module)
            first, *rest = output if isinstance(output, tuple) else (output,)
            flat = first.ndim == 2  # (B T, width): some models put the tokens of all prompts into one list
            changed = act(first.unflatten(0, (-1, self.length)) if flat else first)
            if changed is not None and flat:
                changed = changed.flatten(0, 1)
            return (changed, *rest) if changed is not None and isinstance(output, tuple) else changed

        return hook

    def check_used(self) -> None:
        """At the end of the context."""
        if self.strangers:
            raise InputError(f"{self.lm.name}: {STRANGER}")
        if self.modules and not self.began:
            raise InputError(
                f"{self.lm.name}: no forward of the model ran, so nothing was hooked; run lm.model itself, and not a "
                "compiled, traced or copied form of it"
            )

    def _count(self, module: nn.Module) -> None:
        self._check_owner()
        if self.running is None:
            raise InputError(
                f"{self.lm.name}: {self._names({module})} ran outside a forward of the hooked model; modules that "
                "models share can be hooked in one of them at a time"
            )
        if module in self.running:
            raise InputError(f"{self.lm.name}: {self._names({module})} ran twice in a forward; a hook acts once")
        self.running.add(module)

    def _check_owner(self) -> None:
        if threading.get_ident() != self.thread or self not in _contexts.get():
            self.strangers = True
            raise InputError(f"{self.lm.name}: {STRANGER}")

    def _names(self, modules: set[nn.Module]) -> str:
        known = {module: name for name, module in self.lm.model.named_modules()}
        return ", ".join(sorted(known.get(module, type(module).__name__) for module in modules))


STRANGER = (
    "another thread or asynchronous task ran the model while hooks were on it; give each its own copy of the model, or "
    "let them run one after the other"
)
