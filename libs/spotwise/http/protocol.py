"""HTTP/1 with bounds on what a connection may take; a subclass of uvicorn's protocol.

A connection holds a bounded number of bytes and passes every stage within a bounded time: its headers, its body, and each pause
of a client that reads nothing while the buffer is full. A request learns that its connection is gone, also with pipelined
requests behind it. What a proxy may read otherwise than this server is refused (http_head.py, http_cuts.py). Refusals have
OpenAI's shape and a request id. An `Upgrade: h2c` is ignored, and an answer to HTTP/1.0 is not chunked.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from spotwise.http.answer_frames import CycleAnswers, WriteDeadline, close_unasked, unchunk
from spotwise.http.cuts import MessageCuts
from spotwise.http.errors import ApiError
from spotwise.http.head import (
    body_length,
    headers_too_large,
    invalid_http,
    is_request_line,
    origin_form,
    too_many_connections,
    too_many_headers,
    too_slow,
    unknown_method,
    written,
)
from spotwise.http.limits import REFUSED_SHARE, HttpLimits, Places

#: Headers with the length of a body.
_FRAMING = (b"content-length", b"transfer-encoding")


class GatewayHttpProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        places: the server's.
        config, server_state, app_state, _loop: uvicorn's.
    """

    def __init__(
        self,
        places: Places,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._places = places
        self._limits = places.limits
        self._cuts = MessageCuts()
        self._running: RequestResponseCycle | None = None
        self._in_head = True  # between a request's end and the end of the next one's headers
        self._unused_bytes = 0  # since the parser last got anything out of what came
        self._turned_away = self._deaf = self._replaying = self._head_begun = False
        self._deadline: asyncio.TimerHandle | None = None  # of the headers or the body that are awaited
        self._writing = WriteDeadline(self.loop, self._limits.write_timeout_s, self._limits.min_taken_bytes)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, if there is a place."""
        super().connection_made(transport)
        most = self._limits.max_connections
        if len(self.connections) > most and not self._places.close_longest_idle():
            if len(self.connections) > most * (1 + REFUSED_SHARE):
                transport.abort()
                return
            self._turned_away = True
        else:
            self._places.idle(self)
        self._await_by(self._limits.header_timeout_s, self._headers_overdue)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the running request, and drop the pipelined ones behind it."""
        super().connection_lost(exc)
        self._places.busy(self)
        self._unset_keepalive_if_required()
        self._await_nothing()
        self._writing.stop()
        self.pipeline.clear()
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def leave(self) -> None:
        """Leave the connection, so that another one can take its place."""
        self._close()

    def timeout_keep_alive_handler(self) -> None:
        """Close after the time without a request; what the client has not taken by now it will not take."""
        self._close()

    def _close(self) -> None:
        if self.transport.get_write_buffer_size() and not self.transport.is_closing():
            self._writing.start(self.transport)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse what came, as far as it is within bounds."""
        if self._deaf:
            return
        if self._turned_away:
            self._refuse(too_many_connections())
            return
        self._unset_keepalive_if_required()
        self._places.busy(self)
        try:
            self._feed(data)
        except ApiError as error:
            self._refuse(error)
        if self._deaf:
            return
        if self._unused_bytes > self._limits.max_header_bytes:
            self._refuse(headers_too_large(self._limits.max_header_bytes))
        elif self._is_in_mid_head() and self._deadline is None and not self._is_answering():
            self._await_by(self._limits.header_timeout_s, self._headers_overdue)

    def _feed(self, data: bytes) -> None:
        """Let the parser have what came, in pieces; raises `ApiError`."""
        view, start = memoryview(data), 0
        while start < len(data) and not self._deaf:
            end = self._cuts.cut(data, start)
            self._unused_bytes += end - start
            try:
                self.parser.feed_data(view[start:end])
            except httptools.HttpParserUpgrade:
                if not self._deaf:
                    self._decline_upgrade()
            except httptools.HttpParserInvalidMethodError:
                raise unknown_method() if is_request_line(self._cuts.request_line) else invalid_http() from None
            except httptools.HttpParserError as error:
                raise error.__context__ if isinstance(error.__context__, ApiError) else invalid_http() from None
            if self._cuts.is_mostly_framing:
                raise invalid_http("its body has more framing than content")
            start = end

    def _decline_upgrade(self) -> None:
        """Continue with a parser that knows the body's length and no upgrade: the last one would skip the body."""
        framing = b"".join(b"%b: %b\r\n" % (name, value) for name, value in self.headers if name in _FRAMING)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._replaying = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
        self._replaying = False

    def on_message_begin(self) -> None:
        """Start a request; its headers are awaited since its first byte. Raises `ApiError`."""
        if self._deaf or self._replaying:
            return
        if not self._cuts.begins():
            raise invalid_http("it begins within another one")
        self._head_begun = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the path."""
        if not self._deaf and not self._replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what follows a body (trailers) is dropped. Raises `ApiError`."""
        if self._deaf or self._replaying or not self._in_head:
            return
        if len(self.headers) >= self._limits.max_header_fields:
            raise too_many_headers(self._limits.max_header_fields)
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Start the application, or queue the request behind the one that is being answered. Raises `ApiError`."""
        if self._deaf or self._replaying:
            return
        if (
            len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            > self._limits.max_header_bytes
        ):
            raise headers_too_large(self._limits.max_header_bytes)
        self._check_head()
        self._unused_bytes, self._in_head, self._head_begun = 0, False, False
        if not self._is_answering():
            self._await_nothing()
        super().on_headers_complete()
        if self._is_queued():
            self.flow.resume_reading()  # only who reads notices that the client has left
            if len(self.pipeline) > self._limits.max_pipelined:
                self._answer_only_the_first()

    def _check_head(self) -> None:
        """Refuse what is no request of HTTP/1.1, though the parser takes it; raises `ApiError`."""
        self.url = origin_form(self._cuts.request_line)
        if not self._cuts.head_is_whole:
            raise invalid_http("not all of its lines end with CR and LF")
        version = self.parser.get_http_version()
        self._cuts.begin_body(body_length(version, self.headers))
        if version == "1.0":
            self.expect_100_continue = False

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; a queued request's may not be long."""
        if self._deaf:
            return
        self._unused_bytes = 0
        self._cuts.take_content(len(body))
        super().on_body(body)
        if self._is_queued() and len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._answer_only_the_first()

    def on_message_complete(self) -> None:
        """End the request's body."""
        if self._deaf or self.parser.should_upgrade():
            return  # where an upgrade is offered, its body is still to come
        self._cuts.end_message()
        self._unused_bytes, self._in_head = 0, True
        super().on_message_complete()
        if self.cycle.response_complete:
            self._await_nothing()
            self._wait_for_next_request()
        elif not self._is_queued():
            self._await_nothing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if cycle.more_body:
            self._await_by(self._limits.body_timeout_s, self._body_overdue)
        if cycle.scope["http_version"] == "1.0":
            app = CycleAnswers(app, cycle, unchunk)
        if cycle.waiting_for_100_continue:
            app = CycleAnswers(app, cycle, close_unasked)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Start the next request, or wait for it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._writing.start(self.transport)
        elif not self._is_answering() and self._is_in_mid_head():
            self._await_by(self._limits.header_timeout_s, self._headers_overdue)
        elif not self._is_answering():
            self._places.idle(self)

    def _wait_for_next_request(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self._places.idle(self)

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _is_queued(self) -> bool:
        """Whether the last request that came waits for the answer to an earlier one."""
        return self.cycle is not self._running

    def _is_in_mid_head(self) -> bool:
        return self._in_head and (self._head_begun or self._unused_bytes > 0)

    def _answer_only_the_first(self) -> None:
        """Close after the answer that is under way: the client repeats the rest (RFC 9112, section 9.3.2)."""
        self._deaf = True
        self.pipeline.clear()
        if self._running is not None:
            self._running.keep_alive = False
        self.flow.resume_reading()

    def _await_by(self, seconds: float, overdue: Callable[[], None]) -> None:
        self._await_nothing()
        self._deadline = self.loop.call_later(seconds, overdue)

    def _await_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _headers_overdue(self) -> None:
        self._deadline = None
        if self._is_in_mid_head():
            self._refuse(too_slow("headers", self._limits.header_timeout_s))
        else:
            self._close()

    def _body_overdue(self) -> None:
        self._deadline = None
        self._refuse(too_slow("body", self._limits.body_timeout_s))

    def pause_writing(self) -> None:
        """Wait for a client that takes less than it gets, for some time."""
        super().pause_writing()
        self._writing.start(self.transport)

    def resume_writing(self) -> None:
        """Resume writing: the client has taken most of it."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._writing.stop()

    def _refuse(self, error: ApiError) -> None:
        """Answer in place of the application, where no answer has begun, and close."""
        running = self._running
        if running is not None and self._is_answering() and not running.more_body:
            self._answer_only_the_first()  # it is what came after that request that is refused
            return
        self._deaf = True
        self._await_nothing()
        self.pipeline.clear()
        if self.transport.is_closing():
            return
        begun = False
        if running is not None and running.more_body:  # it is the body that is refused, perhaps of an answered request
            begun = running.response_started
            running.disconnected = True
            running.message_event.set()
        if not begun:
            self._places.count_error(error.code or str(error.status))
            self.transport.write(written(error))
        self._close()


def http_protocol(limits: HttpLimits, count_error: Callable[[str], None]) -> type[asyncio.Protocol]:
    """Return what uvicorn's `http` takes: a maker of connections that share these limits."""
    return cast(type[asyncio.Protocol], functools.partial(GatewayHttpProtocol, Places(limits, count_error)))
