"""N1: the magics, in a shell of this process and in a real kernel."""

import atexit
import io
import json
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import nbformat
import pytest
from fake_client import FakeClient, answer
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

from lmsp_jupyter import errors
from lmsp_jupyter.display import MIME
from lmsp_jupyter.lines import LineError, parse
from lmsp_jupyter.magics import load_ipython_extension, unload_ipython_extension

TESTS = Path(__file__).parent


class Shell:
    """An IPython shell in this process, with the magics and a scripted client."""

    def __init__(self):
        self.ip = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
        load_ipython_extension(self.ip)
        self.client = self.magics.client = FakeClient()

    @property
    def magics(self):
        return self.ip.magics_manager.registry["LMSPMagics"]

    def run(self, cell):
        """What a cell prints. A failure raises."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            result = self.ip.run_cell(cell, store_history=True)
        self.printed = out.getvalue() + err.getvalue()
        result.raise_error()
        return out.getvalue()

    def fails(self, cell, kind=LineError):
        with pytest.raises(kind):
            self.run(cell)
        return self.printed

    @property
    def prompt(self):
        return self.client.requests[-1]["input"]


@pytest.fixture
def shell():
    made = Shell()
    yield made
    unload_ipython_extension(made.ip)
    atexit.unregister(made.ip.atexit_operations)
    InteractiveShell.clear_instance()


# Options.


@pytest.mark.parametrize(
    ("line", "field", "value", "text"),
    [
        (r"-s C:\models\q.gguf hi", "system", r"C:\models\q.gguf", "hi"),
        ('-s "two  words" hi', "system", "two  words", "hi"),
        (r"-s 'a \"b\" \n' hi", "system", r"a \"b\" \n", "hi"),
        ("-s don't hi", "system", "don't", "hi"),
        ("-s 'I don't know' hi", "system", "I don't know", "hi"),
        ('-s {"a": 1, "b": [1, 2]} hi', "system", '{"a": 1, "b": [1, 2]}', "hi"),
        ('-s ["a b"]', "system", '["a b"]', ""),
        ("-s {name} hi", "system", "{name}", "hi"),
        ('-s "" hi', "system", "", "hi"),
        ("--system=terse hi", "system", "terse", "hi"),
        ('--system="be terse" hi', "system", "be terse", "hi"),
        ("-t 0 hi", "temperature", 0.0, "hi"),
        ("-n 5", "max_output_tokens", 5, ""),
        ("--seed 7  don't  stop ", "seed", 7, "don't  stop"),
        ("-o _x hi", "output", "_x", "hi"),
        ("--strict -- --strict", "strict", True, "--strict"),
        ("--dry-run", "dry_run", True, ""),
        ("--no-stream what is -t?", "no_stream", True, "what is -t?"),
        ("-5 + 3", "model", None, "-5 + 3"),
        ("- item", "model", None, "- item"),
    ],
)
def test_n1_4_options_and_text(line, field, value, text):
    options, rest = parse(line)

    assert getattr(options, field) == value
    assert rest == text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--modle x", "did you mean --model?"),
        ("--dryrun", "did you mean --dry-run?"),
        ("-x 5", "the options are -m,"),
        ("-t hot", "-t takes a number, not 'hot'"),
        ("-t nan", "-t takes a number"),
        ("-n 1.5", "-n takes a whole number"),
        ("-o 1x", "-o takes a name of Python"),
        ("-o class", "-o takes a name of Python"),
        ("-m", "-m needs a value: -m MODEL"),
        ("-s -t 0", "-s needs a value"),
        ('-s "open', 'no closing "'),
        ("--strict=1 x", "--strict takes no value"),
    ],
)
def test_n1_1_an_option_that_cannot_be_read_says_why(line, said):
    with pytest.raises(LineError) as caught:
        parse(line)

    assert said in caught.value.detail


# Asking.


def test_n1_1_the_body_is_the_prompt(shell):
    printed = shell.run("%%lmsp -m fake -s terse -t 0 -n 9 --seed 3\ndon't\n  do 'that'\n")

    assert shell.client.requests == [
        {
            "input": "don't\n  do 'that'",
            "model": "fake",
            "system": "terse",
            "temperature": 0.0,
            "max_output_tokens": 9,
            "seed": 3,
        }
    ]
    assert printed == "Hello world.\n\nfake · 5 tokens in · 3 out\n"
    assert shell.client.streams[0].closed


def test_n1_1_text_on_the_line_stands_before_the_body(shell):
    shell.run("%%lmsp -t 0 don't explain:\nx = 1")
    assert shell.prompt == "don't explain:\nx = 1"

    assert "Options stand before text: -t" in shell.fails("%%lmsp explain -t 0\nx = 1")


@pytest.mark.parametrize(
    "typed",
    [
        "what is python?",
        "don't?",
        "is {'a': 1} $HOME or $$ !ls `x` \\d??",
        "why (is that?",
        "-5 + 3?",
        "what is int?",
        "path C:\\new",
    ],
)
@pytest.mark.parametrize("cell", ["%lmsp ask {}", "if True:\n    %lmsp ask {}\n    x = 1\n"])
def test_n1_4_a_line_reaches_the_model_whole(shell, typed, cell):
    shell.run(cell.replace("{}", typed, 1))

    assert shell.prompt == typed


@pytest.mark.parametrize(
    "body",
    [
        "what is python?",
        "explain\nint?",
        ">>> 1 + 1\n2",
        "In [1]: x",
        "%lmsp ask y?",
        "%%time",
        "  indented\n    more",
        "a \\\nb",
        "{'a': 1} {{x}} $x",
        '"""',
    ],
)
@pytest.mark.parametrize("head", ["%%lmsp\n", "\n\n%%lmsp -t 0\n"])
def test_n1_4_a_body_reaches_the_model_whole(shell, head, body):
    shell.run(head + body)

    assert shell.prompt == body


def test_n1_4_every_other_line_is_left_alone(shell):
    transform = shell.ip.transform_cell
    transformed = {
        cell: transform(cell)
        for cell in (
            "x = 1\nprint?\n",
            "%lmsp?\n",
            "%%lmsp?\n",
            "%time 1\n",
            "'''\n%lmsp ask why?\n'''\n",
            "%%time\n%lmsp ask why\n",
            "  x = 1\n>>> 2\n",
            "%%lmspx\nbody\n",
        )
    }
    unload_ipython_extension(shell.ip)
    plain = {cell: transform(cell) for cell in transformed}
    load_ipython_extension(shell.ip)

    assert transformed == plain


def test_n1_4_a_terminal_still_waits_for_the_end_of_the_body(shell):
    complete = shell.ip.input_transformer_manager.check_complete

    assert complete("%%lmsp\nhi\n")[0] == "incomplete"
    assert complete("%%lmsp\nhi\n\n")[0] == "complete"
    assert complete("%lmsp ask why?")[0] == "complete"


@pytest.mark.parametrize("cell", ["%%lmsp", "%%lmsp\n", "%%lmsp\n  \n", "%lmsp ask", "%lmsp ask -t 0"])
def test_n1_1_no_prompt_is_an_error(shell, cell):
    assert "There is no prompt" in shell.fails(cell)
    assert shell.client.requests == []


def test_n1_1_the_response_goes_into_a_variable(shell):
    shell.run("%lmsp ask -o reply hi")

    assert shell.ip.user_ns["reply"].text == "Hello world."
    assert shell.ip.user_ns["_lmsp"] is shell.ip.user_ns["reply"]


def test_n1_1_no_stream_shows_the_end_only(shell):
    assert shell.run("%lmsp ask --no-stream hi") == "Hello world.\n\nfake · 5 tokens in · 3 out\n"


def test_n1_5_captured_output_is_the_final_bundle(shell):
    with capture_output() as captured:
        shell.ip.run_cell("%lmsp ask hi")

    (output,) = captured.outputs
    assert output.data["text/markdown"].startswith("Hello world.")
    assert output.data[MIME]["status"] == "completed"
    assert output.metadata[MIME]["last_event_id"] == 9


def test_n1_1_strict_fails_on_truncation(shell):
    shell.client.scripts = [answer("Half", end="max_output_tokens")]

    assert "truncated: max_output_tokens" in shell.run("%lmsp ask hi")
    printed = shell.fails("%lmsp ask --strict -o x hi", errors.Problem)
    assert "Answer truncated: The answer met max_output_tokens." in printed
    assert shell.ip.user_ns["x"].text == "Half"


def test_n1_14_defaults_are_traits(shell):
    for line in (
        "model = 'small'",
        "temperature = 0.5",
        "max_output_tokens = 7",
        "system = 'Be {mood}.'",
    ):
        shell.run(f"%config LMSPMagics.{line}")
    shell.run("mood = 'brief'")
    shell.run("%lmsp ask hi")
    shell.run("%lmsp ask -m m -t 0 -n 1 -s '' hi")

    first, second = shell.client.requests
    assert (first["model"], first["temperature"]) == ("small", 0.5)
    assert (first["max_output_tokens"], first["system"]) == (7, "Be brief.")
    assert (second["model"], second["temperature"]) == ("m", 0.0)
    assert (second["max_output_tokens"], second["system"]) == (1, None)


# Interpolation.


def test_n1_3_input_output_and_errors_by_number(shell):
    shell.run("1 + 1")
    shell.fails("def f():\n    1 / 0\nf()", ZeroDivisionError)
    shell.fails("x = (", SyntaxError)
    shell.run("5")
    shell.run("%lmsp ask {In[1]}|{Out[1]}|{Err[2]}|{Err[3]}|{Err[1]}|{Err[4]}|{In[2]}")

    code, value, error, syntax, *none, function = shell.prompt.split("|")
    assert (code, value) == ("1 + 1", "2")
    assert error.splitlines()[0].startswith("Traceback")
    assert error.endswith("ZeroDivisionError: division by zero")
    assert "1 / 0" in error
    assert "interactiveshell" not in error
    assert "SyntaxError" in syntax
    assert none == ["{Err[1]}", "{Err[4]}"]
    assert function == "def f():\n    1 / 0\nf()"


def test_n1_3_input_is_what_was_typed(shell):
    shell.run("%lmsp help")
    shell.run("%lmsp ask {In[1]}")

    assert shell.prompt == "%lmsp help"


def test_n1_3_only_names_of_the_user_resolve(shell):
    shell.run("%lmsp ask {exit} {get_ipython} {print} {open}")
    assert shell.prompt == "{exit} {get_ipython} {print} {open}"

    shell.run("open = 'mine'")
    shell.run("%lmsp ask {open}")
    assert shell.prompt == "mine"


def test_n1_3_variables_of_a_function_resolve(shell):
    shell.run("y = 'outer'\ndef f(x, y):\n    %lmsp ask {x} {y}\nf(3, 'inner')")

    assert shell.prompt == "3 inner"


def test_n1_3_dry_run_shows_the_prompt_and_generates_nothing(shell):
    shell.run("name = 'Ada'")
    printed = shell.run("%%lmsp --dry-run -m fake -s {who}\nHi {name}, {'a': 1}")

    assert printed == (
        "Nothing was generated. Model: fake; the input takes 5 tokens.\n\n"
        "System:\n{who}\n\n"
        "Prompt:\nHi Ada, {'a': 1}\n\n"
        "Resolved: {name}\nLeft as typed: {who}\n"
    )
    assert shell.client.requests == []


# Subcommands.


def test_n1_2_models(shell):
    with capture_output() as captured:
        shell.ip.run_cell("%lmsp models")

    data = captured.outputs[0].data
    assert "| \\* | smollm2:135m | available | 270 MB | 8192 | Q8\\_0 | tools |" in data["text/markdown"]
    assert "*  smollm2:135m  available  270 MB  8192     Q8_0" in data["text/plain"]


def test_n1_2_no_models(shell):
    shell.client.models._ids = []

    assert "jupyter lmsp pull" in shell.run("%lmsp models")


def test_n1_2_use(shell):
    shell.run("%lmsp use other_model")
    shell.run("%lmsp ask hi")

    assert shell.client.requests[-1]["model"] == "other_model"
    printed = shell.fails("%lmsp use smolm", errors.ModelNotFound)
    assert "did you mean 'smollm2:135m'?" in printed
    assert shell.magics.model == "other_model"
    assert "name a model" in shell.fails("%lmsp use")


def test_n1_2_status(shell):
    before = shell.run("%lmsp status")
    assert "lmsp-jupyter 0.1.0, LMSP 1.0" in before
    assert "smollm2:135m (the service's default)" in before
    assert "none yet" in before

    shell.client.delay = 0.01
    shell.run("%lmsp ask hi")
    after = shell.run("%lmsp status")
    assert "Last answer  fake · 5 tokens in · 3 out" in after
    for measured in ("tokens/s", "first token after 0.", "2 tokens cached"):
        assert measured in after


@pytest.mark.parametrize("cell", ["%lmsp help", "%lmsp"])
def test_n1_2_help_fits_a_screen(shell, cell):
    lines = shell.run(cell).splitlines()

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 90
    for word in ("%%lmsp", "ask", "models", "use", "status", "-m", "--dry-run", "LMSPMagics"):
        assert any(word in line for line in lines), word


def test_n1_2_an_unknown_subcommand_names_the_closest(shell):
    assert "did you mean %lmsp models?" in shell.fails("%lmsp modles")
    assert "%lmsp ask TEXT, %lmsp models" in shell.fails("%lmsp xyzzy")
    assert "takes nothing" in shell.fails("%lmsp status now")


def completions(shell, line):
    """What a line may become."""
    with provisionalcompleter():
        found = shell.ip.Completer.completions(line, len(line))
        return {line[: each.start] + each.text for each in found}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%lmsp ", ["%lmsp " + name for name in ("ask", "models", "use", "status", "help")]),
        ("%lmsp st", ["%lmsp status"]),
        ("%lmsp use ", ["%lmsp use smollm2:135m", "%lmsp use other_model"]),
        ("%lmsp use smollm2:1", ["%lmsp use smollm2:135m"]),
        ("%lmsp ask -m o", ["%lmsp ask -m other_model"]),
        ("%lmsp ask --st", ["%lmsp ask --strict"]),
        ("%%lmsp -m smol", ["%%lmsp -m smollm2:135m"]),
        ("%%lmsp -t 0 --dry", ["%%lmsp -t 0 --dry-run"]),
    ],
)
def test_n1_2_tab_completes(shell, line, offered):
    assert set(offered) <= completions(shell, line)


def test_n1_2_tab_does_not_fail_without_a_service(shell):
    def unreachable():
        raise errors.ServiceUnreachable("No service.")

    shell.client.models.list = unreachable

    assert "%lmsp use smollm2:135m" not in completions(shell, "%lmsp use s")


# Failures.


def test_n1_13_a_failure_is_readable(shell):
    problem = errors.BadRequest("Too hot.", errors=[("/temperature", "3 is more than 2")])
    shell.client.scripts = [[problem]]
    printed = shell.fails("%lmsp ask hi", errors.BadRequest)

    assert printed == "Invalid request: Too hot.\n  /temperature: 3 is more than 2\n"
    shell.run("%lmsp ask --dry-run {Err[1]}")
    assert "Invalid request: Too hot." in shell.printed


def test_n1_13_a_failed_answer_raises_and_keeps_its_text(shell):
    shell.client.scripts = [answer("Half", end="failed")]
    printed = shell.fails("%lmsp ask hi", errors.EngineFailed)

    assert printed.startswith("Half\n\nfake · failed: engine_failed\n")
    assert printed.endswith("Engine failed: The engine gave up. Try again.\n")
    assert shell.ip.user_ns["_lmsp"].status == "failed"


def test_n1_7_an_interrupt_ends_the_cell_quietly(shell):
    shell.client.scripts = [[*answer("Half", end=None), KeyboardInterrupt()]]
    printed = shell.fails("%lmsp ask hi\nlater = 1", KeyboardInterrupt)

    assert printed == "Half\n\nfake · cancelled\nInterrupted.\n"
    assert shell.client.streams[0].closed
    assert "later" not in shell.ip.user_ns
    assert shell.ip.user_ns["_lmsp"].status == "cancelled"


def test_loading_twice_registers_once(shell):
    load_ipython_extension(shell.ip)
    shell.magics.client = shell.client
    shell.run("%lmsp ask why?")

    assert len(shell.client.requests) == 1
    names = [type(each).__name__ for each in shell.ip.configurables]
    assert names.count("LMSPMagics") == 1


def test_importing_the_magics_loads_no_server_and_no_engine():
    code = "import sys, lmsp_jupyter.magics; print(*{name.split('.')[0] for name in sys.modules})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert not {"jupyter_server", "xllamacpp", "mlx", "pandas"} & set(process.stdout.split())


# In a kernel.

SETUP = f"""
import sys; sys.path.insert(0, {str(TESTS)!r})
from fake_client import FakeClient, answer, progress
from lmsp_jupyter.magics import load_ipython_extension
load_ipython_extension(get_ipython())
magics = get_ipython().magics_manager.registry["LMSPMagics"]
magics.client = FakeClient()
"""


class Kernel:
    """A kernel with the magics; `run` plays a front end that keeps all messages of a cell."""

    def __init__(self):
        self.manager, self.client = start_new_kernel()
        self.run(SETUP)

    def start(self, code):
        return self.client.execute(code, store_history=True)

    def run(self, code):
        return self.wait(self.start(code))

    def wait(self, request):
        messages = []
        while True:
            message = self.client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") != request:
                continue
            messages.append((message["msg_type"], message["content"]))
            if messages[-1] == ("status", {"execution_state": "idle"}):
                return messages

    def wait_for_stream(self, request):
        while True:
            message = self.client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") == request and message["msg_type"] == "stream":
                return


@pytest.fixture(scope="module")
def kernel():
    made = Kernel()
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)
    made.manager.cleanup_resources()


def kinds(messages):
    ours = ("stream", "display_data", "update_display_data", "clear_output", "error")
    return [kind for kind, _ in messages if kind in ours]


def errors_in(messages):
    return [content for kind, content in messages if kind == "error"]


@pytest.mark.parametrize(
    "cell",
    ["%%lmsp -t 0\nhi\n", "\n%%lmsp\nwhat is python?", "# a question\n%lmsp ask what is python?\n"],
)
def test_n1_5_a_cell_of_its_own_streams_and_ends_in_one_output(kernel, cell):
    kernel.run("magics.client = FakeClient(answer(*['word '] * 100), delay=0.005)")
    messages = kernel.run(cell)
    streamed = [content["text"] for kind, content in messages if kind == "stream"]

    assert kinds(messages)[-2:] == ["clear_output", "display_data"]
    assert kinds(messages).count("display_data") == 1
    assert ("word " * 100).startswith("".join(streamed))
    assert 3 <= len(streamed) <= 15


@pytest.mark.parametrize(
    "cell",
    [
        "print('mine')\n%lmsp ask hi",
        "print('mine')\nfor _ in range(2):\n    %lmsp ask hi?",
        "print('mine'); get_ipython().run_cell_magic('lmsp', '', 'hi')",
    ],
)
def test_n1_5_a_cell_with_other_output_keeps_it(kernel, cell):
    kernel.run("magics.client = FakeClient(answer(*['word '] * 100), delay=0.005)")
    messages = kernel.run(cell)

    assert "clear_output" not in kinds(messages)
    assert "".join(content["text"] for kind, content in messages if kind == "stream") == "mine\n"
    assert kinds(messages).count("display_data") == (2 if "for" in cell else 1)
    last = [content for kind, content in messages if kind == "update_display_data"][-1]
    assert last["data"][MIME]["status"] == "completed"
    assert last["metadata"][MIME]["task_id"] is None


def test_n1_6_progress_is_gone_at_the_end(kernel):
    kernel.run("magics.client = FakeClient(answer('Hi', before=[progress('loading', 1, 2)]), delay=0.2)")
    messages = kernel.run("%lmsp ask hi")

    assert kinds(messages) == ["stream", "clear_output", "stream", "clear_output", "display_data"]


@pytest.mark.parametrize(
    "cell",
    [
        "%lmsp ask hi",
        "%lmsp ask hi\nlater = 1",
        "import asyncio; await asyncio.sleep(0)\n%lmsp ask hi\nlater = 1",
    ],
)
def test_n1_7_an_interrupt_cancels_and_the_kernel_lives(kernel, cell, tmp_path):
    log = tmp_path / "closed"
    kernel.run(f"magics.client = FakeClient(answer(*['w '] * 999), delay=0.05, log={str(log)!r})")
    request = kernel.start(cell)
    if "later" in cell:
        time.sleep(0.5)
    else:
        kernel.wait_for_stream(request)
    kernel.manager.interrupt_kernel()
    messages = kernel.wait(request)

    shown = [content["data"] for kind, content in messages if MIME in content.get("data", {})]
    assert [data[MIME]["status"] for data in shown] == ["cancelled"]
    assert shown[0]["text/plain"].startswith("w")
    (error,) = errors_in(messages)
    assert error["ename"] == "KeyboardInterrupt"
    assert error["traceback"] == ["Interrupted."]
    assert log.exists()
    alive = kernel.run("print(_lmsp.status, 'later' in globals())")
    assert ("stream", {"name": "stdout", "text": "cancelled False\n"}) in alive


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def test_n1_13_a_headless_run_fails_readably():
    made = notebook(
        SETUP,
        "%%lmsp\nhi",
        "%lmsp ask --modle x hi",
        "later = 1",
    )
    with pytest.raises(CellExecutionError) as caught:
        NotebookClient(made, timeout=60).execute()

    assert caught.value.ename == "LineError"
    (output,) = made.cells[2].outputs
    assert output.output_type == "error"
    assert output.traceback == [f"Cannot read this: {output.evalue}"]
    assert "did you mean --model?" in output.evalue
    (shown,) = made.cells[1].outputs
    assert shown.output_type == "display_data"
    assert shown.data["text/markdown"].startswith("Hello world.")
    assert json.loads(nbformat.writes(made))["cells"][1]["outputs"][0]["metadata"][MIME]
    nbformat.validate(made)


def test_n1_5_a_second_run_gives_equal_data():
    made = notebook(SETUP, "%%lmsp -t 0\nhi", "print(1)\n%lmsp ask -t 0 hi")
    runs = []
    for _ in range(2):
        NotebookClient(made, timeout=60).execute()
        runs.append([output.get("data") for cell in made.cells for output in cell.outputs])

    assert runs[0] == runs[1]
    assert len(runs[0]) == 3
