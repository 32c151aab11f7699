"""The programs under test."""

import json, pathlib, subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Programs:
    """Those that the tests build, unless others are given."""

    @staticmethod
    def add_arguments(parser):
        parser.add_argument("--podgate", type=pathlib.Path, metavar="FILE", help="built already, with podgate-cni beside it")
        parser.add_argument("--arm64", type=pathlib.Path, metavar="FOLDER", help="programs that scripts/cross built")
        parser.add_argument("--end-to-end", type=pathlib.Path, metavar="FILE", help="the test program, built already")

    def __init__(self, arguments, say):
        self.folder = arguments.podgate and arguments.podgate.resolve().parent
        self.arm64, self.end_to_end = arguments.arm64, arguments.end_to_end
        if not self.folder:
            self.build(say)

    def build(self, say):
        say("building the programs and the end-to-end tests")
        command = ["cargo", "test", "--workspace", "--test", "end_to_end", "--test", "plugin", "--no-run",
                   "--message-format", "json-render-diagnostics"]
        built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if built.returncode:
            raise SystemExit(2)
        for line in built.stdout.splitlines():
            message = json.loads(line)
            executable = message.get("executable") or ""
            if executable.endswith("/podgate"):
                self.folder = pathlib.Path(executable).parent
            if executable and message["target"]["name"] == "end_to_end":
                self.end_to_end = pathlib.Path(executable)

    def of(self, architecture):
        """The files by their names in a guest, or nothing if there are none for its architecture."""
        folder = self.folder if architecture == "amd64" else self.arm64
        if not folder:
            return {}
        files = {name: folder / name for name in ("podgate", "podgate-cni")}
        if self.end_to_end and architecture == "amd64":
            files["end-to-end"] = self.end_to_end
        return files
