"""Where the shipped files of the quickstart lie."""

from pathlib import Path

ADD1 = Path(__file__).parent / "add1"
"""Everything about one-digit sums."""
ADD2 = Path(__file__).parent / "add2"
"""Everything about two-digit sums."""

MODEL_FOLDER = "model"
"""A Hugging Face folder: configuration, weights and tokenizer."""
PROMPTS_FILE = "prompts.jsonl"
"""The one-digit prompts, one JSON object a line, with verl's columns."""
TRAIN_FILE = "train.jsonl"
"""The two-digit prompts that are trained."""
PROBE_FILE = "train_probe.jsonl"
"""Some of them, for the validation of trained pairs."""
HELD_OUT_FILE = "heldout.jsonl"
"""Some of the held-out two-digit prompts, for the validation of held-out pairs."""
RECORD_FILE = "BUILD.json"
"""Where, how and with which result the files were built."""
