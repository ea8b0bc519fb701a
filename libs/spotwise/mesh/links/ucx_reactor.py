"""Drives a UCX worker on the event loop, without polling. One UCX context and worker, progressed by the loop that started it
when its event file descriptor is readable. `ucxx`'s asyncio layer is not used: without threads every awaited request spins
on `sleep(0)`, and there is one per process. A request's buffers live until UCX is done with them, also where its future is
cancelled; UCX is never called from one of its own callbacks.

Where a worker's peers are on its own machine, UCX is restricted to the loopback interface. UCXX's listener takes no address, so
that UCX binds it to all interfaces; `SO_BINDTODEVICE` (no privilege needed since Linux 5.7) restricts it to loopback. UCX's own
TCP ports open on the interfaces of `UCX_NET_DEVICES`. RDMA devices have no TCP port and stay.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# UCX's tcp copies through segments of 8 KiB by default; larger ones move large messages four times as fast. The sender's must
# not exceed the receiver's, so the two are set together or, where a user set one, not at all.
_SEGMENTS = {"TCP_TX_SEG_SIZE": "256k", "TCP_RX_SEG_SIZE": "256k"}
# By default UCX copies fragments once more; with put_zcopy the sender writes them in place. For device memory UCX chooses.
_INTO_PLACE = {"RNDV_SCHEME": "put_zcopy"}
# A restarted worker may listen at its old port while the kernel still holds connections to it.
_LISTENING = {"TCP_CM_REUSEADDR": "y"}
# Read when libucs is loaded: it warns of a variable that ucxx sets itself, and logs to stdout by default.
_LOGGING = {"UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_LOG_FILE": "stderr"}
# Likewise. UCX's cache knows device memory allocated after it was loaded; torch's earlier allocations would count as the
# host's.
_DEVICE_MEMORY = {"UCX_MEMTYPE_CACHE": "n"}
# Progress calls in a row before the loop's other tasks run.
_PROGRESS_BURST = 64
# UCX does not signal an event for all of its work; its own wrapper progresses once a second, too.
_LOOK_AGAIN_S = 1.0
# Progress interval while UCX copies to or from a device: some versions of its CUDA transports signal no event.
_LOOK_AT_DEVICE_S = 0.0005
# Messages of no link that are dropped in one go.
_STRAYS_AT_ONCE = 1024
_MAX_LANES = 16
_EP_ATTR_REMOTE_ADDRESS = 1 << 2
_EP_ATTR_TRANSPORTS = 1 << 3
_CONTEXT_ATTR_MEMORY_TYPES = 1 << 2
_CUDA_MEMORY = 1 << 1

_LOOPBACK_INTERFACE = "lo"
_RDMA_DEVICES = Path("/sys/class/infiniband")
_DESCRIPTORS = Path("/proc/self/fd")


class UcxReactor:
    """A UCX worker on the running loop; `host_memory`: all payloads are in host memory; `loopback_only`: UCX opens TCP ports on
    the loopback interface only.
    """

    def __init__(self, *, host_memory: bool = True, loopback_only: bool = False) -> None:
        # Imported here and not at the top, since it loads libucs.
        _set_defaults(_LOGGING)
        import ucxx
        from ucxx._lib.arr import Array

        self.ucx = ucxx.libucxx
        self._array = Array
        self._loop = asyncio.get_running_loop()
        feature = self.ucx.Feature
        options: dict[str, str] = loopback_devices() if loopback_only else {}
        for group in (_SEGMENTS, _LISTENING, *([_INTO_PLACE] if host_memory else [])):
            if not any(f"UCX_{key}" in os.environ for key in group):
                options |= group
        self._context = self.ucx.UCXContext(options, (feature.TAG, feature.STREAM, feature.WAKEUP))
        self.worker = self.ucx.UCXWorker(self._context)
        self.worker.init_blocking_progress_mode()
        self._pending: dict[asyncio.Future[None], tuple[Any, tuple[object, ...]]] = {}
        self._on_device: set[asyncio.Future[None]] = set()
        self._turn: asyncio.Handle | None = None
        self._expected_tags: set[int] = set()
        self.strays = 0  #: messages dropped that no link expected
        self._closed = False
        self._event_fd: int = self.worker.epoll_file_descriptor
        self._loop.add_reader(self._event_fd, self._schedule)
        self._look_again()

    def expect_tags(self, *tags: int) -> None:
        """Keep messages with these tags until they are received; others are dropped after a while."""
        self._expected_tags.update(tags)

    def forget_tags(self, *tags: int) -> None:
        """Drop messages with these tags from now on, those that wait included."""
        self._expected_tags.difference_update(tags)

    def send_tagged(self, endpoint: Any, tag: int, data: object) -> asyncio.Future[None]:
        """Submit a message; messages of one tag arrive in order of submission."""
        array = self._array(data)
        sent = self.track(endpoint.tag_send(array, self.ucx.UCXXTag(tag)), array, data)
        return self._watched(sent, on_device=array.cuda)

    def receive_tagged(self, endpoint: Any, tag: int, into: object) -> asyncio.Future[None]:
        """Receive the next message with `tag` into a buffer of exactly its size."""
        array = self._array(into)
        received = self.track(endpoint.tag_recv(array, self.ucx.UCXXTag(tag)), array, into)
        return self._watched(received, on_device=array.cuda)

    def send_stream(self, endpoint: Any, data: object) -> asyncio.Future[None]:
        """Submit bytes on the endpoint's stream."""
        array = self._array(data)
        return self.track(endpoint.stream_send(array), array, data)

    def receive_stream(self, endpoint: Any, into: object) -> asyncio.Future[None]:
        """Fill a buffer from the endpoint's stream."""
        array = self._array(into)
        return self.track(endpoint.stream_recv(array), array, into)

    def track(self, request: Any, *keep: object) -> asyncio.Future[None]:
        """Return a future of a UCX request, which raises `ucxx.exceptions.UCXError` where the request fails; `keep` stays alive
        until UCX is done, even where the future is cancelled.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._pending[future] = (request, keep)
        self._schedule()
        return future

    def is_under_way(self, future: asyncio.Future[None]) -> bool:
        """Whether UCX may still use the buffers of a request, also where its future was cancelled."""
        self._schedule()
        return future in self._pending

    def _watched(self, request: asyncio.Future[None], *, on_device: bool) -> asyncio.Future[None]:
        if on_device:
            self._on_device.add(request)
            request.add_done_callback(self._on_device.discard)
        return request

    def soon(self, call: Callable[..., object]) -> Callable[..., None]:
        """Return a callback for UCX that runs `call` on the loop's next turn, outside UCX."""

        def later(*args: object) -> None:
            self._loop.call_soon(call, *args)

        return later

    def close(self) -> None:
        """Stop watching and release the worker, after its endpoints and listeners are closed."""
        self._loop.remove_reader(self._event_fd)
        self._look_again_timer.cancel()
        if self._turn is not None:
            self._turn.cancel()
        # Requests of closed endpoints reference the worker until they are cancelled and it is progressed.
        self.worker.cancel_inflight_requests()
        self.worker.progress()
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._closed = True
        self.worker = self._context = None

    def _schedule(self) -> None:
        if self._turn is None and not self._closed:
            self._turn = self._loop.call_soon(self._progress)

    def _look_again(self) -> None:
        self._drop_strays()
        self._schedule()
        self._look_again_timer = self._loop.call_later(_LOOK_AGAIN_S, self._look_again)

    def _drop_strays(self) -> None:
        """Drop messages that no link expects, which UCX would keep for ever: of ended links, and of peers that guess tags. One
        that is expected and waits for its buffer holds up those behind it.
        """
        any_tag, no_mask = self.ucx.UCXXTag(0), self.ucx.UCXXTagMask(0)
        for _ in range(_STRAYS_AT_ONCE):
            found = self.worker.tag_probe(any_tag, no_mask)
            if not found.matched or found.sender_tag in self._expected_tags:
                return
            found = self.worker.tag_probe(any_tag, no_mask, remove=True)
            if found.matched:
                # Into a buffer that is too small for most: UCX frees the message with an error, and nothing waits for it.
                into = self._array(bytearray(1))
                self.track(self.worker.tag_recv_with_handle(into, found), into).add_done_callback(_retrieved)
                self.strays += 1

    def _progress(self) -> None:
        self._turn = None
        for _ in range(_PROGRESS_BURST):
            if not self.worker.progress_once():
                break
        self._complete()
        # Armed, UCX signals its next event; arming fails while there is work left.
        if not self.worker.arm():
            self._schedule()
        elif self._on_device:
            self._loop.call_later(_LOOK_AT_DEVICE_S, self._schedule)

    def _complete(self) -> None:
        done = [(future, request) for future, (request, _) in self._pending.items() if request.completed]
        for future, request in done:
            del self._pending[future]
            if future.done():
                continue
            try:
                request.check_error()
            except self.ucx.UCXError as error:
                future.set_exception(error)
            else:
                future.set_result(None)


def _retrieved(dropped: asyncio.Future[None]) -> None:
    if not dropped.cancelled():
        dropped.exception()


def _set_defaults(variables: dict[str, str]) -> None:
    for variable, value in variables.items():
        os.environ.setdefault(variable, value)


class _Lane(ctypes.Structure):
    _fields_ = [("transport", ctypes.c_char_p), ("device", ctypes.c_char_p)]


class _Lanes(ctypes.Structure):
    _fields_ = [
        ("entries", ctypes.POINTER(_Lane)),
        ("num_entries", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
    ]


class _EndpointAttributes(ctypes.Structure):
    # ucp_ep_attr_t of ucp.h; its field mask names the fields that the callee touches.
    _fields_ = [
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_sockaddr", ctypes.c_uint8 * 128),
        ("remote_sockaddr", ctypes.c_uint8 * 128),
        ("transports", _Lanes),
        ("user_data", ctypes.c_void_p),
    ]


class _ContextAttributes(ctypes.Structure):
    # ucp_context_attr_t of ucp.h, likewise.
    _fields_ = [
        ("field_mask", ctypes.c_uint64),
        ("request_size", ctypes.c_size_t),
        ("thread_mode", ctypes.c_int),
        ("memory_types", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("device_counter_size", ctypes.c_size_t),
    ]


def reaches_cuda_memory() -> bool:
    """Whether UCX can send from and receive into memory of the current CUDA device. Call it before anything else loads UCX: it
    sets variables that UCX reads then. It calls `ucp_context_query`: UCXX reports the transports requested, not those
    available.
    """
    _set_defaults(_LOGGING | _DEVICE_MEMORY)
    import ucxx

    context = ucxx.libucxx.UCXContext({}, (ucxx.libucxx.Feature.TAG,))
    query = ctypes.CDLL("libucp.so.0").ucp_context_query
    query.argtypes = [ctypes.c_void_p, ctypes.POINTER(_ContextAttributes)]
    query.restype = ctypes.c_int8
    attributes = _ContextAttributes(field_mask=_CONTEXT_ATTR_MEMORY_TYPES)
    answered = query(context.handle, ctypes.byref(attributes)) == 0
    return answered and context.cuda_support and bool(attributes.memory_types & _CUDA_MEMORY)


def remote_host(endpoint: Any) -> str | None:
    """Return the numeric address of an endpoint's peer; `None` where UCX does not say it."""
    query = ctypes.CDLL("libucp.so.0").ucp_ep_query
    query.argtypes = [ctypes.c_void_p, ctypes.POINTER(_EndpointAttributes)]
    query.restype = ctypes.c_int8
    attributes = _EndpointAttributes(field_mask=_EP_ATTR_REMOTE_ADDRESS)
    if query(endpoint.handle, ctypes.byref(attributes)) != 0:
        return None
    raw = bytes(attributes.remote_sockaddr)
    family = int.from_bytes(raw[:2], sys.byteorder)
    if family == socket.AF_INET:
        return socket.inet_ntop(family, raw[4:8])
    return socket.inet_ntop(family, raw[8:24]) if family == socket.AF_INET6 else None


def transport_name(endpoint: Any) -> str:
    """Return an endpoint's lanes, `transport/device` joined by commas, without those of the set-up, which have no device. Calls
    `ucp_ep_query`, since UCXX 0.52 reports transports of a whole context only.
    """
    query = ctypes.CDLL("libucp.so.0").ucp_ep_query
    query.argtypes = [ctypes.c_void_p, ctypes.POINTER(_EndpointAttributes)]
    query.restype = ctypes.c_int8
    lanes = (_Lane * _MAX_LANES)()
    attributes = _EndpointAttributes(field_mask=_EP_ATTR_TRANSPORTS)
    attributes.transports = _Lanes(ctypes.cast(lanes, ctypes.POINTER(_Lane)), _MAX_LANES, ctypes.sizeof(_Lane))
    if query(endpoint.handle, ctypes.byref(attributes)) != 0:
        return "unknown"
    used = lanes[: attributes.transports.num_entries]
    return ",".join(f"{lane.transport.decode()}/{lane.device.decode()}" for lane in used if lane.device) or "unknown"


def loopback_devices() -> dict[str, str]:
    """Return UCX's option for the loopback interface and RDMA's active ports; empty where the user chose devices."""
    if "UCX_NET_DEVICES" in os.environ:
        return {}
    active = [
        f"{port.parts[-3]}:{port.name}"
        for port in sorted(_RDMA_DEVICES.glob("*/ports/*"))
        if "ACTIVE" in (port / "state").read_text()
    ]
    return {"NET_DEVICES": ",".join([_LOOPBACK_INTERFACE, *active])}


def keep_to_loopback(port: int) -> None:
    """Restrict this process's listener on a port to the loopback interface; raises `OSError` where the kernel does not allow
    it, or this process does not listen there.
    """
    found = False
    for listener in listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK_INTERFACE.encode() + b"\0")
        found = True
    if not found:
        raise OSError(f"no socket of this process listens on port {port}")


def listeners(port: int) -> Iterator[socket.socket]:
    """Yield duplicates of this process's sockets that listen on a port: UCX does not expose its descriptor."""
    for entry in _DESCRIPTORS.iterdir():
        try:
            descriptor = os.dup(int(entry.name))
        except OSError:  # closed meanwhile: the descriptor of this listing itself
            continue
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            continue
        with socket.socket(fileno=descriptor) as candidate:
            is_internet = candidate.family in (socket.AF_INET, socket.AF_INET6)
            listens = is_internet and candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and candidate.getsockname()[1] == port:
                yield candidate
