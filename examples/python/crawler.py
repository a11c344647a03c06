"""Crawls a web site with several tasks, and prints how many pages link to each page.

The tasks share a queue of pages, the pages that were seen, and counters. A page is marked as seen
and queued in one transaction. If a task dies, another one gets the page that it worked on. Without
a URL, the program serves a small site itself.

    python examples/python/crawler.py [URL]
"""

import queue
import re
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urldefrag, urljoin
from urllib.request import urlopen

import ciel

TASKS = 2
PAGES = 40
MOST = 5


def links_of(url: str) -> set[str]:
    """Return the links of a page to its own site."""
    with urlopen(url, timeout=30) as response:
        text = response.read().decode(errors="replace")
    site = urljoin(url, "/")
    links = {urldefrag(urljoin(url, link)).url for link in re.findall(r'href="(.*?)"', text)}
    return {link for link in links if link.startswith(site)}


def crawl() -> int:
    """Crawl pages of the queue until none is left; return how many this task has crawled."""
    seen, counts = ciel.kv("seen"), ciel.kv("links")
    pages = seen.queue("pages")
    crawled = 0
    while len(pages):
        try:
            page = pages.claim(timeout_s=0.1)
        except queue.Empty:
            continue  # other tasks work on the last pages, and may find more
        with page:
            links = links_of(page.value)
            for link in links:
                counts.increment(link)

            def mark(t: Any, links: set[str] = links) -> None:
                new = [link for link in sorted(links) if link not in t]
                for link in new:
                    t[link] = True
                t.put_many(pages, new)

            seen.transact(mark)
            crawled += 1
    return crawled


class Site(BaseHTTPRequestHandler):
    """A small site: page N links to the first page, and to pages 2 N + 1 and 2 N + 2."""

    def do_GET(self) -> None:  # the library names it
        """Send a page."""
        number = int(self.path.strip("/") or 0)
        links = [n for n in (0, 2 * number + 1, 2 * number + 2) if n < PAGES]
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(f'<a href="/{n}">page {n}</a>' for n in links).encode())

    def log_message(self, *args: object) -> None:
        """Print nothing."""


def main() -> None:
    """Crawl on a new cluster with a key-value base."""
    with ExitStack() as stack:
        start = sys.argv[1] if len(sys.argv) > 1 else ""
        if not start:
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Site))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            start = f"http://127.0.0.1:{server.server_port}/0"
        cluster = stack.enter_context(ciel.LocalCluster(slots=TASKS, kv=True))
        client = stack.enter_context(ciel.Client(cluster))
        seen = client.kv("seen")
        seen.put(start, True)
        seen.queue("pages").put(start)
        crawled = sum(client.gather([client.submit(crawl) for _ in range(TASKS)]))
        links = sorted(client.kv("links").scan(), key=lambda row: (-row[1], row[0]))
        print(f"{crawled} pages")
        for url, count in links[:MOST]:
            print(f"{count:6} {url[url.index('/', 8) :]}")


if __name__ == "__main__":
    main()
