"""A login by Streamlit's own OIDC, from a provider of the tests' own to the owner of a run."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from conftest import HOST, ROOT, Server, free_port, new_context, wait_for_health
from joserfc import jwt
from joserfc.jwk import RSAKey
from playwright.sync_api import Page, expect

KEY = RSAKey.generate_key(2048, {"kid": "test", "use": "sig", "alg": "RS256"})


class Provider(BaseHTTPRequestHandler):
    """Lets in whoever `person` is, without a question."""

    person = ""
    nonces: dict[str, str] = {}

    def log_message(self, format: str, *args) -> None: ...

    def reply(self, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        url, me = urlsplit(self.path), f"http://{self.headers['Host']}"
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/authorize":
            self.nonces["code"] = asked.get("nonce", "")
            self.send_response(302)
            back = urlencode({"code": "code", "state": asked["state"]})
            self.send_header("Location", f"{asked['redirect_uri']}?{back}")
            self.end_headers()
        elif url.path == "/keys":
            self.reply({"keys": [KEY.as_dict(private=False)]})
        else:
            self.reply(
                {
                    "issuer": me,
                    "authorization_endpoint": f"{me}/authorize",
                    "token_endpoint": f"{me}/token",
                    "jwks_uri": f"{me}/keys",
                    "id_token_signing_alg_values_supported": ["RS256"],
                }
            )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        now = int(time.time())
        claims = {
            "iss": f"http://{self.headers['Host']}",
            "aud": "slotscope",
            "sub": self.person,
            "email": self.person,
            "nonce": self.nonces["code"],
            "iat": now,
            "exp": now + 600,
        }
        token = jwt.encode({"alg": "RS256", "kid": "test"}, claims, KEY)
        self.reply({"access_token": "a", "token_type": "Bearer", "id_token": token})


@pytest.fixture
def guarded(tmp_path) -> Iterator[Server]:
    """The app with a login."""
    provider = ThreadingHTTPServer((HOST, 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    port, secrets = free_port(), tmp_path / "secrets.toml"
    secrets.write_text(
        "[auth]\n"
        f'redirect_uri = "http://{HOST}:{port}/oauth2callback"\n'
        'cookie_secret = "a long string that nobody guesses"\n'
        'client_id = "slotscope"\n'
        'client_secret = "secret"\n'
        f'server_metadata_url = "http://{HOST}:{provider.server_port}/.well-known/openid-configuration"\n'
    )
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    command += ["--server.address", HOST, "--secrets.files", str(secrets)]
    server = Server(f"http://{HOST}:{port}", tmp_path / "log")
    with server.log.open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"SLOTSCOPE_DATABASE_URL": f"sqlite:///{tmp_path / 'store.db'}"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for_health(server, process)
        yield server
    finally:
        process.terminate()
        process.wait(20)
        provider.shutdown()
        provider.server_close()


def logged_in(person: str, server: Server, browser) -> Page:
    """The opening page, as this person has it before them, after a login in the Library."""
    Provider.person = person
    page = new_context(browser).new_page()
    page.goto(f"{server.url}/library")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{server.url}/")  # where Streamlit sends whoever has logged in
    return page


def test_who_logs_in_saves_and_nobody_else_deletes_it(guarded, browser):
    ada = logged_in("ada@example.org", guarded, browser)
    ada.get_by_role("button", name="Share").click()
    ada.get_by_role("textbox", name="Title").fill("Ada's run")
    ada.get_by_role("button", name="Save", exact=True).click()
    ada.wait_for_url("**/?run=*")
    bob = logged_in("bob@example.org", guarded, browser)
    for page, person in ((ada, "ada@example.org"), (bob, "bob@example.org")):
        page.goto(f"{guarded.url}/library")
        expect(page.get_by_role("button", name=f"Log out {person}")).to_be_visible()
        main = page.get_by_test_id("stMain")
        expect(main).to_contain_text("Ada's run")
        expect(main).to_contain_text("by ada@example.org")
    expect(bob.get_by_role("button", name="Delete")).to_have_count(0)
    ada.get_by_role("button", name="Delete").click()
    expect(ada.get_by_test_id("stMain")).to_contain_text("Deleted Ada's run")
    for page in (ada, bob):
        page.context.close()
