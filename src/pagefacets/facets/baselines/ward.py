"""Ward's hierarchical merging, in the three forms that go by that name.

| variant | what Ward is given | who does so |
|---|---|---|
| `"euclidean"` | the unit rows | textbooks, scikit-learn |
| `"colpali"` | the rows of 1 − D Dᵀ, each taken as a point in N dimensions | colpali-engine, Light-ColPali |
| `"condensed"` | the cosine distances 1 − D Dᵀ, taken as if Euclidean | PyLate, Sentence Transformers |

Their clusters differ. Two rows g of 1 − D Dᵀ are ‖D(d_i − d_j)‖ = ‖R(d_i − d_j)‖ apart, where D = QR, so the second
form needs p dimensions per row rather than N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import fastcluster
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster
from scipy.spatial.distance import pdist, squareform
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.facets.compressor import Compressor, Reduction, Rounding, one_of, whole_number
from pagefacets.facets.readout import cluster_means
from pagefacets.products import gram

__all__ = ["LightColPali", "Variant", "Ward", "WardMerge", "merge", "ward_labels", "ward_linkage"]

Variant: TypeAlias = Literal["euclidean", "colpali", "condensed"]


def ward_linkage(D: Float[Tensor, "N p"], variant: Variant = "euclidean") -> NDArray[np.float64]:
    """The dendrogram of unit rows, as SciPy writes it: N-1 merges, nearest first."""
    if D.shape[0] == 1:
        return np.empty((0, 4))
    rows = D.cpu()
    if variant == "condensed":
        distances = squareform((1.0 - gram(rows, rows)).clamp_(0.0, 2.0).double().numpy(), checks=False)
    else:
        points = rows.double()
        if variant == "colpali":
            points = points @ torch.linalg.qr(points, mode="r").R.mT
        distances = pdist(points.numpy())
    tree: NDArray[np.float64] = fastcluster.linkage(distances, method="ward", preserve_input=False)
    return tree


def ward_labels(tree: NDArray[np.float64], K: int) -> Int[Tensor, " N"]:
    """The cluster of every row, 0 to k-1, with k ≤ K: merges at equal distance are made together."""
    if K == 1:
        return torch.zeros(tree.shape[0] + 1, dtype=torch.long)
    return torch.from_numpy(fcluster(tree, K, criterion="maxclust").astype(np.int64) - 1)


def merge(
    D: Float[Tensor, "N p"], budgets: Sequence[int], variant: Variant, protected: int, *, normalize: bool
) -> list[Reduction]:
    """Each budget's cut of one dendrogram, after the `protected` first rows, which stand for themselves."""
    made = []
    trees: dict[int, NDArray[np.float64]] = {}
    for K in budgets:
        head = min(protected, K - 1)
        if head not in trees:
            trees[head] = ward_linkage(D[head:], variant)
        labels = ward_labels(trees[head], K - head).to(D.device)
        assignment = torch.cat([torch.arange(head, device=D.device), labels + head])
        made.append(Reduction(cluster_means(D, assignment, normalize=normalize), assignment))
    return made


@dataclass(frozen=True, kw_only=True)
class WardMerge(Compressor):
    """The mean of each cluster of Ward's method; one dendrogram serves every ratio.

    The `protected` first rows are kept as they are and count towards the budget, which always leaves one vector for
    the others. `normalize=False` stores plain means, which score lower the more a cluster is spread.
    """

    variant: Variant
    protected: int = 0
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("variant", self.variant, Variant)
        whole_number("protected", self.protected, 0)

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        return self._reduce_each(D, w, [K], pages[0])[0]

    def _reduce_each(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], budgets: Sequence[int], page: PageVectors
    ) -> list[Reduction]:
        return merge(D, budgets, self.variant, self.protected, normalize=self.normalize)


@final
@dataclass(frozen=True, kw_only=True)
class Ward(WardMerge):
    """Ward's method on the unit rows, as textbooks have it; other forms by `variant`."""

    name: ClassVar[str] = "ward"

    variant: Variant = "euclidean"


@final
@dataclass(frozen=True, kw_only=True)
class LightColPali(WardMerge):
    """Light-ColPali without its training, as colpali-engine pools: its form of Ward, max(1, ⌊rN⌋) unit means."""

    name: ClassVar[str] = "light-colpali"

    variant: Variant = "colpali"
    rounding: Rounding = "floor"
