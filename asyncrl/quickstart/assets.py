"""Where the shipped files of the quickstart lie."""

from pathlib import Path

ADD1 = Path(__file__).parent / "add1"
"""Everything about one-digit sums."""

MODEL_FOLDER = "model"
"""A Hugging Face folder: configuration, weights and tokenizer."""
PROMPTS_FILE = "prompts.jsonl"
"""The prompts, one JSON object a line, with verl's columns."""
RECORD_FILE = "BUILD.json"
"""Where, how and with which result the files were built."""
