"""Two nodes in one guest, each with one NIC of a kind, which QEMU joins."""

import pathlib, re, subprocess, time

from cluster import Cluster, eventually, expect, run
from jobs import WEB, Skipped, serve_web
from traffic import asks, converses, is_blocked

SETTLED = 3


def interfaces(driver):
    """The interfaces that a driver serves, by name."""
    found = []
    for device in sorted(pathlib.Path("/sys/class/net").iterdir()):
        link = device / "device/driver"
        if link.exists() and link.resolve().name == driver.replace("-", "_"):
            found.append(device.name)
    return found


class Nics:
    """A cluster whose uplinks are NICs, and the steps that each driver has to survive."""

    def __init__(self, driver, mtu, offload):
        self.driver, self.mtu, self.offload = driver, mtu, offload
        self.notes = []

    def put(self, nodes):
        """Each NIC becomes the uplink of a node."""
        run("modprobe", self.driver)
        names = eventually(f"two NICs of {self.driver}", lambda: len(found := interfaces(self.driver)) == 2 and found)
        for node, name in zip(nodes.nodes, names):
            run("ip", "link", "set", name, "netns", node.namespace)
            node.ip(f"link set {name} name up0")
        try:
            nodes.configure_uplinks()
        except Exception as error:
            raise Skipped(f"no MTU {self.mtu}: {error}")
        one = nodes.nodes[0]
        eventually("the NICs reach each other", lambda: self.pings(one))

    def pings(self, node):
        other = 3 - node.number
        return subprocess.run(["ip", "netns", "exec", node.namespace, "ping", "-c", "1", "-W", "2", f"192.168.5.{other}"],
                              capture_output=True).returncode == 0

    def run(self):
        with Cluster(f"nic{self.mtu}", 2, self.mtu) as nodes:
            self.put(nodes)
            self.options = ["--uplink", "up0", *([] if self.offload else ["--flow-offload", "off"])]
            nodes.start(*self.options)
            one, two = nodes.nodes
            self.one, self.pods = one, [one.attach("a"), two.attach("b"), two.attach("c")]
            serve_web(*self.pods)
            modes = [node.port("uplink")["mode"] for node in nodes.nodes]
            self.passes("at first")
            nodes.deny("c")
            a, b, c = self.pods
            eventually("the policy is in force", lambda: is_blocked(a.namespace, c.address, WEB))
            self.link_down_and_up()
            self.rings()
            self.channels()
            self.restart()
            self.kill()
            nodes.stop()
            left = one.ip("-d link show up0")
            expect("prog/xdp" not in left, "an XDP program is left at the NIC")
        return "; ".join([f"MTU {self.mtu}: {' and '.join(sorted(set(modes)))}", *self.notes])

    def passes(self, when):
        """TCP and UDP both ways, within a minute; a closed port stays closed."""
        a, b, c = self.pods
        try:
            for client, server in [(a, b), (b, a)]:
                asks(client.namespace, server.address, WEB)
                converses(client.namespace, server.address, WEB)
            eventually("the nodes reach each other", lambda: self.pings(self.one))
        except Exception as error:
            raise AssertionError(f"{when}: {error}")

    def link_down_and_up(self):
        self.one.ip("link set up0 down")
        time.sleep(SETTLED)
        self.one.ip("link set up0 up")
        self.passes("after link down and up")

    def ethtool(self, *words):
        return subprocess.run(["ip", "netns", "exec", self.one.namespace, "ethtool", *words], capture_output=True, text=True)

    def rings(self):
        """Another number of descriptors, of those that the driver has."""
        shown = self.ethtool("-g", "up0")
        if shown.returncode != 0:
            return self.notes.append("no -G")
        current = re.findall(r"^RX:\s+(\d+)", shown.stdout, re.M)[-1]
        changed = self.ethtool("-G", "up0", "rx", "512" if current != "512" else "256")
        if changed.returncode != 0:
            return self.notes.append(f"-G refused ({changed.stderr.strip().splitlines()[-1]})")
        self.passes("after ethtool -G")

    def channels(self):
        """One queue in place of several, and back."""
        shown = self.ethtool("-l", "up0")
        counts = re.findall(r"^Combined:\s+(\d+)", shown.stdout, re.M)
        if shown.returncode != 0 or not counts or int(counts[-1]) < 2:
            return self.notes.append("one queue")
        changed = self.ethtool("-L", "up0", "combined", "1")
        if changed.returncode != 0:
            return self.notes.append(f"-L refused ({changed.stderr.strip().splitlines()[-1]})")
        self.passes("after ethtool -L 1")
        self.ethtool("-L", "up0", "combined", counts[-1])
        self.passes(f"after ethtool -L {counts[-1]}")

    def restart(self):
        self.one.stop()
        eventually("the nodes reach each other without a switch", lambda: self.pings(self.one))
        self.start()
        self.passes("after a restart")

    def kill(self):
        self.one.kill()
        self.start()
        self.passes("after kill -9")

    def start(self):
        self.one.start(self.options)
        self.one.wait_ready()


def nic(driver, mtu, offload=True):
    return Nics(driver, mtu, offload).run()
