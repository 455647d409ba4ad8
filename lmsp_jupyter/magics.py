"""`%lmsp` and `%%lmsp` (N1): read a line, call the client, show the result.

Parsing is in `lines`, references in `interpolate`, output in `display`, the service in `client`.
"""

from __future__ import annotations

import re
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)
from traitlets import Any as AnyTrait
from traitlets import Float, Integer, Unicode, default

from . import markdown
from .client import Client
from .display import MIME, Answer, choose_view, show
from .errors import Problem
from .interpolate import Interpolation, interpolate
from .lines import (
    FLAGS,
    OPTIONS,
    AskLine,
    LineError,
    Options,
    WholeCell,
    is_sole_ask,
    parse,
    split_cell,
)
from .protocol import Model, closest

COMMANDS = {
    "ask TEXT": "ask, on one line",
    "models": "the models that there are",
    "use MODEL": "answer with this model from now on",
    "status": "the service, the model and the last answer",
    "help": "this page",
}

_NAMES = {usage.split()[0]: usage for usage in COMMANDS}

_SHELL_COMMANDS = ("exit", "quit", "open", "get_ipython")

_Raised = TypeVar("_Raised", Problem, KeyboardInterrupt)


class Truncated(Problem):
    """`--strict`: the answer did not come to its own end."""

    code = "truncated"
    title = "Answer truncated"


@magics_class
class LMSPMagics(Magics):
    """Local language models in a notebook (N1.14: these are the defaults)."""

    model = Unicode(None, allow_none=True, help="The model; None is the service's.").tag(config=True)
    temperature = Float(None, allow_none=True, help="0 to 2; None is the model's.").tag(config=True)
    max_output_tokens = Integer(None, allow_none=True, help="Stop after so many tokens; None is no limit.").tag(
        config=True
    )
    system = Unicode(None, allow_none=True, help="Stands before each prompt.").tag(config=True)

    client = AnyTrait(help="What talks to the service; found or started when it is first needed.")

    @default("client")
    def _find_service(self) -> Client:
        return Client()

    def __init__(self, shell: InteractiveShell, **traits: Any) -> None:
        super().__init__(shell, **traits)
        self._errors: dict[int, str] = {}
        self._last: Answer | None = None
        self._whole_cell = WholeCell()

    # Magics.

    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    def lmsp(self, line: str, cell: str | None = None, local_ns: Mapping[str, Any] | None = None) -> None:
        """Ask a local language model; `%lmsp help` says how."""
        try:
            with _interruptible():
                self._do(line, cell, local_ns or {})
        except Problem as problem:
            raise _quiet(problem, _readable(problem)) from None
        except KeyboardInterrupt as interrupt:
            raise _quiet(interrupt, ["Interrupted."]) from None

    def _do(self, line: str, cell: str | None, names: Mapping[str, Any]) -> None:
        if cell is None:
            self._run(line.strip(), names)
            return
        options, text = parse(line)
        if flags := FLAGS.keys() & set(text.split()):
            raise LineError(f"Options stand before text: {', '.join(sorted(flags))}.")
        prompt = "\n".join(part for part in (text, cell.strip("\n")) if part.strip())
        self._ask(options, prompt, names, owned=self._owns_cell(cell))

    def _run(self, line: str, names: Mapping[str, Any]) -> None:
        """A line magic: its first word is the subcommand (N1.2)."""
        command, *rest = line.split(maxsplit=1) or ["help"]
        argument = rest[0] if rest else ""
        if command == "ask":
            options, prompt = parse(argument)
            self._ask(options, prompt, names, owned=self._owns_line(line))
        elif command == "use":
            self._use(argument)
        elif command in _NAMES and argument:
            raise LineError(f"%lmsp {command} takes nothing after it.")
        elif command == "models":
            self._models()
        elif command == "status":
            print(self._status())
        elif command == "help":
            print(help_page())
        else:
            found = closest(command, _NAMES)[:1] or list(_NAMES)
            hint = ", ".join(f"%lmsp {_NAMES[name]}" for name in found)
            raise LineError(f"{command!r} is not a subcommand; did you mean {hint}?")

    # Asking.

    def _ask(self, options: Options, typed: str, names: Mapping[str, Any], *, owned: bool) -> None:
        if not typed.strip():
            raise LineError("There is no prompt: write it below %%lmsp, or after %lmsp ask.")
        namespace = self._namespace(names)
        prompt = interpolate(typed, namespace)
        model = interpolate(options.model or self.model or "", namespace)
        system = interpolate((self.system if options.system is None else options.system) or "", namespace)
        request = {"model": model.text or None, "system": system.text or None}
        if options.dry_run:
            print(_dry_run(prompt, system, model, self.client.count_tokens(prompt.text, **request)))
            return
        stream = self.client.stream(
            prompt.text,
            **request,
            temperature=_first(options.temperature, self.temperature),
            max_output_tokens=_first(options.max_output_tokens, self.max_output_tokens),
            seed=options.seed,
        )
        answer = show(stream, choose_view(self.shell, owned=owned, live=not options.no_stream))
        self._keep(answer, options.output)
        if answer.error is not None:
            raise answer.error
        response = answer.response
        if options.strict and response.status == "incomplete":
            reason = response.incomplete_details and response.incomplete_details.reason
            raise Truncated(f"The answer met {reason}. Raise it (-n), or leave --strict out.")

    def _keep(self, answer: Answer, variable: str | None) -> None:
        """`_lmsp` and the variable of `-o` hold the response, a partial one too."""
        if answer.response.id:
            self._last = answer
            self._user_ns["_lmsp"] = answer.response
            if variable:
                self._user_ns[variable] = answer.response

    @property
    def _user_ns(self) -> dict[str, Any]:
        namespace: dict[str, Any] = self._shell.user_ns
        return namespace

    @property
    def _shell(self) -> InteractiveShell:
        shell = self.shell
        assert isinstance(shell, InteractiveShell)
        return shell

    def _namespace(self, names: Mapping[str, Any]) -> Mapping[str, Any]:
        """What references may name (N1.3): variables of the function, those of the user, and `Err`.

        `In` is the input as it was typed. `exit` and its like, which the shell put there, are no
        variables of the user.
        """
        hidden = self._shell.user_ns_hidden
        namespace: dict[str, Any] = {"Err": self._errors, **self._user_ns}
        for name in _SHELL_COMMANDS:
            if name in hidden and namespace.get(name) is hidden[name]:
                del namespace[name]
        history = self._shell.history_manager
        if history is not None and namespace.get("In") is history.input_hist_parsed:
            namespace["In"] = history.input_hist_raw
        if names is not self._user_ns:
            namespace.update(names)
        return namespace

    def _owns_cell(self, body: str) -> bool:
        parts = split_cell(self._running_code())
        return parts is not None and (parts[1].strip() == body.strip())

    def _owns_line(self, line: str) -> bool:
        return is_sole_ask(self._running_code(), line)

    def _running_code(self) -> str:
        """The cell that a kernel is running, as the front end sent it; "" where nobody knows."""
        get_parent = getattr(self.shell, "get_parent", None)
        parent = get_parent() if get_parent else {}
        return str(parent.get("content", {}).get("code", ""))

    def _note_error(self, result: ExecutionResult) -> None:
        """After each cell: keep the text of its error as `Err[n]`, n being the cell's own number.

        The shell's counter is no guide: some versions count on before this hook and some after it.
        """
        number = result.execution_count
        if result.info is None or not result.info.store_history or number is None:
            return
        if isinstance(result.error_before_exec, BaseException):
            self._errors[number] = _error_text(result.error_before_exec, None)
        elif isinstance(result.error_in_exec, BaseException):
            error = result.error_in_exec
            self._errors[number] = _error_text(error, error.__traceback__)

    # The other subcommands.

    def _use(self, name: str) -> None:
        if not name:
            raise LineError("%lmsp use MODEL: name a model; %lmsp models lists them.")
        self.model = self.client.models.get(name).id
        print(f"{self.model} answers from now on.")

    def _models(self) -> None:
        current = self.model or self.client.service().default_model
        models = self.client.models.list()
        rows = [_model_row(model, current) for model in models]
        note = "* answers unless -m names another; %lmsp use MODEL changes it."
        if not models:
            note = "There is no model yet. Get one: jupyter lmsp pull smollm2:135m"
        self._shell.display_pub.publish(
            {
                "text/markdown": f"{markdown.table(_HEAD, rows)}\n\n{markdown.escape(note)}",
                "text/plain": f"{markdown.plain_table(_HEAD, rows)}\n\n{note}",
            }
        )

    def _status(self) -> str:
        service = self.client.service()
        engines = ", ".join(engine.name for engine in service.engines if engine.available)
        versions = ", ".join(service.lmsp_versions)
        lines = [
            f"Service      {service.name} {service.version}, LMSP {versions}",
            f"Engines      {engines or 'none'}",
            f"Model        {self.model or service.default_model or 'none'}"
            + ("" if self.model else " (the service's default)"),
        ]
        if self._last is None:
            return "\n".join([*lines, "Last answer  none yet"])
        return "\n".join([*lines, *_measures(self._last)])

    # Tab.

    def complete(self, event: Any) -> list[str]:
        """Subcommands, options and model ids at the cursor (N1.2).

        IPython completes what follows the last delimiter, and a colon may be one: what stands
        before it in the word is not part of a completion.
        """
        *before, word = re.split(r"\s+", event.text_until_cursor)
        settled = word.removesuffix(event.symbol)
        return [name.removeprefix(settled) for name in self._offers(before) if name.startswith(word)]

    def _offers(self, before: list[str]) -> list[str]:
        """All that may follow these words."""
        if before[-1:] in (["-m"], ["--model"]) or before[1:] == ["use"]:
            return self._model_ids()
        if before == ["%lmsp"]:
            return list(_NAMES)
        if before[1:2] == ["ask"] or before[:1] == ["%%lmsp"]:
            return list(FLAGS)
        return []

    def _model_ids(self) -> list[str]:
        """Tab never starts a service and never fails."""
        try:
            if self.trait_has_value("client"):
                return [model.id for model in self.client.models.list()]
            with Client(start=False) as client:
                return [model.id for model in client.models.list()]
        except Problem:
            return []

    # Into the shell and out of it.

    def install(self) -> None:
        """Register with the shell all that `%load_ext` promises."""
        shell = self._shell
        shell.register_magics(self)
        shell.input_transformers_cleanup.insert(0, self._whole_cell)
        shell.input_transformer_manager.token_transformers.append(AskLine)
        shell.events.register("post_run_cell", self._note_error)
        for command in ("%lmsp", "%%lmsp"):
            shell.set_hook("complete_command", _complete, str_key=command)  # type: ignore[no-untyped-call]

    def uninstall(self) -> None:
        """Take it back. Magics and completers cannot be unregistered: the next ones take over."""
        shell = self._shell
        shell.input_transformers_cleanup.remove(self._whole_cell)
        shell.input_transformer_manager.token_transformers.remove(AskLine)
        shell.events.unregister("post_run_cell", self._note_error)
        shell.configurables.remove(self)  # type: ignore[arg-type]  # declared too narrowly
        del shell.magics_manager.registry[type(self).__name__]
        if self.trait_has_value("client"):
            self.client.close()


def _complete(shell: InteractiveShell, event: Any) -> list[str]:
    magics = shell.magics_manager.registry.get(LMSPMagics.__name__)
    return [] if magics is None else list(magics.complete(event))


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext lmsp_jupyter`; loading again replaces what was loaded before."""
    unload_ipython_extension(shell)
    LMSPMagics(shell).install()


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext` and the first half of `%reload_ext`."""
    loaded = shell.magics_manager.registry.get(LMSPMagics.__name__)
    if loaded is not None:
        loaded.uninstall()


# What is said.


def help_page() -> str:
    """`%lmsp help`: all subcommands and options of this version, on one screen."""
    rows = [("%%lmsp [options]", "the cell below is the prompt; {name} is the value of name")]
    rows += [(f"%lmsp {usage}", text) for usage, text in COMMANDS.items()]
    options = [(f"  {' '.join(filter(None, (o.flags[0], o.value)))}", o.help) for o in OPTIONS]
    width = max(len(left) for left, _ in [*rows, *options]) + 2
    lines = [f"{left:{width}}{text}" for left, text in [*rows, ("Options:", ""), *options]]
    defaults = "Defaults: %config LMSPMagics.model = 'NAME' (temperature, max_output_tokens, system)"
    return "\n".join([line.rstrip() for line in lines] + [defaults, "_lmsp is the last response."])


def _dry_run(prompt: Interpolation, system: Interpolation, model: Interpolation, tokens: int) -> str:
    parts = (prompt, system, model)
    lines = [f"Nothing was generated. Model: {model.text or 'the default'}; the input takes {tokens} tokens.", ""]
    if system.text:
        lines += ["System:", system.text, ""]
    lines += ["Prompt:", prompt.text, ""]
    for title, references in (
        ("Resolved", [name for part in parts for name in part.resolved]),
        ("Left as typed", [name for part in parts for name in part.unresolved]),
    ):
        shown = ", ".join(f"{{{name}}}" for name in dict.fromkeys(references))
        lines.append(f"{title}: {shown or 'nothing'}")
    return "\n".join(lines)


def _measures(answer: Answer) -> list[str]:
    """What varies from run to run stands here and not under the answer (N1.6)."""
    measured = answer.metadata[MIME]
    timings = measured["timings"]
    parts = [
        (timings["tokens_per_second"], "{} tokens/s"),
        (timings["time_to_first_token"], "first token after {} s"),
        (measured["cached_tokens"], "{} tokens cached"),
    ]
    said = ", ".join(form.format(value) for value, form in parts if value is not None)
    return [f"Last answer  {answer.usage_line}", f"             {said}".rstrip()]


_HEAD = ("", "model", "state", "size", "context", "quantization", "capabilities")


def _model_row(model: Model, current: str | None) -> tuple[str, ...]:
    return (
        "*" if model.id == current else "",
        model.id,
        model.state,
        "" if model.size_bytes is None else f"{model.size_bytes / 1e6:,.0f} MB",
        "" if model.context_length is None else str(model.context_length),
        model.quantization or "",
        ", ".join(model.capabilities),
    )


# What goes wrong.


@contextmanager
def _interruptible() -> Iterator[None]:
    """An interrupt raises here (N1.7), in a cell with a top-level `await` too.

    While such a cell runs, ipykernel answers SIGINT by cancelling it at its next `await`, and a
    magic has none.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _quiet(raised: _Raised, lines: list[str]) -> _Raised:
    """The exception, shown as these lines: IPython asks an exception for its traceback (N1.13)."""
    raised.__dict__["_render_traceback_"] = lambda: lines
    return raised


def _readable(problem: Problem) -> list[str]:
    pointers = [f"  {pointer}: {detail}" for pointer, detail in problem.errors if detail != problem.detail]
    return [f"{problem.title}: {problem.detail}", *pointers]


def _error_text(error: BaseException, frames: TracebackType | None) -> str:
    """An error as it shows itself, else as Python prints it, from the user's code on."""
    if render := getattr(error, "_render_traceback_", None):
        return "\n".join(render())
    while frames is not None and _is_ipython(frames):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip("\n")


def _is_ipython(frames: TracebackType) -> bool:
    return str(frames.tb_frame.f_globals.get("__name__", "")).startswith("IPython.core")


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
