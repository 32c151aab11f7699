"""Runs jobs in guests."""

import json, pathlib, tempfile, time

import qemu

HERE = pathlib.Path(__file__).resolve().parent

JOBS = ["check", "connectivity", "connectivity-two-nodes", "one-node-offload", "one-node-af-xdp", "nftables", "vxlan-offload",
        "vxlan-af-xdp", "routed-offload", "routed-af-xdp", "wireguard", "end-to-end"]
# Tests of what depends on the kernel: programs, checksums, namespaces, raw sockets.
END_TO_END = ["policies::", "offload::uplink::", "offload::checksums::", "mtu::", "rejects::a_denial"]
# Seconds that a job may take in an emulated guest on a busy machine.
JOB_SECONDS, END_TO_END_SECONDS = 900, 1800
# Boots of a guest that reaches no job: emulated timers fail on busy machines.
MAX_BOOTS = 3


def payload(programs, kernel, work, script):
    """What is /host in the guest."""
    files = programs.of(kernel.architecture)
    (work / "built").write_text(str(programs.folder))
    (work / "end-to-end-tests").write_text("\n".join(END_TO_END))
    (work / "job").write_text(script)
    (work / "job").chmod(0o755)
    own = (HERE / "guest").glob("*.py")
    return {**files, **{file.name: file for file in [*own, work / "built", work / "end-to-end-tests", work / "job"]}}


def run_jobs(kernel, jobs, programs, archive, images, say, name=None, devices=()):
    """Runs the jobs on a kernel, in as many boots as panics ask for: a result each. The console is kept as a log."""
    name = name or kernel.name
    logs = images.folder / "logs"
    logs.mkdir(exist_ok=True)
    results, remaining, boots = {}, list(jobs), 0

    def finish(job, result):
        results[job] = result
        remaining.remove(job)
        say(f"{name} {job}: {result['state']} in {result['seconds']} s {result['text']}".rstrip())

    with open(logs / f"{name}.log", "w") as log, tempfile.TemporaryDirectory(prefix="run.", dir=images.folder) as work:
        while remaining:
            script = f"#!/bin/sh\nexec python3 /host/main.py {' '.join(remaining)}\n"
            files = payload(programs, kernel, pathlib.Path(work), script)
            seconds = JOB_SECONDS * len(remaining) + (END_TO_END_SECONDS if "end-to-end" in remaining else 0)
            began, reason, has_begun = time.monotonic(), "the guest ended", False
            for line in qemu.boot(kernel, archive, images, files, seconds, devices=devices):
                log.write(line + "\n")
                log.flush()
                if "Kernel panic" in line:
                    reason = line.split("] ", 1)[-1].strip()
                if line.startswith("begins: "):
                    began, has_begun = time.monotonic(), True
                if line.startswith("result: "):
                    result = json.loads(line.removeprefix("result: "))
                    finish(result.pop("job"), result)
            boots = 0 if has_begun else boots + 1
            if remaining and (has_begun or boots == MAX_BOOTS):
                finish(remaining[0], {"state": "failed", "seconds": round(time.monotonic() - began, 1), "text": reason})
    return results
