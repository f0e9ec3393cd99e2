"""What the server counts, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import final

__all__ = ["Metrics"]

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@final
class Metrics:
    """Requests by route and status, how long they took, and gauges that are read when they are asked for."""

    def __init__(self) -> None:
        self.under_way = 0
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._gauges: list[tuple[str, str, str, Callable[[], float]]] = []

    def gauge(self, name: str, help: str, read: Callable[[], float], kind: str = "gauge") -> None:
        """Report what `read` returns under a name."""
        self._gauges.append((name, help, kind, read))

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one answer."""
        self._requests[route, method, status] += 1
        buckets = self._buckets.setdefault(route, [0] * (len(_BOUNDS) + 1))
        buckets[sum(seconds > bound for bound in _BOUNDS)] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]  # a Counter counts seconds as well

    def text(self) -> str:
        """All of it, as a scraper reads it."""
        lines = _head("pagefacets_requests_total", "counter", "Answers by route, method and status.")
        for (route, method, status), count in sorted(self._requests.items()):
            lines.append(f"pagefacets_requests_total{_labels(route=route, method=method, status=status)} {count}")
        lines += _head("pagefacets_errors_total", "counter", "Answers with a status of 500 or more, by route.")
        for route in sorted(self._buckets):
            failed = sum(count for (name, _, status), count in self._requests.items() if name == route and status > 499)
            lines.append(f"pagefacets_errors_total{_labels(route=route)} {failed}")
        name = "pagefacets_request_seconds"
        lines += _head(name, "histogram", "Seconds from the head of a request to the end of its answer.")
        for route, buckets in sorted(self._buckets.items()):
            for bound, count in zip((*_BOUNDS, "+Inf"), accumulate(buckets), strict=True):
                lines.append(f"{name}_bucket{_labels(route=route, le=bound)} {count}")
            lines.append(f"{name}_sum{_labels(route=route)} {self._seconds[route]:.6f}")
            lines.append(f"{name}_count{_labels(route=route)} {sum(buckets)}")
        lines += _head("pagefacets_requests_under_way", "gauge", "Requests that are being answered.")
        lines.append(f"pagefacets_requests_under_way {self.under_way}")
        for name, text, kind, read in self._gauges:
            lines += [*_head(name, kind, text), f"{name} {float(read())!r}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]


def _labels(**values: object) -> str:
    inside = ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items())
    return f"{{{inside}}}"
