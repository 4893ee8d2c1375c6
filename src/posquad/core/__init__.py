"""What all other subpackages use: arrays, errors, results, files and small linear algebra."""
