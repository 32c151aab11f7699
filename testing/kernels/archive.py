"""Kernels of Debian's archives, by a private apt folder: the machine's own sources stay as they are."""

import dataclasses, functools, os, re, subprocess, time

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEBIAN, SECURITY = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"
SUITES = [(DEBIAN, "bookworm"), (DEBIAN, "bookworm-backports"), (SECURITY, "bookworm-security"),
          (DEBIAN, "trixie"), (DEBIAN, "trixie-backports"), (SECURITY, "trixie-security")]
# Seconds.
LISTS_MAX_AGE = 24 * 3600

CONFIGURATION = """
Dir::State "{folder}/state";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::parts "/dev/null";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Architectures {{ "amd64"; "arm64"; }};
"""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel to boot: `release` is what uname says, `name` what tables call it."""
    name: str
    release: str
    architecture: str


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of kernels: the newest release that the pattern matches."""
    name: str
    pattern: str
    architecture: str = "amd64"


LINES = [
    Line("6.1", r"6\.1\.0-\d+-amd64"),
    Line("6.12-deb12", r"6\.12\.\d+\+deb12-amd64"),
    Line("6.12", r"6\.12\.\d+\+deb13-amd64"),
    Line("6.12-cloud", r"6\.12\.\d+\+deb13-cloud-amd64"),
    # Of 6.16 and 6.17 the releases with a fault that AF_XDP triggers: the node would panic.
    Line("6.16.12", r"6\.16\.12\+deb13-amd64"),
    Line("6.17.8", r"6\.17\.8\+deb13-amd64"),
    Line("6.18", r"6\.18\.\d+\+deb13-amd64"),
    Line("7", r"7\.\d+\.\d+\+deb13-amd64"),
    Line("6.12-arm64", r"6\.12\.\d+\+deb13-arm64", "arm64"),
]


class Archive:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}

    def update(self):
        """Fetches the lists of packages, unless they are of today."""
        stamp = self.folder / "updated"
        sources = "".join(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for mirror, suite in SUITES)
        listed = self.folder / "sources.list"
        is_new = stamp.exists() and time.time() - stamp.stat().st_mtime < LISTS_MAX_AGE
        if is_new and listed.read_text() == sources:
            return
        for part in ["state", "lists/partial", "cache/archives/partial"]:
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "apt.conf").write_text(CONFIGURATION.format(folder=self.folder))
        (self.folder / "status").touch()
        listed.write_text(sources)
        self.apt("apt-get", "-qq", "update")
        stamp.touch()

    def apt(self, *command, **options):
        return subprocess.run(command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True, **options).stdout

    @functools.cached_property
    def packages(self):
        names = self.apt("apt-cache", "pkgnames", "linux-").split()
        return frozenset(names)

    def newest(self, line):
        """The newest kernel of a line whose modules the archive has, or nothing."""
        releases = {match[1] for name in self.packages
                    if (match := re.fullmatch(rf"linux-image-({line.pattern})(-unsigned)?", name))}
        for release in sorted(releases, key=version, reverse=True):
            if self.parts(release, line.architecture):
                return Kernel(line.name, release, line.architecture)
        return None

    def parts(self, release, architecture):
        """The packages that a kernel consists of, or nothing where some are gone."""
        split = [f"linux-{part}-{release}" for part in ("binary", "modules", "base")]
        whole = [[f"linux-image-{release}"], [f"linux-image-{release}-unsigned"]]
        # The image is split where there are modules, and then a name without files.
        for parts in [split, *([] if split[0] in self.packages else whole)]:
            if self.packages.issuperset(parts):
                return [f"{part}:{architecture}" for part in parts]
        return []

    def fetch(self, packages, folder):
        """Unpacks packages (`name:architecture`) into a folder, without installing them."""
        folder.mkdir(parents=True)
        self.apt("apt-get", "-qq", "--option", "APT::Sandbox::User=root", "download", *packages, cwd=folder)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
            package.unlink()


def version(release):
    return [int(number) for number in re.findall(r"\d+", release)]
