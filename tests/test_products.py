"""Inner products: the fast kernel is the plain product, on every layout it is given."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefacets import products
from pagefacets.products import EXPONENT, affine, apply, best_column, exponential_, gram, one_thread


@pytest.fixture(autouse=True, params=["oneDNN", "MKL"], scope="module")
def kernel(request):
    """Both kernels, whichever this processor would choose."""
    found = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch._C._has_mkldnn else None
    if request.param == "oneDNN" and found is None:
        pytest.skip("this PyTorch has no oneDNN")
    chosen, products._onednn = products._onednn, found if request.param == "oneDNN" else None
    yield
    products._onednn = chosen


@given(seed=st.integers(0, 10**6), m=st.integers(1, 40), n=st.integers(1, 40), p=st.integers(1, 200))
def test_gram_is_the_product_to_float32(seed, m, n, p):
    generator = torch.Generator().manual_seed(seed)
    A, B = torch.randn(m, p, generator=generator), torch.randn(n, p, generator=generator)
    expected = A.double() @ B.double().T
    for left, right in ((A, B), (A.T.contiguous().T, B), (A, B.T.contiguous().T), (torch.cat([A, A])[::2][:m], B)):
        exact = left.double() @ right.double().T
        torch.testing.assert_close(gram(left, right).double(), exact, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(gram(A[None], B[None])[0].double(), expected, atol=1e-4, rtol=1e-5)


def test_apply_is_a_matrix_vector_product():
    A, x = torch.randn(3, 5, 7), torch.randn(3, 7)
    torch.testing.assert_close(apply(A, x), torch.einsum("bij,bj->bi", A, x))
    torch.testing.assert_close(apply(A[0], x[0]), A[0] @ x[0])


def test_the_best_column_is_the_first_of_the_largest():
    S = torch.tensor([[1.0, 5.0, 2.0], [3.0, 5.0, -1.0], [3.0, 0.0, 2.0]])
    assert best_column(S).tolist() == [1, 0, 0]
    assert best_column(S.expand(2, 3, 3)).tolist() == [[1, 0, 0]] * 2


def test_the_exponential_is_that_of_e():
    x = torch.linspace(-30, 30, 50)
    torch.testing.assert_close(exponential_(x * EXPONENT).double(), x.double().exp(), atol=0, rtol=1e-5)


def test_one_thread_puts_the_count_back_even_after_an_error():
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            with one_thread():
                assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("shape", [(1, 3, 2), (7, 384, 1152), (130, 33, 5)])
def test_a_layer_is_a_product_and_a_bias(shape):
    n, p, m = shape
    generator = torch.Generator().manual_seed(0)
    X, W, b = (torch.randn(*size, generator=generator) for size in ((n, p), (m, p), (m,)))
    expected = X.double() @ W.double().T + b.double()
    torch.testing.assert_close(affine(X, W, b).double(), expected, atol=1e-4, rtol=1e-5)
