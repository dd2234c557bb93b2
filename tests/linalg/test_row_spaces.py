"""Krylov spaces of rows: orthonormal bases, in which products have the coordinates kept."""

import torch

from shoal.linalg.row_spaces import RowSpaces


def test_products_are_combinations_of_the_basis():
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)
    spaces = RowSpaces(torch.randn(3, 6, generator=generator, dtype=torch.float64))
    for _ in range(4):
        spaces.add(torch.einsum("nij,nj->ni", matrices, spaces.basis[-1]))
    basis = torch.stack(spaces.basis, 2)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(5).double().expand(3, 5, 5))
    torch.testing.assert_close(matrices @ basis[:, :, :-1], basis @ spaces.coordinates)


def test_what_is_not_new_is_zero():
    start = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    spaces = RowSpaces(start)
    torch.testing.assert_close(spaces.basis[0], start / torch.tensor([[5.0], [1.0]]).double())
    lengths = spaces.add(2 * start)
    assert (lengths <= 1e-15).all()
    torch.testing.assert_close(spaces.coordinates[0, 0, 0], torch.tensor(10.0).double())
