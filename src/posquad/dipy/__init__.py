"""Positive diffusion tensors for DIPY: fit methods, standard errors, and whole volumes.

The fit methods have the signature that `dipy.reconst.dti.TensorModel(gtab, fit_method=...)` asks
for. They need no package beside those of posquad; the extra `posquad[dipy]` installs DIPY itself,
and nibabel for the command `posquad dti`.
"""

from posquad.dipy.methods import positive_ols as positive_ols
from posquad.dipy.methods import positive_rwls as positive_rwls
from posquad.dipy.methods import positive_wls as positive_wls
from posquad.dipy.tensors import Flag as Flag
from posquad.dipy.tensors import TensorFits as TensorFits
from posquad.dipy.tensors import fit_tensors as fit_tensors
from posquad.dipy.uncertainty import TensorErrors as TensorErrors
