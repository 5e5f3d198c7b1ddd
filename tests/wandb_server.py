"""A server on loopback that takes what wandb sends, as far as wandb asks: what arrived is kept.

It is no W&B: what the real one makes of a second upload, or how it draws, cannot be seen here.
"""

import gzip
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "a" * 40
OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")
ENTITY = "someone"


@dataclass
class Kept:
    """One run as the server has it."""

    upserts: list = field(default_factory=list)
    # File -> line number -> text: a line that is sent again replaces the first one.
    lines: dict = field(default_factory=dict)
    exit_code: int | None = None
    preempting: bool = False
    artifacts: list = field(default_factory=list)

    @property
    def config(self):
        known = [each["config"] for each in self.upserts if each.get("config")]
        return {name: each["value"] for name, each in json.loads(known[-1]).items()}

    @property
    def history(self):
        lines = self.lines.get("wandb-history.jsonl", {})
        return [json.loads(lines[number]) for number in sorted(lines)]

    @property
    def summary(self):
        lines = self.lines.get("wandb-summary.json", {})
        return json.loads(lines[max(lines)]) if lines else {}

    @property
    def state(self):
        if self.exit_code is None:
            return "running"
        return "finished" if not self.exit_code else "preempted" if self.preempting else "failed"


class Server:
    """What was asked, and what is known."""

    def __init__(self):
        self.runs, self.asked = {}, []
        self.lock = threading.Lock()

    def answer(self, path, body):
        with self.lock:
            if path.endswith("/file_stream"):
                return self._stream(path.split("/")[-2], body)
            name = OPERATION.search(body["query"])[1]
            self.asked.append(name)
            found = getattr(self, f"_{name}", None)
            return {"data": found(body.get("variables") or {}) if found else {}}

    def _stream(self, run, body):
        kept = self.runs.setdefault(run, Kept())
        for name, part in (body.get("files") or {}).items():
            lines = kept.lines.setdefault(name, {})
            lines |= {part["offset"] + at: line for at, line in enumerate(part["content"])}
        if body.get("complete"):
            kept.exit_code = body["exitcode"]
        kept.preempting |= bool(body.get("preempting"))
        return {}

    def _UpsertBucket(self, variables):  # noqa: N802  # the name that is asked for
        run = variables["name"]
        new = run not in self.runs
        kept = self.runs.setdefault(run, Kept())
        kept.upserts.append(variables)
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": ENTITY}}
        bucket = {
            "id": f"id-{run}",
            "name": run,
            "displayName": variables["displayName"],
            "description": None,
            "config": json.dumps({}),
            "sweepName": variables.get("sweep"),
            "project": project,
            "historyLineCount": len(kept.history),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": new}}

    def _RunResumeStatus(self, variables):  # noqa: N802  # likewise
        kept = self.runs.get(variables["name"])
        if kept is None or not kept.upserts:
            return {
                "model": {
                    "id": "p",
                    "name": "p",
                    "entity": {"id": "e", "name": ENTITY},
                    "bucket": None,
                }
            }
        history = kept.history
        bucket = {
            "id": f"id-{variables['name']}",
            "name": variables["name"],
            "summaryMetrics": json.dumps(kept.summary),
            "displayName": None,
            "logLineCount": 0,
            "historyLineCount": len(history),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in history[-1:]]),
            "eventsTail": "[]",
            "config": kept.upserts[-1]["config"],
            "tags": [],
            # Without its start time the run counts as one that never began.
            "wandbConfig": json.dumps({"t": 1}),
        }
        return {
            "model": {
                "id": "p",
                "name": "p",
                "entity": {"id": "e", "name": ENTITY},
                "bucket": bucket,
            }
        }

    def _ServerFeaturesQuery(self, variables):  # noqa: N802  # likewise
        return {"serverInfo": {"features": []}}

    def _Viewer(self, variables):  # noqa: N802  # likewise
        teams = {"edges": [{"node": {"name": ENTITY}}]}
        return {
            "viewer": {
                "id": "v",
                "entity": ENTITY,
                "username": ENTITY,
                "flags": "{}",
                "teams": teams,
            }
        }

    def _Runs(self, variables):  # noqa: N802  # likewise
        edges = [{"node": self._node(name), "cursor": name} for name in self.runs]
        pages = {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}
        project = {"internalId": "p", "runCount": len(edges), "readOnly": False, "runs": pages}
        return {"project": project}

    def _node(self, name):
        kept = self.runs[name]
        first = kept.upserts[0]
        return {
            "projectId": 1,
            "id": f"id-{name}",
            "name": name,
            "displayName": first["displayName"],
            "tags": first["tags"] or [],
            "sweepName": None,
            "state": kept.state,
            "config": json.dumps({key: {"value": value} for key, value in kept.config.items()}),
            "group": first["groupName"],
            "jobType": first["jobType"],
            "commit": None,
            "readOnly": False,
            "createdAt": "2026-01-01T00:00:00",
            "heartbeatAt": "2026-01-01T00:00:00",
            "description": None,
            "notes": None,
            "systemMetrics": "{}",
            "summaryMetrics": json.dumps(kept.summary),
            "historyLineCount": len(kept.history),
            "user": {"name": ENTITY, "username": ENTITY},
            "historyKeys": None,
        }

    def _CreateArtifact(self, variables):  # noqa: N802  # likewise
        given = variables["input"]
        self.runs[given["runName"]].artifacts.append(given["artifactCollectionName"])
        latest = {"latestArtifact": {"id": "a"}}
        made = {"id": "a", "state": "COMMITTED", "artifactSequence": latest}
        return {"createArtifact": {"artifact": made}}

    _GetDefaultEntity = _Viewer

    def _ArtifactType(self, variables):  # noqa: N802  # likewise
        return {"project": {"artifact": None}}

    def _CreateRunFiles(self, variables):  # noqa: N802  # likewise
        files = [{"name": name, "uploadUrl": f"{self.url}/put"} for name in variables["files"]]
        return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}


@contextmanager
def serving():
    """A Server that answers at its ``url`` until the end."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def _any(self):
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            asked = self.path.endswith(("/graphql", "/file_stream"))
            out = server.answer(self.path, json.loads(data)) if asked else {}
            said = json.dumps(out).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = do_PUT = _any  # noqa: N815  # the names that are called

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
