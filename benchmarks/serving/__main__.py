"""The server under clients.

    python -m benchmarks.serving exact --target smollm2-135m [--json FILE]
    python -m benchmarks.serving turns --target smollm2-135m [--json FILE]
    python -m benchmarks.serving load --target smollm2-135m [--llamacpp] [--json FILE]

It needs psutil; --llamacpp needs xllamacpp, here or in the Python that XLLAMACPP_PYTHON names.
"""

from __future__ import annotations

import typer

from benchmarks.serving import exact, load, turns

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command("exact")(exact.main)
app.command("load")(load.main)
app.command("turns")(turns.main)

if __name__ == "__main__":
    app()
