"""The local server: who it answers, what it answers, and what it never does."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.browsing import answers
from pipeline.browsing.bounds import Bounds
from pipeline.browsing.guard import cookie_name, cookie_of, host_allowed, token_fits
from pipeline.browsing.server import ReportServer
from pipeline.reporting.build import build_report
from schemas.errors import DataError, RecipeError
from tests.test_e2e.kit import ROOT
from tests.test_pipeline.browsing_kit import harm
from tests.test_pipeline.report_run import RunWriter, whole_run

Response = tuple[int, dict[str, str], str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = whole_run(tmp_path_factory.mktemp("run"), iterations=2, change=harm)
    build_report(folder)
    return folder


@pytest.fixture
def server(run: Path) -> Iterator[ReportServer]:
    with ReportServer(run) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: ReportServer, path: str, *, method: str = "GET", token: bool = True, **headers: str) -> Response:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        given.setdefault("Cookie", f"{cookie_name(server.server_port)}={server.token}")
    connection.putrequest(method, path, skip_host="Host" in given, skip_accept_encoding=True)
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


PATHS = ["/", "/report", "/browser.js", "/browser.css", "/api/facets", "/api/rollouts", "/api/rollout/x", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_told(server: ReportServer, path: str):
    for found in (
        ask(server, path, token=False),
        ask(server, f"{path}?token=wrong", token=False),
        ask(server, f"{path}?token=", token=False),
        ask(server, path, Cookie=f"{cookie_name(server.server_port)}=wrong"),
        ask(server, path, Cookie=f"mmgrpo_1={server.token}"),
        ask(server, f"{path}?token=wrong"),
    ):
        assert found[0] == 403
        assert "made-up" not in found[2]
        assert "set-cookie" not in found[1]


STRANGERS = ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}", ""]
STRANGERS += ["127.0.0.1:{port}@evil", "[::1]:{port}", "0.0.0.0:{port}", "127.1:{port}"]


@pytest.mark.parametrize("host", STRANGERS)
def test_a_host_that_is_not_this_server_is_refused_even_with_the_token(server: ReportServer, host: str):
    status, _, body = ask(server, f"/?token={server.token}", Host=host.format(port=server.server_port))
    assert (status, body) == (403, "This server answers to its own address only.")


def test_two_hosts_or_none_are_refused(server: ReportServer):
    good = f"127.0.0.1:{server.server_port}"
    for lines in ([f"Host: {good}", "Host: evil.example"], []):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as raw:
            raw.sendall("\r\n".join([f"GET /?token={server.token} HTTP/1.1", *lines, "", ""]).encode())
            assert b" 403 " in raw.makefile("rb").readline()


def test_localhost_is_this_machine_too(server: ReportServer):
    assert ask(server, "/", Host=f"LocalHost:{server.server_port}")[0] == 200


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW", "get"]
)
def test_only_get_is_allowed(server: ReportServer, method: str):
    status, headers, _ = ask(server, "/", method=method)
    assert status == 405
    assert headers["allow"] == "GET"


@pytest.mark.parametrize(
    "path",
    [
        "/../run.json", "/..%2frun.json", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/report/../run.json",
        "/api/rollout/../../run.json", "/api/rollout/..%2F..%2Frun.json", "/api/rollout/%00", "/api/rollout/",
        "/api/rollout/x?artifact=../../", "/run.json", "/artifacts", "/browser.js/../run.json", "/report.html",
        "/api/rollout/%ff%fe", "/api/rollout/" + "a" * 3000,
    ],
)  # fmt: skip
def test_no_path_leads_to_a_file(server: ReportServer, path: str):
    status, _, body = ask(server, path)
    assert status == 404
    assert body in {"There is no such page.", "The run has no such rollout."}


@pytest.mark.parametrize(
    "target",
    ["http://evil.example/", "http://127.0.0.1/run.json", "/" + "a" * 5000, "*", "evil.example:80"],
)
def test_targets_of_other_kinds_and_endless_ones_are_refused(server: ReportServer, target: str):
    assert ask(server, target)[0] in {400, 403, 404}


def test_the_token_of_the_address_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(server: ReportServer):
    status, headers, body = ask(server, server.address.partition(str(server.server_port))[2], token=False)
    assert status == 200
    assert server.token not in body
    kept = headers["set-cookie"]
    assert kept.startswith(f"{cookie_name(server.server_port)}={server.token};")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in kept.split(";")}
    assert "set-cookie" not in ask(server, "/")[1]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_and_other_ports_get_nothing_even_with_the_cookie(server: ReportServer, site: str):
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    assert ask(server, "/api/rollouts", **headers)[0] == 403
    assert ask(server, "/api/rollouts", **headers | {"Sec-Fetch-Site": "same-origin"})[0] == 200
    assert ask(server, "/", **headers | {"Sec-Fetch-Mode": "navigate"})[0] == 200  # a link that a person follows


def test_tokens_differ_from_server_to_server_and_cannot_be_guessed(run: Path):
    with ReportServer(run) as one, ReportServer(run) as two:
        assert one.token != two.token
        assert len(one.token) >= 43
        assert one.server_address[0] == two.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_forbids_frames_sniffing_caching_and_foreign_use(server: ReportServer, path: str):
    for headers in (ask(server, path)[1], ask(server, path, token=False)[1]):
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
        assert "python" not in headers["server"].lower()


def test_rollouts_are_listed_and_each_is_told_by_its_id(server: ReportServer):
    listed = json.loads(ask(server, "/api/rollouts?iteration=1&sort=best")[2])
    assert listed["total"] == 24
    row = listed["rows"][0]
    told = json.loads(ask(server, f"/api/rollout/{row['rollout_id']}?artifact={row['artifact']}")[2])
    record = told["records"][0]
    assert (record["iteration"], record["reward"]) == (1, row["reward"])
    assert record["calls"][0]["fates"][0]["iteration"] == 1
    assert json.loads(ask(server, f"/api/rollout/{row['rollout_id']}")[2]) == told
    assert ask(server, f"/api/rollout/{row['rollout_id']}?artifact=other")[0] == 404


def test_a_rollout_that_is_too_large_is_told_as_briefly_as_a_sample(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch
):
    row = json.loads(ask(server, "/api/rollouts?iteration=1")[2])["rows"][0]
    whole = ask(server, f"/api/rollout/{row['rollout_id']}")[2]
    monkeypatch.setattr(answers, "LARGEST", len(whole) - 100)
    monkeypatch.setattr(answers, "SAMPLE", Bounds(calls=2, messages=1, message=9, completion=9, field=9, tokens=9))
    record = json.loads(ask(server, f"/api/rollout/{row['rollout_id']}")[2])["records"][0]
    assert record["calls"][0]["completion"]["left_out"] > 900


def test_what_a_filter_cannot_mean_is_a_client_error_that_says_so(server: ReportServer):
    status, headers, body = ask(server, "/api/rollouts?status=%3Cscript%3E")
    assert (status, headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert "expected one of ok" in body
    assert ask(server, "/api/rollouts?page=minus")[0] == 400
    assert ask(server, "/api/rollouts?page=%D9%A3")[0] == 400
    assert ask(server, "/api/rollouts?page=0")[0] == 200


def test_the_report_is_served_with_its_own_policy(server: ReportServer, run: Path):
    status, headers, body = ask(server, "/report")
    assert (status, body) == (200, (run / "report.html").read_text())
    assert "script-src" not in headers["content-security-policy"]


def test_many_ask_at_once_and_all_get_the_same(server: ReportServer):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda place: ask(server, f"/api/rollouts?page={place % 2 + 1}&q=step"), range(24)))
    assert {status for status, _, _ in found} == {200}
    assert len({body for _, _, body in found}) <= 2


def test_a_client_that_says_nothing_or_goes_away_does_not_hold_others_up(
    server: ReportServer, capfd: pytest.CaptureFixture[str]
):
    idle = socket.create_connection(("127.0.0.1", server.server_port))
    gone = socket.create_connection(("127.0.0.1", server.server_port))
    cookie = f"{cookie_name(server.server_port)}={server.token}"
    gone.sendall(
        f"GET /browser.js HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nCookie: {cookie}\r\n\r\n".encode()
    )
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone.close()
    for junk in (
        b"\x16\x03\x01\x02\x00\x01\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: %b\r\n\r\n",
        b"x" * 70_000 + b"\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as raw:
            raw.sendall(junk.replace(b"%b", f"127.0.0.1:{server.server_port}".encode()))
            raw.shutdown(socket.SHUT_WR)
            told = raw.recv(1 << 16)
            assert b" 200 " not in told[:100]
    assert ask(server, "/api/facets")[0] == 200
    idle.close()
    assert "Traceback" not in capfd.readouterr().err


def test_the_log_says_nothing_of_the_token(server: ReportServer, capfd: pytest.CaptureFixture[str]):
    ask(server, f"/?token={server.token}", token=False)
    ask(server, "/nothing")
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")


def test_a_run_that_goes_on_is_seen_without_a_restart(tmp_path: Path):
    writer = RunWriter(tmp_path, iterations=2)
    writer.add_setup()
    with ReportServer(writer.write()) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        assert json.loads(ask(server, "/api/facets")[2])["iterations"] == []
        writer.add_rollout()
        writer.write()
        assert json.loads(ask(server, "/api/facets")[2])["iterations"] == [0]
        (tmp_path / "run.json").write_text("{}")
        status, _, body = ask(server, "/api/facets")
        assert status == 500
        assert "run.json" in body
        server.shutdown()


def test_a_damaged_table_is_an_error_that_says_what_to_do(tmp_path: Path):
    folder = whole_run(tmp_path, iterations=1)
    build_report(folder)
    with ReportServer(folder) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        row = json.loads(ask(server, "/api/rollouts")[2])["rows"][0]
        path = next((folder / "artifacts" / "rollout").glob("*/invocations.parquet"))
        data = path.read_bytes()
        for damaged in (data[: len(data) // 2], b"", data[:4] + bytes(len(data) - 400) + data[-396:]):
            path.write_bytes(damaged)
            for asked in ("/api/facets", "/api/rollouts?module=act", f"/api/rollout/{row['rollout_id']}"):
                status, _, body = ask(server, asked)
                assert status == 500
                assert "invocations.parquet" in body or f"mmgrpo verify {folder}" in body
        path.unlink()
        assert ask(server, "/api/facets")[0] == 500
        server.shutdown()


def test_a_port_in_use_and_a_folder_that_is_no_run_are_refused_with_what_to_do(run: Path, tmp_path: Path):
    with (
        ReportServer(run) as server,
        pytest.raises(RecipeError, match="another program uses it; give another one with --port"),
    ):
        ReportServer(run, server.server_port)
    with pytest.raises(DataError, match=r"Is .* a run folder"):
        ReportServer(tmp_path)


def test_ctrl_c_ends_the_command_at_once_and_with_success(run: Path):
    command = [sys.executable, "-m", "pipeline.cli", "report", str(run), "--serve"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Report: ")
        line = process.stdout.readline()
        assert line.startswith("Rollouts: http://127.0.0.1:")
        port = int(line.rpartition(":")[2].partition("/")[0])
        idle = socket.create_connection(("127.0.0.1", port))
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()  # one that did not obey would be waited for without end
            idle.close()
    assert (process.returncode, err) == (0, "")
    assert out.endswith("Ended.\n")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_port_needs_serve_and_must_be_one(run: Path, capsys: pytest.CaptureFixture[str]):
    from pipeline.cli import main

    assert main(["report", str(run), "--port", "8000"]) == 2
    assert "--port goes with --serve" in capsys.readouterr().err
    assert main(["report", str(run), "--serve", "--port", "70000"]) == 2
    assert "from 0 to 65535" in capsys.readouterr().err


def test_guards_by_themselves():
    assert host_allowed(["127.0.0.1:8000"], 8000)
    assert host_allowed(["localhost"], 80)
    assert not host_allowed(None, 80)
    assert not host_allowed(["localhost"], 8000)
    assert cookie_of("a=1; mmgrpo_9=tok=en ;b", "mmgrpo_9") == "tok=en"
    assert cookie_of(None, "a") is None
    assert not token_fits("\ud800ö", "secret")
    assert not token_fits(None, "")
