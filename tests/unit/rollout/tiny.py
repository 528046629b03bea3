"""Small models and the plain forward that an engine is held against."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from asyncrl.rollout.embedded import EmbeddedEngine, EmbeddedOptions
from asyncrl.trajectory import GenerateOutput, GenerateRequest, SamplingParams

VOCABULARY = 17
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "pad_token_id": None,
    "bos_token_id": None,
}


def qwen(seed: int = 0, *, tied: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    model: Any = Qwen3ForCausalLM
    return cast(nn.Module, model(Qwen3Config(**SHAPE, tie_word_embeddings=tied))).eval()


def llama(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model: Any = LlamaForCausalLM
    return cast(nn.Module, model(LlamaConfig(**SHAPE, tie_word_embeddings=False))).eval()


def bits(weights: Any) -> str:
    """A digest good enough for a test."""
    return str(sum(float(weight.double().sum()) for _, weight in weights))


def engine_of(model: nn.Module, *, eos: list[int] | None = None, **options: Any) -> EmbeddedEngine:
    """An engine with a copy of ``model``, version 0."""
    own = type(model)(cast(Any, model).config)
    engine = EmbeddedEngine(own, EmbeddedOptions(**{"max_num_seqs": 4, "max_model_len": 64} | options), digest=bits, eos=eos)
    engine.load(0, model.named_parameters())
    return engine


def ask(number: int, length: int, *, session: int = 0, seed: int = 5, drawn: int = 0, **sampling: Any) -> GenerateRequest:
    """A request whose prompt of ``length`` tokens depends on ``number`` alone."""
    prompt = [(3 * number + 5 * place + number * place) % VOCABULARY for place in range(length)]
    return GenerateRequest(
        request_id=f"r{number}_{session}",
        uid=f"u{number}",
        session=str(session),
        prompt_ids=prompt,
        sampling=SamplingParams(**{"max_tokens": 6} | sampling),
        seed=seed,
        drawn=drawn,
    )


def drain(engine: EmbeddedEngine) -> dict[str, GenerateOutput]:
    outputs: dict[str, GenerateOutput] = {}
    while engine.unfinished:
        outputs |= {output.request_id: output for output in engine.step()}
    return outputs


@torch.no_grad()
def forward(model: nn.Module, prompt: list[int], answer: list[int], temperature: float = 1.0) -> Tensor:
    """Log-probabilities [answer, V] by one plain forward without cache."""
    logits = model(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return cast(Tensor, (logits / temperature).log_softmax(-1))


def plain_log_probs(model: nn.Module, prompt: list[int], answer: list[int], temperature: float = 1.0) -> list[float]:
    chosen = forward(model, prompt, answer, temperature).gather(-1, torch.tensor(answer)[:, None])[:, 0]
    return [float(value) for value in chosen]
