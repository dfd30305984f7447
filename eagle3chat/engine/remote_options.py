"""Where a server is and how it is talked to. Values only; knows no HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from eagle3chat.engine.errors import SettingError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds until one gives up."""

    connect: float = 10.0
    ask: float = 10.0  # a short question, such as for the list of models
    silence: float = 300.0  # of a reply: before its first text and within it
    counters: float = 3.0
    loading: float = 600.0  # a server that says that it loads its model


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The server of a chat.

    Args:
        url: As the person gave it, with or without /v1 at its end.
        model: By the server's name; None: the only one, or the first.
        key: Sent as a bearer token to this server alone; never shown.
        template: Render the conversation with this template (a built-in name or a file) and ask /v1/completions;
            None: the server's own template, by /v1/chat/completions.
        stop_strings: End a reply.
        timeouts: Tests shorten them.
    """

    url: str
    model: str | None = None
    key: str = field(default="", repr=False)
    template: str | None = None
    stop_strings: tuple[str, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def origin(self) -> str:
        """Scheme, host, port and path before /v1.

        Raises:
            SettingError: It is no http or https address, or it holds a password or a query.
        """
        fix = "Write --server http://HOST:PORT."
        try:
            parts = urlsplit(self.url if "//" in self.url else f"http://{self.url}")
            port = parts.port  # checked when it is read
        except ValueError as error:
            raise SettingError("The server's address cannot be read.", fix) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError("The server's address is neither http nor https.", fix)
        if parts.username is not None or parts.query or parts.fragment:
            raise SettingError(
                "The server's address holds a name, a query or a fragment.",
                "Leave it out: the key is taken from EAGLE3CHAT_API_KEY or the settings file.",
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        path = parts.path.rstrip("/").removesuffix("/v1")
        return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"

    @property
    def place(self) -> str:
        """Host and port, for people."""
        return urlsplit(self.origin).netloc

    @property
    def exposes_key(self) -> bool:
        """A key would go over a network as it is."""
        parts = urlsplit(self.origin)
        return bool(self.key) and parts.scheme == "http" and parts.hostname not in _LOOPBACK
