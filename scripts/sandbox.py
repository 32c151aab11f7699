"""What scripts/test-install and scripts/test-cluster share: a node in namespaces of its own."""

import json, pathlib, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = pathlib.Path(sys.argv[0]).name
SANDBOX = "localhost/podgate-sandbox:1"


def say(text):
    print(f"{NAME}: {text}", flush=True)


def fail(text):
    raise SystemExit(f"{NAME}: {text}")


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, **options)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_uplink():
    for line in ["link set lo up", "link add uplink0 type veth peer name lan0", "link set uplink0 up",
                 "link set lan0 up", "address add 198.51.100.1/24 dev uplink0",
                 "route add default via 198.51.100.2 dev uplink0"]:
        run("ip", *line.split())


def state(*folders):
    """What an installation may leave behind."""
    links = json.loads(run("ip", "-json", "-details", "link"))
    return {
        "nftables": run("nft", "--stateless", "list", "ruleset"),
        "links": sorted(link["ifname"] for link in links),
        "xdp": sorted(link["ifname"] for link in links if "xdp" in link),
        "bpf": json.loads(run("bpftool", "-j", "net")),
        "routes": sorted(run("ip", "route").splitlines()),
        "rules": sorted(run("ip", "rule").splitlines()),
        "files": sorted(str(it) for folder in folders for it in folder.rglob("*") if it.is_file()),
        "run": sorted(str(it) for it in pathlib.Path("/run/podgate").rglob("*")),
    }


def make_image(tag, archive, program, command):
    """An image with one static program."""
    buildah = ["buildah", "--storage-driver", "vfs"]
    name = run(*buildah, "from", "scratch").strip()
    run(*buildah, "copy", "--quiet", name, program, f"/bin/{program.name}")
    run(*buildah, "config", "--entrypoint", json.dumps(command), name)
    run(*buildah, "commit", "--quiet", name, tag)
    run(*buildah, "rm", name)
    run(*buildah, "push", "--quiet", tag, f"docker-archive:{archive}:{tag}")


def sandbox_image(work):
    """An image with a program that waits for ever, which sandboxes run."""
    (work / "wait.c").write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    run("gcc", "-static", "-O1", "-o", work / "wait", work / "wait.c")
    make_image(SANDBOX, work / "sandbox.tar", work / "wait", ["/bin/wait"])


def unpack(archive, folder):
    """The image's files, for podgate uninstall outside of a container."""
    folder.mkdir()
    run("tar", "-C", folder, "-xf", archive)
    for layer in json.loads((folder / "manifest.json").read_text())[0]["Layers"]:
        run("tar", "-C", folder, "-xf", folder / layer)
