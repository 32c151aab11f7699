"""Nodes and pods in network namespaces of this guest: `podgate run`, manifests, and the plugin as a runtime calls it."""

import json, os, pathlib, re, subprocess, time

from traffic import PATIENCE

PODGATE, PLUGIN = "/usr/local/bin/podgate", "/opt/cni/bin/podgate-cni"
NAMESPACE = "default"
START_PATIENCE = 300


class Failed(Exception):
    """A job that saw something else than it must."""


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, **options)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {done.returncode}: {(done.stdout + done.stderr).strip()[-600:]}")
    return done.stdout


def expect(condition, what):
    if not condition:
        raise Failed(what)


def eventually(what, condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not (found := condition()):
        expect(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(0.3)
    return found


class Node:
    """Podgate in a network namespace, node N with the pod network 10.1.N.0/24."""

    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.name, self.namespace = f"node{number}", f"{cluster.name}-n{number}"
        self.work = cluster.work / self.name
        self.work.mkdir(mode=0o700)
        self.log = self.work / "log"
        self.switch = None
        run("ip", "netns", "add", self.namespace)
        self.ip("link set lo up")

    def ip(self, words):
        return run("ip", "-n", self.namespace, *words.split())

    def start(self, options):
        self.options = options
        command = ["ip", "netns", "exec", self.namespace, PODGATE, "run", "--node-name", self.name, "--manifests", self.cluster.manifests,
                   "--socket", self.work / "socket", "--state-dir", self.work / "state", "--sessions", "65536", *options]
        with open(self.log, "a") as log:
            self.switch = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)

    def wait_ready(self):
        try:
            eventually(f"{self.name} is ready", self.is_ready, START_PATIENCE)
        except Failed as error:
            raise Failed(f"{error}: {self.last_words()}")

    def is_ready(self):
        ended = self.switch.poll()
        expect(ended is None, f"the switch ended with {ended}: {self.last_words()}")
        done = subprocess.run([PODGATE, "status", "--socket", self.work / "socket", "-o", "json"], capture_output=True, text=True)
        return done.returncode == 0 and json.loads(done.stdout)["ready"]

    def last_words(self):
        """The end of the log, without that of the kernel's verifier."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if not re.match(r"^(\d+: |; |from )", line)]
        return " | ".join(lines[-4:])[-500:]

    def stop(self):
        self.switch.terminate()
        ended = self.switch.wait(PATIENCE)
        expect(ended == 0, f"the switch ended with {ended}: {self.last_words()}")

    def kill(self):
        """As `kill -9` does."""
        self.switch.kill()
        self.switch.wait()

    def status(self):
        return json.loads(run(PODGATE, "status", "--socket", self.work / "socket", "-o", "json"))

    def podgate(self, *words):
        return run(PODGATE, *words, "--socket", self.work / "socket")

    def port(self, name):
        return next(port for port in self.status()["ports"] if port["name"] == name)

    def attach(self, name, mtu=None):
        """A pod that the plugin attaches."""
        pod = Pod(self, name)
        configuration = {
            "cniVersion": "1.0.0", "name": f"pods{self.number}", "type": "podgate-cni", "socket": str(self.work / "socket"),
            "mtu": mtu or self.status()["pod_mtu"],
            "ipam": {"type": "host-local", "dataDir": str(self.work / "ipam"),
                     "ranges": [[{"subnet": f"10.1.{self.number}.0/24", "rangeStart": f"10.1.{self.number}.2"}]]}}
        pod.address = self.call_plugin(pod, PLUGIN, configuration)
        pod.write()
        return pod

    def call_plugin(self, pod, plugin, configuration):
        run("ip", "netns", "add", pod.namespace)
        run("ip", "-n", pod.namespace, "link", "set", "lo", "up")
        environment = {
            "PATH": os.environ["PATH"], "CNI_COMMAND": "ADD", "CNI_CONTAINERID": pod.namespace,
            "CNI_NETNS": f"/run/netns/{pod.namespace}", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={pod.name}"}
        pod.write()
        result = json.loads(run("ip", "netns", "exec", self.namespace, plugin, input=json.dumps(configuration), env=environment))
        return result["ips"][0]["address"].split("/")[0]


class Pod:
    def __init__(self, node, name):
        self.node, self.name, self.address = node, name, None
        self.namespace = f"{node.cluster.name}-{name}"

    def write(self):
        status = {"phase": "Running"}
        if self.address:
            status |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        self.node.cluster.apply(f"pod-{self.name}", {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name, "namespace": NAMESPACE, "labels": {"app": self.name}},
            "spec": {"nodeName": self.node.name, "containers": [{"name": "main", "image": "none"}]}, "status": status})


class Cluster:
    """One node or two, whose uplinks `up0` are a veth pair or NICs that were put there before."""

    def __init__(self, name, nodes, mtu=1500):
        self.name, self.work = name, pathlib.Path("/run") / name
        self.manifests = self.work / "manifests"
        self.manifests.mkdir(parents=True)
        self.mtu = mtu
        self.nodes = [Node(self, number + 1) for number in range(nodes)]
        for node in self.nodes:
            self.apply(node.name, {
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}, "spec": {"podCIDRs": [f"10.1.{node.number}.0/24"]},
                "status": {"addresses": [{"type": "InternalIP", "address": f"192.168.5.{node.number}"}]}})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            if node.switch and node.switch.poll() is None:
                node.kill()
        for line in run("ip", "netns", "list").splitlines():
            if line.startswith(f"{self.name}-"):
                run("ip", "netns", "delete", line.split()[0])

    def join(self):
        """Connects the two nodes by a veth pair."""
        one, two = self.nodes
        run("ip", "link", "add", "up0", "netns", one.namespace, "mtu", self.mtu,
            "type", "veth", "peer", "name", "up0", "netns", two.namespace, "mtu", self.mtu)
        self.configure_uplinks()

    def configure_uplinks(self):
        for node in self.nodes:
            node.ip(f"address add 192.168.5.{node.number}/24 dev up0")
            node.ip(f"link set up0 mtu {self.mtu} up")

    def start(self, *options):
        for node in self.nodes:
            node.start(options)
        for node in self.nodes:
            node.wait_ready()

    def stop(self):
        for node in self.nodes:
            node.stop()

    def apply(self, name, thing):
        """Writes a manifest, which appears whole."""
        new = self.work / "new"
        new.write_text(json.dumps(thing))
        new.rename(self.manifests / f"{name}.yaml")

    def remove(self, name):
        (self.manifests / f"{name}.yaml").unlink()

    def deny(self, pod, ingress=()):
        """A policy that lets only `ingress` into a pod."""
        self.apply(f"policy-{pod}", {
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": f"only-{pod}", "namespace": NAMESPACE},
            "spec": {"podSelector": {"matchLabels": {"app": pod}}, "policyTypes": ["Ingress"], "ingress": list(ingress)}})
