"""A reward function of verl's form as a ``Reward``."""

import asyncio
import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from asyncrl.errors import ConfigError, RewardError
from asyncrl.rewards.pool import WorkerPool
from asyncrl.rewards.reward import failed, normalise
from asyncrl.trajectory import RewardItem, RewardResult

RewardFunction = Callable[..., Any]
"""``f(data_source, solution_str, ground_truth, extra_info, **kwargs)``, called by keyword; sync or async."""

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


class FunctionReward:
    """Calls one reward function; ``kwargs`` are further arguments of every call.

    A blocking function runs in a thread of ``pool``, an async one in the event loop; both under the pool's deadline.
    Takes functions, lambdas, partials, bound methods and callable objects. Raises ConfigError when the function cannot
    be called with these arguments.
    """

    def __init__(self, function: RewardFunction, pool: WorkerPool, kwargs: Mapping[str, Any] | None = None) -> None:
        self.name = function_name(function)
        self._function = function
        self._pool = pool
        self._kwargs = dict(kwargs or {})
        self._is_async = is_async(function)
        check_signature(function, self._kwargs)

    async def score(self, item: RewardItem) -> RewardResult:
        """The score of one answer, or what the function raised or did not finish in time."""
        call = functools.partial(
            self._function,
            data_source=item.data_source,
            solution_str=item.solution_str,
            ground_truth=item.ground_truth,
            extra_info=item.extra_info,
            **self._kwargs,
        )
        try:
            returned = call() if self._is_async else await self._pool.run(call)
            if inspect.isawaitable(returned):
                returned = await self._finish(returned)
            return normalise(returned)
        except asyncio.CancelledError as error:
            if _asked_to_end():
                raise
            return failed(error)
        except BaseException as error:  # of the user's function: a failed reward is data
            if self._pool.is_for_the_run(error):
                raise
            return failed(error)

    async def _finish(self, returned: Awaitable[Any]) -> Any:
        deadline = asyncio.timeout(self._pool.timeout)
        try:
            async with deadline:
                return await returned
        except TimeoutError:
            if deadline.expired():
                raise RewardError(f"timeout after {self._pool.timeout:g} s") from None
            raise


def _asked_to_end() -> bool:
    """Whether somebody cancels the current task, so that a CancelledError is not the user's function's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def check_signature(function: RewardFunction, kwargs: Mapping[str, Any]) -> None:
    """Raise ConfigError unless ``function`` takes the four arguments and ``kwargs`` by keyword, and needs no more."""
    clash = [name for name in kwargs if name in ARGUMENTS]
    if clash:
        raise ConfigError("reward.custom_reward_function.reward_kwargs", clash, f"{', '.join(ARGUMENTS)} are given by asyncrl")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not say what it takes
        return
    try:
        signature.bind(**dict.fromkeys(ARGUMENTS), **kwargs)
    except TypeError as error:
        wanted = ", ".join([*ARGUMENTS, *kwargs])
        raise ConfigError(
            "reward.custom_reward_function.name", function_name(function), f"it is called with {wanted} by keyword, but: {error}"
        ) from error


def is_async(function: RewardFunction) -> bool:
    """Whether a call of ``function`` gives a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    return not isinstance(function, type) and inspect.iscoroutinefunction(type(function).__call__)


def function_name(function: RewardFunction) -> str:
    """A name for messages: of what a partial wraps, and of the class of a callable object."""
    if isinstance(function, functools.partial):
        return function_name(function.func)
    if isinstance(function, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
        return function.__name__
    return type(function).__name__
