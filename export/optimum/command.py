"""``optimum-cli export omnidraft``, once ``python -m omnidraft.export.optimum`` has made it known.

Every start of ``optimum-cli`` imports it, so it imports nothing of the export before it runs.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction
from pathlib import Path
from typing import get_args

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo
from optimum.commands.export.base import ExportCommand

from omnidraft.runtime.storage.manifest import Backend, BundleQuantization, Layout


class OmniDraftExportCommand(BaseOptimumCLICommand):  # type: ignore[misc]
    """The same as ``omnidraft export``."""

    COMMAND = CommandInfo(
        name="omnidraft", help="Export a Llama drafter as an OmniDraft bundle, proven equal."
    )

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("-m", "--model", required=True, help="folder, GGUF file, Hugging Face id, 'default'")
        add("output", type=Path, help="folder to write; a bundle that is there is replaced")
        add("--backend", default="onnx", choices=get_args(Backend))
        add(
            "--layout",
            default="omnidraft",
            choices=get_args(Layout),
            help="names of inputs and outputs: ours, or those of other programs",
        )
        add("--quantization", choices=get_args(BundleQuantization), help="default: by backend")
        add("--lora-rank", type=int, help="rank of the LoRA inputs; 0: none; default: 32")
        add("--context", type=int, help="longest sequence, in tokens; default: by backend")
        add("--soc", help="chip to compile for, as SM8650")
        add("--adapter", help="adapter, by name or file, to be merged into the weights")
        add("--calibration", type=Path, help="text for onnx int4 and qnn; default: built-in text")
        add("--min-agreement", type=float, help="top-1 and acceptance agreement to reach, 0 to 1")
        add(
            "--share-weights",
            action=BooleanOptionalAction,
            default=False,
            help="with qnn: the weights once for both graphs",
        )
        add(
            "--train-step",
            action=BooleanOptionalAction,
            default=False,
            help="add a graph that trains the LoRA inputs",
        )

    def run(self) -> None:
        """Export; exits with 2 after a message when something is wrong."""
        from omnidraft.cli.export import export
        from omnidraft.runtime.errors import OmniDraftError

        options = {name: value for name, value in vars(self.args).items() if name != "func"}
        try:
            export(options.pop("model"), **options)
        except OmniDraftError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)


REGISTER_COMMANDS = [(OmniDraftExportCommand, ExportCommand)]
