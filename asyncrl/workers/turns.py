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
        self._drew: dict[Continuation, PolicyVersion] = {}
        """The oldest version of each answer that has a token."""
        self.oldest: PolicyVersion | None = None
        """The oldest version known to have drawn a token that the group has; kept up to date where the group asks for it. It
        falls with each older token, and rises when an engine takes such a token with it."""
        self.news = asyncio.Event()
        """Set when ``oldest`` has changed."""

    async def generate(self, request: GenerateRequest) -> GenerateOutput:
        """The whole answer of one turn. The first one of a session goes on from what was saved of it."""
        request = msgspec.structs.replace(request, report_start=self._group.report_start, urgent=self._group.urgent)
        answer = self._latest[request.session] = Continuation(request, self._saved_for(request))
        self._count(answer)
        try:
            return await self._router.complete(answer, lambda version: self._started(answer, version), lambda: self._count(answer))
        except Exception:
            # Nobody gets these tokens. A cancel mostly ends the whole group, whose marker is then no longer ours to change.
            self._note(answer, None)
            raise

    def _saved_for(self, request: GenerateRequest) -> Kept | None:
        """What an earlier issue sampled for this request. A session that was in a later turn then has another prompt: it restarts."""
        saved = self._saved.pop(request.session, None)
        return None if saved is None or request.drawn or saved.prompt_ids != request.prompt_ids else saved

    def _started(self, answer: Continuation, version: PolicyVersion) -> None:
        self._note(answer, min(version, self._drew.get(answer, version)))

    def _count(self, answer: Continuation) -> None:
        """Look at the tokens that are here, and at no others."""
        if self._group.report_start:
            self._note(answer, min(answer.kept.versions, default=None))

    def _note(self, answer: Continuation, version: PolicyVersion | None) -> None:
        if version is None:
            self._drew.pop(answer, None)
        else:
            self._drew[answer] = version
        before, self.oldest = self.oldest, min(self._drew.values(), default=None)
        if self.oldest != before:
            self.news.set()

    def partial(self) -> PartialGroup:
        """What there is to save. What an engine has not given back is not in it."""
        kept = {session: answer.kept for session, answer in self._latest.items()}
        sessions = {session: answer for session, answer in kept.items() if answer.token_ids}
        return PartialGroup(uid=self._group.uid, partition_id=self._group.partition_id, lease=self._group.lease, sessions=sessions)
