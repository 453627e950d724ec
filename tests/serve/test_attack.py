"""What an attacker, or a careless operator, sends: open connections, foreign hosts, signals."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest
from starlette.testclient import TestClient
from support.paths import ROOT
from support.preloaded import python
from support.serving import counted, fake_service, running, talk, until

from minionerec.serve.server import create_app


def answer(port, sent):
    head, _, body = talk(port, sent).partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), json.loads(body)


ASKED = b"GET /v1/model HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
HEALTH = ASKED.replace(b"/v1/model", b"/healthz")


def test_calls_beyond_the_open_connections_are_refused_until_some_close(tmp_path):
    service = fake_service(tmp_path, connections=3)
    with running(service) as port:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                line = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                line.sendall(b"GET / HTTP/1.1\r\n")
            status, head, reported = answer(port, ASKED)
            assert (status, reported["error"]["field"]) == (503, None) and b"retry-after" in head
            assert b"x-content-type-options: nosniff" in head and b"connection: close" in head
            assert answer(port, HEALTH)[0] == 200
        until(lambda: answer(port, ASKED)[0] == 200)
    assert counted(service, "minionerec_refused_total", reason="connections") >= 1


@pytest.fixture
def client(tmp_path):
    service = fake_service(tmp_path, hosts=["shop.example"], reload="request")
    service.shelf.bring(service.reloader.sources)
    with TestClient(create_app(service), raise_server_exceptions=False) as found:
        found.service = service
        yield found


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:8000", "[evil]", "shop.example.evil"]
)
def test_calls_for_other_hosts_are_refused(client, host):
    for path in ("/v1/reload", "/v1/recommend"):
        response = client.post(path, json={}, headers={"host": host})
        assert response.status_code == 421 and set(response.json()["error"]) == {"field", "message"}
    assert counted(client.service, "minionerec_refused_total", reason="host") == 2
    assert counted(client.service, "minionerec_reloads_total", outcome="done") == 0


@pytest.mark.parametrize(
    "host", ["localhost:8000", "LOCALHOST", "127.0.0.1:80", "10.1.2.3", "[::1]:8000", "shop.example:443"]
)
def test_calls_for_this_host_are_answered(client, host):
    assert client.get("/v1/model", headers={"host": host}).status_code == 200


PROGRAM = """
import sys, time
sys.path[:0] = {paths!r}
from support.serving import load_fake
from minionerec.serve import server
from minionerec.serve.config import ServeConfig
def load(sources):
    found = load_fake(sources)
    time.sleep(0.5)
    return found
server.loader_of = lambda config: load
port = server.bind("127.0.0.1", 0)
number = port.getsockname()[1]
port.close()
config = ServeConfig(checkpoint={checkpoint!r}, port=number, reload="request")
open({reported!r}, "w").write(str(number))
server.serve(config, lambda line: print(line, flush=True))
"""


def test_neither_signals_nor_a_closed_output_stop_a_server(tmp_path):
    """SIGHUP while the first model loads, and an address that cannot be printed."""
    (tmp_path / "shift-0").mkdir()
    reported = tmp_path / "port"
    script, paths = tmp_path / "alone.py", [str(ROOT / "tests"), str(ROOT)]
    script.write_text(PROGRAM.format(paths=paths, checkpoint=str(tmp_path / "shift-0"), reported=str(reported)))
    closed, out = os.pipe()
    os.close(closed)
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}  # the lost line is not written again at the end
    started = subprocess.Popen([python(), str(script)], stdout=out, stderr=subprocess.DEVNULL, env=unbuffered)
    os.close(out)
    try:
        until(lambda: reported.is_file() and reported.read_text(), 60)
        port = int(reported.read_text())
        for _ in range(4):
            time.sleep(0.1)
            started.send_signal(signal.SIGHUP)

        def body(path):
            with contextlib.suppress(OSError):
                return talk(port, ASKED.replace(b"/v1/model", path))
            return b""

        until(lambda: body(b"/readyz").startswith(b"HTTP/1.1 200"))
        done = re.compile(rb'minionerec_reloads_total\{outcome="done"\} (\d+)')
        before = int(done.search(body(b"/metrics"))[1])
        started.send_signal(signal.SIGHUP)
        until(lambda: int(done.search(body(b"/metrics"))[1]) > before)
        assert answer(port, HEALTH)[0] == 200 and started.poll() is None
        started.send_signal(signal.SIGTERM)
        assert started.wait(20) == 0
    finally:
        started.kill()
        started.wait()
