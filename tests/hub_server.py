"""A stand-in for the hub's HTTP API on this machine: repositories, commits with large files, downloads by revision."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

TOKEN = "hf_of_the_test"


class Hub:
    """Repositories as {name: {revision: {path: content}}}; ``main`` and every commit are revisions."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Hub:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, code: int, content: Any = b"", **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _may_write(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self._answer(401, {"error": "Invalid username or password."})
        return False

    def do_POST(self) -> None:
        body = self._body()
        self.hub.requests.append(f"POST {self.path}")
        if self.path == "/api/validate-yaml":
            text = json.loads(body)["content"]
            yaml.safe_load(text.split("---")[1])
            self._answer(200, {"errors": [], "warnings": []})
            return
        if not self._may_write():
            return
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted.get('organization') or 'user'}/{wanted['name']}"
            if name in self.hub.repositories:
                self._answer(
                    409, {"error": "You already created this model repo", "url": f"{self.hub.endpoint}/{name}"}
                )
                return
            self.hub.repositories[name] = {"main": {}}
            self.hub.private[name] = bool(wanted.get("private")) or wanted.get("visibility") == "private"
            self._answer(200, {"url": f"{self.hub.endpoint}/{name}", "name": name})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/([^/?]+).*", self.path):
            files = [
                {"path": file["path"], "uploadMode": _mode(file["path"]), "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**{key: entry[key] for key in ("oid", "size")}, "actions": {"upload": {"href": self._large(entry)}}}
                for entry in json.loads(body)["objects"]
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/([^/?]+).*", self.path):
            self._commit(match[1], match[2], body)
        else:
            self._answer(404, {"error": "no such address"})

    def _large(self, entry: dict[str, Any]) -> str:
        return f"{self.hub.endpoint}/large/{entry['oid']}"

    def _commit(self, name: str, branch: str, body: bytes) -> None:
        if branch not in self.hub.repositories[name]:
            self._answer(404, {"error": "no such branch"}, X_Error_Code="RevisionNotFound")
            return
        files = dict(self.hub.repositories[name][branch])
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        commit = hashlib.sha1(body).hexdigest()
        self.hub.repositories[name][branch] = self.hub.repositories[name][commit] = files
        self._answer(200, {"commitUrl": f"{self.hub.endpoint}/{name}/commit/{commit}", "commitOid": commit})

    def do_PUT(self) -> None:
        body = self._body()
        oid = self.path.rpartition("/")[2]
        good = hashlib.sha256(body).hexdigest() == oid
        if good:
            self.hub.large[oid] = body
        self._answer(200 if good else 400)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+).*", self.path)
        if match is None:
            self._answer(404, {"error": "no such address"})
            return
        name, revision, path = match.groups()
        revisions = self.hub.repositories.get(name)
        hidden = self.hub.private.get(name) and self.headers.get("Authorization") != f"Bearer {TOKEN}"
        if revisions is None or hidden:
            self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        elif revision not in revisions:
            self._answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        else:
            files = revisions[revision]
            commit = next(key for key, value in revisions.items() if value is files and key != "main")
            if path not in files:
                self._answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            else:
                content = files[path]
                self._answer(200, content, ETag=f'"{hashlib.sha256(content).hexdigest()}"', X_Repo_Commit=commit)


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "regular"
