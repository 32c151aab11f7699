"""The table of kernels and jobs, on a terminal and in docs/check.md."""

import json

from runs import JOBS

BEGIN, END = "<!-- kernels: written by scripts/test-kernels --write-docs -->", "<!-- end of kernels -->"


def skipped(line, reason):
    return {"kernel": line.name, "release": None, "jobs": {}, "skipped": reason}


def has_failed(row):
    return any(job["state"] == "failed" for job in row["jobs"].values())


def table(report):
    """A line for each kernel and job."""
    rows = [("KERNEL", "JOB", "RESULT", "SECONDS", "DETAIL")]
    for row in report:
        if "skipped" in row:
            rows.append((row["kernel"], "-", "skipped", "-", row["skipped"]))
        for name, job in row["jobs"].items():
            rows.append((row["release"], name, job["state"], f"{job['seconds']:.0f}", job["text"]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[4]]).rstrip() for row in rows]
    states = [job["state"] for row in report for job in row["jobs"].values()]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("passed", "failed", "skipped"))
    return "\n".join([*lines, "", counts])


def documented(report):
    """The same for docs/check.md: a line for each kernel, a column for each job."""
    names = [name for name in JOBS if any(name in row["jobs"] for row in report)]
    lines = [f"| kernel | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in report:
        kernel, jobs = row["release"] or row["kernel"], row["jobs"]
        if "refusal" in jobs:
            cells = ["refused" if jobs["refusal"]["state"] == "passed" else "**not refused**", *[""] * (len(names) - 1)]
        else:
            cells = [cell(jobs.get(name)) for name in names]
        lines.append(f"| {kernel} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(job):
    return {None: "not tried", "passed": "yes", "failed": "**no**", "skipped": "–"}[job and job["state"]]


def remembered(path, report, names):
    """The newest results of all runs in the order of `names`; those of another release are forgotten."""
    known = {row["kernel"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    for row in report:
        before = known.get(row["kernel"], {"release": None})
        jobs = before["jobs"] if before["release"] == row["release"] else {}
        known[row["kernel"]] = {**row, "jobs": {**jobs, **row["jobs"]}}
    rows = [known[name] for name in names if name in known]
    path.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def write_docs(path, report):
    before, rest = path.read_text().split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{documented(report)}\n{rest[rest.index(END):]}")
