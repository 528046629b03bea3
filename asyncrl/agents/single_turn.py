"""The loop of one question and one answer."""

from asyncrl.agents.loop import SessionContext
from asyncrl.errors import GenerationAborted
from asyncrl.trajectory import GenerateRequest, StopReason, Trajectory


class SingleTurn:
    """One generation a session."""

    async def run(self, session: SessionContext) -> list[Trajectory]:
        """One trajectory of one answer. Raises GenerationAborted when the answer was cut off on request."""
        request = GenerateRequest(
            request_id=session.request_id(turn=0),
            uid=session.uid,
            session=session.session,
            prompt_ids=session.prompt_ids,
            sampling=session.sampling,
            seed=session.seed,
        )
        output = await session.generate(request)
        if output.stop_reason is StopReason.ABORT:
            raise GenerationAborted(f"{request.request_id} was aborted after {len(output.token_ids)} tokens")
        return [
            Trajectory(
                prompt_ids=session.prompt_ids,
                response_ids=output.token_ids,
                response_mask=[1] * len(output.token_ids),
                log_probs=output.log_probs,
                versions=output.versions,
                num_turns=2,
                stop_reason=output.stop_reason,
            )
        ]
