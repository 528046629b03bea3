"""What the sessions of one running group have been answered so far, over pauses, deaths of engines and issues of the group."""

import asyncio

import msgspec

from asyncrl.rollout.continuation import Continuation
from asyncrl.trajectory import GenerateOutput, GenerateRequest, Kept, PartialGroup, PolicyVersion, PromptGroup
from asyncrl.workers.engines import EngineRouter


class GroupTurns:
    """The way of one group's sessions to the engines. It remembers the latest answer of each, whole or not."""

    def __init__(self, group: PromptGroup, router: EngineRouter) -> None:
        self._group, self._router = group, router
        self._latest: dict[str, Continuation] = {}
        self._saved = dict(group.kept)
        self.oldest: PolicyVersion | None = None
        """The oldest version known to have drawn a token for the group; kept up to date where the group asks for it."""
        self.news = asyncio.Event()
        """Set when ``oldest`` has changed."""

    async def generate(self, request: GenerateRequest) -> GenerateOutput:
        """The whole answer of one turn. The first one of a session goes on from what was saved of it."""
        request = msgspec.structs.replace(request, report_start=self._group.report_start, urgent=self._group.urgent)
        answer = self._latest[request.session] = Continuation(request, self._saved_for(request))
        return await self._router.complete(answer, self._started)

    def _saved_for(self, request: GenerateRequest) -> Kept | None:
        """What an earlier issue sampled for this request. A session that was in a later turn then has another prompt: it restarts."""
        saved = self._saved.pop(request.session, None)
        if saved is None or request.drawn or saved.prompt_ids != request.prompt_ids:
            return None
        if self._group.report_start:
            for version in saved.versions:
                self._started(version)
        return saved

    def _started(self, version: PolicyVersion) -> None:
        if self.oldest is None or version < self.oldest:
            self.oldest = version
            self.news.set()

    def partial(self) -> PartialGroup:
        """What there is to save. What an engine has not given back is not in it."""
        kept = {session: answer.kept for session, answer in self._latest.items()}
        sessions = {session: answer for session, answer in kept.items() if answer.token_ids}
        return PartialGroup(uid=self._group.uid, partition_id=self._group.partition_id, lease=self._group.lease, sessions=sessions)
