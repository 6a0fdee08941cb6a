"""The log: its schema, writer and reader; exports, analysis and differences are made from it alone.

Process: terminal and simulator.
"""
