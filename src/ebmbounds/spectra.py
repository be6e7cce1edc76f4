"""The Jacobian J of a generator g at z, as linear algebra that never forms it where it need not.

g is any callable that maps (n, d) to (n, ...) row by row: sample i of the output depends on sample i of the
input alone. (A network with batch norm qualifies in eval mode only: in train mode its samples are coupled.)
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ebmbounds.errors import BadInput

Generator = Callable[[Tensor], Tensor]
COLUMNS = 16
"""Of J, so many are taken at once; memory grows with it, and with more it was no faster."""
FUSED = 8
"""Up to so many latent dimensions Gram-Schmidt is written out, for a compiler to fuse; above, Cholesky is faster."""


def linearize(g: Generator, z: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """g(z), and its Jacobian as two linear maps: v -> J v and u -> J^T u.

    J v is the transpose of the linear map u -> J^T u, taken by reverse mode once more. Unlike forward mode this
    shares one evaluation of g, leaves no storage-less zero tangents for a compiler to trip over, and accepts
    every layer that can be differentiated twice. A compiler removes the unused product with zero.
    """
    y, pull = torch.func.vjp(g, z)[:2]
    push = torch.func.vjp(lambda u: pull(u)[0], torch.zeros_like(y))[1]
    return y, lambda v: push(v)[0], lambda u: pull(u)[0]


def jvp(g: Generator, z: Tensor, v: Tensor) -> Tensor:
    """J v: the directional derivative of g at z (n, d) along v (n, d), in the shape of g(z)."""
    return linearize(g, z)[1](v)


def vjp(g: Generator, z: Tensor, u: Tensor) -> Tensor:
    """J^T u: (n, d), for u in the shape of g(z)."""
    return linearize(g, z)[2](u)


def smallest_singular_value(
    g: Generator, z: Tensor, steps: int, start: Tensor | None = None, preconditioner_steps: int = 4
) -> tuple[Tensor, Tensor]:
    """The smallest singular value of J and its direction, by single-vector LOBPCG (Section 3 of the paper).

    Returns s (n,) and unit vectors v (n, d) with s = |J v|. Each step takes 1 + preconditioner_steps products with
    J^T J, and a J v more unless that is 0, which gives the paper's method. The estimate is never below the true value
    and never rises with more steps. s is differentiable with respect to z and to whatever g closes over, the direction
    held constant: at the minimum that is the whole gradient.
    """
    start = torch.randn_like(z) if start is None else start
    v = lobpcg(g, z, steps, start, preconditioner_steps)
    return _norm(jvp(g, z, v))[:, 0], v


def lobpcg(g: Generator, z: Tensor, steps: int, start: Tensor, preconditioner_steps: int = 0) -> Tensor:
    """The direction v (n, d) that LOBPCG reaches after some steps from a start (n, d): it minimises the
    Rayleigh quotient |J v|^2 / |v|^2 (Eq. 16) over the span of v, its residual and the previous direction.

    A step takes one J v and one J^T u. The steps of a preconditioner, each as many again (and one J v for them all),
    are conjugate gradients, from the residual towards (J^T J - shift)^-1 residual with a shift just below s_1^2."""
    with torch.no_grad():
        z = z.detach()
        y, push, pull = linearize(g, z)
        scale = 1 / _norm(start)
        v, Jv = start.detach() * scale, push(start.detach()).flatten(1) * scale
        previous: tuple[Tensor, Tensor] | None = None
        for _ in range(steps):
            rho = _dot(Jv, Jv)
            residual = pull(Jv.reshape(y.shape)) - rho * v  # J^T J v - rho v, Eq. 17
            # A converged residual is rounding noise. Normalised, it would feed a rounding error in the image of q below
            # that grows from step to step, so a sample that has converged rests.
            w, w_ok = _unit(_reject(_reject(residual, v), v), _slack(v) * rho)
            if preconditioner_steps:
                # J^T J has an eigenvalue within |residual| of rho: near the end s_1^2, so that the shift is just below.
                shift = (rho - _norm(residual)).clamp(min=0)
                x = _conjugate_gradients(lambda p: pull(push(p)), shift, w, preconditioner_steps)
                x, x_ok = _unit(_reject(_reject(x, v), v), _slack(v) * _norm(x))
                w = torch.where(x_ok, x, w)  # where x overflows or all but equals v, the residual will do
            Jw = push(w).flatten(1)
            basis, images, ok = [w], [Jw], [w_ok]
            if previous is not None and z.shape[1] > 2:  # v and w span everything where d = 2
                p, Jp = previous
                pv, pw = _dot(p, v), _dot(p, w)
                q, Jq = p - pv * v - pw * w, Jp - pv * Jv - pw * Jw  # the image follows by linearity
                q_ok = w_ok & (_norm(q) > _slack(p) * _norm(p))
                scale = torch.where(q_ok, 1 / torch.where(q_ok, _norm(q), 1), 0)
                basis, images, ok = [w, q * scale], [Jw, Jq * scale], [w_ok, q_ok]

            c, *rest = _smallest_ritz_vector([Jv, *images], ok)
            p, Jp = _combine(rest, basis), _combine(rest, images)
            new, Jnew = c * v + p, c * Jv + Jp
            scale = 1 / _norm(new)
            new, Jnew = new * scale, Jnew * scale
            if preconditioner_steps:
                Jnew = push(new).flatten(1)  # little is left of p beside v and w: by linearity, rounding would add up
            better = _dot(Jnew, Jnew) <= rho  # else rounding has the last word: keep v
            v, Jv = torch.where(better, new, v), torch.where(better, Jnew, Jv)
            previous = p, Jp
        return v


def _conjugate_gradients(gram: Callable[[Tensor], Tensor], shift: Tensor, b: Tensor, steps: int) -> Tensor:
    """x (n, d), by some steps from zero towards A x = b, A = J^T J - shift, where gram(p) = J^T J p; row by row.

    A row ends at a direction p with p^T A p < 0, and p is its answer: that means |J p|^2 < shift |p|^2, a Rayleigh
    quotient below the one that is to be improved. A solved row rests."""
    x, r, p, rr = torch.zeros_like(b), b, b, _dot(b, b)
    for _ in range(steps):
        Ap = gram(p) - shift * p
        curvature = _dot(p, Ap)
        ok = (curvature > 0) & (rr > 0)
        alpha = torch.where(ok, rr / torch.where(ok, curvature, 1), 0)
        x, r = torch.where(curvature < 0, p, x + alpha * p), r - alpha * Ap
        rr, last = _dot(r, r), rr
        p = torch.where(ok, r + rr / torch.where(ok, last, 1) * p, p)
    return x


def _smallest_ritz_vector(images: list[Tensor], ok: list[Tensor]) -> list[Tensor]:
    """Coefficients, columns (n, 1), of the combination with the smallest |J v|, given the images (n, D) of an
    orthonormal basis of two or three. A vector that is not ok (converged or dependent) is left out."""
    k = len(images)
    a = [[_dot(images[min(i, j)], images[max(i, j)]) for j in range(k)] for i in range(k)]
    for i in range(1, k):
        # A missing vector gets no coupling and a value above the first one's, so that it is never chosen.
        for j in range(k):
            a[i][j] = a[j][i] = torch.where(ok[i - 1], a[i][j], 2 * a[0][0] + 1 if i == j else 0)
    values, vectors = _symmetric_eigen(a)
    least, chosen = values[0], [row[0] for row in vectors]
    for i in range(1, k):
        # By order, not by equality with the minimum: compiled code may compute a value twice, and round it differently.
        smaller = values[i] < least
        least = torch.where(smaller, values[i], least)
        chosen = [torch.where(smaller, row[i], c) for row, c in zip(vectors, chosen, strict=True)]
    return chosen


def _symmetric_eigen(a: list[list[Tensor]]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Eigenvalues and eigenvectors of symmetric 2x2 or 3x3 matrices by cyclic Jacobi rotations, entry by entry,
    so that a compiler fuses them and nothing waits for the host. vectors[i][k] is entry i of eigenvector k."""
    k = len(a)
    pairs, sweeps = ([(0, 1)], 1) if k == 2 else ([(0, 1), (0, 2), (1, 2)], 4)
    one, zero = torch.ones_like(a[0][0]), torch.zeros_like(a[0][0])
    u = [[one if i == j else zero for j in range(k)] for i in range(k)]
    for p, q in pairs * sweeps:
        off = a[p][q]
        nonzero = off != 0
        theta = (a[q][q] - a[p][p]) / (2 * torch.where(nonzero, off, 1))
        sign = torch.where(theta >= 0, one, -one)
        t = torch.where(nonzero, sign / (theta.abs() + torch.sqrt(theta * theta + 1)), 0)
        c = torch.rsqrt(t * t + 1)
        s = t * c
        a[p][p], a[q][q] = a[p][p] - t * off, a[q][q] + t * off
        a[p][q] = a[q][p] = zero
        for r in set(range(k)) - {p, q}:
            rp, rq = a[r][p], a[r][q]
            a[r][p] = a[p][r] = c * rp - s * rq
            a[r][q] = a[q][r] = s * rp + c * rq
        for row in u:
            row[p], row[q] = c * row[p] - s * row[q], s * row[p] + c * row[q]
    return [a[i][i] for i in range(k)], u


def _combine(coefficients: list[Tensor], vectors: list[Tensor]) -> Tensor:
    total = coefficients[0] * vectors[0]
    for c, v in zip(coefficients[1:], vectors[1:], strict=True):
        total = total + c * v
    return total


def jacobian(g: Generator, z: Tensor) -> Tensor:
    """J itself, (n, D, d), some columns at a time."""
    n, d = z.shape
    _, push, _ = linearize(g, z)
    basis = torch.eye(d, dtype=z.dtype, device=z.device)[:, None].expand(d, n, d)
    return torch.func.vmap(push, chunk_size=COLUMNS)(basis).flatten(2).permute(1, 2, 0)


def singular_values(g: Generator, z: Tensor) -> Tensor:
    """All singular values of J, (n, d), smallest first. Exact; for evaluation, not for training."""
    return torch.linalg.svdvals(jacobian(g, z)).flip(1)


def half_logdet(g: Generator, z: Tensor) -> Tensor:
    """Half log det J^T J, (n,): the log-volume that g gives to a unit cube at z. Exact and differentiable, with the
    precision of J itself, which a determinant of J^T J would square away."""
    J = jacobian(g, z)
    _, D, d = J.shape
    if d > D:
        raise BadInput(f"a map from {d} dimensions to {D} has no volume: use at most {D} latent dimensions.")
    if d > FUSED:
        return _log_volume(J)
    columns = list(J.unbind(2))
    total = torch.zeros_like(z[:, 0])
    for i, column in enumerate(columns):
        size = _norm(column)
        total = total + torch.log(size[:, 0])
        for j in range(i + 1, len(columns)):
            columns[j] = _reject(columns[j], column / size)
    return total


def _log_volume(J: Tensor) -> Tensor:
    """Half log det J^T J, (n,), by Cholesky factors twice, which unlike QR never wait for the host. Any L has
    log vol J = log det L + log vol Q with Q = J L^-T; a factor of J^T J makes Q well conditioned, so that for the
    second one, whose rounding errors count, squaring loses nothing. L is a constant: what it is leaves no trace."""
    J64 = J.double()
    with torch.no_grad():
        L = _gram_factor(J64)
    Q = torch.linalg.solve_triangular(L.mT, J64, upper=True, left=False)
    diagonals = L.diagonal(dim1=1, dim2=2) * _gram_factor(Q).diagonal(dim1=1, dim2=2)
    return diagonals.log().sum(1).to(J.dtype)


def _gram_factor(A: Tensor) -> Tensor:
    """The Cholesky factor of A^T A, raised by its rounding error so that there is one."""
    gram = A.mT @ A
    shift = torch.finfo(A.dtype).eps * gram.diagonal(dim1=1, dim2=2).sum(1)
    identity = torch.eye(A.shape[2], dtype=A.dtype, device=A.device)
    return torch.linalg.cholesky_ex(gram + shift[:, None, None] * identity).L


def hutchinson_half_logdet(g: Generator, z: Tensor, probes: Tensor) -> Tensor:
    """(d/2) log(E|J v|^2 / d), (n,), from probes (k, n, d): by the inequality of arithmetic and geometric means
    an upper bound of half log det J^T J, in expectation over the probes' directions."""
    d = z.shape[1]
    _, push, _ = linearize(g, z)
    mean_square = torch.stack([push(v).flatten(1).square().sum(1) for v in probes]).mean(0)
    return d / 2 * torch.log(mean_square / d)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1, keepdim=True)


def _norm(a: Tensor) -> Tensor:
    return a.flatten(1).square().sum(1, keepdim=True).sqrt()


def _slack(a: Tensor) -> float:
    """Below this share of its size, what orthogonalisation leaves of a vector is rounding noise."""
    return torch.finfo(a.dtype).eps ** 0.5


def _reject(a: Tensor, unit: Tensor) -> Tensor:
    """What is left of a without its part along a unit vector."""
    return a - _dot(a, unit) * unit


def _unit(a: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """a / |a|, and whether |a| is above `least` (else zero)."""
    size = _norm(a)
    ok = size > least
    return a * torch.where(ok, 1 / torch.where(ok, size, 1), 0), ok
