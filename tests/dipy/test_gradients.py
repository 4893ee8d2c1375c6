"""Gradient tables of FSL: what is read, against DIPY, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from dipy.core.gradients import gradient_table
from dipy.reconst import dti

from posquad.dipy.gradients import GradientError, read_gradients

BVALS = np.array([0.0, 50.0, 51.0, 1000.0, 1000.0])
BVECS = np.array([[0, 0, 0], [3, 0, 0], [0.6, 0.8, 0], [0, 0, 1.005], [0.8, 0, -0.6]])


def written(folder, bvals=BVALS, bvecs=BVECS.T, delimiter=" "):
    """Files of these numbers, or of this text."""
    paths = folder / "a.bval", folder / "a.bvec"
    for path, content in zip(paths, (bvals, bvecs), strict=True):
        if isinstance(content, str):
            path.write_text(content)
        else:
            np.savetxt(path, np.atleast_2d(content), delimiter=delimiter)
    return *paths, len(BVALS)


@pytest.mark.parametrize("delimiter", [" ", "\t", ",", ", "])
@pytest.mark.parametrize("columns", [False, True])
def test_tables_are_read_as_dipy_reads_them(tmp_path, delimiter, columns):
    """Vectors in rows or columns; those of b up to 50 are zero, the others of length one."""
    bvecs = BVECS if columns else BVECS.T
    found = read_gradients(*written(tmp_path, bvecs=bvecs, delimiter=delimiter))
    unit = BVECS / np.maximum(np.linalg.norm(BVECS, axis=1), 1e-300)[:, None]
    unit[:2] = 0
    np.testing.assert_allclose(found.bvals, [0, 0, 51, 1000, 1000])
    np.testing.assert_allclose(found.bvecs, unit, rtol=1e-15)
    gtab = gradient_table(found.bvals, bvecs=found.bvecs, b0_threshold=50)
    np.testing.assert_allclose(found.design_matrix, dti.design_matrix(gtab), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bvals": BVALS[:-1]}, "a.bval: expected one b-value for each of the 5 volumes .* got 4"),
        ({"bvecs": BVECS[:4].T}, "a.bvec: expected one b-vector for each .* 3 rows of 4 numbers"),
        ({"bvals": -BVALS}, "b-values from 0 to 1e6 .* got -1000 to -?0"),
        ({"bvals": 1e4 * BVALS}, "b-values from 0 to 1e6 .* got 0 to 1e\\+07"),
        ({"bvals": "0 0 0 0 nan"}, "b-values from 0 to 1e6 .* got nan to nan"),
        ({"bvecs": 1.02 * BVECS.T}, "of length 1 .within 0.01.; got length 1.02 for volume 3"),
        ({"bvecs": np.nan * BVECS.T}, "of length 1 .within 0.01.; got length nan for volume 3"),
        ({"bvals": "0 1000 b 0 0"}, "a.bval: expected a text file of numbers; got could not conv"),
        ({"bvals": ""}, "a.bval: expected rows of equally many numbers; got none"),
        ({"bvecs": "1 2\n3\n"}, "a.bvec: expected rows of equally many numbers; got rows of diff"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, change, words):
    with pytest.raises(GradientError, match=words):
        read_gradients(*written(tmp_path, **change))


def test_a_file_that_is_not_there(tmp_path):
    bval, bvec, volumes = written(tmp_path)
    bvec.unlink()
    with pytest.raises(GradientError, match=r"a.bvec: .* numbers; got No such file or directory"):
        read_gradients(bval, bvec, volumes)
    bvec.write_bytes(b"\xff\xfe1 2")
    with pytest.raises(GradientError, match=r"a.bvec: .* got 'utf-8' codec can't decode"):
        read_gradients(bval, bvec, volumes)
