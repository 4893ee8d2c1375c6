"""Three phase diagrams as declared sweeps: `posquad sweep run ellipsoid`, and so on."""
