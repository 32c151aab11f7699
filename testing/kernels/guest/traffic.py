"""Servers and clients inside of network namespaces. A socket stays in the namespace in which it was made."""

import concurrent.futures, contextlib, hashlib, os, socket, threading, time

# Emulated guests are slow: what must come has two minutes, what must not come a few seconds.
PATIENCE, BLOCKED = 120, 4
SHORT, LONG = b"hello", bytes(range(256)) * 400
IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU = 10, 2, 14


def within(namespace, work, *arguments):
    """Runs `work` in a thread of its own that has entered the namespace."""
    def entered():
        with open(f"/run/netns/{namespace}") as file:
            os.setns(file.fileno(), os.CLONE_NEWNET)
        return work(*arguments)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(entered).result()


def stream_socket(protocol):
    number = socket.IPPROTO_SCTP if protocol == "SCTP" else socket.IPPROTO_TCP
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, number)


def datagram_socket():
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def background(work, *arguments):
    threading.Thread(target=work, args=arguments, daemon=True).start()


def serve(namespace, port, protocol="TCP"):
    """Echoes what comes to a port, as long as this process lives."""
    if protocol == "UDP":
        listener = within(namespace, datagram_socket)
        listener.bind(("0.0.0.0", port))
        background(echo_datagrams, listener)
        return
    listener = within(namespace, stream_socket, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", port))
    listener.listen(16)
    background(accept, listener)


def accept(listener):
    while True:
        background(echo, listener.accept()[0])


def echo(stream):
    with contextlib.suppress(OSError), stream:
        while data := stream.recv(65536):
            stream.sendall(data)


def echo_datagrams(listener):
    while True:
        with contextlib.suppress(OSError):
            listener.sendto(*listener.recvfrom(65536))


class Stream:
    """A connection to a server that echoes."""

    def __init__(self, namespace, address, port, protocol="TCP", seconds=PATIENCE):
        self.what = f"{protocol} {namespace} to {address}:{port}"
        self.socket = within(namespace, stream_socket, protocol)
        self.socket.settimeout(seconds)
        self.socket.connect((address, port))

    def exchange(self, data=SHORT, seconds=PATIENCE):
        """Sends, and waits until all of it came back."""
        self.socket.settimeout(seconds)
        end = time.monotonic() + seconds
        background(self.send, data)
        received = bytearray()
        while len(received) < len(data):
            try:
                part = self.socket.recv(65536)
            except OSError as error:
                raise AssertionError(f"{self.what}: {error} after {len(received)} of {len(data)} bytes")
            if not part or time.monotonic() > end:
                raise AssertionError(f"{self.what}: ended after {len(received)} of {len(data)} bytes")
            received += part
        assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest(), f"{self.what}: other bytes came back"

    def send(self, data):
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def is_silent(self):
        """Whether nothing passes it any more."""
        try:
            self.exchange(seconds=BLOCKED)
        except (AssertionError, OSError):
            return True
        return False


def converses(namespace, address, port, protocol="TCP"):
    """Opens a connection on which several segments go each way, also some after a pause."""
    if protocol == "UDP":
        return asks(namespace, address, port)
    try:
        stream = Stream(namespace, address, port, protocol)
    except OSError as error:
        raise AssertionError(f"{protocol} {namespace} to {address}:{port}: {error}")
    stream.exchange()
    time.sleep(0.5)
    stream.exchange(LONG)
    time.sleep(0.5)
    stream.exchange()
    return stream


def asks(namespace, address, port, seconds=PATIENCE):
    """Sends datagrams until one is answered, then a dozen that all must be."""
    client = within(namespace, datagram_socket)
    client.connect((address, port))
    client.settimeout(1)
    end = time.monotonic() + seconds
    answered, number = 0, 0
    while answered < 12:
        number += 1
        if time.monotonic() > end:
            raise AssertionError(f"UDP {namespace} to {address}:{port}: {answered} of {number} datagrams answered")
        with contextlib.suppress(OSError):
            client.send(b"%d" % number)
            answered += client.recv(64) is not None


def is_blocked(namespace, address, port, protocol="TCP"):
    """Whether no connection opens, or no datagram is answered."""
    try:
        if protocol == "UDP":
            asks(namespace, address, port, BLOCKED)
        else:
            Stream(namespace, address, port, protocol, BLOCKED)
    except (AssertionError, OSError):
        return True
    return False


def path_mtu(namespace, address, port, length):
    """Sends datagrams of `length` bytes that nobody may fragment, until the way's MTU is known."""
    client = within(namespace, datagram_socket)
    client.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
    client.connect((address, port))
    local = client.getsockopt(socket.IPPROTO_IP, IP_MTU)
    end = time.monotonic() + PATIENCE
    while (found := client.getsockopt(socket.IPPROTO_IP, IP_MTU)) == local and time.monotonic() < end:
        with contextlib.suppress(OSError):
            client.send(bytes(length - 28))
        time.sleep(0.2)
    return found
