"""Speed, as ratios and CPU microseconds against floors measured in the same run; `make bench`
prints the table.
"""
