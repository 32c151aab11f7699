"""Runs the jobs whose names are arguments, and writes one line on the console for each."""

import json, os, subprocess, sys, time

sys.dont_write_bytecode = True
from cluster import Failed
from jobs import JOBS, Skipped
from nic import nic

# What a kernel says when it found a fault in itself.
FAULTS = ("WARNING:", "BUG:", "Oops", "general protection", "refcount_t", "hung task", "soft lockup")


def kernel_faults():
    """The kernel's faults since the last call."""
    log = subprocess.run(["dmesg", "--read-clear"], capture_output=True, text=True, errors="replace").stdout
    return [line.split("] ", 1)[-1].strip() for line in log.splitlines() if any(fault in line for fault in FAULTS)]


def result(name, state, began, text):
    seconds = round(time.monotonic() - began, 1)
    line = json.dumps({"job": name, "state": state, "seconds": seconds, "text": " ".join(str(text or "").split())})
    # A line of its own, also where the kernel has begun one.
    print(f"\nresult: {line}", flush=True)


def job(name):
    """Runs a job; one of NICs has its driver, MTU and mode in its name."""
    if name.startswith("nic:"):
        _, driver, mtu, mode = name.split(":")
        return nic(driver, int(mtu), mode == "offload")
    return JOBS[name]()


def run(name):
    began = time.monotonic()
    print(f"begins: {name}", flush=True)
    try:
        text = job(name)
        faults = kernel_faults()
        if faults:
            return result(name, "failed", began, f"the kernel says: {faults[0]}")
        result(name, "passed", began, text)
    except Skipped as reason:
        result(name, "skipped", began, reason)
    except Exception as error:
        # What a job saw in place of what it must; of anything else its kind says more.
        seen = str(error) if isinstance(error, (Failed, AssertionError)) else repr(error)
        result(name, "failed", began, "; the kernel says: ".join([seen, *kernel_faults()[:1]]))


def main(names):
    for place in ("/usr/local/bin/podgate", "/opt/cni/bin/podgate-cni"):
        os.symlink(f"/host/{os.path.basename(place)}", place)
    kernel_faults()
    for name in names:
        run(name)


main(sys.argv[1:])
