"""The task of the first run: one-digit sums, start weights, tokenizer, prompts and rewards, and the script that makes them."""
