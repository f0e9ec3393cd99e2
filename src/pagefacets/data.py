"""The nouns every room shares: pages and their words, page vectors, facets, hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pagefacets.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

__all__ = [
    "ArrayLike",
    "Facets",
    "Hit",
    "Page",
    "PageContent",
    "PageVectors",
    "Words",
    "as_matrix",
    "as_page",
    "as_tensor",
    "unit_rows",
]

ArrayLike: TypeAlias = "Tensor | NDArray[Any] | Sequence[Any]"


def as_tensor(values: object, what: str) -> Tensor:
    """A tensor over the caller's memory where that is possible; read-only arrays are copied, lists are float32."""
    if isinstance(values, PageVectors):
        return values.vectors
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} must be rows of equal length: {error}") from error
    if not hasattr(values, "dtype") and array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InputError(f"{what} must be numbers in a rectangular array, got dtype {array.dtype}")
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    if array.dtype.byteorder not in "=|":
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array)


def as_matrix(values: object, what: str = "vectors") -> Float[Tensor, "N p"]:
    """`values` as a floating-point matrix with at least one row and one column."""
    matrix = as_tensor(values, what)
    if matrix.ndim != 2:
        raise InputError(f"{what} must have two axes (rows, dimension), got shape {tuple(matrix.shape)}")
    if matrix.shape[0] == 0 or matrix.shape[1] == 0:
        raise InputError(f"{what} are empty (shape {tuple(matrix.shape)}): leave such a page out")
    if not matrix.dtype.is_floating_point:
        raise InputError(f"{what} must be floating point, got {matrix.dtype}: convert them to float16 or float32 first")
    return matrix


def unit_rows(vectors: Float[Tensor, "*B N p"]) -> tuple[Float[Tensor, "*B N p"], Bool[Tensor, "*B N"]]:
    """Rows in float32 divided by their norms, and which of them have a direction: not zero, NaN or infinite."""
    rows = vectors.float()
    norms = torch.linalg.vector_norm(rows, dim=-1)
    return rows / norms.unsqueeze(-1), (norms > 0) & (norms < torch.inf)


def _per_row(values: object | None, n: int, what: str, width: int | None = None) -> Tensor | None:
    if values is None:
        return None
    tensor = as_tensor(values, what)
    expected = (n,) if width is None else (n, width)
    if tuple(tensor.shape) != expected:
        raise InputError(f"{what} must have shape {expected} to match the page's {n} rows, got {tuple(tensor.shape)}")
    return tensor


def _rebuilt(kind: type[Any], values: dict[str, Any], bfloat16: tuple[str, ...]) -> object:
    made = object.__new__(kind)
    for name, value in values.items():
        tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        object.__setattr__(made, name, tensor.view(torch.bfloat16) if name in bfloat16 else tensor)
    return made


def _reduced(thing: PageVectors | Facets) -> tuple[Any, ...]:
    """How pages and facets travel between processes: as plain arrays, which cost a copy and nothing else."""
    values: dict[str, Any] = {}
    bfloat16 = []
    for one in fields(thing):
        value = getattr(thing, one.name)
        if isinstance(value, Tensor):
            value = value.cpu().contiguous()
            if value.dtype == torch.bfloat16:
                bfloat16.append(one.name)
                value = value.view(torch.int16)
            value = value.numpy()
        values[one.name] = value
    return _rebuilt, (type(thing), values, tuple(bfloat16))


@final
@dataclass(frozen=True, eq=False, repr=False)
class Words:
    """The words of a page in reading order; `boxes` are (left, top, right, bottom) in [0, 1], where they are known."""

    texts: tuple[str, ...]
    boxes: Float[np.ndarray, "W 4"] | None = None

    def __post_init__(self) -> None:
        if self.boxes is not None and self.boxes.shape != (len(self.texts), 4):
            raise InputError(f"boxes must have shape ({len(self.texts)}, 4), one per word, got {self.boxes.shape}")

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"Words({len(self)} words, boxes={self.boxes is not None})"

    @property
    def text(self) -> str:
        """The words with a space between them."""
        return " ".join(self.texts)


@runtime_checkable
class PageContent(Protocol):
    """How the content of one page is read, when it is asked for; it pickles as a path or an address."""

    def image(self, longest: int | None) -> Image:
        """The page as displayed, in RGB; its longer side has at most `longest` pixels where that is given."""
        ...

    def words(self) -> Words | None:
        """The words that the document itself holds, or None where it holds none (a scan)."""
        ...


@final
@dataclass(frozen=True, eq=False, repr=False)
class Page:
    """One page of a document: which it is, and how to read it.

    `id` is stable: the same page of the same document has the same id in every run. `source` names the document,
    `number` counts its pages from 0, `size` is (width, height) as displayed, in points or pixels, where known. `digest`
    is a hash of what the page was read from: a page with another digest has to be encoded again.
    """

    id: str
    source: str
    number: int
    size: tuple[float, float] | None
    digest: str
    content: PageContent

    def image(self, longest: int | None = None) -> Image:
        """The page as displayed, in RGB; its longer side has at most `longest` pixels where that is given."""
        return self.content.image(longest)

    def words(self) -> Words | None:
        """The words that the document itself holds, or None where it holds none (a scan)."""
        return self.content.words()

    def __repr__(self) -> str:
        return f"Page({self.id!r}, size={self.size})"


@final
@dataclass(frozen=True, eq=False, init=False, repr=False)
class PageVectors:
    """The vectors of one page, ragged and unpadded, with what is known about each row.

    `grid` is (columns, rows) of the patch grid, row-major over the rows that `image_mask` marks.
    `importance` is one weight per row (NaN where unknown), `boxes` are (left, top, right, bottom) in [0, 1].
    """

    vectors: Float[Tensor, "N p"]
    grid: tuple[int, int] | None
    image_mask: Bool[Tensor, " N"] | None
    importance: Float[Tensor, " N"] | None
    boxes: Float[Tensor, "N 4"] | None
    id: str | None

    def __init__(
        self,
        vectors: ArrayLike,
        grid: Sequence[int] | None = None,
        image_mask: ArrayLike | None = None,
        importance: ArrayLike | None = None,
        boxes: ArrayLike | None = None,
        id: str | None = None,
    ) -> None:
        matrix = as_matrix(vectors, "vectors" if id is None else f"vectors of page {id!r}")
        n = matrix.shape[0]
        mask = _per_row(image_mask, n, "image_mask")
        weights = _per_row(importance, n, "importance")
        corners = _per_row(boxes, n, "boxes", 4)
        cells = None
        if grid is not None:
            if len(grid) != 2 or min(grid) < 1:
                raise InputError(f"grid must be (columns, rows), two positive counts, got {tuple(grid)}")
            cells = (int(grid[0]), int(grid[1]))
            patches = n if mask is None else int(mask.sum())
            if cells[0] * cells[1] != patches:
                where = "rows" if mask is None else "rows that image_mask marks"
                raise InputError(f"grid {cells} has {cells[0] * cells[1]} cells but the page has {patches} {where}")
        values: dict[str, object] = {
            "vectors": matrix,
            "grid": cells,
            "image_mask": None if mask is None else mask.bool(),
            "importance": None if weights is None else weights.float(),
            "boxes": None if corners is None else corners.float(),
            "id": id,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def n(self) -> int:
        """How many vectors the page has."""
        return self.vectors.shape[0]

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    @property
    def nbytes(self) -> int:
        return self.vectors.numel() * self.vectors.element_size()

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        extras = [name for name in ("grid", "image_mask", "importance", "boxes") if getattr(self, name) is not None]
        return f"PageVectors(id={self.id!r}, n={self.n}, dim={self.dim}, {self.vectors.dtype}, has={extras})"

    __reduce__ = _reduced

    def to(self, device: str | torch.device) -> PageVectors:
        """The same page with every tensor on `device`."""
        return self._mapped(lambda tensor: tensor.to(device), grid=self.grid)

    def select(self, rows: Tensor) -> PageVectors:
        """The page reduced to `rows` (a mask or indices); the grid does not survive a selection of patches."""
        return self._mapped(lambda tensor: tensor[rows], grid=None)

    def _mapped(self, change: Callable[[Tensor], Tensor], *, grid: tuple[int, int] | None) -> PageVectors:
        return PageVectors(
            change(self.vectors),
            grid,
            None if self.image_mask is None else change(self.image_mask),
            None if self.importance is None else change(self.importance),
            None if self.boxes is None else change(self.boxes),
            self.id,
        )


def as_page(page: PageVectors | ArrayLike) -> PageVectors:
    """A bare matrix as a page; a page as it is."""
    return page if isinstance(page, PageVectors) else PageVectors(page)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Facets:
    """What is stored of a page: K vectors, and where each came from.

    `assignment[j]` is the facet that stands for source row j, or -1 where row j was dropped. `demand` is the
    weight each source row had (sums to 1), `plan` the row-normalised transport plan where it was asked for, and
    `offset` a number added once per query token at scoring.
    """

    vectors: Float[Tensor, "K p"]
    assignment: Int[Tensor, " N"]
    demand: Float[Tensor, " N"] | None = None
    plan: Float[Tensor, "K N"] | None = None
    offset: float | None = None
    id: str | None = None
    method: str | None = None

    @property
    def k(self) -> int:
        """How many vectors are kept: the realised budget."""
        return self.vectors.shape[0]

    @property
    def n(self) -> int:
        """How many vectors the page had."""
        return self.assignment.shape[0]

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    @property
    def ratio(self) -> float:
        return self.k / self.n

    @property
    def nbytes(self) -> int:
        """Bytes of the stored vectors, and of the offset where there is one."""
        return self.vectors.numel() * self.vectors.element_size() + (0 if self.offset is None else 4)

    def __len__(self) -> int:
        return self.k

    def __repr__(self) -> str:
        return f"Facets(id={self.id!r}, k={self.k}, n={self.n}, dim={self.dim}, method={self.method!r})"

    def members(self, facet: int) -> Int[Tensor, " M"]:
        """The source rows that facet `facet` stands for."""
        return torch.nonzero(self.assignment == self._index(facet)).flatten()

    def evidence(
        self, facet: int, *, weights: Literal["assignment", "transport"] = "assignment"
    ) -> Float[Tensor, " N"]:
        """How much each source row contributes to a facet, summing to 1 (all zero for a facet without members).

        "assignment" takes the hard members weighted by demand, "transport" the facet's row of the plan.
        """
        index = self._index(facet)
        if weights == "transport":
            if self.plan is None:
                raise InputError("these facets carry no transport plan: compress with keep_plan=True to get it")
            return self.plan[index]
        mass = self.demand if self.demand is not None else torch.ones(self.n, device=self.assignment.device)
        held = torch.where(self.assignment == index, mass, torch.zeros_like(mass))
        total = held.sum()
        return torch.where(total > 0, held / total.clamp_min(torch.finfo(held.dtype).tiny), held)

    __reduce__ = _reduced

    def to(self, device: str | torch.device) -> Facets:
        """The same facets with every tensor on `device`."""
        return replace(
            self,
            vectors=self.vectors.to(device),
            assignment=self.assignment.to(device),
            demand=None if self.demand is None else self.demand.to(device),
            plan=None if self.plan is None else self.plan.to(device),
        )

    def _index(self, facet: int) -> int:
        if not -self.k <= facet < self.k:
            raise InputError(f"there is no facet {facet}: this page has {self.k}, counted from 0")
        return facet % self.k


@final
@dataclass(frozen=True)
class Hit:
    """One answer: a page, its score, and its place in the ranking counted from 1.

    Of an index it also tells the document and the page's number in it, and `explain()` says why it was found.
    """

    score: float
    page: str
    rank: int
    source: str | None = None
    number: int | None = None
    reason: Callable[[], Any] | None = field(default=None, repr=False, compare=False)

    def explain(self) -> Any:
        """The evidence: which facet each query token chose, and the places on the page behind it."""
        if self.reason is None:
            raise InputError("this hit was ranked among vectors at hand: search an index to have its evidence")
        return self.reason()

    def boxes(self) -> Any:
        """The places on the page that made it a hit, each with its weight."""
        return self.explain().boxes()

    def heatmap(self) -> Any:
        """A picture of the page with those places drawn on it; it has `save`."""
        return self.explain().heatmap()
