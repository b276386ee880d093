"""Counts and times of requests, as Prometheus reads them."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds
KNOWN = ("/recommend", "/batch", "/health", "/metrics", "/docs", "/openapi.json")


class Counts:
    """By path and status; paths that hold an id are counted together."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.times: Counter[float] = Counter()
        self.seconds = 0.0

    def add(self, path: str, status: int, seconds: float) -> None:
        """One request is answered."""
        name = next((known for known in KNOWN if path == known or path.startswith(known + "/")), "other")
        self.requests[name, status] += 1
        if name in ("/recommend", "/batch"):
            self.seconds += seconds
            self.times[next((b for b in BUCKETS if seconds <= b), float("inf"))] += 1

    def text(self, reloads: int) -> str:
        """All of it."""
        out = ["# HELP tacit_requests_total Requests by path and status.", "# TYPE tacit_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            out.append(f'tacit_requests_total{{path="{path}",status="{status}"}} {count}')
        out += ["# HELP tacit_recommend_seconds Time to a list.", "# TYPE tacit_recommend_seconds histogram"]
        below = 0
        for bound in BUCKETS:
            below += self.times[bound]
            out.append(f'tacit_recommend_seconds_bucket{{le="{bound:g}"}} {below}')
        total = sum(self.times.values())
        out += [
            f'tacit_recommend_seconds_bucket{{le="+Inf"}} {total}',
            f"tacit_recommend_seconds_sum {self.seconds:.6f}",
        ]
        out.append(f"tacit_recommend_seconds_count {total}")
        out += ["# HELP tacit_reloads_total Times the model was read again.", "# TYPE tacit_reloads_total counter"]
        return "\n".join([*out, f"tacit_reloads_total {reloads}"]) + "\n"


class Counted:
    """Counts every request that an application answers."""

    def __init__(self, app: Any, counts: Counts) -> None:
        self.app, self.counts = app, counts

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Hand on, and note status and time."""
        began, status = time.perf_counter(), 500

        async def sent(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sent)
        finally:
            if scope["type"] == "http":
                self.counts.add(scope["path"], status, time.perf_counter() - began)
