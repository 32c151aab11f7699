import ctypes, errno, mmap, os, socket, struct, sys, threading
kept = {}
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    result = getattr(libc, name)(*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result
def v4(host, port, family=socket.AF_INET):
    # A sockaddr_in, whatever the socket's family is.
    packed = struct.pack('=H', family) + struct.pack('!H', port) + socket.inet_aton(host) + bytes(8)
    return ctypes.create_string_buffer(packed, 16)
def inet(kind, host, proto=0):
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    made = socket.socket(family, kind, proto)
    made.settimeout(5)
    return made
def by_io_uring(made, host, port, flags=0):
    params = (ctypes.c_uint32 * 30)()
    ring = call('syscall', 425, 1, params)
    # Words of io_uring_params: sq_off.tail, sq_off.array, cq_off.cqes.
    tail, entries, cqes = params[11], params[16], params[25]
    queue = mmap.mmap(ring, entries + 4)
    done = mmap.mmap(ring, cqes + 16, offset=0x8000000)
    jobs = mmap.mmap(ring, 64, offset=0x10000000)
    to = v4(host, port)
    # IORING_OP_CONNECT, its socket, the length of the address, and the address.
    jobs[:] = struct.pack('=BBHiQQ40x', 16, flags, 0, made.fileno(), 16, ctypes.addressof(to))
    queue[tail:tail + 4] = struct.pack('=I', 1)
    call('syscall', 426, ring, 1, 1, 1, None, 0)
    result, = struct.unpack_from('=i', done, cqes + 8)
    if result < 0:
        raise OSError(-result, '')
def echo(made):
    try:
        while data := made.recv(100):
            made.send(data)
    except OSError:
        pass
def serve(made, kind):
    while True:
        try:
            if kind in ('udp', 'lite'):
                data, peer = made.recvfrom(100)
                made.sendto(data, peer)
            else:
                threading.Thread(target=echo, args=(made.accept()[0],), daemon=True).start()
        except OSError:
            pass
def of_kind(kind, host):
    datagrams = kind in ('udp', 'lite')
    return inet(socket.SOCK_DGRAM if datagrams else socket.SOCK_STREAM, host, {'mptcp': 262, 'lite': 136}.get(kind, 0))
def listen(kind, host, port):
    made = of_kind(kind, host)
    made.settimeout(None)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if ':' in host:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind((host, port))
    if kind == 'fast':
        made.setsockopt(socket.IPPROTO_TCP, 23, 10)
    if kind not in ('udp', 'lite'):
        made.listen()
    return made
def run(what, *words):
    if what == 'serve':
        # KIND HOST PORT: echoes what comes.
        made = listen(words[0], words[1], int(words[2]))
        threading.Thread(target=serve, args=(made, words[0]), daemon=True).start()
        return
    if what == 'listen':
        # NAME KIND HOST PORT
        kept[words[0]] = listen(words[1], words[2], int(words[3]))
        return
    if what == 'serving':
        threading.Thread(target=serve, args=(kept[words[0]], words[1]), daemon=True).start()
        return
    if what == 'close':
        kept.pop(words[0]).close()
        return
    if what == 'open':
        # NAME KIND HOST PORT [OWN-HOST [OWN-PORT]]: a socket that has sent a byte to a server and got it back.
        kind, host, port = words[1], words[2], int(words[3])
        made = of_kind(kind, host)
        if len(words) > 4:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((words[4], int(words[5]) if len(words) > 5 else 0))
        made.settimeout(20 if kind in ('tcp', 'udp') else 5)
        kept[words[0]] = made
        if kind == 'fast':
            # With a time-out of Python's it would not wait for the handshake.
            made.settimeout(None)
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                made.setsockopt(socket.SOL_SOCKET, option, struct.pack('ll', 5, 0))
            made.sendto(b'x', 0x20000000, (host, port))
        else:
            made.connect((host, port))
            made.send(b'x')
        if made.recv(1) != b'x':
            raise OSError(errno.EPROTO, '')
        return
    if what == 'ask':
        # NAME HOST PORT: by sendto() and recvfrom().
        kept[words[0]].sendto(b'x', (words[1], int(words[2])))
        kept[words[0]].recvfrom(1)
        return
    if what == 'tell':
        kept[words[0]].sendto(b'x', (words[1], int(words[2])))
        return
    if what == 'flood':
        # OWN-HOST COUNT HOST PORT: a datagram of each of so many ports.
        for own in range(1024, 1024 + int(words[1])):
            with inet(socket.SOCK_DGRAM, words[0]) as made:
                made.bind((words[0], own))
                made.sendto(b'x', (words[2], int(words[3])))
        return
    if what == 'get':
        print(kept[words[0]].recvfrom(100)[1][1], flush=True)
        return
    if what == 'hold-raw':
        kept[words[0]] = inet(socket.SOCK_RAW, words[1], 253)
        return
    if what == 'raw':
        socket.socket(socket.AF_INET6 if words[0] == '6' else socket.AF_INET, socket.SOCK_RAW, int(words[1])).close()
        return
    if what == 'thread':
        # CGROUP NAME KIND HOST PORT: a listener of a thread in that cgroup.
        failed = []
        def begin():
            try:
                with open(words[0] + '/cgroup.threads', 'w') as threads:
                    threads.write(str(threading.get_native_id()))
                kept[words[1]] = listen(words[2], words[3], int(words[4]))
            except OSError as error:
                failed.append(error)
        begun = threading.Thread(target=begin); begun.start(); begun.join()
        if failed:
            raise failed[0]
        return
    if what == 'accept':
        # LISTENER [NAME]
        kept[words[0]].settimeout(0.5)
        made = kept[words[0]].accept()[0]
        if len(words) > 1:
            kept[words[1]] = made
        return
    if what == 'peer':
        print(kept[words[0]].getpeername()[0], flush=True)
        return
    if what == 'group':
        # NAME GROUP DEVICE: joins a group.
        index = socket.if_nametoindex(words[2])
        kept[words[0]].setsockopt(socket.IPPROTO_IPV6, 20, socket.inet_pton(socket.AF_INET6, words[1]) + struct.pack('@I', index))
        return
    if what == 'exchanges':
        # NAME HOST COUNT: a datagram to each of so many ports.
        for port in range(1, 1 + int(words[2])):
            try:
                kept[words[0]].sendto(b'x', (words[1], port))
            except ConnectionRefusedError:
                pass
        return
    if what == 'disconnect':
        return call('connect', kept[words[0]].fileno(), v4('0.0.0.0', 0, socket.AF_UNSPEC), 16)
    if what == 'permit':
        # CGROUP FLAGS: a program that makes success of the error of an earlier one, for connections of IPv4.
        code = b''.join(struct.pack('=BBhi', *it) for it in [(0xb7, 1, 0, 0), (0x85, 0, 0, 187), (0xb7, 0, 0, 1), (0x95, 0, 0, 0)])
        code, license = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b'GPL')
        load = struct.pack('=IIQQIIQII16sII', 18, 4, ctypes.addressof(code), ctypes.addressof(license), 0, 0, 0, 0, 0, b'', 0, 10)
        load = ctypes.create_string_buffer(load)
        program = call('syscall', 321, 5, load, len(load) - 1)
        attach = struct.pack('=IIII', os.open(words[0], os.O_RDONLY), program, 10, int(words[1]))
        attach = ctypes.create_string_buffer(attach)
        call('syscall', 321, 8, attach, len(attach) - 1)
        return
    if what == 'name':
        # HOST PORT OWN-HOST OWN-PORT [DEVICE]: sends a datagram in the name of OWN-HOST, which is not the node's (IPV6_FREEBIND).
        made = inet(socket.SOCK_DGRAM, words[0])
        made.setsockopt(socket.IPPROTO_IPV6, 78, 1)
        made.bind((words[2], int(words[3])))
        to = (words[0], int(words[1]))
        # To a group, by a device.
        made.sendto(b'x', to if len(words) < 5 else (*to, 0, socket.if_nametoindex(words[4])))
        return
    if what == 'port':
        print(kept[words[0]].getsockname()[1], flush=True)
        return
    if what == 'unbound':
        # NAME KIND HOST: a listener that never calls bind().
        kept[words[0]] = of_kind(words[1], words[2])
        kept[words[0]].settimeout(None)
        kept[words[0]].listen()
        return
    if what == 'bound':
        # NAME KIND HOST PORT
        kind = words[1]
        kept[words[0]] = of_kind(kind, words[2]) if kind == 'lite' else inet(getattr(socket, 'SOCK_' + kind), words[2])
        kept[words[0]].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept[words[0]].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept[words[0]].bind((words[2], int(words[3])))
        return
    if what == 'patience':
        kept[words[0]].settimeout(float(words[1]))
        return
    if what == 'echo':
        kept[words[0]].send(b'y')
        if kept[words[0]].recv(1) != b'y':
            raise OSError(errno.EPROTO, '')
        return
    if what == 'hold':
        kept[words[0]] = inet(getattr(socket, 'SOCK_' + words[1]), words[2])
        return
    if what == 'held':
        return kept[words[0]].connect((words[1], int(words[2])))
    if what == 'alive':
        # A connection that is open carries a byte; nobody reads it.
        kept[words[0]].send(b'x')
        return
    if what == 'give':
        with socket.socket(socket.AF_UNIX) as way:
            way.connect(words[1])
            socket.send_fds(way, [b'x'], [kept[words[0]].fileno()])
        return
    if what == 'take':
        with socket.socket(socket.AF_UNIX) as way:
            way.bind(words[1]); way.listen(); print('listening', flush=True)
            with way.accept()[0] as peer:
                fd = socket.recv_fds(peer, 10, 1)[1][0]
        kept[words[0]] = socket.socket(fileno=fd)
        return
    if what == 'fork':
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, answer(words).encode()); os._exit(0)
        os.wait()
        text = os.read(read, 100).decode()
        if text != 'ok':
            raise OSError(getattr(errno, text), '')
        return
    host, port = words[0], int(words[1])
    if what == 'tcp':
        inet(socket.SOCK_STREAM, host).connect((host, port))
    elif what == 'udp':
        inet(socket.SOCK_DGRAM, host).connect((host, port))
    elif what == 'send':
        inet(socket.SOCK_DGRAM, host).sendto(b'x', (host, port))
    elif what == 'fast':
        inet(socket.SOCK_STREAM, host).sendto(b'x', 0x20000000, (host, port))
    elif what == 'mptcp':
        inet(socket.SOCK_STREAM, host, 262).connect((host, port))
    elif what == 'pktinfo':
        source = struct.pack('I4s4s', 0, socket.inet_aton(words[2]), bytes(4))
        info = [(socket.IPPROTO_IP, 8, source)]
        inet(socket.SOCK_DGRAM, host).sendmsg([b'x'], info, 0, (host, port))
    elif what in ('uring', 'uring-worker'):
        made = inet(socket.SOCK_STREAM, host)
        made.settimeout(None)
        # IOSQE_ASYNC: a thread of the kernel calls.
        by_io_uring(made, host, port, 16 if what == 'uring-worker' else 0)
    elif what == 'sendmmsg':
        # The second of two messages goes there, the first one to another address.
        made = inet(socket.SOCK_DGRAM, host)
        data, messages = ctypes.create_string_buffer(b'x', 1), []
        vector = ctypes.create_string_buffer(struct.pack('=QQ', ctypes.addressof(data), 1), 16)
        targets = [v4(words[2], port), v4(host, port)]
        for to in targets:
            messages.append(struct.pack('=QIxxxxQQQQixxxxI4x', ctypes.addressof(to), 16, ctypes.addressof(vector), 1, 0, 0, 0, 0))
        both = ctypes.create_string_buffer(b''.join(messages), 128)
        # The kernel says how many went, and not why the next one did not.
        if call('sendmmsg', made.fileno(), both, 2, 0) == 1:
            raise OSError(errno.EPERM, '')
    elif what == 'again':
        # Connected to another address before, and to none for a moment.
        made = inet(socket.SOCK_DGRAM, host)
        made.connect((words[2], port))
        call('connect', made.fileno(), v4('0.0.0.0', 0, socket.AF_UNSPEC), 16)
        made.connect((host, port))
    elif what == 'aside':
        # A datagram past the peer of a socket.
        made = inet(socket.SOCK_DGRAM, host)
        made.connect((words[2], port))
        made.sendto(b'x', (host, port))
    elif what == 'unspec':
        made = inet(socket.SOCK_DGRAM, host)
        call('sendto', made.fileno(), b'x', 1, 0, v4(host, port, socket.AF_UNSPEC), 16)
    elif what == 'v4-of-v6':
        # An address of IPv4 at a socket of IPv6.
        made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        call('sendto', made.fileno(), b'x', 1, 0, v4(host, port), 16)
    elif what == 'v4-connect-of-v6':
        made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        call('connect', made.fileno(), v4(host, port), 16)
    elif what == 'addrform':
        # A socket of IPv6 that becomes one of IPv4.
        made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        made.connect(('::ffff:' + words[2], port))
        made.setsockopt(socket.IPPROTO_IPV6, 1, socket.AF_INET)
        call('connect', made.fileno(), v4(host, port), 16)
    elif what == 'late':
        # TCP_FASTOPEN_CONNECT: the SYN waits for data.
        made = inet(socket.SOCK_STREAM, host)
        made.setsockopt(socket.IPPROTO_TCP, 30, 1)
        made.connect((host, port))
    elif what == 'repaired':
        # TCP_REPAIR: connected without a packet.
        made = inet(socket.SOCK_STREAM, host)
        made.setsockopt(socket.IPPROTO_TCP, 19, 1)
        made.connect((host, port))
    elif what == 'lite':
        inet(socket.SOCK_DGRAM, host, 136).connect((host, port))
    elif what in ('way', 'way-message', 'way6'):
        # By way of an address: an option of the socket, one of the message, a routing header.
        made = inet(socket.SOCK_DGRAM, host)
        if what == 'way6':
            first, last = (socket.inet_pton(socket.AF_INET6, it) for it in (words[2], host))
            made.setsockopt(socket.IPPROTO_IPV6, 57, struct.pack('!BBBBBBH', 0, 4, 4, 1, 1, 0, 0) + last + first)
            return made.sendto(b'x', (host, port))
        # NOP, and a loose source route.
        option = bytes([1, 131, 7, 4]) + socket.inet_aton(words[2])
        if what == 'way':
            made.setsockopt(socket.IPPROTO_IP, 4, option)
            return made.sendto(b'x', (host, port))
        made.sendmsg([b'x'], [(socket.IPPROTO_IP, 7, option)], 0, (host, port))
    elif what == 'device':
        made = inet(socket.SOCK_STREAM, host)
        made.setsockopt(socket.SOL_SOCKET, 25, b'lo')
        made.connect((host, port))
    elif what == 'transparent':
        made = inet(socket.SOCK_STREAM, host)
        made.setsockopt(socket.IPPROTO_IP, 19, 1)
        made.bind((words[2], 0))
        made.connect((host, port))
    else:
        raise ValueError(what)
def answer(words):
    try:
        run(*words)
        return 'ok'
    except OSError as error:
        return 'timeout' if isinstance(error, TimeoutError) and not error.errno else errno.errorcode.get(error.errno, repr(error))
print('ready', flush=True)
for line in sys.stdin:
    print(answer(line.split()), flush=True)
