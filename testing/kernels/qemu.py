"""A guest: a kernel under QEMU that runs one job and powers off."""

import os, pathlib, platform, shutil, subprocess, tempfile, threading

CONSOLE = {"amd64": "ttyS0", "arm64": "ttyAMA0"}
# Half the time of a guest that is emulated.
FASTER = "mitigations=off init_on_alloc=0 kpti=off"
# An emulated timer is late on a busy machine, which ends the boot where it is checked.
LATE = "no_timer_check"


def has_kvm(architecture):
    """Whether the processor itself runs guests. A device alone does not say it: nested and paravirtual
    hosts have one that runs only kernels made for it."""
    native = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    return (native == architecture and os.access("/dev/kvm", os.W_OK)
            and (architecture == "arm64" or "vmx" in flags or "svm" in flags))


def command_of(kernel, files, root, payload, images, memory, devices, append):
    kvm = has_kvm(kernel.architecture)
    accelerator = ["-accel", "kvm"] if kvm else ["-accel", "tcg,thread=multi"]
    if kernel.architecture == "amd64":
        machine = ["qemu-system-x86_64", "-M", "q35", "-cpu", "host" if kvm else "max,la57=off"]
    else:
        machine = ["qemu-system-aarch64", "-M", "virt,gic-version=3", "-cpu", "host" if kvm else "cortex-a72"]
    drives = []
    for image, options in [(root, "snapshot=on"), (files / "modules.img", "readonly=on"), (payload, "readonly=on")]:
        drives += ["-drive", f"file={images.inside(image)},format=raw,if=virtio,{options}"]
    command_line = f"console={CONSOLE[kernel.architecture]} panic=-1 quiet net.ifnames=0 nokaslr {FASTER} {LATE} {append}"
    return [*machine, *accelerator, "-smp", "2", "-m", str(memory), "-nodefaults", "-no-reboot",
            "-display", "none", "-serial", "stdio", "-kernel", images.inside(files / "vmlinuz"),
            "-initrd", images.inside(files / "initrd"), "-append", command_line.strip(), *drives, *devices]


def boot(kernel, archive, images, payload, seconds, memory=3072, devices=(), append=""):
    """Boots a guest with the files of `payload` as /host, runs its `job`, and yields the console's lines.
    It ends when the guest does, or after `seconds`."""
    files, root = images.kernel(kernel, archive), images.root(kernel.architecture)
    with tempfile.TemporaryDirectory(prefix="run.", dir=images.folder) as work:
        staged, image = pathlib.Path(work) / "host", pathlib.Path(work) / "host.img"
        staged.mkdir()
        for name, source in payload.items():
            shutil.copy(source, staged / name)
        size = sum(it.stat().st_size for it in staged.rglob("*")) // 1_000_000
        images.make_file_system(staged, image, f"{size * 11 // 10 + 32}M")
        command = command_of(kernel, files, root, image, images, memory, devices, append)
        command = [str(part) for part in images.tools_command(*command)]
        child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "nice", "-n", "10", *command], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        timer = threading.Timer(seconds, child.kill)
        timer.start()
        try:
            for line in child.stdout:
                yield line.rstrip("\r\n")
        finally:
            timer.cancel()
            child.kill()
            child.wait()
