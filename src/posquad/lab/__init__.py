"""The upper floor: experiments, figures and reports built on the library."""
