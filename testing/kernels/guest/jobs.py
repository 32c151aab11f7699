"""The jobs of a guest. Each looks at what it must see; whatever else comes is its failure."""

import json, os, pathlib, re, subprocess, threading

import cluster
from cluster import NAMESPACE, PODGATE, Cluster, eventually, expect, run
from traffic import Stream, converses, is_blocked, path_mtu, serve

WEB, OTHER = 8080, 8081
SERVICE = "10.96.0.10"
OFF = ["--flow-offload", "off"]


class Skipped(Exception):
    """What a guest lacks."""


def check():
    """`podgate check` says that the switch runs here, and which modes it takes."""
    done = subprocess.run([PODGATE, "check", "--pods", "10", "-o", "json"], capture_output=True, text=True)
    report = json.loads(done.stdout)
    fatal = [f"{it['check']}: {it['detail']}" for it in report["findings"] if it["level"] == "fatal"]
    expect(done.returncode in (0, 1) and not fatal, f"check ended with {done.returncode}: {'; '.join(fatal)}")
    modes = report["modes"]
    return f"{modes['ports']}, flow offload {'on' if modes['flow_offload'] else 'off'}"


def refusal():
    """`podgate check` and a start refuse a kernel that AF_XDP makes panic."""
    done = subprocess.run([PODGATE, "check", "--pods", "10", "-o", "json"], capture_output=True, text=True)
    fatal = [it["check"] for it in json.loads(done.stdout)["findings"] if it["level"] == "fatal"]
    expect(done.returncode == 2 and fatal, f"check ended with {done.returncode}: a start would make this kernel panic")
    with Cluster("refused", 1) as nodes:
        node = nodes.nodes[0]
        node.start([])
        ended = node.switch.wait(cluster.START_PATIENCE)
        expect(ended == 2, f"the switch ended with {ended}: {node.last_words()}")
    return f"refused by {', '.join(fatal)}"


def connectivity(*words):
    """`podgate connectivity-test` passes."""
    done = subprocess.run([PODGATE, "connectivity-test", *words, "-o", "json"], capture_output=True, text=True)
    wrong = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [it for it in wrong if it["expected"] != it["found"]]
    first = "; ".join(f"{it['protocol']} {it['family']} {it['from']} to {it['to']}:{it['port']} {it['found']}" for it in wrong[:3])
    errors = [line for line in done.stderr.splitlines() if line.startswith("podgate:")]
    expect(done.returncode == 0, f"ended with {done.returncode}, {len(wrong)} wrong: {first} {' '.join(errors)[-300:]}")


def expect_modes(node, offload):
    """The mode that was asked for is the one that is there."""
    status = node.status()
    modes = {port["name"]: port["mode"] for port in status["ports"] if "/" in port["name"]}
    expect(modes, "no pod has a port")
    for name, mode in modes.items():
        expect((mode == "flow offload") == offload, f"{node.name}: the port of {name} is {mode}")
    return next(iter(modes.values()))


def forwarded(node):
    return node.status()["flow_offload"]["packets"]


def has_sctp():
    return subprocess.run(["modprobe", "sctp"], capture_output=True).returncode == 0


def one_node(offload):
    """Four pods of a node: a policy, a service, SCTP, a live connection that a denial ends."""
    with Cluster("one", 1) as nodes:
        nodes.start(*([] if offload else OFF))
        node = nodes.nodes[0]
        db, web, backend = (node.attach(name) for name in ("db", "web", "backend"))
        mode = expect_modes(node, offload)
        protocols = ["TCP", "UDP"] + (["SCTP"] if has_sctp() else [])
        for protocol in protocols:
            serve(db.namespace, WEB, protocol)
            serve(db.namespace, OTHER, protocol)
            for client in (web, backend):
                converses(client.namespace, db.address, WEB, protocol)
        live = converses(web.namespace, db.address, WEB)

        nodes.apply("service", {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": NAMESPACE},
            "spec": {"clusterIP": SERVICE, "clusterIPs": [SERVICE], "ports": [{"port": 80, "targetPort": WEB}]}})
        nodes.apply("slice", {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "db", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "db"}},
            "ports": [{"port": WEB}], "endpoints": [{"addresses": [db.address], "conditions": {"ready": True}}]})
        eventually("the service leads to its pod", lambda: not is_blocked(backend.namespace, SERVICE, 80))
        converses(backend.namespace, SERVICE, 80)

        nodes.deny("db", [{"from": [{"podSelector": {"matchLabels": {"app": "backend"}}}],
                           "ports": [{"protocol": protocol, "port": WEB} for protocol in protocols]}])
        eventually("the policy is in force", lambda: is_blocked(web.namespace, db.address, WEB))
        expect(live.is_silent(), "a live connection goes on under a policy that denies it")
        for protocol in protocols:
            converses(backend.namespace, db.address, WEB, protocol)
            expect(is_blocked(web.namespace, db.address, WEB, protocol), f"{protocol}: a denied client connects")
            expect(is_blocked(backend.namespace, db.address, OTHER, protocol), f"{protocol}: a denied port connects")
        converses(backend.namespace, SERVICE, 80)
        expect(is_blocked(web.namespace, SERVICE, 80), "a denied client connects to the service")

        nodes.remove("policy-db")
        eventually("the policy is gone", lambda: not is_blocked(web.namespace, db.address, WEB))
        converses(web.namespace, db.address, WEB)
        packets = forwarded(node) if offload else 0
        expect(not offload or packets > 100, f"the kernel forwarded only {packets} packets")
        nodes.stop()
        return f"{mode}; {', '.join(protocols)}" + (f"; {packets} packets forwarded by the kernel" if offload else "")


def converse_across(nodes, one, two):
    """TCP and UDP both ways between two nodes' pods, and from a node."""
    for client, server in [(one, two), (two, one)]:
        for protocol in ("TCP", "UDP"):
            converses(client.namespace, server.address, WEB, protocol)
    converses(nodes.nodes[0].namespace, two.address, WEB)


def serve_web(*pods):
    for pod in pods:
        for protocol in ("TCP", "UDP"):
            serve(pod.namespace, WEB, protocol)


def two_nodes(offload, underlay):
    """Two nodes: TCP and UDP both ways, a denial of a live connection, the path MTU."""
    way_mtu = 1450 if underlay == "vxlan" else 1500
    with Cluster(underlay, 2) as nodes:
        nodes.join()
        options = ["--uplink", "up0", "--underlay", underlay, "--masquerade", "off"]
        nodes.start(*options, *([] if offload else OFF))
        one, two = nodes.nodes
        a, b, c = one.attach("a"), two.attach("b"), two.attach("c")
        serve_web(a, b, c)
        mode = expect_modes(one, offload)
        converse_across(nodes, a, b)
        live = converses(a.namespace, c.address, WEB)

        nodes.deny("c")
        eventually("the policy is in force", lambda: is_blocked(a.namespace, c.address, WEB))
        expect(live.is_silent(), "a live connection goes on under a policy that denies it")
        expect(is_blocked(a.namespace, c.address, WEB, "UDP"), "UDP: a denied client is answered")
        converses(a.namespace, b.address, WEB)

        # Pods whose MTU is more than what the way takes.
        d, e = one.attach("d", mtu=9000), two.attach("e", mtu=9000)
        serve_web(d, e)
        found = path_mtu(d.namespace, e.address, WEB, 4000)
        expect(found == way_mtu, f"path MTU {found}, not {way_mtu}")
        converses(d.namespace, e.address, WEB)
        packets = min(map(forwarded, nodes.nodes)) if offload else 0
        # Tunnels are forwarded in the kernel since Linux 6.3.
        if offload and (underlay == "routed" or kernel_version() >= (6, 3)):
            expect(packets > 100, f"the kernel forwarded only {packets} packets")
        nodes.stop()
        return mode + (f"; {packets} packets forwarded by the kernel" if offload else "")


def short():
    """Two nodes with flow offload, TCP both ways."""
    with Cluster("short", 2) as nodes:
        nodes.join()
        nodes.start("--uplink", "up0")
        a, b = nodes.nodes[0].attach("a"), nodes.nodes[1].attach("b")
        serve_web(a, b)
        mode = expect_modes(nodes.nodes[0], True)
        converses(a.namespace, b.address, WEB)
        converses(b.namespace, a.address, WEB)
        packets = min(map(forwarded, nodes.nodes))
        expect(packets > 50, f"the kernel forwarded only {packets} packets")
        nodes.stop()
        return f"{mode}; {packets} packets forwarded by the kernel"


class Keys:
    """Publishes nodes' public keys as an API server would, from the private ones in their state folders."""

    def __init__(self, nodes):
        self.nodes, self.known = nodes, {}
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)

    def __enter__(self):
        for node in self.nodes.nodes:
            (node.work / "state").mkdir(mode=0o700)
            (node.work / "state/wireguard.key").write_text(run("wg", "genkey"))
            (node.work / "state/wireguard.key").chmod(0o600)
        self.publish()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def follow(self):
        while not self.ended.wait(0.5):
            self.publish()

    def publish(self):
        for node in self.nodes.nodes:
            key = {"publicKey": self.public(node, "wireguard.key"), "port": 51871}
            if upcoming := self.public(node, "wireguard.key.next"):
                key["nextPublicKey"] = upcoming
            if self.known.get(node.name) != key:
                self.known[node.name] = key
                self.nodes.apply(f"addresses-{node.name}", {
                    "apiVersion": "podgate.io/v1alpha1", "kind": "NodeAddresses", "metadata": {"name": node.name},
                    "spec": {"addresses": [f"192.168.5.{node.number}"], "wireguard": key}})

    def public(self, node, name):
        try:
            private = (node.work / "state" / name).read_text()
        except FileNotFoundError:
            return None
        return run("wg", "pubkey", input=private).strip()


class Capture:
    """What leaves by the uplink meanwhile, a line for each packet. What was decrypted arrives there a second time."""

    def __init__(self, node, words):
        self.command = ["ip", "netns", "exec", node.namespace, "tcpdump", "-nli", "up0", "-Q", "out", *words.split()]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "listening on" not in self.process.stderr.readline():
            expect(self.process.poll() is None, "tcpdump does not start")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        # It may end with an empty one.
        self.lines = list(filter(None, self.process.communicate()[0].split("\n")))


def wireguard():
    """The kernel's WireGuard between two nodes: nothing in clear, and a rotation that loses no connection."""
    if subprocess.run(["modprobe", "wireguard"], capture_output=True).returncode != 0:
        raise Skipped("the kernel has no WireGuard")
    with Cluster("wg", 2) as nodes, Keys(nodes) as keys:
        nodes.join()
        nodes.start("--uplink", "up0", "--encryption", "wireguard")
        one, two = nodes.nodes
        a, b = one.attach("a"), two.attach("b")
        serve_web(a, b)
        expect_modes(one, True)
        captures = [Capture(node, "udp port 4789") for node in nodes.nodes]
        with captures[0], captures[1]:
            converse_across(nodes, a, b)
        for capture in captures:
            expect(not capture.lines, f"a tunnel in clear: {capture.lines[:1]}")
        encryption = one.status()["encryption"]
        expect(encryption["encrypted"] > 40, f"only {encryption['encrypted']} packets were encrypted")
        before, live = keys.known["node1"]["publicKey"], Stream(a.namespace, b.address, WEB)
        rotation = subprocess.Popen([PODGATE, "rotate-key", "--socket", one.work / "socket"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        exchanges = 0
        while rotation.poll() is None:
            live.exchange()
            exchanges += 1
        expect(rotation.returncode == 0, f"rotate-key: {rotation.stdout.read().decode()[-300:]}")
        live.exchange()
        eventually("another key is published", lambda: keys.known["node1"]["publicKey"] != before)
        converse_across(nodes, a, b)
        nodes.stop()
        return f"{encryption['encrypted']} packets encrypted, {exchanges} exchanges while a key rotated"


def nftables():
    """The enforcer of nftables beside the bridge plugin, SCTP included."""
    if subprocess.run(["modprobe", "br_netfilter"], capture_output=True).returncode != 0:
        raise Skipped("the kernel has no br_netfilter")
    with Cluster("nft", 1) as nodes:
        node = nodes.nodes[0]
        run("ip", "netns", "exec", node.namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        bridge = {"cniVersion": "1.0.0", "name": "bridged", "type": "bridge", "bridge": "cni0", "isGateway": True,
                  "ipam": {"type": "host-local", "dataDir": str(node.work / "ipam"),
                           "ranges": [[{"subnet": "10.1.1.0/24", "rangeStart": "10.1.1.2"}]]}}
        pods = [cluster.Pod(node, name) for name in ("db", "web", "backend")]
        for pod in pods:
            pod.address = node.call_plugin(pod, "/opt/cni/bin/bridge", bridge)
            pod.write()
        db, web, backend = pods
        nodes.start("--enforcer", "nftables", "--pod-networks", "10.1.1.0/24")
        protocols = ["TCP", "UDP"] + (["SCTP"] if has_sctp() else [])
        for protocol in protocols:
            serve(db.namespace, WEB, protocol)
            for client in (web, backend):
                converses(client.namespace, db.address, WEB, protocol)
        nodes.deny("db", [{"from": [{"podSelector": {"matchLabels": {"app": "backend"}}}]}])
        eventually("the policy is in force", lambda: is_blocked(web.namespace, db.address, WEB))
        for protocol in protocols:
            converses(backend.namespace, db.address, WEB, protocol)
            expect(is_blocked(web.namespace, db.address, WEB, protocol), f"{protocol}: a denied client connects")
        nodes.remove("policy-db")
        eventually("the policy is gone", lambda: not is_blocked(web.namespace, db.address, WEB))
        nodes.stop()
        return ", ".join(protocols)


def end_to_end():
    """A part of the project's end-to-end tests: what depends on the kernel."""
    program = pathlib.Path("/host/end-to-end")
    if not program.exists():
        raise Skipped("the test program was not given")
    # The tests know the programs by the place where they were built.
    built = pathlib.Path((pathlib.Path("/host/built")).read_text().strip())
    built.mkdir(parents=True, exist_ok=True)
    for name in ("podgate", "podgate-cni"):
        (built / name).symlink_to(f"/host/{name}")
    tests = pathlib.Path("/host/end-to-end-tests").read_text().split()
    # They are built: cargo has nothing to do.
    done = subprocess.run([program, "--test-threads", "1", *tests], capture_output=True, text=True, errors="replace",
                          env={**os.environ, "CARGO": "/bin/true", "RUST_BACKTRACE": "0"})
    print(done.stdout[-20000:], done.stderr[-20000:])
    passed, failed = map(int, re.search(r"(\d+) passed; (\d+) failed", done.stdout).groups())
    names = re.findall(r"^test (\S+) \.\.\. FAILED", done.stdout, re.M) or re.findall(r"^    (\S+::\S+)$", done.stdout, re.M)
    expect(failed == 0 and passed > 0, f"{failed} of {passed + failed} failed: {', '.join(sorted(set(names)))}")
    return f"{passed} passed"


JOBS = {
    "check": check,
    "refusal": refusal,
    "connectivity": connectivity,
    "connectivity-two-nodes": lambda: connectivity("--nodes", "2"),
    "one-node-offload": lambda: one_node(True),
    "one-node-af-xdp": lambda: one_node(False),
    "nftables": nftables,
    "vxlan-offload": lambda: two_nodes(True, "vxlan"),
    "vxlan-af-xdp": lambda: two_nodes(False, "vxlan"),
    "routed-offload": lambda: two_nodes(True, "routed"),
    "routed-af-xdp": lambda: two_nodes(False, "routed"),
    "wireguard": wireguard,
    "end-to-end": end_to_end,
    "short": short,
}


def kernel_version():
    return tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", os.uname().release).groups())
