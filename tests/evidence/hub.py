"""A hub on loopback: what lies under models/owner/name and datasets/owner/name, given out as the real one does."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "c" * 40


class Hub:
    """Serves `root` while it is entered; `asked` holds every file that was downloaded."""

    def __init__(self, root):
        self.root, self.asked = root, []

    def __enter__(self):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                self.answer(body=True)

            def answer(self, *, body):
                parts = unquote(self.path.partition("?")[0]).strip("/").split("/")
                if parts[0] == "api":
                    return self.described("/".join(parts[1:4]), tree="tree" in parts[4:])
                kind = parts.pop(0) if parts[0] == "datasets" else "models"
                owner, name, _, _, *file = parts
                path = hub.root / kind / owner / name / "/".join(file)
                if not path.is_file():
                    return self.missing("EntryNotFound" if path.parents[len(file) - 1].is_dir() else "RepoNotFound")
                content = path.read_bytes()
                if body:
                    hub.asked.append(f"{owner}/{name}/{'/'.join(file)}")
                etag = hashlib.sha256(content).hexdigest()
                self.reply(200, content if body else b"", len(content), {"ETag": f'"{etag}"'})
                return None

            def described(self, place, *, tree):
                folder = hub.root / place
                if not folder.is_dir():
                    return self.missing("RepoNotFound")
                files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
                named = place.partition("/")[2]
                told = {"id": named, "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "likes": 0}
                told["siblings"] = [{"rfilename": file} for file in files]
                sizes = {file: (folder / file).stat().st_size for file in files}
                listed = [{"type": "file", "path": f, "size": size, "oid": "0" * 40} for f, size in sizes.items()]
                content = json.dumps(listed if tree else told).encode()
                self.reply(200, content, len(content), {"Content-Type": "application/json"})
                return None

            def missing(self, code):
                self.reply(404, b"", 0, {"X-Error-Code": code})

            def reply(self, status, content, length, headers):
                self.send_response(status)
                for key, value in {"X-Repo-Commit": COMMIT, "Content-Length": str(length), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
