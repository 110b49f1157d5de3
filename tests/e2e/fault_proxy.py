"""A TCP proxy that does one thing wrong, for the link between two nodes.

It counts what the producer sends. Once so many bytes have passed, it does what it was made for:

  cut      closes both connections
  reset    the same with RST: what is on its way is lost too
  stall    keeps them open and passes nothing on, in either direction
  flip     inverts one bit of the next byte, and goes on
  drop     leaves out the next frame with a part of a manifest or with blocks, and goes on
  length   claims in the header of the next frame that 4 GiB follow, and goes on
  upward   the same to a frame that the consumer sends

A frame is a header of 32 bytes, whose bytes 6 and 7 are its type and 8 to 11 the length of what
follows.
"""

import socket
import struct
import threading

HEADER_BYTES = 32
PART, BLOCK_DATA = 9, 14


class FaultProxy:
    """Use as a context manager. Without a fault it only counts."""

    def __init__(self, port, fault=None, after_bytes=0):
        self._target = ("127.0.0.1", port)
        self._fault = fault
        self._after_bytes = after_bytes
        self._lock = threading.Lock()
        self._pairs = []
        self._threads = []
        self._stopped = threading.Event()
        self.bytes_down = 0  # from the producer
        self.has_struck = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._shut(self._listener)
        self._cut()
        for thread in self._threads:
            thread.join()

    def _start(self, run, *arguments):
        thread = threading.Thread(target=run, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _shut(self, connection):
        is_reset = self._fault == "reset" and self.has_struck
        try:
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # Wakes who reads it. A connection is reset by close(), unless it has sent FIN.
            connection.shutdown(socket.SHUT_RD if is_reset else socket.SHUT_RDWR)
        except OSError:
            pass
        connection.close()

    def _cut(self):
        with self._lock:
            for pair in self._pairs:
                for connection in pair:
                    self._shut(connection)

    def _accept(self):
        while not self._stopped.is_set():
            try:
                consumer, _ = self._listener.accept()
                producer = socket.create_connection(self._target)
            except OSError:
                continue
            for connection in (consumer, producer):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((consumer, producer))
            self._start(self._pass_on, consumer, producer, True)
            self._start(self._pass_on, producer, consumer, False)

    def _strikes(self, is_upward):
        """Whether this is the moment; true once."""
        with self._lock:
            is_due = (not self.has_struck and self._fault and self.bytes_down >= self._after_bytes
                      and is_upward == (self._fault == "upward"))
            self.has_struck = self.has_struck or bool(is_due)
            return bool(is_due)

    def _pass_on(self, source, target, is_upward):
        header = bytearray()
        body_left = 0
        is_left_out = False
        is_within_body = self._fault in ("cut", "reset", "stall", "flip")
        try:
            while True:
                # A frame's header, and its body, in parts that end where the fault is due.
                wanted = body_left or HEADER_BYTES - len(header)
                if is_within_body and not is_upward and not self.has_struck and body_left:
                    wanted = min(wanted, max(1, self._after_bytes - self.bytes_down))
                data = bytearray(source.recv(min(wanted, 65536)))
                if not data:
                    break
                if self._fault == "stall" and self.has_struck:
                    self._stopped.wait()
                    break
                if body_left:
                    if is_within_body and self._strikes(is_upward):
                        if self._fault == "stall":
                            self._stopped.wait()
                            break
                        if self._fault in ("cut", "reset"):
                            break
                        data[0] ^= 1
                    body_left -= len(data)
                    if not is_left_out:
                        target.sendall(data)
                else:
                    header += data
                    if len(header) < HEADER_BYTES:
                        continue
                    kind, body_left = struct.unpack_from("<HI", header, 6)
                    if self._fault in ("length", "upward") and self._strikes(is_upward):
                        struct.pack_into("<I", header, 8, 0xFFFFFFFF)
                    is_left_out = (self._fault == "drop" and kind in (PART, BLOCK_DATA)
                                   and self._strikes(is_upward))
                    if not is_left_out:
                        target.sendall(header)
                    data, header = header, bytearray()
                if not is_upward:
                    with self._lock:
                        self.bytes_down += len(data)
        except OSError:
            pass
        self._shut(source)
        self._shut(target)
