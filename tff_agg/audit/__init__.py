"""Auditing: whether the running code leaks more than its plan claims.

Canary users take part like everyone else; an attacker who knows their updates guesses
from what is released which of them did. Too many right guesses refute the claim.

Example:
  taking = canaries.make_canaries(sizes, rounds, probes=128, seed=0)
  evidence = simulation.simulate(plan, server, taking, sizes, seed=(1, 2))
  findings.audit(plan, server, taking, evidence, threats.all_iterates()).summary()
"""
