"""The six axes of control, one file each: pure functions over saved readouts; they need numpy alone.

Arguments are plain sequences of real numbers (lists, tuples, numpy arrays, pandas series) and results are Python
`float`, `int` and `bool`. Whatever is empty, of unequal length, non-finite, non-numeric or of the wrong shape raises
ValueError with the argument's name and the offending value. Verdicts are taken on unrounded values.
"""
