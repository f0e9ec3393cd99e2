"""Algorithm 1 of the paper in float64 and the logarithmic domain, written as it reads: loops, no shortcuts."""

import numpy as np


def unit(rows):
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def demand(D, Q, tau):
    """Eq. selection-estimator, token by token."""
    w = np.zeros(len(D))
    for q in Q:
        scores = D @ q / tau
        scores = np.exp(scores - scores.max())
        w += scores / scores.sum()
    return w / len(Q)


def seeds(D, K, first):
    """Farthest-first by cosine; the lowest index among equals."""
    chosen = [first]
    nearest = np.full(len(D), -1.0)
    while len(chosen) < K:
        nearest = np.maximum(nearest, np.minimum(D @ D[chosen[-1]], 1 - 1e-6))
        nearest[chosen[-1]] = np.inf
        chosen.append(int(nearest.argmin()))
    return chosen


def lse(M, axis):
    top = M.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(M - top).sum(axis=axis)) + np.squeeze(top, axis)


def plan(F, D, a, epsilon, iterations, target="balanced"):
    """Eq. sinkhorn; returns T."""
    K = len(F)
    b = np.full(K, a.sum() / K)
    M = F @ D.T / epsilon
    with np.errstate(divide="ignore"):
        log_a, log_b = np.log(a), np.log(b)
    u, v = np.zeros(K), np.zeros(len(D))
    if target == "free":
        v = log_a - lse(M, 0)
    else:
        for _ in range(iterations):
            u = log_b - lse(M + v[None, :], 1)
            v = log_a - lse(M + u[:, None], 0)
    return np.exp(M + u[:, None] + v[None, :])


def magic(
    D,
    Q,
    K,
    *,
    tau=0.05,
    epsilon=0.05,
    outer=5,
    inner=5,
    eta=0.982,
    first_seed="medoid",
    source="demand",
    target="balanced",
    readout="lloyd",
    weights=None,
):
    """Facets, assignment, and by how much each row prefers its facet to the runner-up."""
    D = unit(D)
    N = len(D)
    if K == N:
        return D, np.arange(N), np.full(N, np.inf)
    if weights is not None:
        w = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    else:
        w = demand(D, unit(Q), tau) if source == "demand" else np.full(N, 1 / N)
    a = N * w
    first = {"medoid": int((D @ D.mean(0)).argmax()), "first": 0, "demand": int(w.argmax())}[first_seed]
    F = D[seeds(D, K, first)]
    for _ in range(outer):
        T = plan(F, D, a, epsilon, inner, target)
        W = T / T.sum(1, keepdims=True)
        F = unit((1 - eta) * F + eta * (W @ D))
    similarity = D @ F.T
    assignment = similarity.argmax(1)
    margin = np.diff(np.sort(similarity, axis=1)[:, -2:], axis=1)[:, 0] if K > 1 else np.full(N, np.inf)
    if readout == "transport":
        return F, assignment, margin
    out = F.copy()
    for k in range(K):
        total = np.zeros(D.shape[1])
        for j in range(N):
            if assignment[j] == k:
                total += a[j] * D[j]
        norm = np.linalg.norm(total)
        if norm >= 1e-8:
            out[k] = total / norm
    return out, assignment, margin
