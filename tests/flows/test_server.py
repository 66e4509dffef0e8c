"""A Prefect server answers this user alone: no web page, no other user, no other host name; and no proxy in between."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
STRANGER = "http://pages.example"
SERVED = """
import sys
from flows.server import temporary_server
from prefect.settings import PREFECT_API_AUTH_STRING
with temporary_server() as url:
    print(url, PREFECT_API_AUTH_STRING.value(), flush=True)
    sys.stdin.read()
"""
RUN = {"name": "theirs", "flow_id": "00000000-0000-0000-0000-000000000000", "state": {"type": "SCHEDULED"}}


def clean_environment(**more: str) -> dict[str, str]:
    hidden = ("PREFECT_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(hidden)} | more


class Served:
    def __init__(self, home: Path) -> None:
        # a proxy that nobody listens at: a request for loopback that went through it would fail
        proxy = "http://127.0.0.1:9"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVED], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=clean_environment(PREFECT_HOME=str(home), http_proxy=proxy, HTTPS_PROXY=proxy, NO_PROXY="a.example"),
        )  # fmt: skip
        self.url, self.secret = self.process.stdout.readline().split()
        self.port = int(self.url.removesuffix("/api").rpartition(":")[2])

    def asked(self, path: str, *, secret: str | None = None, method: str = "GET", body=None, **headers: str):
        """Status and headers of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method, headers=headers)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if secret is not None:
            request.add_header("Authorization", f"Basic {b64encode(secret.encode()).decode()}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                return answer.status, answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.headers

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("home"))
    yield served
    served.close()


@pytest.mark.slow
def test_only_who_has_the_secret_is_answered(served):
    assert served.asked("/version", secret=served.secret)[0] == 200
    user, _, password = served.secret.partition(":")
    assert len(password) >= 32 and served.secret not in Path(f"/proc/{served.process.pid}/cmdline").read_text()
    for secret in (None, "", f"{user}:", f"{user}:admin", password):
        for path, method, body in (
            ("/version", "GET", None),
            ("/flow_runs/", "POST", RUN),
            ("/deployments/filter", "POST", {}),
            ("/admin/settings", "GET", None),
        ):
            assert served.asked(path, secret=secret, method=method, body=body)[0] == 401, (secret, path)


@pytest.mark.slow
def test_pages_of_other_origins_may_read_nothing_and_ask_for_nothing(served):
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for stranger in (STRANGER, "null", f"http://127.0.0.1.pages.example:{served.port}", "http://127.0.0.1:1"):
        for secret in (None, served.secret):
            for path in ("/health", "/version"):
                _, headers = served.asked(path, secret=secret, Origin=stranger)
                assert headers["access-control-allow-origin"] is None
        status, headers = served.asked("/flow_runs/", method="OPTIONS", Origin=stranger, **wanted)
        assert status == 400 and headers["access-control-allow-origin"] is None
    own = f"http://127.0.0.1:{served.port}"
    status, headers = served.asked("/flow_runs/", method="OPTIONS", Origin=own, **wanted)
    assert status == 200 and headers["access-control-allow-origin"] == own


@pytest.mark.slow
def test_a_name_that_comes_to_resolve_to_loopback_gets_no_answer(served):
    for host in ("pages.example", f"pages.example:{served.port}", f"127.0.0.1.pages.example:{served.port}"):
        for path in ("/health", "/version"):
            assert served.asked(path, secret=served.secret, Host=host)[0] == 400
    for host in (f"127.0.0.1:{served.port}", f"localhost:{served.port}"):
        assert served.asked("/version", secret=served.secret, Host=host)[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/events/in", "/events/out", "/logs/out", "/task_runs/subscriptions/scheduled"])
def test_sockets_want_the_secret_too(served, path):
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed, InvalidHandshake

    async def first_answer(secret):
        url = f"{served.url.replace('http', 'ws', 1)}{path}"
        async with connect(url, subprotocols=["prefect"], proxy=None) as socket:
            await socket.send(json.dumps({"type": "auth", "token": secret}))
            return json.loads(await asyncio.wait_for(socket.recv(), timeout=30))["type"]

    assert asyncio.run(first_answer(served.secret)) == "auth_success"
    with pytest.raises((ConnectionClosed, InvalidHandshake)):
        asyncio.run(first_answer("sparse-control:guess"))


@pytest.mark.slow
def test_it_listens_on_loopback_alone(served):
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line]
    assert {address for address in listening if address.endswith(f":{served.port:04X}")} == {
        f"0100007F:{served.port:04X}"
    }
    with socket.create_connection(("127.0.0.1", served.port), timeout=5):
        pass


@pytest.mark.slow
def test_a_lasting_server_that_wants_another_secret_is_one_line(served, tmp_path):
    environment = clean_environment(
        PREFECT_HOME=str(tmp_path / "home"), PREFECT_API_URL=served.url, PREFECT_API_AUTH_STRING="sparse-control:guess"
    )
    command = [sys.executable, "-m", "sparse_control", "run", "six-axis", "--root", str(tmp_path / "root")]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "wants another PREFECT_API_AUTH_STRING" in done.stderr and "guess" not in done.stderr
