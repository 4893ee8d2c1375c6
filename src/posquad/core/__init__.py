"""What every room stands on: arrays, errors, results, files and small linear algebra."""
