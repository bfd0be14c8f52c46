"""Who looks at the page, and whether they may write into the store."""

import os
from urllib.parse import urlsplit

import streamlit as st

WRITE = os.environ.get("SLOTSCOPE_WRITE", "localhost")  # or anyone, or nobody; a login comes first
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via")


def login_is_on() -> bool:
    """Whether .streamlit/secrets.toml has an [auth] section."""
    return "is_logged_in" in st.user


def name() -> str:
    """Who owns what this visitor saves; '' where nobody logs in."""
    if not (login_is_on() and st.user.is_logged_in):
        return ""
    claims = st.user.to_dict()
    if claims.get("email") and claims.get("email_verified", True):
        return str(claims["email"])
    return f"{claims.get('iss', '')} {claims['sub']}".strip()


def may_write() -> bool:
    if "review" in st.query_params:
        return False
    if login_is_on():
        return bool(st.user.is_logged_in)
    return WRITE == "anyone" or (WRITE == "localhost" and _is_local())


def _is_local() -> bool:
    """Nobody stands between this browser and the server, and both are on one machine."""
    headers = st.context.headers
    hosts = [urlsplit(headers.get("Origin") or "//localhost").hostname]
    hosts.append(urlsplit(f"//{headers.get('Host') or 'localhost'}").hostname)
    direct = st.context.ip_address is None and not any(h in headers for h in PASSED_ON)
    return direct and set(hosts) <= LOOPBACK


def why_not() -> str:
    """Why they may not, and the way out."""
    if "review" in st.query_params:
        return "This is a review link: open a copy to change or save anything."
    if login_is_on():
        return (
            "Log in to save runs and to delete your own. That opens the page anew: keep the link."
        )
    return (
        "Only the machine that serves this page may save here: open it as localhost, switch a"
        " login on, or set SLOTSCOPE_WRITE=anyone where everybody on the network is trusted."
    )


def log_in() -> None:
    """The button for it, where a login is configured."""
    if not login_is_on():
        return
    if st.user.is_logged_in:
        st.button(f"Log out {name()}", on_click=st.logout, icon=":material/logout:")
    else:
        st.button("Log in", on_click=st.login, icon=":material/login:")
