"""A program in place of llama-server: answers as it does, on loopback, and writes down what it was asked."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

SCRIPT = """#!{python}
import json, os, pathlib, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

argv, here = sys.argv[1:], pathlib.Path(__file__).parent
if "--version" in argv:
    print("{version}", file=sys.stderr)
    sys.exit(0)
if "--help" in argv:
    print("--spec-type none,{kinds}")
    sys.exit(0)
if "-m" not in argv or {dies}:
    print("error: invalid argument: this one.", file=sys.stderr)
    sys.exit(1)
with open(here / "asked.jsonl", "a") as file:
    file.write(json.dumps([os.getpid(), argv]) + "\\n")
chain = int(argv[argv.index("--spec-draft-n-max") + 1]) if "-md" in argv else 0
for flag in ("-m", "-md"):
    if flag in argv and not os.path.isfile(argv[argv.index(flag) + 1]):
        sys.exit(f"no file after {{flag}}")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send({{"status": "ok"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(here / "asked.jsonl", "a") as file:
            file.write(json.dumps([os.getpid(), body]) + "\\n")
        if {refuses}:
            return self.send({{"error": {{"code": 400, "message": "too long"}}}}, 400)
        count = body["n_predict"]
        timings = {{"predicted_n": count, "predicted_ms": 10.0 * (count - 1)}}
        if chain:
            timings |= {{"predicted_ms": 5.0 * (count - 1), "draft_n": 12, "draft_n_accepted": 3}}
        self.send({{"tokens": list(range(count)), "timings": timings}})

    def send(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


HTTPServer(("127.0.0.1", int(argv[argv.index("--port") + 1])), Handler).serve_forever()
"""
QUANTISER = """#!{python}
import pathlib, sys

if {fails}:
    sys.exit("cannot open the model.")
source, file, kind = sys.argv[-3:]
pathlib.Path(file).write_bytes(pathlib.Path(source).read_bytes())
(pathlib.Path(__file__).parent / "quantised").write_text(kind)
"""


def fake_peer(
    directory: Path,
    *,
    version: str = "version: 0.5.0 (build 7, commit abc)",
    kinds: str = "draft-eagle3",
    dies: bool = False,
    refuses: bool = False,
    fails: bool = False,
) -> Path:
    """Write the programs into `directory`/build/bin; `directory`."""
    place = directory / "build" / "bin"
    place.mkdir(parents=True)
    server = SCRIPT.format(python=sys.executable, version=version, kinds=kinds, dies=dies, refuses=refuses)
    for name, text in (
        ("llama-server", server),
        ("llama-quantize", QUANTISER.format(python=sys.executable, fails=fails)),
    ):
        file = place / name
        file.write_text(text, encoding="utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return directory
