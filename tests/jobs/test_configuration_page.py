from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from jobs.storage import Storage
from jobs.storage.connection import ENVIRONMENT, FROM_ENVIRONMENT
from tests.jobs.configuration_page import PAGE, PREFIX, ROOT, configuration_page, variables

SOURCES = ["api", "benchmarks", "cli", "confined", "deploy", "engine", "features", "jobs", "kernels", "lab"]
SOURCES += ["migrations", "protocol", "scripts", "tokenmill", "workers"]


def test_the_page_is_what_the_generator_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == configuration_page(), "run: python -m tests.jobs.configuration_page"


@pytest.mark.parametrize("name", variables())
def test_every_variable_says_what_it_does(name: str) -> None:
    assert variables()[name].endswith(".")


@pytest.mark.parametrize("name", variables())
def test_every_variable_has_a_whole_row(name: str) -> None:
    assert re.search(rf"^\| `{name}` \| .*\. \|$", configuration_page(), re.MULTILINE)


def test_every_variable_that_is_named_anywhere_is_on_the_page() -> None:
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in ("", ".py")]
    files += [ROOT / "docker-compose.yml", ROOT / ".env.example"]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    named = {name for text in texts for name in re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", text)}
    assert named <= set(variables())


def test_what_others_than_the_settings_read_is_on_the_page() -> None:
    read = {f"AWS_{name.upper()}" for name in FROM_ENVIRONMENT}
    for module in ("pulling", "hub"):
        source = (ROOT / "cli" / "models" / f"{module}.py").read_text(encoding="utf-8")
        read |= set(re.findall(r"(?<!constants\.)\bHF_[A-Z_]*[A-Z]\b", source))
    assert {"AWS_ALLOW_HTTP", "HF_HOME", "HF_TOKEN"} <= read <= set(variables())
    assert all(f"`{prefix}`" in configuration_page() for prefix in set(ENVIRONMENT.values()))


def test_a_store_signs_with_the_credentials_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            requests.append((self.headers["authorization"], self.headers["x-amz-security-token"]))
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        given = {"ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "s", "SESSION_TOKEN": "t", "REGION": "here"}
        given |= {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "ALLOW_HTTP": "true"}
        for name, value in given.items():
            assert f"AWS_{name}" in variables()
            monkeypatch.setenv(f"AWS_{name}", value)
        assert not Storage("s3://bucket/prefix").exists("key")
        server.shutdown()
    [(authorization, token)] = requests
    assert re.search(r"Credential=me/\d+/here/s3/", authorization)
    assert token == "t"
