"""What a Python program and a Python task say to each other: functions, arguments and results,
packed here and unpacked here; and what a task may ask for while it runs.
"""
