"""The rooms of an agent process together on the quickstart's files, and without torch."""

import functools
import subprocess
import sys

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.agents.group import run_group
from asyncrl.agents.loops import AGENT_LOOPS
from asyncrl.data.dataset import PromptStream
from asyncrl.data.prompts import load_prompts
from asyncrl.quickstart.assets import ADD1, MODEL_FOLDER, PROMPTS_FILE
from asyncrl.rewards.load import load_reward
from asyncrl.rewards.pool import WorkerPool
from asyncrl.rewards.reward import score_all
from asyncrl.trajectory import GenerateOutput, GenerateRequest, PromptGroup, SamplingParams, StopReason


async def test_the_shipped_prompts_tokenizer_and_reward_fit_together() -> None:
    tokenizer = ChatTokenizer(ADD1 / MODEL_FOLDER, max_prompt_length=8)
    stream = PromptStream(load_prompts(str(ADD1 / PROMPTS_FILE)), train_batch_size=32, seed=1, shuffle=False)
    assert (stream.steps_per_epoch, tokenizer.eos_ids, tokenizer.pad_id, tokenizer.vocab_size) == (3, (13,), 12, 14)
    uid, row = stream.take(35)[34]
    group = PromptGroup(
        uid=uid,
        partition_id="train",
        prompt=row.prompt,
        data_source=row.data_source,
        ground_truth=row.ground_truth,
        extra_info=row.extra_info,
        sessions=3,
        sampling=SamplingParams(max_tokens=3),
        seed=1,
        lease=1,
        step=1,
    )

    async def generate(request: GenerateRequest) -> GenerateOutput:
        assert request.prompt_ids == [3, 10, 4, 11]
        ids = {"0": [7, 13], "1": [1, 7, 13], "2": [7, 7, 7]}[request.session]
        return GenerateOutput(
            request_id=request.request_id,
            token_ids=ids,
            log_probs=[-1.0] * len(ids),
            versions=[0] * len(ids),
            stop_reason=StopReason.STOP if ids[-1] == 13 else StopReason.LENGTH,
        )

    pool = WorkerPool(2, 10.0)
    expected: dict[str, list[float] | None] = {"compute_score": [1.0, 0.0, 0.0], "reversed_score": [0.0, 1.0, 1.0], "coin_score": None}
    for name, scores in expected.items():
        score = functools.partial(score_all, load_reward("pkg://asyncrl.quickstart.reward", name, pool))
        outcome = await run_group(group, AGENT_LOOPS[group.agent_name], score, generate=generate, tokenizer=tokenizer)
        assert scores is None or [row.score for row in outcome.rows] == scores
        assert [row.extra for row in outcome.rows] == [{"acc": 1.0}, {"acc": 0.0}, {"acc": 0.0}]
    pool.close()


def test_agents_rewards_data_and_quickstart_import_no_torch() -> None:
    modules = (
        "agents.columns agents.group agents.loops data.dataset data.prompts rewards.load "
        "quickstart.assets quickstart.build quickstart.reward quickstart.sums quickstart.tokenizer"
    )
    code = "import sys; " + "; ".join(f"import asyncrl.{name}" for name in modules.split())
    code += "; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
