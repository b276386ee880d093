"""`tacit serve` under load: 50 requests at a time, then random ones; `python -m benchmarks.serving RUN`."""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

AT_ONCE = 50


async def asked(host, port, requests, at_once=AT_ONCE):
    """[(status, seconds)] of raw requests, each connection kept open for as long as the server does."""
    queue, out = list(reversed(requests)), []

    async def worker():
        reader = writer = None
        while queue:
            request = queue.pop()
            began = time.perf_counter()
            for _ in range(2):  # once more where the server has closed a connection that was kept
                if writer is None:
                    reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    break
                except (asyncio.IncompleteReadError, ConnectionError):
                    writer.close()
                    reader = writer = None
            else:
                out.append((0, time.perf_counter() - began))
                continue
            length = re.search(rb"content-length: (\d+)", head, re.I)
            await reader.readexactly(int(length[1]) if length else 0)
            out.append((int(head.split(b" ", 2)[1]), time.perf_counter() - began))
            if b"connection: close" in head.lower():
                writer.close()
                reader = writer = None
        if writer is not None:
            writer.close()

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return out


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def post(path, body):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    return head.encode() + b"\r\n" + body


def anything(rng, users, items):
    """A request that is right, nearly right, or nothing of the kind."""
    odd = ["", "0", "-1", "é", "\x00", "../..", "' OR 1", "💥", "x" * 3000, "null", "1e9", "%00", "\ud800"]
    user = rng.choice([rng.choice(users), rng.choice(odd)])
    some = [rng.choice([rng.choice(items), rng.choice(odd), 7, None, [], {}]) for _ in range(rng.randrange(4))]
    k = rng.choice([1, 5, 10, 1000, 0, -3, 10**30, "7", 2.5, None, True])
    path = quote(str(user).encode("utf-8", "replace"), safe="")
    body = {rng.choice(["user", "items", "k", "exclude", "only", "why", "other"]): rng.choice([user, some, k, True])}
    body |= {"items": some} if rng.random() < 0.5 else {"user": user}
    broken = json.dumps(body).encode()[: rng.randrange(1, 30)] + rng.randbytes(rng.randrange(3))
    return rng.choice(
        [
            get(f"/recommend/{path}?k={quote(str(k))}&why={rng.choice(['true', '1', 'x', ''])}"),
            get(f"/{path}"),
            post("/recommend", body),
            post(
                "/recommend", {"items": [rng.choice(items) for _ in range(rng.randrange(1, 30))], "k": 3, "why": True}
            ),
            post("/batch", {"requests": [body] * rng.randrange(4)}),
            post("/batch", broken),
            post("/recommend", broken),
            get(rng.choice(["/health", "/metrics", "/docs", "/openapi.json"])),
        ]
    )


def started(run):
    """(process, port) of a service for a run."""
    words = [sys.executable, "-m", "tacit", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    port = int(re.search(r":(\d+)/", process.stdout.readline())[1])
    return process, port


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--random", type=int, default=10_000)
    given = parser.parse_args()
    import torch

    from tacit.runs.model import load

    model = load(given.run)
    rng = random.Random(0)
    users = [rng.choice(model.users) for _ in range(given.requests)]
    model.recommend(users[0])
    torch.set_num_threads(1)
    began, worked = time.perf_counter(), time.process_time()
    for user in users[:400]:
        model.recommend(user)
    own, cpu = (time.perf_counter() - began) / 400, (time.process_time() - worked) / 400
    print(f"the model alone, one thread: {1e3 * own:.1f} ms a list ({1e3 * cpu:.1f} ms of CPU), {1 / own:.0f} a second")
    process, port = started(given.run)
    try:
        asyncio.run(asked("127.0.0.1", port, [get(f"/recommend/{quote(u)}") for u in users[:200]]))
        began = time.perf_counter()
        found = asyncio.run(asked("127.0.0.1", port, [get(f"/recommend/{quote(u)}") for u in users]))
        spent = time.perf_counter() - began
        times = sorted(seconds for _, seconds in found)
        middle, late = (1e3 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
        print(f"{len(found):,} requests, {AT_ONCE} at a time: {len(found) / spent:.0f} a second, ", end="")
        print(f"median {middle:.0f} ms, p99 {late:.0f} ms; statuses {dict(Counter(s for s, _ in found))}")
        requests = [anything(rng, model.users, model.items) for _ in range(given.random)]
        found = asyncio.run(asked("127.0.0.1", port, requests))
        counts = Counter(status for status, _ in found)
        print(f"{len(found):,} random requests: {dict(sorted(counts.items()))}")
        sys.exit("something broke" if any(s >= 500 or s == 0 for s in counts) else 0)
    finally:
        process.terminate()
        process.wait(10)


if __name__ == "__main__":
    main()
