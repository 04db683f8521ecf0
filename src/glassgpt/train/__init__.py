"""text -> weights, and `glassgpt.train(...)`, which does it all.

Read in this order: data/ (prepare, shards, loader), settings, objectives/, forward, step, optim, loop, then
checkpoint/, distributed/, report/ and trainer, which puts them together; layers/ and variants/ when needed.
"""

from glassgpt.callable_package import make_callable

make_callable(__name__, "trainer", "train")
