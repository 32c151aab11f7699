"""What guests are booted from: tools, root file systems, modules and initial RAM disks, made once and kept."""

import contextlib, fcntl, hashlib, os, pathlib, shutil, subprocess, sys

from archive import DEBIAN

HERE = pathlib.Path(__file__).resolve().parent

# Debian 13's, for Debian 12's QEMU knows no igb. All that makes images runs in it too, but mmdebstrap.
TOOLS = ("qemu-system-x86 qemu-system-arm ipxe-qemu qemu-utils cpio e2fsprogs kmod xz-utils zstd").split()
GUEST = ("bash bpftool containernetworking-plugins ethtool iperf3 iproute2 iptables iputils-ping jq kmod libelf1t64 "
         "lksctp-tools mount netcat-openbsd nftables procps python3 redis-server redis-tools socat tcpdump "
         "wireguard-tools zlib1g").split()
SUITE = "trixie"

# The folders of modules that networking needs; a whole kernel has 400 MB of them.
MODULE_FOLDERS = ("arch crypto lib net drivers/net drivers/virtio drivers/block drivers/ptp drivers/pps drivers/i2c "
                  "drivers/dca drivers/char/hw_random drivers/crypto fs").split()
NOT_NEEDED = "drivers/net/wireless drivers/net/ethernet/mellanox net/bluetooth net/mac80211 net/wireless".split()
BOOT_MODULES = "virtio_pci virtio_blk virtio_mmio ext4".split()


class Images:
    """Everything below one folder, which several runs may share."""

    @staticmethod
    def add_arguments(parser):
        parser.add_argument("--cache", type=lambda text: pathlib.Path(text).absolute(), metavar="FOLDER", help="where images and logs are kept",
                            default=os.environ.get("PODGATE_KERNELS", "/var/cache/podgate-kernels"))

    def __init__(self, folder, say):
        self.folder, self.say = folder, say
        folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def making(self, target):
        """Yields a place that becomes `target` when all of it is made, or nothing where it is there."""
        with open(self.folder / f".lock-{target.name}", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if target.exists():
                yield None
                return
            place = target.with_name(f".new-{target.name}")
            remove(place)
            try:
                yield place
                place.rename(target)
            finally:
                remove(place)

    def tools_command(self, *command):
        """A command that runs in the tools' root, in a mount namespace of its own; the cache folder is /c there."""
        tools = self.tools()
        script = ('mount --bind "$1" "$0/c" && mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && '
                  'tools=$0 && shift && exec chroot "$tools" "$@"')
        return ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
                "sh", "-c", script, tools, self.folder, *command]

    def in_tools(self, *command, **options):
        command = [str(part) for part in self.tools_command(*command)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout

    def inside(self, path):
        return pathlib.Path("/c") / path.relative_to(self.folder)

    def tools(self):
        target = self.folder / keyed("tools", SUITE, TOOLS)
        if not target.exists():
            with self.making(target) as place:
                if place:
                    self.say("making the folder of tools (once)")
                    bootstrap(TOOLS, place)
                    (place / "c").mkdir()
        return target

    def root(self, architecture):
        """The root file system of guests of an architecture."""
        init = (HERE / "guest/init").read_text()
        target = self.folder / (keyed(f"root-{architecture}", SUITE, init, GUEST) + ".img")
        with self.making(target) as place:
            if place:
                for old in self.folder.glob(f"root-{architecture}-*.img"):
                    old.unlink()
                self.say(f"making the root file system of {architecture} guests (once)")
                folder = self.folder / f".root-{architecture}"
                remove(folder)
                if architecture == "amd64":
                    bootstrap(GUEST, folder)
                else:
                    extract(GUEST, folder, architecture)
                for name in "host lib/modules usr/local/bin usr/local/sbin opt/cni/bin etc/cni/net.d var/lib".split():
                    (folder / name).mkdir(parents=True, exist_ok=True)
                for plugin in (folder / "usr/lib/cni").iterdir():
                    shutil.copy(plugin, folder / "opt/cni/bin")
                start = folder / "usr/sbin/guest-init"
                start.write_text(init)
                start.chmod(0o755)
                self.make_file_system(folder, place, "2G")
                remove(folder)
        return target

    def make_file_system(self, folder, image, size):
        """An ext4 image that Linux 5.10 mounts too."""
        self.in_tools("mke2fs", "-q", "-t", "ext4", "-O", "^metadata_csum_seed,^orphan_file", "-m", "0",
                      "-d", self.inside(folder), self.inside(image), size)

    def kernel(self, kernel, archive):
        """A kernel's folder with `vmlinuz`, `initrd` and `modules.img`."""
        target = self.folder / "kernels" / kernel.release
        target.parent.mkdir(exist_ok=True)
        with self.making(target) as place:
            if place:
                self.say(f"fetching {kernel.release} (once)")
                place.mkdir()
                unpacked = place / "unpacked"
                packages = [*archive.parts(kernel.release, kernel.architecture), f"busybox-static:{kernel.architecture}"]
                archive.fetch(packages, unpacked)
                self.make_kernel(kernel.release, unpacked, place)
                remove(unpacked)
        return target

    def make_kernel(self, release, unpacked, place):
        image = next(it for name in [f"boot/vmlinuz-{release}", f"usr/lib/modules/{release}/vmlinuz"]
                     if (it := unpacked / name).exists())
        shutil.copy(image, place / "vmlinuz")
        modules = unpacked / "lib/modules"
        if not modules.exists():
            modules.parent.mkdir(exist_ok=True)
            (unpacked / "usr/lib/modules").rename(modules)
        prune(modules / release)
        self.in_tools("depmod", "-b", self.inside(unpacked), release)
        self.make_initrd(release, unpacked, place / "initrd")
        self.make_file_system(modules / release, place / "modules.img", "400M")

    def make_initrd(self, release, unpacked, out):
        """Loads the few modules that mount the root file system, and goes there."""
        folder = unpacked / "initrd"
        for name in ["bin", "mod", "proc", "sys", "dev", "root"]:
            (folder / name).mkdir(parents=True)
        shutil.copy(next(unpacked.glob("**/bin/busybox")), folder / "bin")
        shutil.copy(HERE / "guest/initrd-init", folder / "init")
        self.in_tools("sh", "-c", """
            set -e
            base=$1 release=$2 folder=$3 out=$4
            shift 4
            number=10
            for module; do modprobe -d "$base" -S "$release" --show-depends "$module" || true; done |
                sed -n 's/^insmod \\([^ ]*\\).*/\\1/p' | awk '!seen[$0]++' |
                while read -r file; do
                    to=$folder/mod/$number-$(basename "$file")
                    case $file in
                    *.xz) xz -dc "$file" >"${to%.xz}" ;;
                    *.zst) zstd -qdc "$file" >"${to%.zst}" ;;
                    *) cp "$file" "$to" ;;
                    esac
                    number=$((number + 1))
                done
            cd "$folder"
            find . | cpio -o -H newc --quiet | gzip -1 >"$out"
        """, "sh", self.inside(unpacked), release, self.inside(folder), self.inside(out), *BOOT_MODULES,
            stderr=subprocess.DEVNULL)


def keyed(name, *parts):
    """A name that is another when what it is made from is another."""
    return f"{name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:10]}"


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def mmdebstrap(variant, packages, folder, *options):
    done = subprocess.run(
        ["mmdebstrap", "--quiet", f"--variant={variant}", f"--include={','.join(packages)}",
         '--aptopt=Acquire::Languages "none"', '--aptopt=Acquire::Retries "3"',
         "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
         "--dpkgopt=path-exclude=/usr/share/locale/*", *options, SUITE, folder, DEBIAN],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        print(done.stdout[-4000:], file=sys.stderr)
    done.check_returncode()


def bootstrap(packages, folder):
    mmdebstrap("minbase", packages, folder)


def extract(packages, folder, architecture):
    """Unpacks without running what this machine cannot run: no package's scripts, so some files by hand."""
    mmdebstrap("extract", ["base-files", "base-passwd", "coreutils", "util-linux", "sed", "grep", *packages], folder,
               f"--architectures={architecture}")
    for name in ["passwd", "group"]:
        shutil.copy(folder / f"usr/share/base-passwd/{name}.master", folder / f"etc/{name}")
    if not (folder / "bin/sh").exists():
        (folder / "bin/sh").symlink_to("bash")
    for name, program in ALTERNATIVES.items():
        link = folder / "usr" / name
        if not link.exists():
            link.symlink_to(program)


# What packages' scripts would have linked.
ALTERNATIVES = {"bin/awk": "mawk", "bin/nc": "nc.openbsd", "sbin/iptables": "iptables-nft",
                "sbin/iptables-save": "iptables-nft-save", "sbin/ip6tables": "ip6tables-nft"}


def prune(modules):
    """Removes the modules that no test loads."""
    kernel = modules / "kernel"
    wanted = [kernel / folder for folder in MODULE_FOLDERS]
    unwanted = [kernel / folder for folder in NOT_NEEDED]
    for module in kernel.rglob("*.ko*"):
        parents = set(module.parents)
        if parents.isdisjoint(wanted) or not parents.isdisjoint(unwanted):
            module.unlink()
    for name in ["build", "source"]:
        (modules / name).unlink(missing_ok=True)
