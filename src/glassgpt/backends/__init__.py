"""Who computes: protocol.py says what the engine needs, choose.py picks a backend for this machine.

native/ is the C++ engine for CPUs, torch/ runs model/gpt2.py on any device, numpy.py works where there is
neither.
"""
