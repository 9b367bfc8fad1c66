"""The entry point: the app, and how errors and Ctrl-C end it.

Commands import the library when they run, so that `mtp --help` answers at once.
"""

import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from mtp_cli.bench import bench_app
from mtp_cli.chat import chat
from mtp_cli.convert import convert
from mtp_cli.doctor import doctor
from mtp_cli.generate import generate
from mtp_cli.models import models
from mtp_cli.pull import pull
from mtp_cli.train import train
from mtp_cli.verify import verify
from mtp_weights.errors import UserError

# Newer versions of Typer bring their own copy of Click, older ones import it: this is the class in either case.
_UsageError = typer.BadParameter.__base__
_FIRST = ("chat", "generate", "bench")  # in the help: what most people come for


class _Commands(TyperGroup):
    """Ends the program as a person or a script expects: one line for an error, and its exit code."""

    def list_commands(self, context: typer.Context) -> list[str]:
        return sorted(super().list_commands(context), key=lambda name: name not in _FIRST)

    def invoke(self, context: typer.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(130) from interrupt

    def main(self, *args: Any, **options: Any) -> NoReturn:
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except UserError as error:
            code = _fail(str(error), error.exit_code)
        except _UsageError as error:
            code = _fail(error.format_message(), error.exit_code)
        except OSError as error:  # a full disk under stdout, a file that went away: nothing a traceback explains better
            code = _fail(str(error), 1)
        except typer.Abort:
            code = 1
        sys.exit(code)


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


app = typer.Typer(
    cls=_Commands,
    help="Run Gemma 4 faster, with the same output: multi-token prediction on MLX.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(chat)
app.command()(generate)
app.add_typer(bench_app, name="bench")
app.command()(models)
app.command(short_help="Download a model and its drafter.")(pull)
app.command(short_help="Quantize a model or a drafter, or undo it.")(convert)
app.command()(train)
app.command(short_help="Check a pair's files, and how exact its output is here.")(verify)
app.command()(doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        import mlx.core as mx

        from mtp_mlx import __version__

        print(f"mtp {__version__} (MLX {mx.__version__})")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def run() -> None:
    """The console script `mtp`."""
    # Where one was closed, the next file to be opened would get its descriptor, and MLX takes 0 for a failure to open.
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115  for as long as the program runs
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    app()
