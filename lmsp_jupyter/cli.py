"""`jupyter lmsp`: the service and its models from the command line (N6.1)."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from . import __version__
from .client import Client
from .errors import BadRequest, Problem
from .events import TextDelta
from .markdown import plain_table


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status says whether it went well."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.run is not serve:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    options.rest = rest
    try:
        return int(options.run(options) or 0)
    except Problem as problem:
        print(f"{problem.title}: {problem.detail}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 130
    except BrokenPipeError:
        # Whoever read the output has seen enough; the interpreter's own last flush must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        print(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        return 1


def serve(options: argparse.Namespace) -> None:
    from .app import HeadlessServer

    HeadlessServer.serve(options.rest, options.idle_timeout)


def demo(options: argparse.Namespace) -> None:
    from .demo import run

    run(options.output)


def pull(options: argparse.Namespace) -> None:
    from .catalog import models_folder
    from .pull import pull

    pull(options.model, models_folder())


def models(options: argparse.Namespace) -> None:
    with Client() as client:
        found = client.models.list()
    if not found:
        print("There are no models yet. Get the starter with: jupyter lmsp pull smollm2:135m")
        return
    rows = []
    for model in found:
        size = "" if model.size_bytes is None else f"{model.size_bytes / 1e6:.0f} MB"
        rows.append((model.id, model.state, size, str(model.context_length or ""), model.engine))
    print(plain_table(("MODEL", "STATE", "SIZE", "CONTEXT", "ENGINE"), rows))
    for model in found:
        if model.error:
            print(f"{model.id}: {model.error.get('detail')}", file=sys.stderr)


def ask(options: argparse.Namespace) -> int:
    text = sys.stdin.read() if options.text == ["-"] else " ".join(options.text)
    if not text.strip():
        raise BadRequest("There is no prompt.")
    with (
        Client() as client,
        client.stream(
            text,
            model=options.model,
            system=options.system,
            temperature=options.temperature,
            max_output_tokens=options.max_output_tokens,
            seed=options.seed,
        ) as stream,
    ):
        for event in stream:
            if isinstance(event, TextDelta):
                print(event.delta, end="", flush=True)
        print(flush=True)
    details = stream.response.incomplete_details
    if details:
        print(f"The answer was cut: {details.reason}.", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jupyter lmsp", description="Local language models as a part of Jupyter.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("demo", help="see it work: a notebook answered by a model on this machine")
    command.add_argument("--output", type=Path, help="where to keep the executed notebook")
    command.set_defaults(run=demo)

    command = commands.add_parser(
        "serve",
        help="serve LMSP without notebooks",
        description="Serve LMSP without notebooks. Other arguments are Jupyter Server's, such as --port=9000.",
    )
    command.add_argument("--idle-timeout", type=int, default=0, metavar="SECONDS", help="end when idle for so long")
    command.set_defaults(run=serve)

    command = commands.add_parser("pull", help="fetch a model")
    command.add_argument("model", metavar="MODEL", help="such as smollm2:135m")
    command.set_defaults(run=pull)

    command = commands.add_parser("models", help="list the models")
    command.set_defaults(run=models)

    command = commands.add_parser("ask", help="ask a model; the answer streams to the terminal")
    command.add_argument("text", nargs="+", metavar="TEXT", help="the prompt, or - to read it from standard input")
    command.add_argument("-m", "--model")
    command.add_argument("-s", "--system")
    command.add_argument("-t", "--temperature", type=float)
    command.add_argument("-n", "--max-output-tokens", type=int)
    command.add_argument("--seed", type=int)
    command.set_defaults(run=ask)
    return parser


if __name__ == "__main__":
    sys.exit(main())
