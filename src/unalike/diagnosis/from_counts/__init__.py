"""A diagnosis from the answers of clients, which count at home and send whole numbers: the form that a federation can have.

`run_diagnosis.py` makes the diagnosis of a run of the plan `diagnosis`, with the guarantee that noise gives, and
`histogram_distance.py` the feature skew from histograms. Imports `diagnosis` and everything below it. Start reading at
`run_diagnosis.py`.
"""
