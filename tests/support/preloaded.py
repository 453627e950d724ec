"""An interpreter that starts in no time, for `-m minionerec`, launchers, scripts, alone.py and workers of tests.

A process that trains spends some seconds on imports of other people's packages. `python()` is the path of a command
that hands such a process to a server, which has imported them once (nothing of this project), and forks: a process with
the words, environment, folder, open files, status and signals of the one that was asked for; so are the processes that
run tests beside one another (`-u -c CODE`), and those that `multiprocessing` starts. All other words are the
interpreter's own. Everything here but `python` runs outside of pytest:

    PATH -m minionerec sft --config sft.yaml     a client, which imports nothing
    preloaded.py --serve SOCKET                       the server; it ends when nobody holds its standard input
"""

import os
import sys

PACKAGES = (
    *("numpy", "pandas", "pyarrow.parquet", "pyarrow.dataset", "scipy.sparse", "sklearn.cluster", "faiss"),
    *("sklearn.feature_extraction.text", "sklearn.decomposition", "torch", "transformers.trainer", "accelerate"),
    *("datasets", "safetensors.torch", "safetensors.numpy", "matplotlib.pyplot", "pydantic.dataclasses"),
    *("trl.trainer.grpo_trainer", "trl.trainer.sft_trainer", "transformers.models.qwen2.modeling_qwen2"),
    *("transformers.models.t5.modeling_t5", "logging.handlers"),
)
_started: dict[int, tuple[str, int]] = {}


def python() -> str:
    """Path of the command. The processes of a run of tests share its server, which ends when the last of them does.

    The first of them names its folder to the others by an environment variable.
    """
    if os.getpid() not in _started:
        _started[os.getpid()] = _start()
    return _started[os.getpid()][0]


def _start() -> tuple[str, int]:
    """The command, and what keeps its server alive: an end of a pipe, which is open for as long as this process."""
    import shlex
    import subprocess
    import tempfile
    from pathlib import Path

    from filelock import FileLock

    own = f"{tempfile.gettempdir()}/preloaded-{os.getuid()}-{os.getpid()}"
    folder = Path(os.environ.setdefault("MINIONEREC_TEST_PRELOADED", own))
    command, pipe = folder / "python", folder / "pipe"
    with FileLock(_lock(folder)):
        if folder.exists():
            return str(command), os.open(pipe, os.O_WRONLY)
        folder.mkdir(mode=0o700)
        words = shlex.join([sys.executable, "-ISB", __file__, str(folder / "socket"), sys.executable])
        command.write_text(f'#!/bin/sh\nexec {words} "$0" "$@"\n')
        command.chmod(0o755)
        os.mkfifo(pipe)
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        held = os.open(pipe, os.O_WRONLY)
        server = [sys.executable, "-P", __file__, "--serve", str(folder / "socket")]
        subprocess.Popen(server, stdin=reading, cwd="/", start_new_session=True)
        os.close(reading)
    return str(command), held


def _lock(folder: "os.PathLike[str]") -> str:
    """The lock of whoever starts or ends a server: one file for all runs, as it stays."""
    return f"{os.path.dirname(folder)}/preloaded-{os.getuid()}.lock"


def _ask(socket_path: str, python: str, command: str, words: list[str]) -> None:
    """Let the server run the words, as if this process were the one that does."""
    script = words[0] if words and words[0].endswith(".py") else ""
    ours = words[:2] in (["-m", "minionerec"], ["-m", "accelerate.commands.launch"], ["-u", "-c"])
    ours = ours or "scripts/" in script
    ours = ours or script.endswith(("calc_level.py", "alone.py"))
    ours = ours or any(word.startswith("from multiprocessing.forkserver") for word in words)
    if not ours or "RANK" in os.environ or "PYTHONHASHSEED" in os.environ:
        os.execv(python, [python, *words])
    import json
    import signal
    import socket
    import time
    from contextlib import suppress

    files = []
    for number in sorted(map(int, os.listdir("/dev/fd"))):
        with suppress(OSError):  # that of the folder itself
            os.fstat(number)
            files.append(number)
    connection = socket.socket(socket.AF_UNIX)
    for _ in range(6000):  # the server imports
        try:
            connection.connect(socket_path)
            break
        except (FileNotFoundError, ConnectionRefusedError):
            if not os.path.exists(os.path.dirname(socket_path)):
                sys.exit("the server has ended with the run of tests that it was of")
            time.sleep(0.05)
    about = {"words": words, "cwd": os.getcwd(), "environment": dict(os.environ), "python": command, "files": files}
    reported = json.dumps(about).encode()
    socket.send_fds(connection, [len(reported).to_bytes(8, "big")], files)
    connection.sendall(reported)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
    status = int.from_bytes(connection.recv(4), "big", signed=True)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _serve(socket_path: str) -> None:
    """Import, then fork a process for each client, pass on its signals, and tell it the status."""
    import functools
    import gc
    import importlib
    import select
    import signal
    import socket
    from contextlib import suppress
    from importlib import metadata

    os.set_blocking(wake := (pipe := os.pipe())[0], False)
    os.set_blocking(pipe[1], False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(pipe[1])
    gc.disable()
    for name in PACKAGES:
        with suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    gc.enable()
    metadata.metadata = functools.cache(metadata.metadata)  # a trainer asks tens of times which packages there are
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{socket_path}.new")
    listener.listen(32)
    os.rename(f"{socket_path}.new", socket_path)
    at_work: dict[int, socket.socket] = {}
    gone: set[int] = set()  # children whose clients are
    while True:
        ready = select.select([0, wake, listener, *(at_work[child] for child in at_work.keys() - gone)], [], [])[0]
        if 0 in ready and _ended(os.path.dirname(socket_path)):
            break
        if wake in ready:
            os.read(wake, 4096)
            while at_work and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with suppress(OSError), at_work.pop(ended[0]) as client:
                    client.sendall(os.waitstatus_to_exitcode(ended[1]).to_bytes(4, "big", signed=True))
        for child, client in [(child, at_work[child]) for child in at_work.keys() - gone]:
            if client in ready:
                try:
                    number = client.recv(1)
                except OSError:
                    number = b""
                with suppress(ProcessLookupError):
                    os.killpg(child, number[0] if number else signal.SIGKILL)
                if not number:  # it is gone, and nobody waits for a status
                    gone.add(child)
        if listener in ready:
            client = listener.accept()[0]
            length, files, _, _ = socket.recv_fds(client, 8, 64)
            reported = b""
            while len(reported) < int.from_bytes(length, "big"):
                reported += client.recv(1 << 16)
            if not (child := os.fork()):
                client.close()
                _become(reported, files)
            at_work[child] = client
            for file in files:
                os.close(file)
    for child in at_work:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _ended(folder: str) -> bool:
    """Remove a server's folder, unless a process has asked for it since the last one ended."""
    import shutil
    from contextlib import suppress

    from filelock import FileLock

    with FileLock(_lock(folder)), suppress(BlockingIOError):
        if not os.read(0, 1):
            shutil.rmtree(folder)
            return True
    return False


def _become(reported: bytes, files: list[int]) -> None:
    """Run what a client asks for, in this process, and end it."""
    import atexit
    import fcntl
    import io
    import json
    import runpy
    import signal
    import threading
    import traceback
    import types

    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked = json.loads(reported)
    above = max(*asked["files"], *files) + 1
    for number, file in zip(asked["files"], [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files], strict=True):
        os.dup2(file, number)
        os.close(file)
    for file in set(files) - set(asked["files"]):
        os.close(file)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    words = asked["words"]
    module = words[0] == "-m"
    code = words[words.index("-c") + 1] if words[0].startswith("-") and not module else None
    if code is None:
        sys.executable = asked["python"]
    sys.argv = ["-c"] if code else words[module:]
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [asked["cwd"] if module or code else os.path.dirname(os.path.abspath(sys.argv[0])), *more, *sys.path]
    sys.stdin = os.fdopen(0, closefd=False)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", -1 + unbuffered, closefd=False), write_through=unbuffered)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1, errors="backslashreplace")
    status = 0
    try:
        if code:
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(code, vars(sys.modules["__main__"]))
        elif module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120
    os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(sys.argv[2])
    else:
        _ask(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
