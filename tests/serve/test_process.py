"""`minionerec serve` as a process: its address, its key, models exchanged under traffic, its end, its refusals."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess

import pytest
import torch
from support.checkpoints import save_checkpoint
from support.preloaded import python
from support.scripts import benchmark
from support.serving import until

from minionerec.core.errors import ArtefactError, ConfigError
from minionerec.pipeline.settings import Settings
from minionerec.recommend.recommender import Recommender
from minionerec.serve import command, server
from minionerec.serve.command import run_serve
from minionerec.serve.config import KEY_VARIABLE, ServeConfig
from minionerec.serve.guard import read_keys

http_load = benchmark("http_load")
KEY = "a-key-of-some-length"
HISTORIES = [["u"], ["v", "w"], ["x", "y", "z"], []]


@pytest.fixture(scope="module")
def models(made):
    """Two recommenders of one catalogue that list differently, and the folder with their checkpoints "a" and "b"."""
    root = made / "models"
    root.mkdir()
    found = []
    for name in ("a", "b"):
        bundle = Recommender.load(made / "checkpoint", corpus=made / "corpus").ranker.bundle
        for parameter in bundle.model.parameters():
            parameter.data *= 1 if name == "a" else -1
        save_checkpoint(bundle, root / name)
        found.append(Recommender.load(root / name, corpus=made / "corpus"))
    (root / "now").symlink_to("a")
    return root, found


@pytest.fixture(scope="module")
def process(made, models, tmp_path_factory):
    """One that serves "now", a link to "a", on a free port and may reload; the process, its port and its log."""
    root, log = models[0], tmp_path_factory.mktemp("log") / "log"
    words = ["serve", "--checkpoint", root / "now", "--corpus", made / "corpus", "--port", "0"]
    words += ["--reload", "request", "--reload_root", root]
    with log.open("w") as errors:
        started = subprocess.Popen(
            [python(), "-m", "minionerec", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {KEY_VARIABLE: KEY},
        )
    try:
        line = started.stdout.readline()
        address = re.fullmatch(r"language model, 6 items: http://127\.0\.0\.1:(\d+)\n", line)
        assert address, line + log.read_text()
        yield started, int(address[1]), log
    finally:
        started.kill()
        started.wait()


def call(port, path="/v1/recommend", body=None, key=KEY):
    method = "GET" if body is None else "POST"
    sent = http_load.request_bytes(b"" if body is None else json.dumps(body).encode(), path, method, key)
    load = asyncio.run(http_load.drive(port, [sent], 1, keep=True))
    return load.statuses[0], json.loads(load.bodies[0] or b"{}")


def wanted(recommender):
    return [[item.item_id for item in answer.items] for answer in recommender.recommend_many(HISTORIES, 4)]


def listed(answer):
    return [[item["item_id"] for item in result["items"]] for result in answer["results"]]


SEVERAL = {"requests": [{"history": history, "k": 4} for history in HISTORIES]}


def test_the_lists_are_those_of_the_python_side_and_a_key_is_asked_for(process, models):
    _, port, _ = process
    status, answer = call(port, body=SEVERAL)
    assert (status, listed(answer)) == (200, wanted(models[1][0]))
    assert answer["model"] == {"name": "language model", "version": models[1][0].version}
    assert wanted(models[1][0]) != wanted(models[1][1])
    assert call(port, body=SEVERAL, key="")[0] == call(port, "/v1/model", key="wrong")[0] == 401
    assert call(port, "/healthz", key="")[0] == call(port, "/readyz", key="")[0] == 200


def version(port):
    return call(port, "/v1/model")[1]["version"]


def test_a_call_and_a_signal_bring_the_other_model(process, models):
    started, port, log = process
    root, (a, b) = models
    for name, model in (("b", b), ("a", a)):
        assert call(port, "/v1/reload", {"checkpoint": name})[0] == 200 and version(port) == model.version
    (root / "new").symlink_to("b")
    os.replace(root / "new", root / "now")
    started.send_signal(signal.SIGHUP)
    until(lambda: version(port) == b.version)
    until(lambda: call(port, "/v1/reload", {"back": True})[0] == 200)  # 409 while the other is just being put in place
    assert version(port) == a.version
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(line.get("message", "").startswith("in service: language model") for line in lines)
    assert any(line.get("path") == "/v1/recommend" and line["rows"] == 4 for line in lines)
    assert "history" not in log.read_text()


def test_sigterm_answers_what_was_taken_and_ends_with_status_0(process):
    started, port, log = process

    async def end():
        sent = http_load.request_bytes(json.dumps(SEVERAL).encode(), key=KEY)
        traffic = asyncio.create_task(
            http_load.drive(port, [sent], 4, seconds=1.5, pause=lambda status: 0.0 if status == 200 else 0.05)
        )
        await asyncio.sleep(0.5)
        started.send_signal(signal.SIGTERM)
        return await traffic

    load = asyncio.run(end())
    assert set(load.statuses) == {200, 0}  # no answer was cut off, none was an error
    assert load.statuses.index(0) > 4 and 200 not in load.statuses[load.statuses.index(0) + 8 :]
    assert started.wait(20) == 0
    assert "Traceback" not in log.read_text()


@pytest.fixture
def quiet(monkeypatch):
    """The process's own log lines stay out of the test's."""
    monkeypatch.setattr(server, "log_json_lines", lambda level: None)


def settings(made, **more):
    return ServeConfig(**{"checkpoint": str(made / "absent"), "corpus": str(made / "corpus"), "port": 0, **more})


def test_a_model_that_is_not_there_is_one_error(made, quiet):
    with pytest.raises(ArtefactError, match="absent"):
        server.serve(settings(made), print)


@pytest.mark.parametrize(
    ("given", "variable", "used"), [(3, "2", 3), (3, "", 3), (0, "", 1), (0, None, 1), (0, "2", 2)]
)
def test_a_model_computes_with_the_threads_that_are_set(made, quiet, monkeypatch, given, variable, used):
    seen = []

    def load(sources):
        seen.append(torch.get_num_threads())
        raise ArtefactError("loaded enough.")

    before = torch.get_num_threads()
    monkeypatch.setattr(server, "loader_of", lambda config: load)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    torch.set_num_threads(2)  # what the variable, or a machine of two cores, gave
    try:
        with pytest.raises(ArtefactError, match="loaded enough"):
            server.serve(settings(made, threads=given), print)
    finally:
        torch.set_num_threads(before)
    assert seen == [used]


def test_an_address_in_use_is_one_error(made, quiet):
    taken = server.bind("127.0.0.1", 0)
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port} \(Address already in use\)"):
        server.serve(settings(made, port=port), print)
    taken.close()
    with pytest.raises(ConfigError, match=r"cannot listen on no\.such\.host\.invalid:0"):
        server.bind("no.such.host.invalid", 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": 300}, "batch is 300, but queue 256"),
        ({"max_requests": 300}, "max_requests is 300, but queue 256"),
        ({"reload_root": "."}, "reload_root is given, but reload is off"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        ServeConfig(**{"checkpoint": "somewhere", **given})


def test_a_model_that_everybody_could_exchange_is_refused(made, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=r"on 0\.0\.0\.0 without a key"):
        server.serve(settings(made, host="0.0.0.0", reload="request"), print)
    with pytest.raises(ConfigError, match="reload_root is 'no/such/folder', which is not a folder"):
        server.serve(settings(made, reload="request", reload_root="no/such/folder"), print)


def test_keys_come_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert read_keys("") == []
    monkeypatch.setenv(KEY_VARIABLE, f" {KEY} ")
    assert read_keys("") == [KEY.encode()]
    file = tmp_path / "keys"
    file.write_text("\ufefffirst-of-the-keys\n\n  second-of-the-keys \n")  # a byte order mark may begin it
    assert read_keys(str(file)) == [b"first-of-the-keys", b"second-of-the-keys"]
    for text, message in (("\n", "has no key"), ("short\n", "fewer than 8 characters")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_keys(str(file))
    file.write_bytes(b"\xff\xfe")
    for folder in (file, tmp_path / "absent"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_keys(str(folder))


def test_a_missing_extra_is_one_error_with_the_remedy(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name="uvicorn")

    monkeypatch.setattr(server, "import_module", absent)
    with pytest.raises(ConfigError, match=r"needs 'uvicorn'.*pip install 'minionerec\[serve\]'"):
        run_serve("minionerec serve", ["--checkpoint", "somewhere"])


def test_settings_are_words_or_a_file_and_without_a_model_the_demos_is_trained_first(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(command, "ensure_before", lambda recipe, config: seen.append((recipe, config)))
    monkeypatch.setattr(server, "serve", lambda config, announce: seen.append(config))
    run_serve("minionerec serve", ["--port", "0"])
    (recipe, asked), config = seen
    assert recipe == "demo/language" and asked is config and isinstance(config, Settings)
    assert (config.checkpoint, config.port) == ("runs/demo/catalogue", 0)
    assert config.inputs().keys() == {"checkpoint"}
    run_serve("minionerec serve", ["--checkpoint=elsewhere"])
    (tmp_path / "serve.yaml").write_text("checkpoint: somewhere\nmax_k: 7\nreload: request\n")
    run_serve("minionerec serve", ["--config", str(tmp_path / "serve.yaml"), "--max_k", "8"])
    assert len(seen) == 4 and seen[2].checkpoint == "elsewhere"
    assert (seen[3].checkpoint, seen[3].max_k, seen[3].reload) == ("somewhere", 8, "request")


def test_answers_are_sent_at_once():
    # Where asyncio does not know that a socket is TCP's, an answer's body waits 40 ms for its head's acknowledgement.
    with server.bind("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP
