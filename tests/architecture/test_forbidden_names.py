"""Names that must not occur: what executes data, what polls, and what reaches past the Host."""

import ast

from tests.architecture import source

NOWHERE = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
EXECUTING_CALLS = {"eval", "exec", "compile", "torch.load", "recv_pyobj", "send_pyobj", "yaml.load"}
HOSTED_ROOMS = ("runtime", "transfer_queue", "trainer")
HOSTS = ("asyncrl/runtime/host.py", "asyncrl/runtime/files.py")
SIMULATED = ("asyncrl/runtime/simulated_loop.py", "asyncrl/runtime/simulated_host.py", "asyncrl/runtime/simulated_network.py")
"""They stand for the clock, the machine and the network: what is random there is drawn by a ``random.Random`` from one seed."""
HOSTED_MODULES = {
    "time", "random", "uuid", "secrets", "threading", "subprocess", "multiprocessing", "tempfile", "shutil", "uvloop", "pathlib",
}  # fmt: skip
HOSTED_CALLS = {"open", "os.fork", "os.urandom", "os.open", "os.kill", "os.killpg", "os.getpid", "os.environ.get", "os.getenv"}
TASK_CALLS = ("create_task", "ensure_future")
TASKS = "asyncrl/runtime/tasks.py"


def test_nothing_executes_what_it_was_given() -> None:
    found = [
        f"{source.name(path)}:{line} {module}"
        for path in source.modules()
        for module, line in source.imports(path)
        if module.split(".")[0] in NOWHERE
    ]
    found += [
        f"{source.name(path)}:{call.lineno} {name}"
        for path in source.modules()
        for name, call in source.calls(path)
        if name in EXECUTING_CALLS
    ]
    found += [
        f"{source.name(path)}:{call.lineno} shell=True"
        for path in source.modules()
        for _, call in source.calls(path)
        if any(keyword.arg == "shell" for keyword in call.keywords)
    ]
    assert not found


def test_clock_entropy_processes_and_files_are_reached_through_the_host() -> None:
    found = []
    for path in source.modules():
        if source.room(path) not in HOSTED_ROOMS or source.name(path) in HOSTS:
            continue
        forbidden = HOSTED_MODULES - {"random"} if source.name(path) in SIMULATED else HOSTED_MODULES
        found += [f"{source.name(path)}:{line} {module}" for module, line in source.imports(path) if module.split(".")[0] in forbidden]
        found += [f"{source.name(path)}:{call.lineno} {name}" for name, call in source.calls(path) if name in HOSTED_CALLS]
    assert not found


def test_tasks_are_born_in_one_module() -> None:
    found = [
        f"{source.name(path)}:{call.lineno} {name}"
        for path in source.modules()
        if source.name(path) != TASKS
        for name, call in source.calls(path)
        if name.split(".")[-1] in TASK_CALLS
    ]
    assert not found


def test_nobody_waits_by_sleeping_in_a_loop() -> None:
    found = []
    for path in source.modules():
        for loop in ast.walk(source.tree(path)):
            if isinstance(loop, ast.While | ast.For | ast.AsyncFor):
                found += [
                    f"{source.name(path)}:{node.lineno}"
                    for node in ast.walk(loop)
                    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("asyncio.sleep", "time.sleep", "sleep")
                ]
    # A scripted engine sleeps to stand for computing: that is work, not a wait.
    assert not [place for place in found if not place.startswith("asyncrl/rollout/scripted.py")]


def test_no_exception_is_swallowed() -> None:
    found = [
        f"{source.name(path)}:{handler.lineno}"
        for path in source.modules()
        for handler in ast.walk(source.tree(path))
        if isinstance(handler, ast.ExceptHandler)
        and (handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException"))
        and all(isinstance(statement, ast.Pass) for statement in handler.body)
    ]
    assert not found


def test_hydra_and_omegaconf_appear_in_one_module() -> None:
    found = {
        source.name(path)
        for path in source.modules()
        for module, _ in source.imports(path)
        if module.split(".")[0] in ("hydra", "omegaconf")
    }
    assert found == {"asyncrl/config/load.py"}
