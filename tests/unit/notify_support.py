# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server that takes notifications."""

from __future__ import annotations

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.requests.append((self.path, dict(self.headers), body))
        status, answer = server.answers.pop(0) if server.answers else (200, b"ok")
        if status == "slow":  # a byte now and then, which no timeout of a socket notices
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                try:
                    self.wfile.write(b"x")
                    self.wfile.flush()
                except OSError:
                    return
                time.sleep(0.2)
            return
        self.send_response(status)
        if status == 302:
            self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments):
        """Print nothing."""


@contextlib.contextmanager
def receive():
    """Yield a server. `requests` are what it got, `answers` what it says to the next ones."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as httpd:
        httpd.requests, httpd.answers, httpd.daemon_threads = [], [], True
        httpd.block_on_close = False
        httpd.url = f"http://127.0.0.1:{httpd.server_port}/hook/TOKEN123?x=1"
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield httpd
        httpd.shutdown()
